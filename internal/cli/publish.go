package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"service/internal/apply"
	"service/internal/certs"
	"service/internal/terminal"
	"service/webhook"
)

type publishCmd struct {
	File      string `arg:"" optional:"" help:"Events, one JSON object per line (NDJSON). Default, and for -: stdin."`
	URL       string `name:"url" default:"https://127.0.0.1:8443" placeholder:"URL" help:"Base URL of the API."`
	Token     string `env:"SERVICE_TOKEN" placeholder:"TOKEN" help:"Access token with the scope events.write. Prefer --token-file: other users can see command lines."`
	TokenFile string `env:"SERVICE_TOKEN_FILE" placeholder:"FILE" help:"File with the token."`
	CA        string `name:"ca" placeholder:"FILE" help:"PEM file of certificates to trust instead of the system's, such as the server's ca.pem."`
	StableIDs bool   `name:"stable-ids" help:"Derive missing event ids from file path, line number and text: publishing the same file again then adds nothing."`
	RetryFor  string `default:"5m" placeholder:"D" help:"Time to keep retrying while the server is unreachable or busy."`
}

func (c *publishCmd) Run(ctx context.Context, std Streams) error {
	var f configErrors
	p := publisher{
		api:      apiConn{base: f.apiURL("url", c.URL)},
		retryFor: f.duration("retry-for", c.RetryFor, 0, 24*time.Hour),
		minWait:  500 * time.Millisecond,
		maxWait:  30 * time.Second,
		progress: terminal.NewProgress(std.Err),
	}
	token, err := secret("token", c.Token, c.TokenFile)
	if err != nil {
		return err
	}
	if token == "" {
		f.add("token", "is required: an access token with the scope %s", webhook.ScopeEventsWrite)
	}
	if c.StableIDs && (c.File == "" || c.File == "-") {
		f.add("stable-ids", "needs a file: it derives ids from the path, and stdin has none")
	}
	if err := f.err(); err != nil {
		return err
	}
	if c.StableIDs {
		if p.stableIDs, err = filepath.Abs(c.File); err != nil {
			return err
		}
	}
	client, err := apiClient(c.CA)
	if err != nil {
		return err
	}
	p.api.send, p.api.token = client.Do, token

	in := std.In
	if c.File != "" && c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	} else {
		in = interruptible(ctx, in)
	}
	err = p.publish(ctx, in)
	p.progress.End()
	note := p.repeatNote()
	if err != nil {
		if note != "" {
			note = "; " + note
		}
		return fmt.Errorf("%w; %s accepted%s", err, webhook.Count(p.tally.accepted, "event"), note)
	}
	fmt.Fprintf(std.Out, "%s\n", p.tally)
	if note != "" {
		fmt.Fprintf(std.Err, "%s\n", spelled(note, commandName()))
	}
	return nil
}

// apiURL parses the base URL of an API, and returns it without a trailing slash.
func (f *configErrors) apiURL(flag, s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http",
		u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		f.add(flag, "must be a base URL such as https://127.0.0.1:8443")
		return ""
	case u.Scheme == "http" && !onLoopback(u.Hostname()):
		f.add(flag, "must begin with https:// because http:// would send the token unencrypted; http:// is allowed for localhost only")
	}
	return strings.TrimSuffix(strings.TrimSuffix(s, "/"), "/v2")
}

// apiConn sends requests to the API.
type apiConn struct {
	send    func(*http.Request) (*http.Response, error)
	base    string // base URL without a trailing slash; "" for the admin socket
	token   string // "" for the admin socket
	program string // to act in; "" for the token's own
}

// open sends a request with the headers that are not empty. The caller must close the body of the
// response.
func (a *apiConn) open(ctx context.Context, method, path string, headers map[string]string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, err
	}
	for name, value := range headers {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	if a.program != "" {
		req.Header.Set("X-Program-Id", a.program)
	}
	resp, err := a.send(req)
	if err != nil {
		return nil, transportError(ctx, err)
	}
	return resp, nil
}

// do sends a request and returns the response with its body. mediaType is that of body, "" for none.
func (a *apiConn) do(ctx context.Context, method, path, mediaType string, body io.Reader) (*http.Response, []byte, error) {
	resp, err := a.open(ctx, method, path, map[string]string{"Content-Type": mediaType}, body)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAPIResponse))
	if err != nil {
		return nil, nil, transportError(ctx, err)
	}
	return resp, text, nil
}

// call is do for a response that must have the status want. It returns the body.
func (a *apiConn) call(ctx context.Context, method, path, mediaType string, body io.Reader, want int) ([]byte, error) {
	resp, text, err := a.do(ctx, method, path, mediaType, body)
	if err != nil || resp.StatusCode == want {
		return text, err
	}
	problem, err := apply.ReadError(resp, text)
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("the server responded %s: %w", resp.Status, problem)
}

// apiClient returns a client for the service's API. It trusts the certificates in the PEM
// file caFile, if set, instead of the system's.
func apiClient(caFile string) (*http.Client, error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		IdleConnTimeout:       time.Minute,
		ForceAttemptHTTP2:     true,
	}
	if caFile != "" {
		pool, err := certs.ReadPool(caFile)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	}
	return &http.Client{
		Transport: t,
		// Do not follow redirects: the token is only for this server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// interruptible returns a reader of r that fails once ctx ends. A read of a terminal or a pipe
// cannot be cancelled, so its goroutine may live until the process ends.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	pr, pw := io.Pipe()
	go func() {
		// The wrappers hide WriteTo and ReadFrom, so that the copy uses the buffer.
		_, err := io.CopyBuffer(struct{ io.Writer }{pw}, struct{ io.Reader }{r}, make([]byte, maxChunkBytes))
		pw.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { pr.CloseWithError(ctx.Err()) })
	return pr
}

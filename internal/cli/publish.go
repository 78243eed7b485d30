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

	"service/internal/certs"
	"service/internal/terminal"
	"service/webhook"
)

type publishCmd struct {
	File      string `arg:"" optional:"" help:"The events, one JSON object a line (NDJSON); - or nothing is stdin."`
	URL       string `name:"url" default:"https://127.0.0.1:8443" placeholder:"URL" help:"The base URL of the API."`
	Token     string `env:"SERVICE_TOKEN" placeholder:"TOKEN" help:"An access token with the scope events.write. A command line can be seen by others on this machine: --token-file or the environment cannot."`
	TokenFile string `env:"SERVICE_TOKEN_FILE" placeholder:"FILE" help:"A file that holds the token."`
	CA        string `name:"ca" placeholder:"FILE" help:"Trust the certificates of this PEM file too, such as ca.pem in the data directory of the server."`
	StableIDs bool   `name:"stable-ids" help:"Derive the id of an event without one from the file's path, the number of its line and its text, so that publishing the file again adds nothing. Use another file name for other events."`
	RetryFor  string `default:"5m" placeholder:"D" help:"How long to try again when the server cannot be reached or is busy."`
}

func (c *publishCmd) Run(ctx context.Context, std Streams) error {
	var f configErrors
	p := publisher{
		url:      f.apiURL("url", c.URL, "/v2/events"),
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
		f.add("stable-ids", "needs a file: the ids are derived from its path and its lines, and stdin has no path")
	}
	if err := f.err(); err != nil {
		return err
	}
	if c.StableIDs {
		if p.stableIDs, err = filepath.Abs(c.File); err != nil {
			return err
		}
	}
	p.token = token
	if p.client, err = apiClient(c.CA); err != nil {
		return err
	}

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
	note := p.repetition()
	if err != nil {
		if note != "" {
			note = "; " + note
		}
		return fmt.Errorf("%w; %s accepted%s", err, webhook.Count(p.tally.accepted, "event"), note)
	}
	fmt.Fprintf(std.Out, "%s\n", p.tally)
	if note != "" {
		fmt.Fprintf(std.Err, "%s\n", spelled(note, ownName()))
	}
	return nil
}

// apiURL reads the base URL of an API and returns the URL of a path of it.
func (f *configErrors) apiURL(flag, s, path string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		f.add(flag, "must be a base URL such as https://127.0.0.1:8443")
		return ""
	case u.Scheme == "http" && !onLoopback(u.Hostname()):
		f.add(flag, "must begin with https://, since the token would travel unencrypted; http:// is for this machine alone")
	}
	return strings.TrimSuffix(strings.TrimSuffix(s, "/"), "/v2") + path
}

// apiClient returns the client of the service's own API. A PEM file of further
// certificates to trust may be named.
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
		// The token is for this server, not for another it may point to.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// interruptible returns a reader of r that ends with ctx. A read of a terminal
// or a pipe cannot be called off: the goroutine that waits in one is left to
// the end of the process.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	pr, pw := io.Pipe()
	go func() {
		// Without its other methods r is copied in pieces as large as the buffer.
		_, err := io.CopyBuffer(struct{ io.Writer }{pw}, struct{ io.Reader }{r}, make([]byte, maxChunkBytes))
		pw.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { pr.CloseWithError(ctx.Err()) })
	return pr
}

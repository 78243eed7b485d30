package move

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"service/internal/archive"
	"service/store"
	"service/webhook"
)

// remote is the other installation from the source's point of view.
type remote struct {
	to       store.MoveTarget // with the base URL
	http     *http.Client
	unusable error // the error of every request
}

// connect returns the installation at a target. It opens no connection.
func (s *Source) connect(to *store.MoveTarget) (*remote, error) {
	far := &remote{to: *to}
	var err error
	if far.to.URL, err = parseURL(to.URL); err != nil {
		return nil, err
	}
	dial := s.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	}
	t := &http.Transport{
		DialContext:         dial,
		TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if to.CA != "" {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(to.CA)) {
			return nil, webhook.NewError(webhook.CodeInvalid, "The CA file has no certificate in PEM.")
		}
	}
	far.http = &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return far, nil
}

// parseURL returns the base URL of an installation without a trailing slash.
func parseURL(text string) (string, error) {
	u, err := url.Parse(text)
	problem := ""
	switch {
	case err != nil || u.Scheme == "" || u.Host == "" && u.Opaque == "":
		problem = "be the base URL of an installation, such as https://hooks-2.example.com"
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		problem = "use https: the program has secrets (http is for loopback addresses)"
	case u.Hostname() == "":
		problem = "have a host, such as https://hooks-2.example.com"
	case u.User != nil: // the URL is logged and shown
		problem = "have no user name and no password: the token of --token-file is enough"
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "#"):
		problem = "have no query and no fragment"
	}
	if problem != "" {
		return "", webhook.NewError(webhook.CodeInvalid, "--to must "+problem+".")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

func (r *remote) path(programID, rest string) string {
	return r.to.URL + "/v2/programs/" + url.PathEscape(programID) + "/move" + rest
}

// state returns the state of a program at the other installation.
func (r *remote) state(ctx context.Context, programID string) (y webhook.MoveState, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return y, r.call(ctx, http.MethodGet, r.path(programID, ""), nil, &y)
}

// upload sends a part of a program.
func (r *remote) upload(ctx context.Context, path string, part *archive.ProgramSource) error {
	in, out := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := part.Send(out)
		sent <- err
		out.CloseWithError(err)
	}()
	err := r.call(ctx, http.MethodPut, path, in, nil)
	in.CloseWithError(context.Canceled)
	if failed := <-sent; err == nil && failed != nil {
		err = failed
	}
	return err
}

// call sends a request. If the other installation refuses it, the error is a *webhook.Error.
func (r *remote) call(ctx context.Context, method, path string, body io.Reader, result any) error {
	if r.unusable != nil {
		return r.unusable
	}
	req, err := http.NewRequestWithContext(ctx, method, path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.to.Token)
	if body != nil {
		req.Header.Set("Content-Type", "application/x-tar")
	}
	resp, err := r.http.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err
		}
		return fmt.Errorf("%s cannot be reached: %w", r.to.URL, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", r.to.URL, err)
	}
	if resp.StatusCode/100 == 2 {
		var data struct{ Data json.RawMessage }
		if result == nil {
			return nil
		}
		if err = json.Unmarshal(text, &data); err == nil {
			err = json.Unmarshal(data.Data, result)
		}
		return err
	}
	return r.refused(resp, text)
}

// refused returns the error of a response.
func (r *remote) refused(resp *http.Response, text []byte) error {
	var body struct{ Error struct{ Detail string } }
	detail := resp.Status
	if json.Unmarshal(text, &body) == nil && body.Error.Detail != "" {
		detail = body.Error.Detail
	}
	code, hint := webhook.CodeConflict, ""
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		hint = " Create one there with: service token create --scope platform --user ID"
	case http.StatusForbidden:
		hint = " A platform token is needed."
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		hint = " Check that the URL is that of an installation of this service."
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusBadGateway:
		code = webhook.CodeUnavailable
	}
	return webhook.NewError(code, r.to.URL+" refused the request: "+detail+hint)
}

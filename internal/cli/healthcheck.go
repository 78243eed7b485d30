package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"service/internal/certs"
	"service/internal/control"
	"service/internal/server"
)

type healthcheckCmd struct {
	serveFlags
	Timeout string `default:"5s" env:"-" placeholder:"D" help:"Time limit for the response."`
}

// Run asks the configured listener whether the service is ready. Docker's HEALTHCHECK uses it: it
// takes the settings of serve and prints one line.
func (c *healthcheckCmd) Run(ctx context.Context, std Streams) error {
	var f configErrors
	timeout := f.duration("timeout", c.Timeout, time.Millisecond, time.Minute)
	s, err := c.settings(io.Discard)
	if err != nil {
		return err
	}
	if _, port, _ := net.SplitHostPort(s.Listen); port == "0" || port == "" {
		f.add("listen", "must have the server's port, not %q", s.Listen)
	}
	if err := f.err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := askReady(ctx, s); err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.Out, "ready")
	return err
}

// askReady requests /readyz from the configured listener. It returns nil if the service is
// ready.
func askReady(ctx context.Context, s *server.Config) error {
	t := &http.Transport{DisableKeepAlives: true}
	scheme := "http"
	if s.TLS {
		scheme = "https"
		path := filepath.Join(s.Dir, certs.CAFile)
		pool, err := certs.ReadPool(path)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s does not exist: the service has not run on %s yet", path, s.Dir)
		} else if err != nil {
			return err
		}
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: certs.LocalName}
	}
	readyURL := scheme + "://" + localAddress(s.Listen) + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, readyURL, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s did not respond in time", readyURL)
		}
		return fmt.Errorf("%s did not respond: %w", readyURL, control.WithoutURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	var response struct {
		Error struct {
			Detail string `json:"detail"`
		} `json:"error"`
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAPIResponse))
	if err != nil {
		return err
	}
	json.Unmarshal(b, &response) // the status is enough if this fails
	return fmt.Errorf("not ready: %s responded %s %s", readyURL, resp.Status, response.Error.Detail)
}

// localAddress returns the address that reaches a listen address from this host.
func localAddress(listen string) string {
	host, port, _ := net.SplitHostPort(listen)
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip == netip.IPv4Unspecified() {
		host = "127.0.0.1"
	} else if err == nil && ip == netip.IPv6Unspecified() {
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

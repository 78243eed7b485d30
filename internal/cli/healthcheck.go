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
	"net/url"
	"path/filepath"
	"time"

	"service/internal/certs"
	"service/internal/server"
)

type healthcheckCmd struct {
	serveFlags
	Timeout string `default:"5s" env:"-" placeholder:"D" help:"How long the answer may take."`
}

// Run asks the configured listener whether the service is ready. It is meant
// for Docker's HEALTHCHECK: it reads what serve reads, and prints one line.
func (c *healthcheckCmd) Run(ctx context.Context, std Streams) error {
	var f configErrors
	timeout := f.duration("timeout", c.Timeout, time.Millisecond, time.Minute)
	s, err := c.settings(io.Discard)
	if err != nil {
		return err
	}
	if _, port, _ := net.SplitHostPort(s.Listen); port == "0" || port == "" {
		f.add("listen", "must name the port that serve has, not %q", s.Listen)
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

// askReady asks /readyz of the configured listener, from this machine: nil, or
// why the service is not ready or cannot be asked.
func askReady(ctx context.Context, s *server.Config) error {
	t := &http.Transport{DisableKeepAlives: true}
	scheme := "http"
	if s.TLS {
		scheme = "https"
		path := filepath.Join(s.Dir, certs.CAFile)
		pool, err := certs.ReadPool(path)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is not there: the service has not run on %s yet", path, s.Dir)
		} else if err != nil {
			return err
		}
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: certs.LocalName}
	}
	at := scheme + "://" + nearAddress(s.Listen) + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s gives no answer in time", at)
		}
		return fmt.Errorf("%s gives no answer: %w", at, cause(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	var answer struct {
		Error struct {
			Detail string `json:"detail"`
		} `json:"error"`
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAPIAnswer))
	if err != nil {
		return err
	}
	json.Unmarshal(b, &answer) // without its words the status says enough
	return fmt.Errorf("not ready: %s answers %s %s", at, resp.Status, answer.Error.Detail)
}

// nearAddress is where a listen address is reached from this machine.
func nearAddress(listen string) string {
	host, port, _ := net.SplitHostPort(listen)
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip == netip.IPv4Unspecified() {
		host = "127.0.0.1"
	} else if err == nil && ip == netip.IPv6Unspecified() {
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

// cause is what an HTTP client's error is about, without the URL that was asked.
func cause(err error) error {
	var asked *url.Error
	if errors.As(err, &asked) {
		return asked.Err
	}
	return err
}

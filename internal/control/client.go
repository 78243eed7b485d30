package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"service/webhook"
)

// Client sends API requests as the owner of a data directory, see [service/api.API.Owner].
type Client struct {
	http *http.Client
	end  func() error // ends the handler, if it runs in this process
}

// ErrNoServer means that no server is running on a data directory.
var ErrNoServer = errors.New("no server is running")

// Dial returns a client for the server that runs on the data directory dir. If none runs, the
// error is [ErrNoServer].
func Dial(ctx context.Context, dir string) (*Client, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		path, address, err := socketAddress(dir)
		if err != nil {
			return nil, err
		}
		defer address.Close()
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	conn, err := dial(ctx, "", "")
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, ErrNoServer
	case err != nil:
		return nil, fmt.Errorf("connect to the running server: %w", WithoutURL(err))
	}
	conn.Close()
	return &Client{&http.Client{Transport: &http.Transport{DialContext: dial}}, func() error { return nil }}, nil
}

// Local returns a client for a handler in this process. Close waits for its requests.
func Local(h http.Handler) *Client {
	l := pipes{make(chan net.Conn), make(chan struct{})}
	server, done := &http.Server{Handler: h}, make(chan error)
	go func() { done <- server.Serve(l) }()
	dial := func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		l.conns <- there
		return here, nil
	}
	return &Client{&http.Client{Transport: &http.Transport{DialContext: dial}}, func() error {
		err := server.Shutdown(context.Background())
		<-done
		return err
	}}
}

// pipes is a listener for connections within the process.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipes) Close() error   { close(l.closed); return nil }
func (l pipes) Addr() net.Addr { return &net.UnixAddr{} }

// Close closes the connections to the server.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return c.end()
}

// callTimeout limits a quick request.
const callTimeout = 30 * time.Second

// Call sends a quick request, with in as JSON unless it is nil, and decodes the data of the
// response into out. If the server refuses the request, the error is a *webhook.Error. Call takes
// at most callTimeout.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.CallSlow(ctx, method, path, in, out)
}

// CallSlow is Call without a timeout. If in is an [io.Reader], CallSlow sends it as the body.
func (c *Client) CallSlow(ctx context.Context, method, path string, in, out any) error {
	return c.Stream(ctx, method, path, in, func(response io.Reader) error {
		envelope := struct{ Data any }{out}
		if err := json.NewDecoder(response).Decode(&envelope); err != nil {
			return fmt.Errorf("invalid response of the running server: %w", err)
		}
		return nil
	})
}

// Stream is CallSlow for any response: it calls use with the body.
func (c *Client) Stream(ctx context.Context, method, path string, in any, use func(io.Reader) error) error {
	body, isReader := in.(io.Reader)
	if !isReader && in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, path, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.API(req)
	if err != nil {
		return fmt.Errorf("connect to the running server: %w", WithoutURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode < http.StatusBadRequest {
		return use(responseBody{resp})
	}
	var refused struct {
		Error struct {
			Detail      string
			Validations []webhook.Validation
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&refused); err != nil {
		return fmt.Errorf("invalid response of the running server (%s): %w", resp.Status, err)
	}
	return &webhook.Error{Detail: refused.Error.Detail, Validations: refused.Error.Validations}
}

// responseBody reads a response to its end, or to the error that the server had while sending it.
type responseBody struct{ *http.Response }

func (b responseBody) Read(p []byte) (int, error) {
	n, err := b.Body.Read(p)
	if text := b.Trailer.Get("X-Error"); text != "" && err == io.EOF {
		text, err = url.PathUnescape(text)
		if err == nil {
			err = errors.New(text)
		}
	}
	return n, err
}

// CreateToken creates a token, and its program if the program is new. It returns the secret.
func (c *Client) CreateToken(ctx context.Context, n webhook.NewToken) (string, error) {
	var created struct{ Secret string }
	err := c.Call(ctx, http.MethodPost, "/v2/owner/tokens", n, &created)
	return created.Secret, err
}

// API sends an API request to the server. Only the path and the query of its URL are used. The
// caller must close the body of the response.
func (c *Client) API(req *http.Request) (*http.Response, error) {
	req.URL.Scheme, req.URL.Host = "http", "service"
	return c.http.Do(req)
}

// WithoutURL returns an error of an HTTP client without the method and URL.
func WithoutURL(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return urlErr.Err
	}
	return err
}

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

	"service/internal/archive"
	"service/store"
	"service/webhook"
)

// Client asks the server that runs on a data directory.
type Client struct {
	http *http.Client
}

// ErrNoServer means that no server is running on a data directory.
var ErrNoServer = errors.New("no server is running")

// Dial returns a client of the server that runs on the data directory dir. The
// error is [ErrNoServer] when none does.
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
		return nil, fmt.Errorf("ask the running server: %w", withoutURL(err))
	}
	conn.Close()
	return &Client{&http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// Close ends the connections to the server.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// askTimeout bounds a request that the server answers at once.
const askTimeout = 30 * time.Second

// ask makes one request that the server answers at once. What the server
// refused is a *webhook.Error, just as if the store had been asked.
func (c *Client) ask(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return c.await(ctx, method, path, in, out)
}

// await is ask for as long as ctx allows.
func (c *Client) await(ctx context.Context, method, path string, in, out any) error {
	return c.stream(ctx, method, path, in, func(answer io.Reader) error {
		if err := json.NewDecoder(answer).Decode(out); err != nil {
			return fmt.Errorf("the running server's answer cannot be read: %w", err)
		}
		return nil
	})
}

// stream makes a request and has the answer read by use.
func (c *Client) stream(ctx context.Context, method, path string, in any, use func(io.Reader) error) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://service"+path, &body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the running server: %w", withoutURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return use(resp.Body)
	}
	var refused webhook.Error
	if err := json.NewDecoder(resp.Body).Decode(&refused); err != nil {
		return fmt.Errorf("the running server's answer (%s) cannot be read: %w", resp.Status, err)
	}
	return &refused
}

// CreateToken is [store.Tokens.Create], done by the running server.
func (c *Client) CreateToken(ctx context.Context, n webhook.NewToken) (webhook.Token, string, error) {
	var answer createdToken
	err := c.ask(ctx, http.MethodPost, "/tokens", n, &answer)
	return answer.Token, answer.Secret, err
}

// Tokens is [store.Tokens.List], done by the running server.
func (c *Client) Tokens(ctx context.Context) ([]webhook.Token, error) {
	var all []webhook.Token
	err := c.ask(ctx, http.MethodGet, "/tokens", nil, &all)
	return all, err
}

// RevokeToken is [store.Tokens.Revoke], done by the running server.
func (c *Client) RevokeToken(ctx context.Context, id string) (webhook.Token, error) {
	var revoked webhook.Token
	err := c.ask(ctx, http.MethodPost, "/tokens/"+url.PathEscape(id)+"/revoke", nil, &revoked)
	return revoked, err
}

// RotateKey is [store.Store.RotateKey], done by the running server.
func (c *Client) RotateKey(ctx context.Context) (store.KeyRotation, error) {
	var r store.KeyRotation
	return r, c.await(ctx, http.MethodPost, "/key/rotate", nil, &r)
}

// Release is [AuditedStore.Release], done by the running server.
func (c *Client) Release(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, "/release", nil, new(json.RawMessage))
}

// Backup is [AuditedStore.Backup], done by the running server.
func (c *Client) Backup(ctx context.Context, r archive.Request, use func(io.Reader) error) error {
	return c.stream(ctx, http.MethodPost, "/backup", r, use)
}

// Examine asks the running server what its checks come to.
func (c *Client) Examine(ctx context.Context) ([]store.Finding, error) {
	var found []store.Finding
	return found, c.ask(ctx, http.MethodGet, "/examination", nil, &found)
}

// Admins is [store.Admins.List], done by the running server.
func (c *Client) Admins(ctx context.Context) ([]webhook.Admin, error) {
	var all []webhook.Admin
	err := c.ask(ctx, http.MethodGet, "/admins", nil, &all)
	return all, err
}

// CreateAdmin is [AuditedStore.CreateAdmin], done by the running server.
func (c *Client) CreateAdmin(ctx context.Context, email string, hash webhook.PasswordHash) (webhook.Admin, error) {
	var made webhook.Admin
	err := c.ask(ctx, http.MethodPost, "/admins", adminRequest{email, hash}, &made)
	return made, err
}

// ResetPassword is [AuditedStore.ResetPassword], done by the running server.
func (c *Client) ResetPassword(ctx context.Context, email string, hash webhook.PasswordHash) (int, error) {
	var answer endedSessions
	err := c.ask(ctx, http.MethodPost, "/admins/reset-password", adminRequest{email, hash}, &answer)
	return answer.Ended, err
}

// RemoveAdmin is [AuditedStore.RemoveAdmin], done by the running server.
func (c *Client) RemoveAdmin(ctx context.Context, email string) error {
	return c.ask(ctx, http.MethodPost, "/admins/remove", adminRequest{Email: email}, new(endedSessions))
}

// EndSessions is [AuditedStore.EndSessions], done by the running server.
func (c *Client) EndSessions(ctx context.Context, email string) (int, error) {
	var answer endedSessions
	err := c.ask(ctx, http.MethodPost, "/admins/logout", adminRequest{Email: email}, &answer)
	return answer.Ended, err
}

// SetupLink returns a new one-time URL that makes the first admin. The error is
// a *webhook.Error when there is an admin.
func (c *Client) SetupLink(ctx context.Context) (string, error) {
	var answer setupLink
	err := c.ask(ctx, http.MethodPost, "/setup-link", nil, &answer)
	return answer.URL, err
}

// Promote makes the standby that runs on the data directory take over, with force
// also from a primary that is alive, and waits until it has. It returns the time
// of the newest change that the standby has. The error is a *webhook.Error when it
// refuses, or when what runs is no standby.
func (c *Client) Promote(ctx context.Context, force bool, progress func(string)) (state time.Time, err error) {
	err = c.stream(ctx, http.MethodPost, "/promote", promoteRequest{force}, func(answer io.Reader) error {
		for lines := json.NewDecoder(answer); ; {
			var line promoteLine
			if err := lines.Decode(&line); err != nil {
				return fmt.Errorf("the standby's answer cannot be read: %w", err)
			}
			switch {
			case line.Error != nil:
				return line.Error
			case line.State != nil:
				state = *line.State
				return nil
			}
			progress(line.Progress)
		}
	})
	return state, err
}

// withoutURL returns the cause of an HTTP client's error, which repeats the URL.
func withoutURL(err error) error {
	var asked *url.Error
	if errors.As(err, &asked) {
		return asked.Err
	}
	return err
}

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

// Client sends requests to the server that runs on a data directory.
type Client struct {
	http *http.Client
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
		return nil, fmt.Errorf("connect to the running server: %w", withoutURL(err))
	}
	conn.Close()
	return &Client{&http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// Close closes the connections to the server.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// callTimeout limits a quick request.
const callTimeout = 30 * time.Second

// call sends a quick request and decodes the response into out. If the server refuses the
// request, the error is a *webhook.Error, like one of the store.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.callSlow(ctx, method, path, in, out)
}

// callSlow is call without a timeout.
func (c *Client) callSlow(ctx context.Context, method, path string, in, out any) error {
	return c.stream(ctx, method, path, in, func(response io.Reader) error {
		if err := json.NewDecoder(response).Decode(out); err != nil {
			return fmt.Errorf("invalid response of the running server: %w", err)
		}
		return nil
	})
}

// stream sends a request and calls use with the body of the response.
func (c *Client) stream(ctx context.Context, method, path string, in any, use func(io.Reader) error) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	return c.send(ctx, method, path, &body, use)
}

// send sends a request with a body and calls use with the body of the response.
func (c *Client) send(ctx context.Context, method, path string, body io.Reader, use func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://service"+path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("connect to the running server: %w", withoutURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return use(resp.Body)
	}
	var refused webhook.Error
	if err := json.NewDecoder(resp.Body).Decode(&refused); err != nil {
		return fmt.Errorf("invalid response of the running server (%s): %w", resp.Status, err)
	}
	return &refused
}

// CreateToken calls [AuditedStore.CreateToken] in the running server.
func (c *Client) CreateToken(ctx context.Context, n webhook.NewToken) (webhook.Token, string, error) {
	var created createdToken
	err := c.call(ctx, http.MethodPost, "/tokens", n, &created)
	return created.Token, created.Secret, err
}

// createdPortalLink is the response to a request for a link to the portal.
type createdPortalLink struct {
	Link webhook.PortalLink
	URL  string
}

// CreatePortalLink calls [AuditedStore.CreatePortalLink] in the running server, which knows the
// address of the portal, and returns the URL of the link.
func (c *Client) CreatePortalLink(ctx context.Context, n webhook.NewPortalLink) (webhook.PortalLink, string, error) {
	var created createdPortalLink
	err := c.call(ctx, http.MethodPost, "/portal-links", n, &created)
	return created.Link, created.URL, err
}

// Tokens calls [store.Tokens.List] in the running server.
func (c *Client) Tokens(ctx context.Context) ([]webhook.Token, error) {
	var all []webhook.Token
	err := c.call(ctx, http.MethodGet, "/tokens", nil, &all)
	return all, err
}

// RevokeToken calls [AuditedStore.RevokeToken] in the running server.
func (c *Client) RevokeToken(ctx context.Context, id string) (webhook.Token, error) {
	var revoked webhook.Token
	err := c.call(ctx, http.MethodPost, "/tokens/"+url.PathEscape(id)+"/revoke", nil, &revoked)
	return revoked, err
}

// Programs calls [AuditedStore.Programs] in the running server.
func (c *Client) Programs(ctx context.Context) ([]Program, error) {
	var all []Program
	err := c.call(ctx, http.MethodGet, "/programs", nil, &all)
	return all, err
}

// RotateKey calls [AuditedStore.RotateKey] in the running server.
func (c *Client) RotateKey(ctx context.Context) (store.KeyRotation, error) {
	var r store.KeyRotation
	return r, c.callSlow(ctx, http.MethodPost, "/key/rotate", nil, &r)
}

// Release calls [AuditedStore.Release] in the running server.
func (c *Client) Release(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/release", nil, new(json.RawMessage))
}

// DeleteProgram calls [AuditedStore.DeleteProgram] in the running server, which erases the
// program in the background.
func (c *Client) DeleteProgram(ctx context.Context, id string) (webhook.Erasure, error) {
	var e webhook.Erasure
	return e, c.call(ctx, http.MethodPost, "/programs/"+url.PathEscape(id)+"/delete", nil, &e)
}

// ProgramSpace is how many bytes an export of a program needs at most, and how many are free.
type ProgramSpace struct {
	Need int64 `json:"need"`
	Free int64 `json:"free"`
}

// ProgramSpace calls [AuditedStore.ProgramSpace] in the running server.
func (c *Client) ProgramSpace(ctx context.Context, copies int) (ProgramSpace, error) {
	var y ProgramSpace
	return y, c.call(ctx, http.MethodPost, "/programs/space", archive.ProgramRequest{Copies: copies}, &y)
}

// ExportProgram calls [AuditedStore.ExportProgram] in the running server.
func (c *Client) ExportProgram(ctx context.Context, r archive.ProgramRequest, use func(io.Reader) error) error {
	return c.stream(ctx, http.MethodPost, "/programs/export", r, use)
}

// ImportProgram imports a program in the running server.
func (c *Client) ImportProgram(ctx context.Context, from io.Reader) (y store.Imported, err error) {
	return y, c.send(ctx, http.MethodPost, importPath, from, func(response io.Reader) error {
		return json.NewDecoder(response).Decode(&y)
	})
}

// Backup calls [AuditedStore.Backup] in the running server.
func (c *Client) Backup(ctx context.Context, r archive.Request, use func(io.Reader) error) error {
	return c.stream(ctx, http.MethodPost, "/backup", r, use)
}

// Examine returns the findings of the running server's checks.
func (c *Client) Examine(ctx context.Context) ([]store.Finding, error) {
	var found []store.Finding
	return found, c.call(ctx, http.MethodGet, "/examination", nil, &found)
}

// Admins calls [store.Admins.List] in the running server.
func (c *Client) Admins(ctx context.Context) ([]webhook.Admin, error) {
	var all []webhook.Admin
	err := c.call(ctx, http.MethodGet, "/admins", nil, &all)
	return all, err
}

// CreateAdmin calls [AuditedStore.CreateAdmin] in the running server.
func (c *Client) CreateAdmin(ctx context.Context, email string, role webhook.Role, hash webhook.PasswordHash) (webhook.Admin, error) {
	var created webhook.Admin
	err := c.call(ctx, http.MethodPost, "/admins", adminRequest{Email: email, Role: role, Hash: hash}, &created)
	return created, err
}

// ResetPassword calls [AuditedStore.ResetPassword] in the running server.
func (c *Client) ResetPassword(ctx context.Context, email string, hash webhook.PasswordHash, removePasskeys bool) (PasswordReset, error) {
	var did PasswordReset
	request := adminRequest{Email: email, Hash: hash, RemovePasskeys: removePasskeys}
	err := c.call(ctx, http.MethodPost, "/admins/reset-password", request, &did)
	return did, err
}

// RemoveAdmin calls [AuditedStore.RemoveAdmin] in the running server.
func (c *Client) RemoveAdmin(ctx context.Context, email string) error {
	return c.call(ctx, http.MethodPost, "/admins/remove", adminRequest{Email: email}, new(endedSessions))
}

// EndSessions calls [AuditedStore.EndSessions] in the running server.
func (c *Client) EndSessions(ctx context.Context, email string) (int, error) {
	var sessions endedSessions
	err := c.call(ctx, http.MethodPost, "/admins/logout", adminRequest{Email: email}, &sessions)
	return sessions.Ended, err
}

// SetupLink returns a new one-time URL that creates the first admin. If there is an admin, the
// error is a *webhook.Error.
func (c *Client) SetupLink(ctx context.Context) (string, error) {
	var link setupLink
	err := c.call(ctx, http.MethodPost, "/setup-link", nil, &link)
	return link.URL, err
}

// Promote makes the standby on the data directory take over and waits for it. With force, it
// takes over even if the primary is alive. It returns the time of the newest change that the
// standby has. If the standby refuses, or the server is not a standby, the error is a
// *webhook.Error.
func (c *Client) Promote(ctx context.Context, force bool, progress func(string)) (state time.Time, err error) {
	err = c.stream(ctx, http.MethodPost, "/promote", promoteRequest{force}, func(response io.Reader) error {
		for lines := json.NewDecoder(response); ; {
			var line promoteLine
			if err := lines.Decode(&line); err != nil {
				return fmt.Errorf("invalid response of the standby: %w", err)
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

// API sends a request of the API to the running server, as its owner. The path and the query of
// its URL count. The caller closes the body of the response.
func (c *Client) API(req *http.Request) (*http.Response, error) {
	req.URL.Scheme, req.URL.Host = "http", "service"
	return c.http.Do(req)
}

// withoutURL returns an error of an HTTP client without the method and URL.
func withoutURL(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return urlErr.Err
	}
	return err
}

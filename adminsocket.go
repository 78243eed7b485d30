package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"service/store"
	"service/webhook"
)

// The admin socket is a Unix socket in the data directory. Who may open it, the
// user the server runs as, may do what the small commands do: it asks for no
// token. It speaks HTTP with JSON bodies, to this binary alone.
const adminSocket = "admin.sock"

// maxSocketPath is the longest path of a socket, in bytes, that every system
// takes (sun_path has 104 on some, with the final zero).
const maxSocketPath = 103

// adminAddress returns a path that a socket in dir can be reached by, for as
// long as the returned closer is open.
//
// A path that is too long for the system's address is reached on Linux through
// a descriptor of its directory.
func adminAddress(dir string) (string, io.Closer, error) {
	path := filepath.Join(dir, adminSocket)
	if len(path) <= maxSocketPath {
		return path, io.NopCloser(nil), nil
	}
	if runtime.GOOS != "linux" {
		return "", nil, fmt.Errorf("the data directory's path is too long for a socket in it: %s has %d bytes, and may have %d", path, len(path), maxSocketPath)
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/fd/" + strconv.FormatUint(uint64(d.Fd()), 10) + "/" + adminSocket, d, nil
}

// adminListener is the admin socket's listener. Closing it removes the socket.
type adminListener struct {
	net.Listener
	address io.Closer
}

func (l adminListener) Close() error {
	return errors.Join(l.Listener.Close(), l.address.Close())
}

// listenAdmin opens the admin socket, for this user alone. The caller holds the
// lock of the data directory: a socket that is there already was left by a
// process that is no more, and is replaced.
func listenAdmin(ctx context.Context, dir string) (net.Listener, error) {
	path, address, err := adminAddress(dir)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, address.Close())
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// Where the system heeds it the socket never exists with a wider mode.
		return c.Control(func(fd uintptr) { syscall.Fchmod(int(fd), 0o600) })
	}}
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), address.Close())
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close(), address.Close())
	}
	return adminListener{l, address}, nil
}

// adminServer answers the small commands.
type adminServer struct {
	data          auditedStore
	setupLink     func(context.Context) (string, error) // a new one-time URL that makes the first admin
	examine       func(ctx context.Context, reading time.Duration) []store.Finding
	adminsChanged func(email string) // is told who was made or given another password
	logger        *slog.Logger
}

func (a *adminServer) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /examination", a.answer(func(r *http.Request) (any, error) {
		return a.examine(r.Context(), servedReading), nil
	}))
	m.HandleFunc("POST /tokens", a.answer(func(r *http.Request) (any, error) {
		var asked webhook.NewToken
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			return nil, webhook.NewError(webhook.CodeInvalid, "The request cannot be read.")
		}
		token, secret, err := a.data.CreateToken(r.Context(), asked)
		return newTokenAnswer{token, secret}, err
	}))
	m.HandleFunc("GET /tokens", a.answer(func(r *http.Request) (any, error) {
		return a.data.Tokens(r.Context())
	}))
	m.HandleFunc("POST /tokens/{id}/revoke", a.answer(func(r *http.Request) (any, error) {
		return a.data.RevokeToken(r.Context(), r.PathValue("id"))
	}))
	m.HandleFunc("POST /release", a.answer(func(r *http.Request) (any, error) {
		return struct{}{}, a.data.Release(r.Context())
	}))
	m.HandleFunc("POST /key/rotate", a.answer(func(r *http.Request) (any, error) {
		rotation, err := a.data.RotateKey(r.Context())
		switch {
		case errors.Is(err, store.ErrKey):
			err = webhook.NewError(webhook.CodeConflict, err.Error())
		case err == nil:
			a.logger.Info("the secret key is replaced", "file", rotation.File, "secrets", rotation.Secrets())
		}
		return rotation, err
	}))
	m.HandleFunc("POST /backup", a.sendBackup)
	m.HandleFunc("POST /promote", a.answer(func(*http.Request) (any, error) {
		return nil, webhook.NewError(webhook.CodeConflict, "The service that runs here is no standby: it serves already.")
	}))
	m.HandleFunc("POST /setup-link", a.answer(func(r *http.Request) (any, error) {
		link, err := a.setupLink(r.Context())
		return setupLinkAnswer{link}, err
	}))
	m.HandleFunc("GET /admins", a.answer(func(r *http.Request) (any, error) {
		return a.data.Admins(r.Context())
	}))
	m.HandleFunc("POST /admins", a.answer(func(r *http.Request) (any, error) {
		asked, err := readAdmin(r)
		if err != nil {
			return nil, err
		}
		defer a.adminsChanged(asked.Email)
		return a.data.CreateAdmin(r.Context(), asked.Email, asked.Hash)
	}))
	m.HandleFunc("POST /admins/reset-password", a.answer(func(r *http.Request) (any, error) {
		asked, err := readAdmin(r)
		if err != nil {
			return nil, err
		}
		defer a.adminsChanged(asked.Email)
		ended, err := a.data.ResetPassword(r.Context(), asked.Email, asked.Hash)
		return endedAnswer{ended}, err
	}))
	m.HandleFunc("POST /admins/remove", a.answer(func(r *http.Request) (any, error) {
		asked, err := readAdmin(r)
		if err != nil {
			return nil, err
		}
		return endedAnswer{}, a.data.RemoveAdmin(r.Context(), asked.Email)
	}))
	m.HandleFunc("POST /admins/logout", a.answer(func(r *http.Request) (any, error) {
		asked, err := readAdmin(r)
		if err != nil {
			return nil, err
		}
		ended, err := a.data.EndSessions(r.Context(), asked.Email)
		return endedAnswer{ended}, err
	}))
	return http.MaxBytesHandler(m, 1<<20)
}

type newTokenAnswer struct {
	Token  webhook.Token `json:"token"`
	Secret string        `json:"secret"`
}

// adminRequest names an admin, and has the hash of a new password, "" for none.
type adminRequest struct {
	Email string               `json:"email"`
	Hash  webhook.PasswordHash `json:"password_hash,omitempty"`
}

func readAdmin(r *http.Request) (asked adminRequest, err error) {
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		return asked, webhook.NewError(webhook.CodeInvalid, "The request cannot be read.")
	}
	return asked, nil
}

// endedAnswer says how many sessions have ended.
type endedAnswer struct {
	Ended int `json:"ended"`
}

type setupLinkAnswer struct {
	URL string `json:"url"`
}

// answer writes what a request came to. It is the one place that does, and
// that logs.
func (a *adminServer) answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := do(r)
		status := http.StatusOK
		var mistake *webhook.Error
		switch {
		case errors.As(err, &mistake):
			status, value = http.StatusBadRequest, mistake
		case err != nil:
			a.logger.Error("admin socket", "request", r.Method+" "+r.URL.Path, "error", err)
			status, value = http.StatusInternalServerError, webhook.NewError(webhook.CodeInternal, "The server failed; its log says why.")
		case value == streamed{}:
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(value) // who asked is gone if this fails
	}
}

// streamed is the answer of a request that is answered by its handler.
type streamed struct{}

// errNoServer says that no server runs on a data directory.
var errNoServer = errors.New("no server is running")

// adminClient asks the running server over the admin socket.
type adminClient struct {
	http *http.Client
}

// dialAdmin returns a client of the server that runs on the data directory dir.
// The error is errNoServer when none does.
func dialAdmin(ctx context.Context, dir string) (*adminClient, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		path, address, err := adminAddress(dir)
		if err != nil {
			return nil, err
		}
		defer address.Close()
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	conn, err := dial(ctx, "", "")
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, errNoServer
	case err != nil:
		return nil, fmt.Errorf("ask the running server: %w", cause(err))
	}
	conn.Close()
	return &adminClient{&http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// Close ends the connections to the server.
func (c *adminClient) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// askTime bounds a request that the server answers at once.
const askTime = 30 * time.Second

// ask makes one request that the server answers at once. What the server
// refused is a *webhook.Error, just as if the store had been asked.
func (c *adminClient) ask(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return c.await(ctx, method, path, in, out)
}

// await is ask for as long as ctx allows.
func (c *adminClient) await(ctx context.Context, method, path string, in, out any) error {
	return c.stream(ctx, method, path, in, func(answer io.Reader) error {
		if err := json.NewDecoder(answer).Decode(out); err != nil {
			return fmt.Errorf("the running server's answer cannot be read: %w", err)
		}
		return nil
	})
}

// stream makes a request and has the answer read by use.
func (c *adminClient) stream(ctx context.Context, method, path string, in any, use func(io.Reader) error) error {
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
		return fmt.Errorf("ask the running server: %w", cause(err))
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

// CreateToken is [store.Store.CreateToken], done by the running server.
func (c *adminClient) CreateToken(ctx context.Context, n webhook.NewToken) (webhook.Token, string, error) {
	var answer newTokenAnswer
	err := c.ask(ctx, http.MethodPost, "/tokens", n, &answer)
	return answer.Token, answer.Secret, err
}

// Tokens is [store.Store.Tokens], done by the running server.
func (c *adminClient) Tokens(ctx context.Context) ([]webhook.Token, error) {
	var all []webhook.Token
	err := c.ask(ctx, http.MethodGet, "/tokens", nil, &all)
	return all, err
}

// RevokeToken is [store.Store.RevokeToken], done by the running server.
func (c *adminClient) RevokeToken(ctx context.Context, id string) (webhook.Token, error) {
	var revoked webhook.Token
	err := c.ask(ctx, http.MethodPost, "/tokens/"+url.PathEscape(id)+"/revoke", nil, &revoked)
	return revoked, err
}

// RotateKey is [store.Store.RotateKey], done by the running server.
func (c *adminClient) RotateKey(ctx context.Context) (store.KeyRotation, error) {
	var r store.KeyRotation
	return r, c.await(ctx, http.MethodPost, "/key/rotate", nil, &r)
}

// Admins is [store.Store.Admins], done by the running server.
func (c *adminClient) Admins(ctx context.Context) ([]webhook.Admin, error) {
	var all []webhook.Admin
	err := c.ask(ctx, http.MethodGet, "/admins", nil, &all)
	return all, err
}

// CreateAdmin is [auditedStore.CreateAdmin], done by the running server.
func (c *adminClient) CreateAdmin(ctx context.Context, email string, hash webhook.PasswordHash) (webhook.Admin, error) {
	var made webhook.Admin
	err := c.ask(ctx, http.MethodPost, "/admins", adminRequest{email, hash}, &made)
	return made, err
}

// ResetPassword is [auditedStore.ResetPassword], done by the running server.
func (c *adminClient) ResetPassword(ctx context.Context, email string, hash webhook.PasswordHash) (int, error) {
	var answer endedAnswer
	err := c.ask(ctx, http.MethodPost, "/admins/reset-password", adminRequest{email, hash}, &answer)
	return answer.Ended, err
}

// RemoveAdmin is [auditedStore.RemoveAdmin], done by the running server.
func (c *adminClient) RemoveAdmin(ctx context.Context, email string) error {
	return c.ask(ctx, http.MethodPost, "/admins/remove", adminRequest{Email: email}, new(endedAnswer))
}

// EndSessions is [auditedStore.EndSessions], done by the running server.
func (c *adminClient) EndSessions(ctx context.Context, email string) (int, error) {
	var answer endedAnswer
	err := c.ask(ctx, http.MethodPost, "/admins/logout", adminRequest{Email: email}, &answer)
	return answer.Ended, err
}

// setupLink returns a new one-time URL that makes the first admin. The error is
// a *webhook.Error when there is an admin.
func (c *adminClient) setupLink(ctx context.Context) (string, error) {
	var answer setupLinkAnswer
	err := c.ask(ctx, http.MethodPost, "/setup-link", nil, &answer)
	return answer.URL, err
}

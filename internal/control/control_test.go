package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"service/store"
)

// serveSocket runs the control socket of a new data directory until the test ends.
func serveSocket(t *testing.T, dir string) {
	t.Helper()
	st, err := store.Open(t.Context(), store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	admin := &Server{
		Store: AuditedStore{Store: st, Version: "v1"}, Logger: slog.New(slog.DiscardHandler),
		SetupLink: func(context.Context) (string, error) { return "https://127.0.0.1:8443/setup/CODE", nil },
		API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %d", r.Method, r.URL.RequestURI(), len(body))
		}),
	}
	server := &http.Server{Handler: admin.Handler()}
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-done
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestSocketMode(t *testing.T) {
	dir := t.TempDir()
	serveSocket(t, dir)
	info, err := os.Stat(filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != fs.ModeSocket|0o600 {
		t.Errorf("got the socket mode %v, want %v", got, fs.ModeSocket|0o600)
	}
}

// TestAPI checks that the socket passes requests of the API on as they are, also large ones.
func TestAPI(t *testing.T) {
	dir := t.TempDir()
	serveSocket(t, dir)
	c, err := Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	req, err := http.NewRequestWithContext(t.Context(), "PUT", "/v2/programs/a%2Fb?x=1", strings.NewReader(strings.Repeat("x", 2<<20)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.API(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if want := "PUT /v2/programs/a%2Fb?x=1 2097152"; err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, socketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as after kill -9
	l.Close()
	if _, err := Dial(t.Context(), dir); !errors.Is(err, ErrNoServer) {
		t.Fatalf("with a stale socket: got %v, want %v", err, ErrNoServer)
	}
	serveSocket(t, dir)
	if _, err := Dial(t.Context(), dir); err != nil {
		t.Error(err)
	}
}

func TestSocketWithLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Run("", func(t *testing.T) {
		serveSocket(t, dir)
		c, err := Dial(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if link, err := c.SetupLink(t.Context()); err != nil || link == "" {
			t.Errorf("got %q, %v", link, err)
		}
		if _, err := c.Tokens(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Lstat(filepath.Join(dir, socketName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket still exists after shutdown: %v", err)
	}
}

// TestErrorsAreHidden checks that an internal error is in the log but not in the response.
func TestErrorsAreHidden(t *testing.T) {
	dir := t.TempDir()
	closed, err := store.Open(t.Context(), store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	admin := &Server{Store: AuditedStore{Store: closed, Version: "v1"}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	server := &http.Server{Handler: admin.Handler()}
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	c, err := Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Tokens(t.Context()); err == nil || err.Error() != "The server failed. Its log has the error." {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(c.Close(), server.Close()); err != nil {
		t.Error(err)
	}
	<-done
	if !strings.Contains(log.String(), "closed") {
		t.Errorf("the log lacks the error: %s", &log)
	}
}

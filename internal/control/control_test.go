package control

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"service/webhook"
)

// echo responds with the method, the path and the body size of a request.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %d", r.Method, r.URL.RequestURI(), len(body))
})

// serveSocket runs a handler on the socket of a data directory until the test ends.
func serveSocket(t *testing.T, dir string, handler http.Handler) {
	t.Helper()
	l, err := Listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
}

func TestSocketMode(t *testing.T) {
	dir := t.TempDir()
	serveSocket(t, dir, echo)
	info, err := os.Stat(filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != fs.ModeSocket|0o600 {
		t.Errorf("got the socket mode %v, want %v", got, fs.ModeSocket|0o600)
	}
}

// TestAPI checks that the socket passes API requests on unchanged, including large ones.
func TestAPI(t *testing.T) {
	dir := t.TempDir()
	serveSocket(t, dir, echo)
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
	serveSocket(t, dir, echo)
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
		serveSocket(t, dir, echo)
		c, err := Dial(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Stream(t.Context(), "GET", "/", nil, func(io.Reader) error { return nil }); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Lstat(filepath.Join(dir, socketName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket still exists after shutdown: %v", err)
	}
}

// TestResponses checks how a client interprets responses, over the socket and in the process.
func TestResponses(t *testing.T) {
	m := http.NewServeMux()
	m.HandleFunc("POST /data", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, `{"data": %s}`, body)
	})
	m.HandleFunc("GET /refused", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"error": {"code": 409, "detail": "Taken.", "validations": [{"parameter": "id", "detail": "exists"}]}}`)
	})
	m.HandleFunc("GET /failed", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Error")
		io.WriteString(w, "a part")
		w.Header().Set("X-Error", "100%25 full%0A")
	})
	m.HandleFunc("GET /cut", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "a part")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	test := func(t *testing.T, c *Client) {
		var got []int
		if err := c.Call(t.Context(), "POST", "/data", []int{1, 2}, &got); err != nil || len(got) != 2 {
			t.Errorf("data: got %v, %v", got, err)
		}
		var refused *webhook.Error
		if err := c.Call(t.Context(), "GET", "/refused", nil, &got); !errors.As(err, &refused) || err.Error() != "Taken. id: exists" {
			t.Errorf("refused: got %v", err)
		}
		read := func(path string) (text string, err error) {
			return text, c.Stream(t.Context(), "GET", path, nil, func(r io.Reader) error {
				b, err := io.ReadAll(r)
				text = string(b)
				return err
			})
		}
		if _, err := read("/failed"); err == nil || err.Error() != "100% full\n" {
			t.Errorf("failed: got %v", err)
		}
		if _, err := read("/cut"); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut off: got %v, want %v", err, io.ErrUnexpectedEOF)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Run("socket", func(t *testing.T) {
		dir := t.TempDir()
		serveSocket(t, dir, m)
		c, err := Dial(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		test(t, c)
	})
	t.Run("process", func(t *testing.T) { test(t, Local(m)) })
}

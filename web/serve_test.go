package web

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/a-h/templ"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// TestBusyPage checks the page for a visitor whose program reads too many lists.
func TestBusyPage(t *testing.T) {
	w := testWeb(t, nil)
	w.mux.Handle("/busy", w.serve(func(*request) (response, error) { return response{}, fmt.Errorf("list: %w", store.ErrBusy) }))
	p := visit(t, w).do("GET", "/busy")
	p.want(t, http.StatusServiceUnavailable, "Too many pages are loading")
	p.wantHeader(t, "Retry-After", "5")
}

// TestNote checks that the note of a POST is shown once on the next page, and that only this
// process can create notes.
func TestNote(t *testing.T) {
	w := testWeb(t, nil)
	w.mux.Handle("/done", w.serve(func(*request) (response, error) {
		return response{location: "/page", note: &ui.Note{Kind: ui.NoteSuccess, Text: hostile + strings.Repeat("x", 5000)}}, nil
	}))
	w.mux.Handle("/page", w.serve(func(r *request) (response, error) { return response{page: ui.Layout(w.frame(r, "Page"))}, nil }))
	v := visit(t, w)
	sent := v.do("POST", "/done")
	sent.want(t, 303, "")
	for _, c := range sent.Cookies() {
		if len(c.String()) > 4000 {
			t.Errorf("the cookie has %d bytes, and browsers keep 4,096", len(c.String()))
		}
	}
	page := v.do("GET", "/page")
	page.want(t, 200, `role="status"`)
	if strings.Contains(page.body, "<script>") || !strings.Contains(page.body, "&lt;script&gt;") || page.Header.Get("ETag") != "" {
		t.Errorf("the note is not shown as text, or is kept:\n%s", page.body)
	}
	if again := v.do("GET", "/page"); strings.Contains(again.body, `role="status">`+"\n") || strings.Contains(again.body, "alert(1)") {
		t.Errorf("the note is shown again:\n%s", again.body)
	}
	for _, forged := range []string{"", "x", "eyJrIjoic3VjY2VzcyIsInQiOiJoaSJ9",
		w.newNoteCookie(httptest.NewRequest("GET", "/", nil), &ui.Note{Kind: ui.NoteSuccess, Text: "hi"}).Value[:60]} {
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(&http.Cookie{Name: noteCookie, Value: forged})
		if got := w.readNote(r); got != nil {
			t.Errorf("%q is taken for a note: %v", forged, got)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.AddCookie(testWeb(t, nil).newNoteCookie(r, &ui.Note{Kind: ui.NoteSuccess, Text: "hi"}))
	if got := w.readNote(r); got != nil {
		t.Errorf("the note of another process is taken: %v", got)
	}
}

// lockedBuffer is a log that tests can read while a server writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestFile(t *testing.T) {
	var log lockedBuffer
	w := testWeb(t, func(cfg *Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	give := func(err error) handler {
		return func(*request) (response, error) {
			return response{file: &file{name: "deliveries.csv", contentType: "text/csv", write: func(to io.Writer) error {
				_, _ = io.WriteString(to, "id\n1\n")
				return err
			}}}, nil
		}
	}
	w.mux.Handle("/file", w.serve(give(nil)))
	w.mux.Handle("/cut", w.serve(give(errors.New("the cause"))))
	v := visit(t, w)
	got := v.do("GET", "/file")
	if got.body != "id\n1\n" || got.Header.Get("Content-Disposition") != `attachment; filename="deliveries.csv"` ||
		got.Header.Get("Content-Type") != "text/csv" {
		t.Errorf("got %q with %v", got.body, got.Header)
	}
	cut, err := http.NewRequest("GET", v.base+"/cut", nil)
	must(t, err)
	if answer, err := v.client.Do(cut); err == nil {
		if _, err := io.ReadAll(answer.Body); err == nil {
			t.Error("a file that could not be written to its end looks whole")
		}
		answer.Body.Close()
	}
	if !strings.Contains(log.String(), "the cause") {
		t.Errorf("the log does not tell:\n%s", log.String())
	}
}

func TestStream(t *testing.T) {
	w := testWeb(t, nil)
	ended := make(chan error, 1)
	w.mux.Handle("/stream", w.serve(func(r *request) (response, error) {
		return response{stream: func(s *stream) error {
			if s.lastID != "7" {
				t.Errorf("the last id is %q, want 7", s.lastID)
			}
			if err := s.send("8", templ.Raw("<p>one\r\ntwo</p>")); err != nil {
				return err
			}
			<-s.Context().Done()
			ended <- s.Context().Err()
			return s.Context().Err()
		}}, nil
	}))
	v := visit(t, w)
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", v.base+"/stream", nil)
	must(t, err)
	req.Header.Set("Last-Event-ID", "7")
	got, err := v.client.Do(req)
	must(t, err)
	defer got.Body.Close()
	if kind := got.Header.Get("Content-Type"); kind != "text/event-stream" || got.Uncompressed {
		t.Errorf("Content-Type %q, compressed %t", kind, got.Uncompressed)
	}
	lines := bufio.NewScanner(got.Body)
	for _, want := range []string{":", "", "id: 8", "data: <p>one ", "data: two</p>", ""} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got line %q (%v), want %q", lines.Text(), lines.Err(), want)
		}
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the stream ended with %v, want that the visitor left", err)
	}
}

// TestStreamEnds checks that a stream ends with its session and with the service, even if its
// visitor stays.
func TestStreamEnds(t *testing.T) {
	for name, end := range map[string]func(*Web, *stream){
		"the session": func(_ *Web, s *stream) {
			s.checkedAt, s.stillSignedIn = s.checkedAt.Add(-streamIdle), func() (bool, error) { return false, nil }
		},
		"the service": func(w *Web, _ *stream) { w.EndStreams() },
	} {
		t.Run(name, func(t *testing.T) {
			w := testWeb(t, nil)
			w.mux.Handle("/stream", w.serve(func(*request) (response, error) {
				return response{stream: func(s *stream) error {
					end(w, s)
					if err := s.idle(); err != nil {
						return err
					}
					<-s.Context().Done()
					return nil
				}}, nil
			}))
			if got := visit(t, w).do("GET", "/stream"); got.StatusCode != 200 { // read to its end
				t.Errorf("got %d", got.StatusCode)
			}
		})
	}
}

func TestStreamsAreBounded(t *testing.T) {
	w := testWeb(t, nil)
	for range maxStreams {
		w.streams <- struct{}{}
	}
	w.mux.Handle("/stream", w.serve(func(*request) (response, error) {
		return response{stream: func(*stream) error { t.Error("it runs"); return nil }}, nil
	}))
	got := visit(t, w).do("GET", "/stream")
	if got.StatusCode != 503 || got.Header.Get("Retry-After") == "" {
		t.Errorf("got %d, Retry-After %q; want 503 with one", got.StatusCode, got.Header.Get("Retry-After"))
	}
}

// TestFirstPageIsSmall checks the size of everything that a new browser loads for its first page.
func TestFirstPageIsSmall(t *testing.T) {
	const most = 60_000
	v, _ := startSignedIn(t, nil)
	if got := v.weight("/"); got == 0 || got > most {
		t.Errorf("the first page loads %d bytes, want at most %d", got, most)
	}
}

// weight returns the size in bytes of a page with its assets, compressed; 0 if it is not a page.
func (v visitor) weight(path string) (bytes int) {
	v.t.Helper()
	plain := v.do("GET", path, "Accept-Encoding", "identity")
	if !strings.HasPrefix(plain.Header.Get("Content-Type"), "text/html") {
		return 0
	}
	bytes = len(v.do("GET", path, "Accept-Encoding", "gzip").body)
	for _, file := range loads.FindAllStringSubmatch(plain.body, -1) {
		bytes += len(v.do("GET", file[1], "Accept-Encoding", "gzip").body)
	}
	return bytes
}

// TestErrorsHaveNavigation checks that every error page shows the navigation to signed-in visitors.
func TestErrorsHaveNavigation(t *testing.T) {
	f := furnish(t)
	f.w.mux.Handle("GET /broken", f.w.serve(f.w.guard(route{role: viewer, by: by{get: func(*request) (response, error) {
		return response{}, errors.New("the cause")
	}}})))
	for _, tt := range []struct {
		role         webhook.Role
		method, path string
		status       int
	}{
		{viewer, "GET", "/nowhere", 404},
		{viewer, "GET", "/deliveries/none", 404},
		{viewer, "GET", "/events?program=%zz", 400},
		{viewer, "POST", "/deliveries", 405},
		{viewer, "GET", "/tokens/new", 403},
		{viewer, "GET", "/broken", 500},
		{owner, "POST", "/subscriptions/none/ping", 404},
		{writer, "GET", "/portal/nowhere", 404},
		{writer, "GET", "/portal/deliveries/none", 404},
		{anyone, "GET", "/nowhere", 401},
	} {
		p := f.as(tt.role).do(tt.method, tt.path)
		p.want(t, tt.status, "")
		if tt.role == anyone {
			p.hasNot(t, `<nav id="pages"`)
			continue
		}
		p.has(t, `<nav id="pages"`, "Request ID", `class="account"`)
		if tt.role != writer {
			p.has(t, `id="service-status"`, `action="/find"`)
		}
		p.inert(t)
	}
}

// maxPageWeight is the maximum size in bytes of a first page with its assets, compressed.
const maxPageWeight = 60 << 10

// TestPageWeight checks the size of each page for a browser with an empty cache.
func TestPageWeight(t *testing.T) {
	f := furnish(t)
	for _, role := range []webhook.Role{owner, writer} {
		v, all := f.as(role), f.w.routes()
		if role == writer {
			all = f.w.portalRoutes()
		}
		for _, one := range all {
			if one.get == nil || one.role == anyone || one.kind == partRoute {
				continue
			}
			if got := v.weight(f.path(one.path)); got > maxPageWeight {
				t.Errorf("%s weighs %d bytes, want at most %d", one.path, got, maxPageWeight)
			}
		}
	}
}

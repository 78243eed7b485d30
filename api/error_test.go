package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"service/webhook"
)

func TestEveryCodeHasAStatusAndATitle(t *testing.T) {
	statuses := make(map[int]webhook.Code)
	for _, code := range webhook.Codes() {
		k, ok := kinds[code]
		if !ok || k.status < 400 || k.title == "" {
			t.Errorf("code %s has status %d and title %q", code, k.status, k.title)
		}
		if other, ok := statuses[k.status]; ok {
			t.Errorf("codes %s and %s share the status %d", code, other, k.status)
		}
		statuses[k.status] = code
	}
	if len(kinds) != len(webhook.Codes()) {
		t.Errorf("the table has %d codes, want %d", len(kinds), len(webhook.Codes()))
	}
	// Spec, section 7.2.
	for status, title := range map[int]string{
		400: "Bad Request", 401: "Unauthenticated", 403: "Forbidden", 404: "Not Found", 409: "Conflict", 429: "Too Many Requests",
		500: "Internal server error", 504: "Request timeout",
	} {
		if got := kinds[statuses[status]].title; got != title {
			t.Errorf("title of %d: got %q, want %q", status, got, title)
		}
	}
}

// with returns a service with an additional route that needs no token.
func with(t *testing.T, handle func(*request) (answer, error), change ...func(*Config)) *service {
	t.Helper()
	s := start(t, change...)
	s.api.handle(append(routes(), route{"GET", "/v2/test", scopeNone, nil, queryRules{}, handle, false}))
	return s
}

func TestInternalErrorsAreLogged(t *testing.T) {
	for name, handle := range map[string]func(*request) (answer, error){
		"panic":           func(*request) (answer, error) { panic("hunter2 in /secret/place") },
		"error":           func(*request) (answer, error) { return answer{}, errors.New("hunter2 in /secret/place") },
		"unrenderable":    func(*request) (answer, error) { return answer{data: func() string { return "hunter2" }}, nil },
		"panic with data": func(req *request) (answer, error) { panic(fmt.Sprint("hunter2", req.id)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := with(t, handle)
			r := s.send("GET", "/v2/test", "")
			wantStatus(t, name, r, 500)
			if strings.Contains(r.body, "hunter2") || !strings.Contains(r.body, r.header.Get("X-Request-Id")) {
				t.Errorf("the response must contain the request id and not the cause: %s", r.body)
			}
			if n := strings.Count(s.log.String(), "level=ERROR"); n != 1 {
				t.Errorf("the error was logged %d times, want once:\n%s", n, s.log)
			}
			if !strings.Contains(s.log.String(), "request_id="+r.header.Get("X-Request-Id")) {
				t.Errorf("the log lacks the request id:\n%s", s.log)
			}
			wantStatus(t, "the next request", s.send("GET", "/v2/events", ""), 200)
		})
	}
}

func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := with(t, func(req *request) (answer, error) {
			<-req.ctx.Done()
			return answer{}, fmt.Errorf("read: %w", req.ctx.Err())
		}, func(c *Config) { c.RequestTimeout = 30 * time.Millisecond })
		r := s.send("GET", "/v2/test", "")
		wantBody(t, "a handler that takes too long", r, 504, "30ms")

		id := s.subscribe("content_updated")
		r = s.send("POST", "/v2/webhooks/subscriptions/"+id+"/ping", "")
		wantStatus(t, "a ping without a dispatcher", r, 504)
		list := data[[]identified](t, s.send("GET", "/v2/webhooks/subscriptions/"+id+"/deliveries", ""))
		if len(list) != 2 || !strings.Contains(r.body, list[0].ID) {
			t.Errorf("the response lacks the delivery of the ping %v: %s", list, r.body)
		}

		// A client that disconnects is not logged as an error.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/v2/test", nil))
		if strings.Contains(s.log.String(), "level=ERROR") {
			t.Errorf("a timeout was logged as an error:\n%s", s.log)
		}
	})
}

func TestStoreThatCannotWrite(t *testing.T) {
	s := start(t, func(c *Config) { c.Ready = func() error { return errors.New("the dispatcher is not running") } })
	s.publishOne() // caches the token
	wantBody(t, "not ready", s.send("GET", "/readyz", ""), 503, "the dispatcher is not running")

	s.closeStore()
	r := s.send("POST", "/v2/events", contentUpdated)
	wantStatus(t, "publish", r, 503)
	if strings.Contains(r.body, "closed") || strings.Count(s.log.String(), `msg="storage is not writable"`) != 1 {
		t.Errorf("the cause must be logged once, and not returned: %s\n%s", r.body, s.log)
	}
	r = s.send("POST", "/v2/events", contentUpdated, "Content-Type", "application/x-ndjson")
	wantBody(t, "publish a stream", r, 503, "No event was accepted.")
	wantBody(t, "store closed", s.send("GET", "/readyz", ""), 503, "the storage does not respond")
	wantStatus(t, "alive all the same", s.send("GET", "/healthz", ""), 200)
}

func TestLogContents(t *testing.T) {
	s := start(t)
	s.publishOne()
	s.send("GET", "/v2/events?page[cursor]=hunter2&access_token=hunter2", "")
	s.send("GET", "/v2/hunter2%0Alevel=ERROR", "", "X-Request-Id", "hunter2", "User-Agent", "hunter2", "Authorization", "Bearer hunter2")
	s.send("GET", "/healthz", "")
	log := s.log.String()
	if strings.Contains(log, "hunter2") || strings.Contains(log, s.token) || strings.Contains(log, "level=ERROR") {
		t.Errorf("the log contains a secret or a forged line:\n%s", log)
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	if len(lines) != 4 {
		t.Fatalf("got %d log lines, want 4:\n%s", len(lines), log)
	}
	for i, want := range []string{
		"method=POST route=/v2/events status=201 ", "method=GET route=/v2/events status=400 ",
		"method=GET route=- status=404 ", "method=GET route=/healthz status=200 ",
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("got line %s, want %s in it", lines[i], want)
		}
	}
	if !strings.Contains(lines[0], "program=acme user=ada") || !strings.Contains(lines[3], "level=DEBUG") {
		t.Errorf("the lines lack the program and user, or the level:\n%s", log)
	}
}

// connect connects to a real server.
func connect(t *testing.T, s *service) net.Conn {
	t.Helper()
	server := httptest.NewServer(s.api)
	t.Cleanup(server.Close)
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	must(t, err)
	return c
}

// exchange sends raw bytes to a server and returns its output until it closes the connection.
func exchange(t *testing.T, c net.Conn, raw string) string {
	t.Helper()
	defer c.Close()
	_, err := io.WriteString(c, strings.ReplaceAll(raw, "\n", "\r\n"))
	must(t, err)
	got, err := io.ReadAll(bufio.NewReader(c))
	must(t, err)
	return string(got)
}

func TestIncompleteBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		listener := servePipes(t, &http.Server{Handler: s.api})
		head := "POST /v2/events HTTP/1.1\nHost: h\nAuthorization: Bearer " + s.token + "\nContent-Length: 1000\n"
		for name, raw := range map[string]string{
			"JSON":   head + "Content-Type: application/json\n\n{\"name\":",
			"NDJSON": head + "Content-Type: application/x-ndjson\n\n" + contentUpdated + "\n" + `{"name":`,
		} {
			got := exchange(t, listener.connect(), raw)
			if !strings.HasPrefix(got, "HTTP/1.1 408 ") || !strings.Contains(got, "\r\nConnection: close\r\n") {
				t.Errorf("%s: got %s, want 408 and the end of the connection", name, got)
			}
			if name == "NDJSON" && !strings.Contains(got, "The first event was accepted.") {
				t.Errorf("%s: the response lacks the number of accepted events: %s", name, got)
			}
		}

		// An unread body does not delay the response either.
		got := exchange(t, listener.connect(), "POST /v2/events HTTP/1.1\nHost: h\nContent-Length: 1000\n\n{")
		if !strings.HasPrefix(got, "HTTP/1.1 401 ") {
			t.Errorf("without a token: got %s, want 401", got)
		}
	})
}

// A request that needs no body gets its response before the body has arrived.
func TestResponseBeforeTheBody(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) { c.RequestTimeout = time.Hour })
	for _, length := range []string{"Content-Length: 10000000", "Transfer-Encoding: chunked"} {
		got := exchange(t, connect(t, s), "POST /v2/events HTTP/1.1\nHost: h\nContent-Type: application/x-ndjson\n"+length+"\n\n")
		if !strings.HasPrefix(got, "HTTP/1.1 401 ") || !strings.Contains(got, "\r\nConnection: close\r\n") {
			t.Errorf("%s: got %s, want 401 at once", length, got)
		}
	}
}

// The same over HTTP/2, where a request has no connection of its own.
func TestOverHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		client := &http.Client{Transport: http2Transport(t, s.api)}
		post := func(media string, body io.Reader) response {
			r, err := http.NewRequest("POST", "http://service/v2/events", body)
			must(t, err)
			r.Header.Set("Content-Type", media)
			r.Header.Set("Authorization", "Bearer "+s.token)
			resp, err := client.Do(r)
			must(t, err)
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.ProtoMajor != 2 {
				t.Fatalf("%s: %v", resp.Proto, err)
			}
			got := response{resp.StatusCode, resp.Header, string(b)}
			checkConventions(t, media, false, got)
			return got
		}
		for media, want := range map[string]string{mediaJSON: "in time.", mediaNDJSON: "The first event was accepted."} {
			wantStatus(t, media, post(media, strings.NewReader(line(1))), 201)
			stalled, w := io.Pipe()
			go io.WriteString(w, line(1)+"\n"+line(2))
			r := post(media, stalled)
			w.Close()
			wantBody(t, media, r, 408, want)
		}

		// An invalid line gets a response while the client is still sending.
		unfinished, w := io.Pipe()
		defer w.Close()
		go io.WriteString(w, line(1)+"\n{}\n")
		r := post(mediaNDJSON, unfinished)
		wantStatus(t, "a bad line", r, 400)
	})
}

// deadlines records the read deadlines that are set.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// The read deadline of a body ends with the body. Otherwise it would cancel the work of
// the request, as if the client had disconnected.
func TestReadDeadlineEndsWithTheBody(t *testing.T) {
	s := start(t)
	for _, test := range []struct {
		name, media, body string
		bounds            bool // a deadline remains, for the rest of the body
	}{
		{"JSON", mediaJSON, contentUpdated, false},
		{"NDJSON", mediaNDJSON, contentUpdated, false},
		{"NDJSON that ends early", mediaNDJSON, "{}\n" + contentUpdated, true},
		{"a body that is not read", "text/plain", contentUpdated, true},
	} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r := s.request("POST", "/v2/events", strings.NewReader(test.body))
		r.Header.Set("Content-Type", test.media)
		s.api.ServeHTTP(w, r)
		if len(w.set) < 2 || w.set[0].IsZero() {
			t.Errorf("%s: got %d and the deadlines %v, want one before the body and one after", test.name, w.Code, w.set)
			continue
		}
		last := w.set[len(w.set)-1]
		if last.IsZero() == test.bounds || test.bounds && time.Until(last) > maxReusedTime {
			t.Errorf("%s: got %d and the last deadline %v", test.name, w.Code, last)
		}
	}
}

// TestReasonInLog checks that the log says why a request got a 400.
func TestReasonInLog(t *testing.T) {
	s := start(t)
	s.send("POST", "/v2/webhooks/subscriptions", `{"url":"ftp://x"}`)
	s.send("POST", "/v2/events", `{`)
	for _, want := range []string{`reason="url must begin with https://; events is required"`, `status=400`} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("got\n%s\nwant %s", s.log, want)
		}
	}
	if n := strings.Count(s.log.String(), " reason="); n != 2 {
		t.Errorf("got %d reasons, want 2\n%s", n, s.log)
	}
	long := webhook.Invalid(webhook.Validation{Code: webhook.InvalidValue, Parameter: "x", Detail: strings.Repeat("ä", maxReason)})
	if got := reasonOf(long); len(got) > maxReason+len("…") || !utf8.ValidString(got) {
		t.Errorf("got a reason of %d bytes", len(got))
	}
}

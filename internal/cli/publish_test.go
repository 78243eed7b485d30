package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"service/internal/terminal"
	"service/webhook"
)

// eventsAPI is a fake of POST /v2/events. It adds each ID once and refuses the event names bad and
// taken. fail injects other failures.
type eventsAPI struct {
	mu       sync.Mutex
	fail     func(request int) (status int, after bool) // after: fail once the events are stored
	requests int
	ids      []string // in the order they were added
	names    []string
}

func (a *eventsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	refuse := func(status int, format string, args ...any) {
		w.WriteHeader(status)
		fmt.Fprintf(w, format, args...)
	}
	if got, want := r.Header.Get("Authorization"), "Bearer hush"; got != want {
		refuse(401, `{"error":{"code":401,"title":"Unauthenticated","detail":"got %s"}}`, got)
		return
	}
	if r.Method != "POST" || r.URL.Path != "/v2/events" || r.Header.Get("Content-Type") != "application/x-ndjson" {
		refuse(404, `not here`)
		return
	}
	status, after := 0, false
	if a.fail != nil {
		status, after = a.fail(a.requests)
	}
	if status != 0 && !after {
		a.failWith(w, status)
		return
	}
	accepted, added := 0, 0
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, 2<<20)
	for lines.Scan() {
		var e struct{ ID, Name string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.ID == "" {
			refuse(400, `{"error":{"code":400,"title":"Bad Request","detail":"no JSON or no id: %s"}}`, lines.Text())
			return
		}
		if e.Name == "taken" {
			refuse(409, `{"error":{"code":409,"title":"Conflict",`+
				`"detail":"events[%d] was rejected: The event id is taken. The first %[1]d events were accepted."}}`, accepted)
			return
		}
		if e.Name == "bad" {
			refuse(400, `{"error":{"code":400,"title":"Bad Request","detail":"d","validations":[`+
				`{"code":"unknown_event","detail":"is not the name of an event type","parameter":"events[%d].name"}]}}`, accepted)
			return
		}
		accepted++
		if !slices.Contains(a.ids, e.ID) {
			added++
			a.ids = append(a.ids, e.ID)
			a.names = append(a.names, e.Name)
		}
	}
	if status != 0 {
		a.failWith(w, status)
		return
	}
	w.WriteHeader(201)
	fmt.Fprintf(w, `{"data":{"accepted":%d,"added":%d}}`, accepted, added)
}

func (a *eventsAPI) failWith(w http.ResponseWriter, status int) {
	if status == -1 {
		panic(http.ErrAbortHandler) // closes the connection
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"code":%d,"title":"Busy","detail":"Later, please."}}`, status)
}

// publisherTo returns a publisher to an API, with short waits, and its notes.
func publisherTo(t *testing.T, api http.Handler) (p *publisher, notes *bytes.Buffer) {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	notes = new(bytes.Buffer)
	return &publisher{
		api: apiConn{send: server.Client().Do, base: server.URL, token: "hush"}, retryFor: time.Minute,
		minWait: time.Millisecond, maxWait: 4 * time.Millisecond, progress: terminal.NewProgress(notes),
	}, notes
}

// publishTo runs a publisher and returns its tally, notes and error.
func publishTo(t *testing.T, a *eventsAPI, input string) (tally, string, error) {
	t.Helper()
	p, notes := publisherTo(t, a)
	err := p.publish(context.Background(), strings.NewReader(input))
	return p.tally, notes.String(), err
}

func eventLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"name\":\"e%d\"}\n", i)
	}
	return b.String()
}

func TestPublishSendsEveryLineOnceInOrder(t *testing.T) {
	const n = 2500
	var a eventsAPI
	got, _, err := publishTo(t, &a, eventLines(n))
	if err != nil {
		t.Fatal(err)
	}
	if want := (tally{n, n}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if a.requests != 3 {
		t.Errorf("got %d requests, want 3 of up to 1000 lines", a.requests)
	}
	for i, name := range a.names {
		if want := fmt.Sprintf("e%d", i); name != want {
			t.Fatalf("event %d is %s, want %s", i, name, want)
		}
	}
}

func TestPublishInput(t *testing.T) {
	big := strings.Repeat("x", maxLineBytes)
	tests := []struct {
		name, in string
		accepted int
		err      string
	}{
		{"nothing", "", 0, ""},
		{"blank lines", "\n \n{\"name\":\"a\"}\r\n\n", 1, ""},
		{"no final newline", `{"name":"a"}`, 1, ""},
		{"a byte order mark", "\ufeff{\"name\":\"a\"}\n", 1, ""},
		{"an own id", `{"name":"a","id":"1"}`, 1, ""},
		{"the same id twice", "{\"id\":\"1\"}\n{\"id\":\"1\"}\n", 2, ""},
		{"not JSON", eventLines(3) + "\n{oops}\n" + eventLines(3), 3, "line 5: not JSON"},
		{"not an object", "{\"name\":\"a\"}\n[1]\n", 1, "line 2: not a JSON object"},
		{"null", "null\n", 0, "line 1: not a JSON object"},
		{"too long", eventLines(2) + `{"name":"` + big + "\"}\n", 2, "line 3: longer than 512 KiB; an event may have 256 KiB"},
		{"refused", eventLines(3) + "\n{\"name\":\"bad\"}\n" + eventLines(2), 3, "line 5: name is not the name of an event type"},
		{"taken", eventLines(3) + "\n{\"name\":\"taken\"}\n" + eventLines(2), 3, "line 5: was rejected: The event id is taken."},
		{"refused first", "{\"name\":\"bad\"}\n" + eventLines(2), 0, "line 1: name is not"},
		{"refused in a later request", eventLines(1234) + "{\"name\":\"bad\"}\n", 1234, "line 1235: name is not"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var a eventsAPI
			got, _, err := publishTo(t, &a, test.in)
			if !matches(err, test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
			if err != nil && strings.Contains(err.Error(), "first") {
				t.Errorf("the error has the server's count: %v", err)
			}
			if got.accepted != test.accepted {
				t.Errorf("got %d accepted, want %d", got.accepted, test.accepted)
			}
			if len(a.ids) > got.accepted {
				t.Errorf("got %d accepted, but %d were stored", got.accepted, len(a.ids))
			}
		})
	}
}

func TestPublishRetriesWithoutDuplicates(t *testing.T) {
	for _, status := range []int{429, 500, 502, 503, 504, -1} {
		for _, stored := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, stored %t", status, stored), func(t *testing.T) { testPublishRetry(t, status, stored) })
		}
	}
}

// testPublishRetry publishes 1000 events to an API that responds with status to the first
// two requests, with the events stored or not.
func testPublishRetry(t *testing.T, status int, stored bool) {
	a := eventsAPI{fail: func(request int) (int, bool) {
		if request <= 2 {
			return status, stored
		}
		return 0, false
	}}
	got, notes, err := publishTo(t, &a, eventLines(1000))
	if err != nil {
		t.Fatal(err)
	}
	added := 1000
	if stored {
		added = 0
	}
	if want := (tally{1000, added}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if len(a.ids) != 1000 {
		t.Errorf("got %d stored events, want 1000", len(a.ids))
	}
	if n := strings.Count(notes, "retrying in"); n != 2 {
		t.Errorf("got %d notes, want 2: %s", n, notes)
	}
}

func TestPublishGivesUp(t *testing.T) {
	p, _ := publisherTo(t, &eventsAPI{fail: func(int) (int, bool) { return 503, false }})
	p.retryFor = 0
	err := p.publish(context.Background(), strings.NewReader(eventLines(2)))
	want := "lines 1 to 2: the server responded 503 Service Unavailable: Later, please.; gave up after 0s"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestPublishDoesNotRetryPermanentErrors(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 409, 413, 415} {
		a := eventsAPI{fail: func(int) (int, bool) { return status, false }}
		_, _, err := publishTo(t, &a, eventLines(1))
		if !matches(err, "Later, please.") || a.requests != 1 {
			t.Errorf("%d: got %v after %d requests, want an error after 1", status, err, a.requests)
		}
	}
}

// TestStableIDs checks that a derived ID depends on the path, the line number and the text.
func TestStableIDs(t *testing.T) {
	ids := func(file, input string) []string {
		var a eventsAPI
		p, _ := publisherTo(t, &a)
		p.stableIDs = file
		if err := p.publish(t.Context(), strings.NewReader(input)); err != nil {
			t.Fatal(err)
		}
		return a.ids
	}
	const same = "{\"name\":\"a\"}\n{\"name\":\"a\"}\n"
	first := ids("/a", same)
	if len(first) != 2 || len(first[0]) != 36 {
		t.Fatalf("two equal lines got the ids %q, want two UUIDs", first)
	}
	if again := ids("/a", same); !slices.Equal(again, first) {
		t.Errorf("the same file got the ids %q, then %q", first, again)
	}
	if corrected := ids("/a", "{\"name\":\"a\"}\n{\"name\":\"b\"}\n"); corrected[0] != first[0] || corrected[1] == first[1] {
		t.Errorf("with another line 2: got the ids %q, want %q with another second id", corrected, first)
	}
	if other := ids("/b", same); other[0] == first[0] || other[1] == first[1] {
		t.Errorf("another file got the same ids %q", other)
	}
}

// TestPublishSlowSource checks that a single line is published at once, not only when a
// request is full.
func TestPublishSlowSource(t *testing.T) {
	var a eventsAPI
	arrived := make(chan struct{})
	p, _ := publisherTo(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.ServeHTTP(w, r)
		arrived <- struct{}{}
	}))
	r, w := io.Pipe()
	done := make(chan error)
	go func() { done <- p.publish(context.Background(), r) }()
	for range 3 {
		io.WriteString(w, "{\"name\":\"a\"}\n")
		<-arrived
	}
	w.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPublishInterrupted(t *testing.T) {
	t.Setenv("SERVICE_TOKEN", "hush")
	var a eventsAPI
	server := httptest.NewServer(&a)
	defer server.Close()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	defer w.Close()
	status := make(chan int)
	var out, errs bytes.Buffer
	go func() { status <- Run(ctx, []string{"publish", "--url", server.URL}, Streams{r, &out, &errs}) }()
	io.WriteString(w, "{\"name\":\"a\"}\n")
	cancel()
	if got := <-status; got != exitFailed {
		t.Errorf("exit status %d, want %d", got, exitFailed)
	}
	if !strings.Contains(errs.String(), "accepted") {
		t.Errorf("got %s, want the number of accepted events", &errs)
	}
}

func TestPublishCommand(t *testing.T) {
	var a eventsAPI
	server := httptest.NewServer(&a)
	defer server.Close()
	dir := t.TempDir()
	write := func(name, content string) string { return writeFile(t, filepath.Join(dir, name), content) }
	token := write("token", "hush\n")
	events := write("events.ndjson", eventLines(3))
	refused := write("refused.ndjson", eventLines(2)+`{"name":"bad"}`)
	tls := httptest.NewUnstartedServer(&a)
	tls.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // expected failed handshakes
	tls.StartTLS()
	defer tls.Close()
	tests := []struct {
		name   string
		args   []string
		in     string
		status int
		out    string
		err    string
	}{
		{"a file", []string{"--token-file", token, events}, "", exitDone, "3 events accepted\n",
			"publishing this input again duplicates its events without an id (for a file, --stable-ids"},
		{"stable ids", []string{"--token-file", token, "--stable-ids", events}, "", exitDone, "3 events accepted\n", ""},
		{"stable ids again", []string{"--token-file", token, "--stable-ids", events}, "", exitDone,
			"3 events accepted, of which 3 already existed\n", ""},
		{"stable ids of stdin", []string{"--token-file", token, "--stable-ids"}, "{}\n", exitUsage, "", "--stable-ids: needs a file"},
		{"own ids", []string{"--token-file", token}, "{\"id\":\"own\"}\n", exitDone, "1 event accepted\n", ""},
		{"stdin", []string{"--token-file", token}, "{}\n", exitDone, "1 event accepted\n", "publishing this input again"},
		{"stdin by name", []string{"--token-file", token, "-"}, "{}\n", exitDone, "1 event accepted\n", "publishing this input again"},
		{"refused", []string{"--token-file", token, refused}, "", exitFailed, "", "service: line 3: name is not the name of an event type; " +
			"2 events accepted; publishing this input again duplicates its events without an id (for a file, --stable-ids prevents that)\n"},
		{"a wrong token", []string{"--token", "guess", events}, "", exitFailed, "", "401 Unauthorized"},
		{"no token", []string{events}, "", exitUsage, "", "missing flag --token: "},
		{"two faults", []string{"--retry-for", "x", events}, "", exitUsage, "", "scope events.write; --retry-for: "},
		{"no such file", []string{"--token", "hush", filepath.Join(dir, "none")}, "", exitFailed, "", "no such file"},
		{"no such token file", []string{"--token-file", filepath.Join(dir, "none"), events}, "", exitFailed, "", "--token-file: open"},
		{"no CA", []string{"--token", "hush", "--ca", events, events}, "", exitFailed, "", "no PEM certificate found"},
		{"a wrong path", []string{"--token", "hush", "--url", server.URL + "/x", events}, "", exitFailed, "", "404 Not Found; check --url"},
		{"plain HTTP elsewhere", []string{"--token", "hush", "--url", "http://example.com", events}, "", exitUsage, "",
			"must begin with https://"},
		{"not a URL", []string{"--token", "hush", "--url", "example.com", events}, "", exitUsage, "", "must be a base URL"},
		{"an untrusted server", []string{"--token", "hush", "--url", tls.URL, events}, "", exitFailed, "",
			"the server's certificate is not trusted"},
		{"HTTPS to a plain server", []string{"--token", "hush", "--url", strings.Replace(server.URL, "http:", "https:", 1), events},
			"", exitFailed, "", "does not use HTTPS"},
		{"plain HTTP to an HTTPS server", []string{"--token", "hush", "--url", strings.Replace(tls.URL, "https:", "http:", 1), events},
			"", exitFailed, "", "the server uses HTTPS; begin --url with https://"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			args := append([]string{"publish", "--url", server.URL, "--retry-for", "1s"}, test.args...)
			got, out, errs := callWith(t.Context(), strings.NewReader(test.in), args...)
			if got != test.status {
				t.Errorf("exit status %d, want %d", got, test.status)
			}
			if out != test.out {
				t.Errorf("stdout %q, want %q", out, test.out)
			}
			if !strings.Contains(errs, test.err) || test.err == "" && errs != "" {
				t.Errorf("stderr %q, want %q", errs, test.err)
			}
			if strings.Count(errs, "\n") > 1 || strings.Contains(errs, "hush") {
				t.Errorf("stderr has more than one line, or the token: %q", errs)
			}
		})
	}
}

func TestWithID(t *testing.T) {
	tests := []struct{ in, after string }{
		{`{}`, `}`},
		{`{"name":"a"}`, `,"name":"a"}`},
		{`{ "ID":"x" }`, `, "ID":"x" }`}, // names are matched exactly
		{`{"a":{"id":"x"}}`, `,"a":{"id":"x"}}`},
	}
	for _, test := range tests {
		got, given, err := withID([]byte(test.in), webhook.NewID)
		if err != nil || given {
			t.Fatal(err)
		}
		var e struct {
			ID string `json:"id"`
		}
		head := string(got[:min(len(got), len(`{"id":"`)+36+1)])
		if err := json.Unmarshal([]byte(head+"}"), &e); err != nil || len(e.ID) != 36 {
			t.Errorf("withID(%s) = %s", test.in, got)
		}
		if string(got[len(head):]) != test.after {
			t.Errorf("withID(%s) = %s, want it to end with %s", test.in, got, test.after)
		}
	}
	own := `{"name":"a","id":"mine"}`
	if got, given, err := withID([]byte(own), webhook.NewID); err != nil || !given || string(got) != own {
		t.Errorf("withID(%s) = %s, %t, %v", own, got, given, err)
	}
}

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"service/webhook"
)

const pulledSubscription = "0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5"

// logAPI is a fake of the log of a subscription. Its cursors are the numbers of events. fail responds
// to a request itself and returns true, or lets it pass.
type logAPI struct {
	t    *testing.T
	fail func(w http.ResponseWriter, request int) bool

	mu       sync.Mutex
	events   []string // as stored
	changed  chan struct{}
	requests int
	perPage  int // number of events after which a stream ends; 0 for none
}

func (a *logAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.requests++
	request, from := a.requests, r.Header.Get("Last-Event-ID")
	a.mu.Unlock()
	w.Header().Set("X-Program-Id", "acme")
	switch {
	case r.Header.Get("Authorization") != "Bearer hush":
		respondError(w, 401, "", "no token")
		return
	case a.fail != nil && a.fail(w, request):
		return
	case r.URL.Path != "/v2/webhooks/subscriptions/"+pulledSubscription+"/events" || r.Header.Get("Accept") != "text/event-stream":
		respondError(w, 404, "", r.URL.Path)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	at := 0
	if from == "" {
		fmt.Fprintf(w, "id: 0\n\n")
	} else if _, err := fmt.Sscan(from, &at); err != nil {
		respondError(w, 400, "Last-Event-ID", "not mine")
		return
	}
	for sent := 0; ; {
		a.mu.Lock()
		events, changed := a.events[at:], a.changed
		a.mu.Unlock()
		for _, e := range events {
			if at++; sent == a.perPage && sent > 0 {
				return
			}
			sent++
			fmt.Fprintf(w, "id: %d\ndata: %s,\"seq\":%d,\"received_at\":\"t\",\"delivery_status\":\"none\"}\n\n", at, e[:len(e)-1], at)
		}
		http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func respondError(w http.ResponseWriter, status int, parameter, detail string) {
	var validations []webhook.Validation
	if parameter != "" {
		validations = append(validations, webhook.Validation{Code: "invalid_format", Detail: detail, Parameter: parameter})
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"code": status, "title": "T", "detail": detail, "validations": validations,
	}})
}

func (a *logAPI) publish(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range n {
		a.events = append(a.events, fmt.Sprintf(`{"id":"e%d","name":"n","x":",\"seq\":1"}`, len(a.events)+1))
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// followed is a follower of a logAPI.
type followed struct {
	*follower
	t     *testing.T
	api   *logAPI
	path  string // of the cursor file
	mu    sync.Mutex
	notes []string
	seen  chan *arrival
	stop  context.CancelFunc
	done  chan error
}

func follow(t *testing.T, a *logAPI) *followed {
	t.Helper()
	if a.t = t; a.changed == nil {
		a.changed = make(chan struct{})
	}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections) // the streams have no end
	f := &followed{t: t, api: a, path: filepath.Join(t.TempDir(), "cursor"), seen: make(chan *arrival, 100)}
	f.follower = &follower{
		apiConn: apiConn{send: s.Client().Do, base: s.URL, token: "hush"},
		minWait: time.Millisecond, maxWait: 4 * time.Millisecond, silence: time.Minute,
		print: func(a *arrival) {
			printed := *a
			f.seen <- &printed
		},
		note: func(format string, args ...any) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.notes = append(f.notes, fmt.Sprintf(format, args...))
		},
	}
	return f
}

func (f *followed) start() {
	f.t.Helper()
	cursor, err := openCursor(f.path, pulledSubscription)
	if err != nil {
		f.t.Fatal(err)
	}
	f.cursor = cursor
	ctx, stop := context.WithCancel(f.t.Context())
	f.stop, f.done = stop, make(chan error, 1)
	go func() { f.done <- f.run(ctx) }()
	f.t.Cleanup(stop)
}

// end stops the follower and returns the cursor that it saved.
func (f *followed) end() string {
	f.t.Helper()
	f.stop()
	if err := <-f.done; err != nil {
		f.t.Errorf("got %v at the end, want nil", err)
	}
	return f.saved()
}

func (f *followed) saved() string {
	text, err := os.ReadFile(f.path)
	var c savedCursor
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		f.t.Error(err)
	}
	return c.Cursor
}

func (f *followed) next() *arrival {
	f.t.Helper()
	select {
	case a := <-f.seen:
		return a
	case err := <-f.done:
		f.t.Fatalf("the follower ended: %v, after %q", err, f.notes)
	case <-time.After(time.Minute):
		f.t.Fatal("no event")
	}
	return nil
}

func (f *followed) want(ids ...string) {
	f.t.Helper()
	for _, want := range ids {
		if got := f.next().Events[0].ID; got != want {
			f.t.Fatalf("got %s, want %s", got, want)
		}
	}
}

// failure waits for the error of the follower.
func (f *followed) failure() error {
	f.t.Helper()
	select {
	case err := <-f.done:
		return err
	case <-time.After(time.Minute):
		f.t.Fatal("the follower has not ended")
	}
	return nil
}

func TestPullPrintsAndResumes(t *testing.T) {
	f := follow(t, &logAPI{})
	f.start()
	f.api.publish(2)
	f.want("e1", "e2")
	f.api.publish(1)
	a := f.next()
	want := `{"delivery_id":"` + a.DeliveryID + `","subscription_id":"` + pulledSubscription + `","program_id":"acme",` +
		`"events":[{"id":"e3","name":"n","x":",\"seq\":1"}]}`
	if string(a.raw) != want || a.DeliveryID == "" || a.Status != 0 || a.Signature != "" {
		t.Errorf("got %+v\nwith %s, want %s", a, a.raw, want)
	}
	if got := f.end(); got != "2" && got != "3" { // it was printed before it is saved
		t.Errorf("got the cursor %s, want 3, or 2 if it was stopped before it was saved", got)
	}
	if info, err := os.Stat(f.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want the mode 0600", info.Mode(), err)
	}
	os.WriteFile(f.path+".unfinished-123", nil, 0o600) // of a process that was killed
	f.api.publish(1)
	f.start()
	again := f.next()
	if again.Events[0].ID == "e3" {
		if again.DeliveryID != a.DeliveryID || !bytes.Equal(again.raw, a.raw) {
			t.Errorf("repeated as %s, was %s", again.raw, a.raw)
		}
		again = f.next()
	}
	if again.Events[0].ID != "e4" {
		t.Errorf("got %s after the restart, want e4", again.Events[0].ID)
	}
	f.end()
	if files, _ := os.ReadDir(filepath.Dir(f.path)); len(files) != 1 {
		t.Errorf("got %d files, want the cursor alone", len(files))
	}
}

// Whatever ends a stream or refuses a request for now, the next one continues.
func TestPullRetries(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter){
		"429":            func(w http.ResponseWriter) { respondError(w, 429, "", "64 requests wait") },
		"503":            func(w http.ResponseWriter) { respondError(w, 503, "", "on standby") },
		"502 of a proxy": func(w http.ResponseWriter) { http.Error(w, "<h1>Bad gateway", http.StatusBadGateway) },
		"no response":    func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"an end":         func(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") },
		"a break": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "id: 1\ndata: {\"id\":\"e1\"")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"an error in the stream": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "event: error\ndata: {\"error\":{\"code\":503,\"title\":\"T\",\"detail\":\"not yet\"}}\n\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := follow(t, &logAPI{perPage: 2, fail: func(w http.ResponseWriter, request int) bool {
				if request%2 == 0 {
					fail(w)
				}
				return request%2 == 0
			}})
			f.start()
			f.api.publish(7)
			f.want("e1", "e2", "e3", "e4", "e5", "e6", "e7")
			f.end()
			notes := strings.Join(f.notes, "\n")
			if !strings.Contains(notes, "; trying again in ") || !strings.Contains(notes, "Connected again.") {
				t.Errorf("got the notes %q", notes)
			}
		})
	}
}

// The wait is at least that of Retry-After.
func TestPullRetryAfter(t *testing.T) {
	f := follow(t, &logAPI{fail: func(w http.ResponseWriter, _ int) bool {
		w.Header().Set("Retry-After", "4711")
		respondError(w, 429, "", "64 requests wait")
		return true
	}})
	noted := make(chan string, 1)
	f.note = func(format string, args ...any) { noted <- fmt.Sprintf(format, args...) }
	f.start()
	if got, want := <-noted, "the server responded 429 Too Many Requests: 64 requests wait; trying again in 1h18m31s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	f.stop()
	if err := f.failure(); err != nil {
		t.Error(err)
	}
}

func TestPullEnds(t *testing.T) {
	stream := func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, text)
	}
	for name, test := range map[string]struct {
		fail func(w http.ResponseWriter)
		want string
	}{
		"no such subscription": {func(w http.ResponseWriter) { respondError(w, 404, "", "gone") },
			"the program of the token has no subscription " + pulledSubscription},
		"deleted": {func(w http.ResponseWriter) {
			stream(w, "id: 1\n\nevent: error\ndata: {\"error\":{\"code\":404,\"title\":\"T\",\"detail\":\"gone\"}}\n\n")
		}, "the subscription " + pulledSubscription + " was deleted: it has no more events"},
		"revoked": {func(w http.ResponseWriter) {
			stream(w, "event: error\ndata: {\"error\":{\"code\":401,\"title\":\"T\",\"detail\":\"The token was revoked.\"}}\n\n")
		}, "the server responded 401 Unauthorized: The token was revoked"},
		"moved, platform token": {func(w http.ResponseWriter) { respondError(w, 409, "", "The program has moved.") },
			"the server responded 409 Conflict: The program has moved"},
		"a wrong time": {func(w http.ResponseWriter) { respondError(w, 400, "from", "must be a time") },
			"from: must be a time"},
		"another server": {func(w http.ResponseWriter) { io.WriteString(w, "hello") },
			`the server does not send a stream of events but "text/plain; charset=utf-8"; check --url`},
		"another stream": {func(w http.ResponseWriter) { stream(w, "id: 1\ndata: {\"id\":1}\n\n") },
			"the server sent an event that cannot be read; check --url"},
		"an endless line": {func(w http.ResponseWriter) { stream(w, "data: "+strings.Repeat("x", 2*maxStreamLine)) },
			"the server sent a line that is too long"},
	} {
		t.Run(name, func(t *testing.T) {
			f := follow(t, &logAPI{fail: func(w http.ResponseWriter, _ int) bool { test.fail(w); return true }})
			f.start()
			if err := f.failure(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestPullTruncated(t *testing.T) {
	f := follow(t, &logAPI{fail: func(w http.ResponseWriter, request int) bool {
		if request == 1 {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, ":\n\nevent: truncated\ndata: {}\n\nid: 1\n\n")
		}
		return request == 1
	}})
	f.api.changed = make(chan struct{})
	f.api.publish(2)
	f.start()
	f.want("e2")
	f.end()
	if n := strings.Count(strings.Join(f.notes, "\n"), "Warning: events after the cursor were removed"); n != 1 {
		t.Errorf("got %d warnings in %q, want 1", n, f.notes)
	}
}

// A silent connection is given up.
func TestPullSilence(t *testing.T) {
	f := follow(t, &logAPI{})
	f.silence = 10 * time.Millisecond
	noted := make(chan string, 1000)
	f.note = func(format string, args ...any) { noted <- fmt.Sprintf(format, args...) }
	f.start()
	for note := ""; !strings.HasPrefix(note, errSilence.Error()); {
		note = <-noted
	}
	f.api.publish(1)
	f.want("e1")
	f.end()
}

func TestCursorFileErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cursor")
	for text, want := range map[string]string{
		"":             "is not a cursor file of listen --pull",
		"hello":        "is not a cursor file of listen --pull",
		`{"cursor":7}`: "is not a cursor file of listen --pull",
		`{"subscription_id":"other","cursor":"c"}`: "has the cursor of the subscription other; choose another file with --cursor-file, or delete it",
	} {
		writeFile(t, path, text)
		if _, err := openCursor(path, pulledSubscription); err == nil || !strings.Contains(err.Error(), path+" "+want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	if _, err := openCursor(filepath.Dir(path), pulledSubscription); err == nil {
		t.Error("a directory is a cursor file")
	}

	f := follow(t, &logAPI{}) // the server's refusal names the file too
	writeFile(t, f.path, `{"subscription_id":"`+pulledSubscription+`","cursor":"foreign"}`)
	f.start()
	if err := f.failure(); err == nil || !strings.Contains(err.Error(), "does not know the cursor in "+f.path) {
		t.Errorf("got %v", err)
	}

	f = follow(t, &logAPI{}) // a cursor that cannot be saved ends the command
	f.path = filepath.Join(f.path, "missing", "cursor")
	f.start()
	if err := f.failure(); err == nil || !strings.Contains(err.Error(), "failed to save the cursor") {
		t.Errorf("got %v", err)
	}
}

// receivedEvent is a forwarded request.
type receivedEvent struct {
	header http.Header
	body   []byte
}

// forwardTo makes a follower forward to a receiver, which gets each request and the number of requests
// so far, and returns the status.
func (f *followed) forwardTo(receive func(receivedEvent, int) int) (secret webhook.SigningSecret) {
	f.t.Helper()
	n := 0
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			f.t.Error(err)
		}
		n++
		w.WriteHeader(receive(receivedEvent{r.Header, body}, n))
	}))
	f.t.Cleanup(target.Close)
	c := &listenCmd{Forward: target.URL + "/hook"}
	secret = webhook.NewSigningSecret()
	c.Secret = secret.Reveal()
	var errs configErrors
	if err := errors.Join(c.pullForward(&errs, f.follower), errs.err()); err != nil {
		f.t.Fatal(err)
	}
	f.forward.minWait, f.forward.maxWait = time.Millisecond, 4*time.Millisecond
	return secret
}

// An event is forwarded until the receiver has accepted it, always with the same ID and bytes.
func TestPullForwards(t *testing.T) {
	f := follow(t, &logAPI{fail: subscriptionRecord(`{"data":{"has_authorization_header":true,"header_names":["X-Mine","X-Other"]}}`)})
	var got []receivedEvent
	statuses := []int{500, 404, 302, 429, 204, 200, 503, 200}
	secret := f.forwardTo(func(r receivedEvent, n int) int {
		got = append(got, r)
		return statuses[n-1]
	})
	f.forward.headers = []webhook.Header{{Name: "x-mine", Value: "1"}}
	f.start()
	f.api.publish(3)
	for i, status := range statuses {
		if a := f.next(); a.Status != status || a.Signature != signatureMade || (a.Note == "") != (status < 300) {
			t.Errorf("attempt %d: got %+v", i, a)
		}
	}
	f.end()
	verifier, err := standardwebhooks.NewWebhook(secret.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i, r := range got {
		if err := verifier.Verify(r.body, r.header); err != nil {
			t.Errorf("request %d: %v", i, err)
		}
		ids = append(ids, r.header.Get("webhook-id"))
		if i > 0 && ids[i] == ids[i-1] && !bytes.Equal(r.body, got[i-1].body) {
			t.Errorf("repeated as %s, was %s", r.body, got[i-1].body)
		}
	}
	if first := slices.Compact(slices.Clone(ids)); len(first) != 3 || ids[0] != ids[4] || ids[5] != first[1] || ids[6] != ids[7] {
		t.Errorf("got the ids %q, want 5, 1 and 2 requests for three events", ids)
	}
	if want := "Deliveries also have Authorization, X-Other, whose values"; !strings.Contains(strings.Join(f.notes, "\n"), want) {
		t.Errorf("got the notes %q, want %q", f.notes, want)
	}
}

func subscriptionRecord(record string) func(http.ResponseWriter, int) bool {
	return func(w http.ResponseWriter, request int) bool {
		if request == 1 {
			io.WriteString(w, record)
		}
		return request == 1
	}
}

// A stop ends the wait before the next attempt. The event is sent again by the next process.
func TestPullStopsWhileRetrying(t *testing.T) {
	f := follow(t, &logAPI{fail: subscriptionRecord(`{"data":{}}`)})
	f.forwardTo(func(receivedEvent, int) int { return 500 })
	f.forward.minWait = time.Hour
	f.start()
	f.api.publish(1)
	f.next()
	if got := f.end(); got != "0" {
		t.Errorf("got the cursor %s, want that before the event", got)
	}
}

// A stop lets an attempt in flight end, for a while.
func TestPullStopsInFlight(t *testing.T) {
	for _, answers := range []bool{true, false} {
		f := follow(t, &logAPI{fail: subscriptionRecord(`{"data":{}}`)})
		arrived, stopped := make(chan struct{}), make(chan struct{})
		f.forwardTo(func(receivedEvent, int) int {
			close(arrived)
			<-stopped
			return 200
		})
		want := "0"
		if f.forward.grace = time.Millisecond; answers {
			f.forward.grace, want = time.Hour, "1"
		}
		f.start()
		f.api.publish(1)
		<-arrived
		f.stop()
		if answers {
			close(stopped)
		}
		if err := f.failure(); err != nil {
			t.Error(err)
		}
		if got := f.saved(); got != want {
			t.Errorf("answers: %t: got the cursor %s, want %s", answers, got, want)
		}
		if !answers {
			close(stopped)
		}
	}
}

func TestPullUsage(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "headers"), "Authorization: a\nX-A: 1\nauthorization: b\nContent-Type: text/plain\n")
	for _, test := range []struct{ args, want []string }{
		{strings.Fields("--pull x --listen 127.0.0.1:1 --status 201 --fail-first 1 --forward x --secret hush"), []string{
			"missing flag --token: an access token with the scope webhooks.read", "6 settings are wrong",
			"--listen: cannot be used with --pull", "--status: cannot", "--fail-first: cannot", "--pull: must be the ID of a subscription",
			"--forward: must be an absolute URL", "--secret: must be the signing secret",
		}},
		{[]string{"--cursor-file", "x", "--from", "x", "--headers-file", "x", "--program", "x"}, []string{
			"--cursor-file: needs --pull", "--from: needs --pull", "--headers-file: needs --pull", "--program: needs --pull",
		}},
		{[]string{"--pull", pulledSubscription, "--token", "t", "--headers-file", "x"}, []string{"--headers-file: needs --forward"}},
		{[]string{"--pull", pulledSubscription, "--token", "t", "--url", "http://example.com"}, []string{"--url: must begin with https://"}},
		{[]string{"--pull", pulledSubscription, "--token", "t", "--forward", "http://127.0.0.1:1", "--headers-file", file}, []string{
			"--headers-file: headers.Content-Type is set by the service itself", "--headers-file: Authorization is given twice",
		}},
	} {
		_, errs := expect(t, exitUsage, append([]string{"listen"}, test.args...)...)
		for _, want := range test.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%q: got %s, want %q", test.args, errs, want)
			}
		}
		if strings.Contains(errs, "hush") {
			t.Errorf("the error contains the secret: %s", errs)
		}
	}
}

func TestPulledLine(t *testing.T) {
	at := "2026-03-14T08:24:57.901Z"
	for _, test := range []struct {
		a    arrival
		want string
	}{
		{arrival{Times: 1}, "08:24:57.901  event e1  n\n    {}\n"},
		{arrival{Times: 1, Signature: signatureMade, Status: 204}, "08:24:57.901  event e1  n  signed  → 204\n    {}\n"},
		{arrival{Times: 3, Signature: signatureNone, Note: "not forwarded: connection refused; next attempt in 1s"},
			"08:24:57.901  event e1  n  attempt 3  not signed  (not forwarded: connection refused; next attempt in 1s)\n"},
	} {
		var b strings.Builder
		test.a.ReceivedAt, test.a.pulled, test.a.raw, test.a.Events = at, true, []byte("{}"), []webhook.EventRef{{ID: "e1", Name: "n"}}
		printArrival(&b, true)(&test.a)
		if b.String() != test.want {
			t.Errorf("got  %q\nwant %q", b.String(), test.want)
		}
	}
}

func TestEventStream(t *testing.T) {
	in := ":\n\nid: 1\n\nevent: a\r\ndata: x\r\ndata:y\r\n\r\n\n\nretry: 5\n: c\ndata\nid:2:3\n\ndata: cut off\n"
	s := newEventStream(iotest.OneByteReader(strings.NewReader(in)), time.Minute, func() {})
	for _, want := range []streamEvent{{id: "1"}, {name: "a", data: []byte("x\ny")}, {id: "2:3", data: []byte("")}} {
		got, err := s.next()
		if err != nil || got.name != want.name || got.id != want.id || string(got.data) != string(want.data) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if got, err := s.next(); err != io.EOF {
		t.Errorf("got %+v, %v, want the end", got, err)
	}
}

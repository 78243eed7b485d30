package api

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/test/harness"
	"service/webhook"
)

// With --acknowledge replica neither a page, a wait nor a stream shows an event that the replica does
// not have, however often it is asked for. What it has is shown even while it is away.
func TestPullAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startReplicated(t, 300*time.Millisecond)
		const log = "/v2/events?sort=received_at"
		s.publishOne()
		end := s.pull("/v2/events", "sort=received_at").next(t)
		wr := s.begin(log + "&wait=30s&page[cursor]=" + end)
		stream := s.begin(log, "Accept", mediaEvents, lastEventID, end)
		s.cut()
		wantStatus(t, "publish", s.send("POST", "/v2/events", contentUpdated), 503)
		wantStatus(t, "one that waited", wr.end(t), 503)
		for _, query := range []string{"", "&wait=30s", "", "&filter[name]=content_updated"} {
			wantStatus(t, "a page "+query, s.send("GET", log+query+"&page[cursor]="+end, ""), 503)
		}
		if r := stream.end(t); strings.Contains(r.body, "content_updated") || !strings.Contains(r.body, "event: error") {
			t.Errorf("the stream: got %s, want an error", r.body)
		}
		wantStatus(t, "another stream", s.send("GET", log, "", "Accept", mediaEvents, lastEventID, end), 503)
		if got := s.pull("/v2/events", "sort=received_at&page[size]=1").seqs(); len(got) != 1 || got[0] != 1 {
			t.Errorf("what the replica has: got %v, want the event 1", got)
		}
		s.mend()
		if got := s.pull("/v2/events", "sort=received_at&page[cursor]="+end).seqs(); len(got) != 1 || got[0] != 2 {
			t.Errorf("with the replica: got %v, want the event 2", got)
		}
	})
}

// A wait and a stream end when their token expires.
func TestPullExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		_, s.token = s.createToken(
			webhook.NewToken{ProgramID: "acme", UserID: "eve", Scopes: webhook.Scopes(), ExpiresAt: time.Now().Add(10 * time.Second)})
		began := time.Now()
		wr := s.begin("/v2/events?sort=received_at&wait=30s")
		stream := s.begin("/v2/events?sort=received_at", "Accept", mediaEvents)
		wantStatus(t, "a wait", wr.end(t), 401)
		wantBody(t, "a stream", stream.end(t), 200, "event: error\ndata: ", `"code":401`)
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("ended %s after the token was created, which was valid for 10 s", took)
		}
	})
}

// A move of the program ends waits and streams as soon as the program is frozen. The client asks again,
// and is forwarded.
func TestPullMoves(t *testing.T) {
	from, to := newInstallation(t).withProgram(), newInstallation(t)
	s := *from.service
	s.token = from.moved
	begun := func(target string, headers ...string) *waitingRequest {
		return s.beginIn(movedProgram, target, headers...)
	}
	id := s.subscribe("content_updated")
	path := "/v2/webhooks/subscriptions/" + id + "/events"
	next := s.pull(path, "").next(t)
	waits := map[string]*waitingRequest{
		"the program":    begun("/v2/events?sort=received_at&wait=30s"),
		"a subscription": begun(path + "?wait=30s"),
	}
	stream := begun(path, "Accept", mediaEvents)
	from.move(to)
	for name, wr := range waits {
		if r := wr.end(t); r.status != 503 || r.header.Get("Retry-After") == "" {
			t.Errorf("%s: got %d with %v, want 503 with Retry-After", name, r.status, r.header)
		}
	}
	wantBody(t, "the stream", stream.end(t), 200, `event: error`, `"code":503`)

	wr := from.forwarded(to, path+"?wait=30s&page[cursor]="+next)
	wantStatus(t, "publish", from.send("POST", "/v2/events", contentUpdated), 201)
	if p := logPageOf(t, wr.end(t)); len(p.seqs()) != 1 {
		t.Errorf("a forwarded wait: got %+v, want the event", p)
	}
}

// forwarded sends a request that the target of a move gets, and returns when it waits there.
func (in *installation) forwarded(to *installation, target string, headers ...string) *waitingRequest {
	in.t.Helper()
	before := to.api.waiting.Count(movedProgram)
	wr := &waitingRequest{w: httptest.NewRecorder(), done: make(chan struct{})}
	r := httptest.NewRequestWithContext(in.t.Context(), "GET", target, nil)
	r.Header.Set("Authorization", "Bearer "+in.moved)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	go func() {
		defer close(wr.done)
		in.api.ServeHTTP(wr.w, r)
	}()
	harness.WaitFor(in.t, "the forwarded request to wait", func() bool {
		select {
		case <-wr.done:
			in.t.Fatalf("the request did not wait: %d %s", wr.w.Code, wr.w.Body)
		default:
		}
		return to.api.waiting.Count(movedProgram) > before
	})
	return wr
}

// What ends a wait at the installation that has the program ends it for the client of the old one, and
// so does the shutdown of either.
func TestForwardedWaits(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		do     func(from, to *installation)
	}{
		"an event":               {200, func(_, to *installation) { to.send("POST", "/v2/events", contentUpdated) }},
		"shutdown of the target": {200, func(_, to *installation) { to.api.EndWaits() }},
		"shutdown":               {503, func(from, _ *installation) { from.api.EndWaits() }},
		"revocation":             {401, func(_, to *installation) { to.revoke(data[identified](to.t, to.send("GET", "/v2/token", "")).ID) }},
		"another move": {503, func(_, to *installation) {
			must(to.t, to.store.Write(to.t.Context(), func(w store.Write) error {
				return w.Moves().Begin(movedProgram, webhook.NewID(), &store.MoveTarget{URL: "https://third.example", Token: to0})
			}))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := newMove(t)
			wr := from.forwarded(to, "/v2/events?sort=received_at&wait=30s")
			stream := from.openForwarded()
			defer stream.Body.Close()
			harness.WaitFor(t, "the stream", func() bool { return to.api.waiting.Count(movedProgram) == 2 })
			test.do(from, to)
			wantStatus(t, "a wait", wr.end(t), test.status)
			text := ""
			for in := bufio.NewScanner(stream.Body); in.Scan() && !strings.Contains(text, "content_updated"); {
				text += in.Text() + "\n"
			}
			if want := map[int]string{200: "id: ", 401: `"code":401`, 503: ""}[test.status]; !strings.Contains(text, want) {
				t.Errorf("a stream: got %q, want %s", text, want)
			}
		})
	}
}

// openForwarded opens a stream of the log over a connection to the old installation.
func (in *installation) openForwarded() *http.Response {
	in.t.Helper()
	resp := in.get(in.server.Client(), in.server.URL+"/v2/events?sort=received_at", mediaEvents)
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != mediaEvents || resp.Header.Get("X-Accel-Buffering") != "no" {
		in.t.Fatalf("a forwarded stream: got %d with %v", resp.StatusCode, resp.Header)
	}
	return resp
}

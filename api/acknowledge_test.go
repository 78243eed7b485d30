package api

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/store/replica"
	"service/webhook"
)

// replicatedService is a service with --acknowledge replica, whose replica is a folder
// that can be made unreachable.
type replicatedService struct {
	*service
	target string
}

func startReplicated(t *testing.T, timeout time.Duration) *replicatedService {
	t.Helper()
	dir, target := t.TempDir(), filepath.Join(t.TempDir(), "replica")
	name := filepath.Join(t.TempDir(), "litestream.yml")
	must(t, os.WriteFile(name, []byte("dbs: [{path: "+dir+"/service.db, replica: {path: "+target+"}}]"), 0o600))
	cfg, err := replica.ReadConfig(name, os.LookupEnv)
	must(t, err)
	s, err := store.Open(t.Context(), store.Config{Dir: dir, Replica: cfg, AcknowledgeTimeout: timeout})
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var replicating sync.WaitGroup
	replicating.Go(func() { s.Replica().Run(ctx) })
	t.Cleanup(func() {
		stop()
		replicating.Wait()
		s.Close() // the replica may be away
	})
	r := &replicatedService{start(t, func(cfg *Config) { cfg.Store = s }), target}
	r.store = s
	r.token = r.newToken("acme", "ada", webhook.Scopes()...)
	r.await()
	return r
}

// await waits until the replica contains everything.
func (s *replicatedService) await() {
	s.t.Helper()
	for n := 0; s.store.Replica().Acknowledge(s.t.Context()) != nil; n++ {
		if n == 200 {
			s.t.Fatalf("the replica is not up to date: %+v", s.store.Replica().Status())
		}
	}
}

// cut makes the replica unreachable; mend undoes that.
func (s *replicatedService) cut() {
	s.t.Helper()
	must(s.t, errors.Join(os.Rename(s.target, s.target+".away"), os.WriteFile(s.target, nil, 0o600)))
}

func (s *replicatedService) mend() {
	s.t.Helper()
	must(s.t, errors.Join(os.Remove(s.target), os.Rename(s.target+".away", s.target)))
	s.await()
}

// A record that is missing in the replica is neither acknowledged nor lost: the same request
// succeeds once the replica is reachable again, and takes effect once.
func TestAcknowledge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startReplicated(t, 300*time.Millisecond)
		const event = `{"id":"0198f6a2-7c1e-7d4b-9a41-000000000001","name":"content_updated","version":"1","content_id":1}`
		const subscription = `{"url":"https://partner.example/hook","events":[{"name":"content_updated","version":"1"}]}`
		post := func() response { return s.send("POST", "/v2/events", event) }
		subscribe := func() response {
			return s.send("POST", "/v2/webhooks/subscriptions", subscription, webhook.IdempotencyHeader, "key-1")
		}
		wantStatus(t, "with the replica", s.send("POST", "/v2/events", line(1000)), 201)
		wantStatus(t, "what writes nothing", s.send("POST", "/v2/events", line(1000)), 201)

		s.cut()
		for range 2 { // the second request finds the record stored
			r := post()
			wantBody(t, "an event", r, 503, "stored on this host", "same event id")
			if strings.Contains(r.body, "content_updated") {
				t.Errorf("the response contains the event: %s", r.body)
			}
		}
		wantStatus(t, "a subscription", subscribe(), 503)
		wantStatus(t, "what is not there", s.send("DELETE", "/v2/webhooks/subscriptions/0198f6a2-7c1e-7d4b-9a41-000000000009", ""), 503)
		wantStatus(t, "another event under a taken id", s.send("POST", "/v2/events",
			strings.Replace(event, `"content_id":1`, `"content_id":2`, 1)), 503)
		wantStatus(t, "what is not valid", s.send("POST", "/v2/events", "{}"), 400)
		wantStatus(t, "reading", s.send("GET", "/v2/events/0198f6a2-7c1e-7d4b-9a41-000000000001", ""), 200)
		owner := s.api.Owner(OwnerConfig{})
		for body, want := range map[string]int{
			`/v2/owner/tokens {"program_id":"acme","user_id":"u","scopes":["events.read"]}`: 503, `/v2/owner/audit/export {}`: 200,
		} {
			path, body, _ := strings.Cut(body, " ")
			r, w := httptest.NewRequest("POST", path, strings.NewReader(body)), httptest.NewRecorder()
			r.Header.Set("Content-Type", "application/json")
			if owner.ServeHTTP(w, r); w.Code != want || want == 503 && !strings.Contains(w.Body.String(), "stored on this host") {
				t.Errorf("the owner's %s: got %d %s, want %d", path, w.Code, w.Body, want)
			}
		}
		if log := s.log.String(); !strings.Contains(log, "status=503") {
			t.Errorf("the log contains no 503:\n%s", log)
		}

		s.mend()
		wantStatus(t, "the event again", post(), 201)
		if r := subscribe(); r.status != 201 || r.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("the subscription again: got %d %v", r.status, r.header)
		}
		if n := s.count(); n != 2 {
			t.Errorf("got %d stored events, want 2", n)
		}
		if n := len(data[[]identified](t, s.send("GET", "/v2/webhooks/subscriptions", ""))); n != 1 {
			t.Errorf("got %d subscriptions, want 1", n)
		}
	})
}

// The response to a stream counts only the lines that are in the replica.
func TestAcknowledgeStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Long enough for an upload on a busy machine: a stream ends when one takes longer.
		s := startReplicated(t, 3*time.Second)
		r := s.sendLines(strings.NewReader(line(1) + "\n" + line(2) + "\n"))
		wantBody(t, "with the replica", r, 201, `"accepted":2,"added":2`)
		r = s.sendLines(strings.NewReader(line(3) + "\n{}\n"))
		wantBody(t, "an invalid line, with the replica", r, 400, "The first event was accepted.")

		// The replica is unreachable from the third line on.
		in, out := io.Pipe()
		go func() {
			io.WriteString(out, line(4)+"\n"+line(5)+"\n")
			for s.count() < 5 {
				<-time.After(5 * time.Millisecond)
			}
			s.await()
			s.cut()
			io.WriteString(out, line(6)+"\n{}\n")
			out.Close()
		}()
		wantBody(t, "without the replica", s.sendLines(in), 503, "stored on this host", "The first 2 events were accepted.")

		// A stream ends when the replica is unreachable for long.
		in, more := io.Pipe()
		go func() {
			for n := 7; ; n++ {
				if _, err := io.WriteString(more, line(n)+"\n"); err != nil {
					return
				}
				<-time.After(10 * time.Millisecond)
			}
		}()
		r = s.sendLines(in)
		in.Close()
		wantBody(t, "a stream without the replica", r, 503, "No event was accepted.")

		s.mend()
		r = s.sendLines(strings.NewReader(line(4) + "\n" + line(5) + "\n" + line(6) + "\n"))
		wantBody(t, "the stream again", r, 201, `"accepted":3,"added":0`)
	})
}

// Without a replica to wait for, acknowledging allocates nothing.
func TestAcknowledgeAllocatesNothing(t *testing.T) {
	s := start(t)
	if n := testing.AllocsPerRun(100, func() {
		if err := s.store.Replica().Acknowledge(t.Context()); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

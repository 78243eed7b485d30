package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"service/webhook"
)

var sigtermInFlight = flag.Int("sigterm.in-flight", 200, "how many attempts are in flight when TestEndToEnd sends SIGTERM; a multiple of 10, up to 400")

// grace is the service's --grace in testSigterm.
const grace = 2 * time.Second

// testSigterm ends the service, as an operator does, with many attempts in
// flight. Half of the servers answer when the end has begun: those attempts are
// recorded, and never made again. The other half never answer: they are cut off
// after the grace period, recorded as interrupted, and made again once, by the
// next start.
func testSigterm(t *testing.T, binary string) {
	s := &lingering{arrived: make(chan struct{}, *sigtermInFlight), answer: make(chan struct{}), times: make(map[string]int)}
	base := listenLoopback(t, s)
	in := newInstance(t, binary, t.TempDir(), "--batch-size", "1", "--max-in-flight", "5", "--retry-schedule", "1h,1h,1h,1h",
		"--attempt-timeout", "1m", "--max-subscriptions", "0", "--grace", grace.String(), "--log-level", "warn")
	t.Cleanup(s.release) // before the receiver closes, which waits for it
	token := in.token("acme")
	run := in.mustStart()
	api, _ := in.await(t.Context())
	subscriptions := make(map[string]string) // id → kind
	for n := range *sigtermInFlight / 5 {
		kind := []string{"answering", "silent"}[n%2]
		subscriptions[in.subscribe(token, newSubscription{URL: fmt.Sprintf("%s/%s/%d", base, kind, n), Events: eventList("content_updated")})] = kind
	}
	for n := range 5 {
		event := map[string]any{"name": "content_updated", "version": "1", "content_id": n}
		if status, err := in.call(t.Context(), token, "POST", api+"/v2/events", event, nil); err != nil || status != http.StatusCreated {
			t.Fatalf("publish: status %d, %v", status, err)
		}
	}
	in.flight(s, *sigtermInFlight)

	began := time.Now()
	in.setBase("")
	if err := run.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// Once its door is closed the end has begun.
	for {
		resp, err := in.client.Get(api + "/healthz")
		if err != nil {
			break
		}
		resp.Body.Close()
	}
	s.release()
	select {
	case <-run.exited:
	case <-time.After(30 * time.Second):
		t.Fatal("the service did not end on SIGTERM")
	}
	took := time.Since(began)
	if run.status != exitDone {
		t.Errorf("exit status %d, want %d\n%s", run.status, exitDone, &run.log)
	}
	if took < grace || took > 2*grace+time.Second {
		t.Errorf("the service ended after %s, want about its grace period, %s", took, grace)
	}
	in.mustStart()
	in.flight(s, *sigtermInFlight/2)

	again := 0
	for id, kind := range subscriptions {
		path := "/v2/webhooks/subscriptions/" + id + "/deliveries"
		deliveries := in.settled(token, path)
		if len(deliveries) != 5+1 {
			t.Errorf("%d deliveries, want 5 and a ping", len(deliveries))
		}
		for _, d := range deliveries {
			if d.Events[0].Name == webhook.EventPing {
				continue
			}
			one, _, err := get[deliveryRead](in, token, path+"/"+d.ID)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, a := range one.Attempts {
				got = append(got, fmt.Sprintf("%s %d %s", a.Result, a.ResponseStatus, a.Error.Code))
			}
			want := "success 200 "
			if kind == "silent" {
				want = "retryable 0 interrupted, success 200 "
			}
			s.mu.Lock()
			times := s.times[d.ID]
			s.mu.Unlock()
			again += times - 1
			if strings.Join(got, ", ") != want || times != len(one.Attempts) {
				t.Errorf("a delivery to a server that is %s: got %d arrivals and the attempts %q, want %q", kind, times, got, want)
			}
		}
	}
	if want := *sigtermInFlight / 2; again != want {
		t.Errorf("%d deliveries arrived again, want the %d that were cut off", again, want)
	}
	t.Logf("%d in flight at SIGTERM: ended after %s; %d recorded, %d made again", *sigtermInFlight, took.Round(time.Millisecond), *sigtermInFlight-again, again)
	if status := in.stop(in.last()); status != exitDone {
		t.Errorf("exit status %d after SIGTERM, want %d", status, exitDone)
	}
}

// flight waits until so many attempts have arrived.
func (in *instance) flight(s *lingering, n int) {
	in.tb.Helper()
	deadline := time.After(20 * time.Second)
	for i := range n {
		select {
		case <-s.arrived:
		case <-deadline:
			in.tb.Fatalf("%d attempts have arrived, want %d", i, n)
		}
	}
}

// settled reads a subscription's deliveries as soon as all of them have ended.
func (in *instance) settled(token, path string) []deliveryRead {
	in.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		deliveries, err := feed[deliveryRead](in, token, path)
		open := 0
		for _, d := range deliveries {
			if !d.Status.Final() {
				open++
			}
		}
		if err == nil && open == 0 {
			return deliveries
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			in.tb.Fatalf("%s: %d of %d deliveries have not ended, %v", path, open, len(deliveries), err)
		}
	}
}

// lingering is servers that answer late, /answering, or not at all, /silent;
// but a delivery that comes again is answered at once.
type lingering struct {
	arrived chan struct{}
	answer  chan struct{} // closed: the answering do
	once    sync.Once

	mu    sync.Mutex
	times map[string]int // arrivals, by delivery id
}

func (s *lingering) release() { s.once.Do(func() { close(s.answer) }) }

func (s *lingering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || bytes.Contains(body, []byte(`"name":"ping"`)) {
		return
	}
	id := r.Header.Get("X-Service-Delivery")
	s.mu.Lock()
	s.times[id]++
	first := s.times[id] == 1
	s.mu.Unlock()
	s.arrived <- struct{}{}
	switch {
	case !first:
	case strings.HasPrefix(r.URL.Path, "/silent"):
		<-r.Context().Done()
	default:
		<-s.answer
	}
}

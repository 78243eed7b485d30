package load

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/test/harness"
)

// subscriptionRecord is what the API says of a subscription's health.
type subscriptionRecord struct {
	Data struct {
		Status        string
		FailingReason string    `json:"failing_reason"`
		NextProbeAt   time.Time `json:"next_probe_at"`
	}
}

// rejecting is a receiver that rejects all, pings too, while it is broken.
type rejecting struct {
	broken atomic.Bool

	mu                 sync.Mutex
	accepted, rejected []int // numbers of events
}

func (r *rejecting) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := harness.ReadBody(req)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	into := &r.accepted
	if r.broken.Load() {
		w.WriteHeader(http.StatusUnauthorized)
		into = &r.rejected
	}
	for n := range harness.Numbers(body) {
		*into = append(*into, n)
	}
}

func (r *rejecting) count(of *[]int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(*of)
}

// TestBreaker: a receiver rejects all, pings too, while events are published, and
// the service is killed meanwhile. No more than five events fail; the others arrive
// in order once the receiver is well, and a replay brings those that failed.
func TestBreaker(t *testing.T) {
	in := harness.NewInstance(t, harness.Build(t), t.TempDir())
	r := &rejecting{}
	receiver := harness.Listen(t, r)
	alerts := make(chan struct{}, 100)
	operator := harness.Listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { alerts <- struct{}{} }))
	in.Flags = append(in.Flags, "--alert-url", operator)
	token := in.Token("acme")
	killed := in.MustStart()
	id := in.Subscribe(token, harness.Subscription{URL: receiver, Events: harness.Events(harness.NumberedEvent), Ordered: true})
	record := func() (s subscriptionRecord) {
		t.Helper()
		status, err := in.Call(t.Context(), token, "GET", in.URL()+"/v2/webhooks/subscriptions/"+id, nil, &s)
		if err != nil || status != http.StatusOK {
			t.Fatalf("status %d, %v", status, err)
		}
		return s
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(harness.Timeout()); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not within %s", what, harness.Timeout())
			}
		}
	}
	published := 0
	publish := func(n int) {
		for range n {
			in.Publish(token, harness.AppendEvent(nil, published))
			published++
		}
	}
	arrived := func() int { return r.count(&r.accepted) }
	since := time.Now()
	publish(10)
	await("the first events arrive", func() bool { return arrived() == 10 })

	r.broken.Store(true)
	publish(1)
	await("the first is rejected", func() bool { return r.count(&r.rejected) > 0 })
	publish(50)
	await("it is failing", func() bool { return record().Data.Status == "failing" })
	if is := record().Data; is.Status != "failing" || is.FailingReason != "rejecting" || is.NextProbeAt.IsZero() {
		t.Fatalf("it is %+v", is)
	}
	<-alerts
	in.Kill(killed)
	in.MustStart()
	if is := record().Data; is.Status != "failing" || is.FailingReason != "rejecting" {
		t.Errorf("after kill -9 it is %+v", is)
	}
	r.broken.Store(false)
	await("it recovers", func() bool { return record().Data.Status == "healthy" })
	<-alerts
	r.mu.Lock()
	failed := slices.Clone(r.rejected)
	r.mu.Unlock()
	if len(failed) > 5 {
		t.Errorf("%d events failed, want at most 5", len(failed))
	}
	await("the others arrive", func() bool { return arrived() >= published-len(failed) })
	r.mu.Lock()
	if !slices.IsSorted(r.accepted) || len(r.accepted) != published-len(failed) {
		t.Errorf("%d events arrived of %d, of which %d failed, or not in order", len(r.accepted), published, len(failed))
	}
	r.mu.Unlock()

	body := map[string]any{"only": "failed", "from": since.UTC().Format(time.RFC3339)}
	if status, err := in.Call(t.Context(), token, "POST", in.URL()+"/v2/webhooks/subscriptions/"+id+"/replays", body, nil); err != nil || status != http.StatusAccepted {
		t.Fatalf("replay: status %d, %v", status, err)
	}
	await("what failed arrives", func() bool { return arrived() == published })
}

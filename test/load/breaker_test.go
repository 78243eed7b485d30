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

// subscriptionRecord contains the health of a subscription in the API.
type subscriptionRecord struct {
	Data struct {
		Status        string
		FailingReason string    `json:"failing_reason"`
		NextProbeAt   time.Time `json:"next_probe_at"`
	}
}

// rejecting is a receiver that, while it is broken, rejects everything, including pings.
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

// TestBreaker publishes events while a receiver rejects everything, and kills the service. At most
// five events may fail. Once the receiver works again, the others must arrive in order, and a
// replay must deliver the failed ones.
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
	harness.WaitFor(t, "the first events", func() bool { return arrived() == 10 })

	r.broken.Store(true)
	publish(1)
	harness.WaitFor(t, "the first rejection", func() bool { return r.count(&r.rejected) > 0 })
	publish(50)
	harness.WaitFor(t, "the subscription to be failing", func() bool { return record().Data.Status == "failing" })
	if is := record().Data; is.Status != "failing" || is.FailingReason != "rejecting" || is.NextProbeAt.IsZero() {
		t.Fatalf("subscription: got %+v, want failing because it is rejecting", is)
	}
	<-alerts
	in.Kill(killed)
	in.MustStart()
	if is := record().Data; is.Status != "failing" || is.FailingReason != "rejecting" {
		t.Errorf("subscription after kill -9: got %+v, want failing because it is rejecting", is)
	}
	r.broken.Store(false)
	harness.WaitFor(t, "the subscription to recover", func() bool { return record().Data.Status == "healthy" })
	<-alerts
	r.mu.Lock()
	failed := slices.Clone(r.rejected)
	r.mu.Unlock()
	if len(failed) > 5 {
		t.Errorf("got %d failed events, want at most 5", len(failed))
	}
	harness.WaitFor(t, "the other events", func() bool { return arrived() >= published-len(failed) })
	r.mu.Lock()
	if !slices.IsSorted(r.accepted) || len(r.accepted) != published-len(failed) {
		t.Errorf("got %d of %d events, want all but the %d failed ones, in order", len(r.accepted), published, len(failed))
	}
	r.mu.Unlock()

	body := map[string]any{"only": "failed", "from": since.UTC().Format(time.RFC3339)}
	if status, err := in.Call(t.Context(), token, "POST", in.URL()+"/v2/webhooks/subscriptions/"+id+"/replays", body, nil); err != nil ||
		status != http.StatusAccepted {
		t.Fatalf("replay: status %d, %v", status, err)
	}
	harness.WaitFor(t, "the failed events", func() bool { return arrived() == published })
}

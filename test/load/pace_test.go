package load

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"service/test/harness"
)

// limited is a receiver that accepts ten deliveries per second, in bursts of up to ten,
// and responds 429 to the others.
type limited struct {
	mu                 sync.Mutex
	tokens             float64
	filled             time.Time
	accepted, rejected []time.Time
}

func (r *limited) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := harness.ReadBody(req)
	if err != nil || harness.IsPing(body) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.tokens = min(10, r.tokens+10*now.Sub(r.filled).Seconds())
	r.filled = now
	if r.tokens < 1 {
		r.rejected = append(r.rejected, now)
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	r.tokens--
	r.accepted = append(r.accepted, now)
}

// since returns the numbers of deliveries accepted and rejected since a time.
func (r *limited) since(at time.Time) (accepted, rejected int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := func(times []time.Time) int {
		i, _ := slices.BinarySearchFunc(times, at, time.Time.Compare)
		return len(times) - i
	}
	return count(r.accepted), count(r.rejected)
}

// TestPace publishes 50 events per second to a receiver that accepts ten. After ten
// seconds at least nine per second must arrive, and at most one in a hundred attempts
// may be rejected. A busy machine gets two more chances.
func TestPace(t *testing.T) {
	harness.Long(t)
	in := harness.NewInstance(t, harness.Build(t), t.TempDir(), "--batch-size", "1")
	r := &limited{}
	token := in.Token("acme")
	in.MustStart()
	in.Subscribe(token, harness.Subscription{URL: harness.Listen(t, r), Events: harness.Events(harness.NumberedEvent)})

	const window = 30 * time.Second
	published := 0
	publishUntil := func(end time.Time) {
		// Ten events per request, so that the publisher is not the bottleneck.
		for next := time.Now(); next.Before(end); next = next.Add(200 * time.Millisecond) {
			time.Sleep(time.Until(next))
			body := []byte(`{"events":[`)
			for i := range 10 {
				if i > 0 {
					body = append(body, ',')
				}
				body = harness.AppendEvent(body, published)
				published++
			}
			in.Publish(token, append(body, "]}"...))
		}
		time.Sleep(time.Until(end))
	}
	publishUntil(time.Now().Add(10 * time.Second))
	least := int(float64(9*window/time.Second) * float64(time.Second) / float64(harness.Scale(time.Second)))
	for chance := range 3 {
		start := time.Now()
		publishUntil(start.Add(window))
		accepted, rejected := r.since(start)
		t.Logf("%d deliveries accepted within %s, %d rejected", accepted, time.Since(start).Round(time.Millisecond), rejected)
		if accepted >= least && rejected*100 <= accepted+rejected {
			return
		}
		if chance == 2 {
			t.Errorf("got %d accepted and %d rejected, want at least %d accepted and at most one in a hundred rejected", accepted, rejected, least)
		}
	}
}

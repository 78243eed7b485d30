package load

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"service/test/harness"
)

// limited is a receiver that takes ten deliveries a second, ten at once if it has
// had a rest, and responds 429 to the others.
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

// since returns how many deliveries were accepted and rejected since a time.
func (r *limited) since(at time.Time) (accepted, rejected int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := func(times []time.Time) int {
		i, _ := slices.BinarySearchFunc(times, at, time.Time.Compare)
		return len(times) - i
	}
	return count(r.accepted), count(r.rejected)
}

// TestPace: 50 events a second are published to a receiver that takes ten, one by
// one. After ten seconds at least nine a second arrive, and at most one in a hundred
// fails. A machine that stands still for a moment has another two chances.
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
		// Ten at a time, since the publisher is not what is tested.
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
		t.Logf("%d deliveries were accepted within %s, %d rejected", accepted, time.Since(start).Round(time.Millisecond), rejected)
		if accepted >= least && rejected*100 <= accepted+rejected {
			return
		}
		if chance == 2 {
			t.Errorf("want %d accepted at least, and one in a hundred rejected at most", least)
		}
	}
}

package dispatcher

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// The body of a delivery of several events is below 100 KB, the default limit of Express
// and NestJS. A larger event is sent alone.
func TestBatchBytes(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 1}, func(w *testbed) {
		gate := make(chan struct{})
		r := w.subscriber(func(int, http.ResponseWriter, *http.Request) { <-gate })
		w.subscribe(r, nil)
		w.publishOfSize("content_updated", 10) // occupies the slot
		synctest.Wait()
		for range 40 {
			w.publishOfSize("content_updated", 4<<10)
		}
		w.publishOfSize("content_updated", 200<<10)
		w.publishOfSize("content_updated", 10)
		close(gate)
		for _, p := range r.posts() {
			if len(p.ids) > 1 && p.size >= 100_000 {
				t.Errorf("got a body of %d bytes for %d events", p.size, len(p.ids))
			}
		}
		if got, want := r.batches(), []int{1, 15, 15, 10, 1, 1}; !slices.Equal(got, want) {
			t.Errorf("got deliveries of %v events, want %v", got, want)
		}
	})
}

// batches returns the numbers of events of the deliveries so far.
func (r *subscriber) batches() []int {
	var sizes []int
	for _, p := range r.posts() {
		sizes = append(sizes, len(p.ids))
	}
	return sizes
}

// A delivery contains at most max_events of its subscription, or --batch-size if that is
// less. A change applies to the next delivery, even while one is in flight.
func TestMaxEvents(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 1, BatchSize: 4}, func(w *testbed) {
		release := make(chan struct{})
		r := w.subscriber(func(int, http.ResponseWriter, *http.Request) { <-release })
		sub := w.subscribe(r, func(f *webhook.SubscriptionFields) { f.MaxEvents = new(2) })
		release <- struct{}{} // the ping
		w.publishN(20, "content_updated")
		release <- struct{}{}
		for _, limit := range []int{3, 1000, 1, 0} {
			synctest.Wait()
			w.update(sub, &webhook.SubscriptionFields{MaxEvents: &limit})
			release <- struct{}{}
		}
		if got, want := r.batches(), []int{1, 2, 3, 4, 1, 4}; !slices.Equal(got, want) {
			t.Errorf("got deliveries of %v events, want %v", got, want)
		}
		close(release)
		if got, want := r.batches()[6:], []int{4, 1}; !slices.Equal(got, want) {
			t.Errorf("got deliveries of %v events in the end, want %v", got, want)
		}
	})
}

// An idle subscription has offered a credit, with the limit from before the change.
func TestMaxEventsInline(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 1, BatchSize: 4}, func(w *testbed) {
		r := w.subscriber(nil)
		sub := w.subscribe(r, nil)
		w.update(sub, &webhook.SubscriptionFields{MaxEvents: new(3)})
		w.publishTogether(4)
		if got, want := r.batches(), []int{3, 1}; !slices.Equal(got, want) {
			t.Errorf("got deliveries of %v events, want %v", got, want)
		}
		w.publishTogether(4) // the offer includes the limit
		if got, want := r.batches()[2:], []int{3, 1}; !slices.Equal(got, want) {
			t.Errorf("got deliveries of %v events after another offer, want %v", got, want)
		}
	})
}

// The limit applies to the deliveries of a replay.
func TestMaxEventsReplay(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 1, BatchSize: 4}, func(w *testbed) {
		r := w.subscriber(nil)
		sub := w.subscribe(r, func(f *webhook.SubscriptionFields) { f.MaxEvents = new(2) })
		from := time.Now()
		for range 5 {
			w.publish("content_updated")
			synctest.Wait()
		}
		before := len(r.batches())
		w.replay(sub, from, webhook.ReplayAll)
		if got, want := r.batches()[before:], []int{2, 2, 1}; !slices.Equal(got, want) {
			t.Errorf("got deliveries of %v events, want %v", got, want)
		}
	})
}

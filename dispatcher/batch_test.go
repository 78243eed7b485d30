package dispatcher

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store/storetest"
	"service/webhook"
)

// publishOf publishes an event of about size bytes.
func (w *testbed) publishOf(size int) {
	w.t.Helper()
	id := webhook.NewID()
	e := webhook.Event{ID: id, Name: "content_updated", ReceivedAt: time.Now(),
		JSON: fmt.Appendf(nil, `{"id":%q,"name":"content_updated","text":%q}`, id, strings.Repeat("x", size))}
	if _, err := w.d.store.Events().Publish(context.Background(), "p", []webhook.Event{e}); err != nil {
		w.t.Fatal(err)
	}
}

// The body of a delivery of several events is below 100 KB, the default limit of Express
// and NestJS. A larger event is sent alone.
func TestBatchBytes(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 1}, func(w *testbed) {
		gate := make(chan struct{})
		r := w.subscriber(func(int, http.ResponseWriter, *http.Request) { <-gate })
		w.subscribe(r, nil)
		w.publishOf(10) // occupies the slot
		synctest.Wait()
		for range 40 {
			w.publishOf(4 << 10)
		}
		w.publishOf(200 << 10)
		w.publishOf(10)
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
		limit := 2
		sub := w.subscribe(r, func(f *webhook.SubscriptionFields) { f.MaxEvents = &limit })
		release <- struct{}{} // the ping
		for range 20 {
			w.publish("content_updated")
		}
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
		publish := func() {
			events := make([]webhook.Event, 4)
			for i := range events {
				id := webhook.NewID()
				events[i] = webhook.Event{ID: id, Name: "content_updated", ReceivedAt: time.Now(),
					JSON: fmt.Appendf(nil, `{"id":%q,"name":"content_updated"}`, id)}
			}
			if _, err := w.d.store.Events().Publish(context.Background(), "p", events); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		limit := 3
		w.update(sub, &webhook.SubscriptionFields{MaxEvents: &limit})
		publish()
		if got, want := r.batches(), []int{3, 1}; !slices.Equal(got, want) {
			t.Errorf("got deliveries of %v events, want %v", got, want)
		}
		publish() // the offer includes the limit
		if got, want := r.batches()[2:], []int{3, 1}; !slices.Equal(got, want) {
			t.Errorf("got deliveries of %v events after another offer, want %v", got, want)
		}
	})
}

// The limit applies to the deliveries of a replay.
func TestMaxEventsReplay(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 1, BatchSize: 4}, func(w *testbed) {
		r := w.subscriber(nil)
		limit := 2
		sub := w.subscribe(r, func(f *webhook.SubscriptionFields) { f.MaxEvents = &limit })
		from := time.Now()
		for range 5 {
			w.publish("content_updated")
			synctest.Wait()
		}
		before := len(r.batches())
		_, err := storetest.CreateReplay(context.Background(), w.d.store, "p", sub.ID, &webhook.ReplayFields{From: from, Only: webhook.ReplayAll})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := r.batches()[before:], []int{2, 2, 1}; !slices.Equal(got, want) {
			t.Errorf("got deliveries of %v events, want %v", got, want)
		}
	})
}

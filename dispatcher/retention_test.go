package dispatcher

import (
	"context"
	"testing"
	"time"

	"service/store"
	"service/webhook"
)

// An ordered subscription continues as soon as the delivery it waits for has
// expired.
func TestOrderedContinuesAfterExpiry(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1}, func(w *testbed) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func(s *store.Store) { done <- s.Retain(ctx, webhook.Retention{All: time.Hour}) }(w.d.store)
		r := w.subscriber(respondWith(200, 500, 500, 500, 500, 200))
		w.subscribe(r, inOrder)
		w.publish("content_updated")
		w.subscribe(w.subscriber(nil), nil) // retention keeps the newest delivery, which is now its ping
		time.Sleep(50 * time.Minute)        // the fifth attempt is due in two hours
		second := w.publish("content_updated")
		time.Sleep(15 * time.Minute)
		if got := r.posts(); len(got) != 5 || got[4].ids[0] != second {
			t.Errorf("got %+v, want four attempts and then the second event", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

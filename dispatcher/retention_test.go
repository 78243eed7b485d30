package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/store/storetest"
	"service/test/seed"
	"service/webhook"
)

// errorCounter is a log handler that counts errors and fails the test.
type errorCounter struct {
	slog.Handler
	errors *atomic.Int64
	t      *testing.T
}

func (c errorCounter) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}
func (c errorCounter) Handle(_ context.Context, r slog.Record) error {
	c.errors.Add(1)
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool { b.WriteString(" " + a.String()); return true })
	c.t.Errorf("unexpected error in the log: %s%s", r.Message, b.String())
	return nil
}

// retentionTest runs retention and deliveries at the same time, with three receivers: one
// mostly responds, one is sometimes paused, and one hangs.
type retentionTest struct {
	*testbed
	rnd            *rand.Rand
	flaky, hanging *subscriber
	subs           [3]webhook.Subscription // of flaky, of the paused receiver, of hanging
	active         bool                    // of subs[1]
	published      map[string]bool         // IDs of published events
}

func newRetentionTest(w *testbed, random *rand.Rand) *retentionTest {
	r := &retentionTest{testbed: w, rnd: random, active: true, published: make(map[string]bool)}
	only := func(f *webhook.SubscriptionFields) { f.Events = &[]string{"content_updated"} }
	r.flaky = w.subscriber(func(_ int, rw http.ResponseWriter, _ *http.Request) {
		if rand.IntN(4) == 0 {
			rw.WriteHeader(http.StatusBadGateway)
		}
	})
	r.hanging = w.subscriber(hang)
	ordered := true
	r.subs = [...]webhook.Subscription{w.subscribe(r.flaky, only), w.subscribe(w.subscriber(nil), only),
		w.subscribe(r.hanging, func(f *webhook.SubscriptionFields) {
			only(f)
			f.Ordered = &ordered
		})}
	return r
}

// step publishes, pauses, redelivers or replays. A refusal is not an error, since
// retention may have removed the delivery or the events.
func (r *retentionTest) step(ctx context.Context) {
	r.t.Helper()
	var err error
	switch x := r.rnd.IntN(10); {
	case x < 6:
		for range 1 + r.rnd.IntN(10) {
			r.published[r.publish("content_updated")] = true
		}
	case x < 7:
		r.active = !r.active
		r.update(r.subs[1], &webhook.SubscriptionFields{Active: &r.active})
	case x < 8:
		if got := r.flaky.all(); len(got) > 0 {
			_, err = storetest.Redeliver(ctx, r.d.store, "p", r.subs[0].ID, got[max(0, len(got)-1-r.rnd.IntN(50))].delivery)
		}
	default:
		_, err = storetest.CreateReplay(ctx, r.d.store, "p", r.subs[r.rnd.IntN(3)].ID,
			&webhook.ReplayFields{From: time.Now().Add(-9*time.Hour - 59*time.Minute), Only: webhook.ReplayAll})
	}
	if refused := new(webhook.Error); err != nil && !errors.As(err, &refused) {
		r.t.Error(err)
	}
}

// check checks, a day after the last event, that each event was sent, visibly
// failed, or is counted as lost.
func (r *retentionTest) check(ctx context.Context) {
	r.t.Helper()
	seen := make(map[string]bool)
	for _, a := range r.flaky.all() {
		for _, id := range a.ids {
			seen[id] = true
		}
	}
	for id := range r.published {
		if !seen[id] {
			r.t.Error("an event never arrived at the receiver that responds")
		}
	}
	if n := r.d.store.Figures().Swept(); n.Events == 0 || n.Deliveries == 0 || n.Lost == 0 {
		r.t.Errorf("got %+v removed, want some of each", n)
	}
	// Events never sent to the hanging receiver are counted as lost, except the
	// newest event, which still waits.
	for _, a := range r.hanging.all() {
		for _, id := range a.ids {
			delete(r.published, id)
		}
	}
	lost, err := storetest.LostEvents(ctx, r.d.store, r.subs[2].ID)
	if waiting := int64(len(r.published)) - lost; err != nil || lost == 0 || waiting < 0 || waiting > 1 {
		r.t.Errorf("got %[2]d events counted as lost (%[3]v), want all but at most one of the %[1]d that were never sent",
			len(r.published), lost, err)
	}
}

// While retention removes old events and deliveries, deliveries are formed, retried,
// redelivered and replayed as usual. Every event that a subscription selects arrives,
// visibly fails, or is counted as lost, and no delivery lacks an event.
func TestRetentionWithDeliveries(t *testing.T) {
	seed.Each(t, 2, func(t *testing.T, n uint64) {
		var logged atomic.Int64
		cfg := Config{
			RetryPolicy: exactRetryPolicy(), BatchSize: 3, Grace: time.Millisecond, HealthPolicy: webhook.HealthPolicy{FailingAfter: 5},
			Logger: slog.New(errorCounter{slog.DiscardHandler, &logged, t}),
		}
		runInBubble(t, cfg, func(w *testbed) {
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func(s *store.Store) { done <- s.Retain(ctx, webhook.Retention{All: 10 * time.Hour}) }(w.d.store)
			r := newRetentionTest(w, seed.New(n))
			for range 100 {
				time.Sleep(time.Duration(r.rnd.IntN(40)) * time.Minute)
				r.step(ctx)
			}
			time.Sleep(30 * time.Hour) // three times the retention
			synctest.Wait()
			r.check(ctx)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	})
}

// An ordered subscription continues as soon as the delivery it waits for has
// expired.
func TestOrderedContinuesAfterExpiry(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1}, func(w *testbed) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func(s *store.Store) { done <- s.Retain(ctx, webhook.Retention{All: time.Hour}) }(w.d.store)
		r := w.subscriber(respondWith(200, 500, 500, 500, 500, 200))
		ordered := true
		w.subscribe(r, func(f *webhook.SubscriptionFields) { f.Ordered = &ordered })
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

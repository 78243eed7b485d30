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
	"service/webhook"
)

// counter is a log that counts its errors.
type counter struct {
	slog.Handler
	errors *atomic.Int64
	t      *testing.T
}

func (c counter) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }
func (c counter) Handle(_ context.Context, r slog.Record) error {
	c.errors.Add(1)
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool { b.WriteString(" " + a.String()); return true })
	c.t.Errorf("logged: %s%s", r.Message, b.String())
	return nil
}

// While retention removes what is old, deliveries are formed, retried,
// redelivered and replayed as ever: whatever a subscription was owed arrives,
// fails visibly, or is counted as lost, and no delivery ever lacks an event.
func TestRetentionBesideDeliveries(t *testing.T) {
	for seed := range uint64(2) {
		var logged atomic.Int64
		cfg := Config{
			RetryPolicy: exact(), BatchSize: 3, Grace: time.Millisecond, HealthPolicy: webhook.HealthPolicy{FailingAfter: 5},
			Logger: slog.New(counter{slog.DiscardHandler, &logged, t}),
		}
		inBubble(t, cfg, func(w *world) {
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func(s *store.Store) { done <- s.Retain(ctx, 10*time.Hour) }(w.d.store)
			rnd := rand.New(rand.NewPCG(seed, 7))
			only := func(name string) func(*webhook.SubscriptionFields) {
				return func(f *webhook.SubscriptionFields) { f.Events = &[]string{name} }
			}
			flaky := w.subscriber(func(_ int, rw http.ResponseWriter, _ *http.Request) {
				if rand.IntN(4) == 0 {
					rw.WriteHeader(http.StatusBadGateway)
				}
			})
			sometimes, dead := w.subscriber(nil), w.subscriber(hang)
			ordered := true
			subs := []webhook.Subscription{w.subscribe(flaky, only("content_updated")), w.subscribe(sometimes, only("content_updated")), w.subscribe(dead, func(f *webhook.SubscriptionFields) {
				f.Events, f.Ordered = &[]string{"content_updated"}, &ordered
			})}
			active := true
			owed, last := make(map[string]bool), int64(0)
			seen := make(map[string]bool)
			for range 100 {
				time.Sleep(time.Duration(rnd.IntN(40)) * time.Minute)
				switch x := rnd.IntN(10); {
				case x < 6:
					for range 1 + rnd.IntN(10) {
						id := w.publish("content_updated")
						owed[id] = true
					}
				case x < 7:
					active = !active
					w.update(subs[1], &webhook.SubscriptionFields{Active: &active})
				case x < 8:
					got := flaky.all()
					if len(got) > 0 {
						_, err := w.d.store.Redeliver(ctx, "p", subs[0].ID, got[max(0, len(got)-1-rnd.IntN(50))].delivery)
						if refused := new(webhook.Error); err != nil && !errors.As(err, &refused) {
							t.Error(err)
						}
					}
				default:
					_, err := w.d.store.CreateReplay(ctx, "p", subs[rnd.IntN(3)].ID, &webhook.ReplayFields{From: time.Now().Add(-9*time.Hour - 59*time.Minute), Only: webhook.ReplayAll})
					if refused := new(webhook.Error); err != nil && !errors.As(err, &refused) {
						t.Error(err)
					}
				}
			}
			time.Sleep(30 * time.Hour) // far more than the retention: but for the newest event nothing waits
			last = 1
			synctest.Wait()
			for _, a := range flaky.all() {
				for _, id := range a.ids {
					seen[id] = true
				}
			}
			for id := range owed {
				if !seen[id] {
					t.Errorf("seed %d: an event never arrived at a server that answers", seed)
				}
			}
			if n := w.d.store.Swept(); n.Events == 0 || n.Deliveries == 0 || n.Lost == 0 {
				t.Errorf("seed %d: swept %+v, want some of each", seed, n)
			}
			// What never left for the dead server is counted, but for what still waits.
			for _, a := range dead.all() {
				for _, id := range a.ids {
					delete(owed, id)
				}
			}
			lost, err := w.d.store.LostEvents(ctx, subs[2].ID)
			if waiting := int64(len(owed)) - lost; err != nil || lost == 0 || waiting < 0 || waiting > last {
				t.Errorf("seed %d: %d events were never sent, and %d are counted as lost: %v", seed, len(owed), lost, err)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// An ordered subscription goes on as soon as what it waits for has expired.
func TestOrderedGoesOnAfterAnExpiry(t *testing.T) {
	inBubble(t, Config{RetryPolicy: exact(), BatchSize: 1}, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func(s *store.Store) { done <- s.Retain(ctx, time.Hour) }(w.d.store)
		r := w.subscriber(statuses(200, 500, 500, 500, 500, 200))
		ordered := true
		w.subscribe(r, func(f *webhook.SubscriptionFields) { f.Ordered = &ordered })
		w.publish("content_updated")
		w.subscribe(w.subscriber(nil), nil) // its ping is the newest delivery, which is let alone
		time.Sleep(50 * time.Minute)        // the fifth attempt is two hours away
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

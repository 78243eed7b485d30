package dispatcher

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"service/store"
	"service/webhook"
)

var stressSeeds = flag.Int("stress.seeds", 4, "how many random histories TestStress plays")

// history is what a model knows of a subscription.
type history struct {
	sub      webhook.Subscription
	at       *subscriber
	active   bool
	names    map[string]bool
	owed     map[string]bool // ids of the events that were accepted while it asked for them
	replayed bool
	deleted  bool
	ended    time.Time // when it was deleted
}

// Whatever happens, in whatever order, to subscriptions whose servers answer as
// they like: every event that is owed is delivered or has visibly failed, none
// other is, no delivery is sent more than five times or with other bytes,
// nothing is sent after a deletion, and everything comes to its end.
func TestStress(t *testing.T) {
	for seed := range *stressSeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { stress(t, rand.New(rand.NewPCG(uint64(seed), 1))) })
	}
}

func stress(t *testing.T, rnd *rand.Rand) {
	cfg := Config{
		MaxInFlight: 1 + rnd.IntN(4), MaxConnections: 2 + rnd.IntN(10), BatchSize: 1 + rnd.IntN(6), Grace: time.Millisecond,
		HealthPolicy: webhook.HealthPolicy{FailingAfter: 3 * rnd.IntN(2)}, BatchWindow: time.Duration(rnd.IntN(2)) * time.Second,
	}
	all := []string{"content_updated", "content_deleted", "channel_created"}
	inBubble(t, cfg, func(w *world) {
		ctx := context.Background()
		var calm atomic.Bool
		answer := func(n int, rw http.ResponseWriter, r *http.Request) {
			switch x := rand.IntN(100); {
			case calm.Load() || x < 50:
			case x < 75:
				rw.WriteHeader(http.StatusBadGateway)
			case x < 85:
				rw.WriteHeader(http.StatusNotFound)
			case x < 95:
				time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
			default:
				hang(n, rw, r)
			}
		}
		var subs []*history
		create := func() {
			h := &history{at: w.subscriber(answer), active: true, names: map[string]bool{all[0]: true, all[1]: true}, owed: make(map[string]bool)}
			ordered := rnd.IntN(3) == 0
			h.sub = w.subscribe(h.at, func(f *webhook.SubscriptionFields) { f.Ordered = &ordered })
			subs = append(subs, h)
		}
		check := func(err error) {
			t.Helper()
			var refused *webhook.Error
			if err != nil && !errors.As(err, &refused) {
				t.Error(err)
			}
		}
		for range 4 {
			create()
		}
		for range 400 {
			if rnd.IntN(3) == 0 {
				time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
			}
			h := subs[rnd.IntN(len(subs))]
			switch x := rnd.IntN(100); {
			case x < 55:
				name := all[rnd.IntN(len(all))]
				id := w.publish(name)
				for _, h := range subs {
					if !h.deleted && h.active && h.names[name] {
						h.owed[id] = true
					}
				}
			case h.deleted:
			case x < 65:
				h.active = !h.active
				w.update(h.sub, &webhook.SubscriptionFields{Active: &h.active})
			case x < 75:
				names := []string{all[rnd.IntN(len(all))]}
				h.names = map[string]bool{names[0]: true}
				w.update(h.sub, &webhook.SubscriptionFields{Events: &names})
			case x < 80:
				ordered, slots := rnd.IntN(2) == 0, rnd.IntN(4)
				w.update(h.sub, &webhook.SubscriptionFields{Ordered: &ordered, MaxInFlight: &slots})
			case x < 84:
				go func(s *store.Store) { // a crash may leave it without an answer
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					s.Ping(ctx, "p", h.sub.ID)
				}(w.d.store)
			case x < 89:
				h.at.mu.Lock()
				got := h.at.got
				h.at.mu.Unlock()
				if len(got) > 0 {
					_, err := w.d.store.Redeliver(ctx, "p", h.sub.ID, got[rnd.IntN(len(got))].delivery)
					check(err)
				}
			case x < 94:
				h.replayed = true
				only := []webhook.ReplayOnly{webhook.ReplayMissed, webhook.ReplayFailed, webhook.ReplayAll}[rnd.IntN(3)]
				_, err := w.d.store.CreateReplay(ctx, "p", h.sub.ID, &webhook.ReplayFields{From: time.Now().Add(-time.Minute), Only: only})
				check(err)
			case x < 96:
				_, err := w.d.store.DeleteSubscription(ctx, "p", h.sub.ID)
				check(err)
				h.deleted, h.ended = true, time.Now()
				create()
			case x < 98:
				_, _, err := w.d.store.RotateSecret(ctx, "p", h.sub.ID)
				check(err)
			default:
				w.crash()
			}
		}
		calm.Store(true)
		on := true
		for _, h := range subs {
			if !h.deleted {
				w.update(h.sub, &webhook.SubscriptionFields{Active: &on})
			}
		}
		time.Sleep(72 * time.Hour)

		for i, h := range subs {
			sent := make(map[string][]arrival)
			for _, a := range h.at.all() {
				sent[a.delivery] = append(sent[a.delivery], a)
				if first := sent[a.delivery][0]; a.sum != first.sum || len(sent[a.delivery]) > webhook.MaxAttempts {
					t.Errorf("subscription %d: delivery %s was sent %d times, or with other bytes", i, a.delivery, len(sent[a.delivery]))
				}
				if h.deleted && a.at.After(h.ended) {
					t.Errorf("subscription %d: delivery %s was sent after the deletion", i, a.delivery)
				}
			}
			if h.deleted {
				continue
			}
			formed := make(map[string]int)
			for cursor := ""; ; {
				values := url.Values{"page[size]": {"100"}}
				if cursor != "" {
					values.Set("page[cursor]", cursor)
				}
				query, invalid := webhook.DeliveryList.Parse(values)
				if invalid != nil {
					t.Fatal(invalid)
				}
				page, next, err := w.d.store.Deliveries(ctx, "p", h.sub.ID, &query)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range page {
					if !d.Status.Final() {
						t.Errorf("subscription %d: delivery %s is %s after days", i, d.ID, d.Status)
					}
					if d.RedeliveryOf == "" {
						for _, e := range d.Events {
							formed[e.ID]++
						}
					}
				}
				if cursor = next; cursor == "" {
					break
				}
			}
			for id := range h.owed {
				if formed[id] == 0 || formed[id] > 1 && !h.replayed {
					t.Errorf("subscription %d: event %s is in %d deliveries, want 1", i, id, formed[id])
				}
				delete(formed, id)
			}
			for id, n := range formed {
				if e, err := w.d.store.Event(ctx, "p", id); err == nil && !h.replayed {
					t.Errorf("subscription %d: event %s (%s) is in %d deliveries, and was not asked for", i, id, e.Name, n)
				}
			}
		}
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		if w.d.inFlight != 0 || w.d.pinging != 0 || len(w.d.timers) != 0 || len(w.d.reloads) != 0 {
			t.Errorf("left over: %d in flight, %d pings, %d timers, %d reloads", w.d.inFlight, w.d.pinging, len(w.d.timers), len(w.d.reloads))
		}
	})
}

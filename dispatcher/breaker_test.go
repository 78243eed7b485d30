package dispatcher

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// receiver is a subscriber that answers by what it is sent.
type receiver struct {
	*subscriber
	status func(names []string) int

	accepted []receivedRequest
	rejected []receivedRequest // of deliveries, not of pings
}

func (w *testbed) receiver(status func(names []string) int) *receiver {
	r := &receiver{status: status}
	r.subscriber = w.subscriber(func(n int, rw http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		p := r.requests[n-1]
		code := r.status(p.names)
		switch ping := p.names[0] == webhook.EventPing; {
		case ping:
		case code == http.StatusOK:
			r.accepted = append(r.accepted, p)
		default:
			r.rejected = append(r.rejected, p)
		}
		rw.WriteHeader(code)
	})
	return r
}

// events returns the ids of the events in some posts, in their order.
func events(posts []receivedRequest) (ids []string) {
	for _, p := range posts {
		ids = append(ids, p.ids...)
	}
	return ids
}

func breakerConfig() Config {
	return Config{RetryPolicy: exactRetryPolicy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 10, RejectingAfter: 5}}
}

// A receiver answers 401 for ten minutes, pings too: a handful of events fails,
// the operator hears of it within a minute, and all others arrive, in order.
func TestBreakerHoldsWhatIsRejected(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		cfg := breakerConfig()
		cfg.Alerts = &AlertTarget{URL: "http://10.0.0.0/alerts", Secret: webhook.NewSigningSecret()}
		runInBubble(t, cfg, func(w *testbed) { rejectFor10Minutes(w, ordered) })
	}
}

func rejectFor10Minutes(w *testbed, ordered bool) {
	t := w.t
	var alerts []time.Time
	w.subscriber(nil).handler = func(http.ResponseWriter, *http.Request) { alerts = append(alerts, time.Now()) }
	var broken atomic.Bool
	r := w.receiver(func([]string) int {
		if broken.Load() {
			return http.StatusUnauthorized
		}
		return http.StatusOK
	})
	sub := w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Ordered = &ordered })
	var published []string
	publish := func(seconds int) {
		for range seconds {
			published = append(published, w.publish("content_updated"))
			time.Sleep(time.Second)
		}
	}
	publish(10)
	broken.Store(true)
	start := time.Now()
	publish(600)
	if got := w.health(sub); got != webhook.HealthFailing {
		t.Errorf("ordered %t: after 10 min it is %s", ordered, got)
	}
	if got, err := w.d.store.Subscriptions().Get(context.Background(), "p", sub.ID); err != nil || got.FailingReason != webhook.FailingRejecting || got.NextProbeAt.Before(time.Now()) || got.FailingSince.Sub(start) > 5*time.Second {
		t.Errorf("ordered %t: it is %+v, %v", ordered, got, err)
	}
	broken.Store(false)
	publish(400)
	w.health(sub)
	if len(r.rejected) > 5 {
		t.Errorf("ordered %t: %d events failed, want at most 5", ordered, len(r.rejected))
	}
	failed := events(r.rejected)
	want := slices.DeleteFunc(slices.Clone(published), func(id string) bool { return slices.Contains(failed, id) })
	got := events(r.accepted)
	if !ordered {
		slices.Sort(got)
		slices.Sort(want)
	}
	if !slices.Equal(got, want) {
		t.Errorf("ordered %t: %d of %d events arrived, or not in order", ordered, len(got), len(want))
	}
	if len(alerts) != 2 || alerts[0].Sub(start) > time.Minute {
		t.Errorf("ordered %t: alerts at %v after %v, want one within a minute and one at the end", ordered, alerts, start)
	}
}

// With eight in flight no more than those fail, and what the breaker lets pass until
// it has opened.
func TestBreakerWithManyInFlight(t *testing.T) {
	cfg := breakerConfig()
	cfg.BatchSize = 1
	runInBubble(t, cfg, func(w *testbed) {
		var broken atomic.Bool
		r := w.receiver(nil)
		r.status = func([]string) int {
			if broken.Load() {
				return http.StatusForbidden
			}
			return http.StatusOK
		}
		slow := r.respond
		r.respond = func(n int, rw http.ResponseWriter, req *http.Request) {
			time.Sleep(2 * time.Second)
			slow(n, rw, req)
		}
		sub := w.subscribe(r.subscriber, nil)
		time.Sleep(10 * time.Second)
		broken.Store(true)
		for range 400 {
			w.publish("content_updated")
			time.Sleep(25 * time.Millisecond)
		}
		if got := w.health(sub); got != webhook.HealthFailing || len(r.rejected) > 12 {
			t.Errorf("it is %s, and %d events failed, want at most 12", got, len(r.rejected))
		}
	})
}

// A receiver rejects one event type of three. Published in turn it is never failing;
// in any order, and in runs, it is failing for one probe interval at a time while
// others wait, and every event of the others arrives.
func TestBreakerWithOneTypeRejected(t *testing.T) {
	names := []string{"content_updated", "content_deleted", "channel_created"}
	random := rand.New(rand.NewPCG(1, 2))
	for name, next := range map[string]func(i int) string{
		"in turn":      func(i int) string { return names[i%3] },
		"in random":    func(int) string { return names[random.IntN(3)] },
		"in runs":      func(i int) string { return names[i/30%3] },
		"in long runs": func(i int) string { return names[i/300%3] }, // much longer than a probe interval
	} {
		t.Run(name, func(t *testing.T) {
			runInBubble(t, breakerConfig(), func(w *testbed) { rejectOneType(w, names, next, name == "in turn") })
		})
	}
}

func rejectOneType(w *testbed, names []string, next func(int) string, never bool) {
	t := w.t
	r := w.receiver(func(got []string) int {
		if slices.Contains(got, "content_deleted") {
			return http.StatusUnprocessableEntity
		}
		return http.StatusOK
	})
	sub := w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Events = &names })
	var accepted []string
	var since, waits time.Time // waits: since when an event has waited that would be accepted
	failing, longest := 0, time.Duration(0)
	watch := func() {
		w.health(sub)
		if r.mu.Lock(); len(events(r.accepted)) == len(accepted) {
			waits = time.Time{}
		} else if waits.IsZero() {
			waits = time.Now()
		}
		r.mu.Unlock()
		now, err := w.d.store.Subscriptions().Get(context.Background(), "p", sub.ID)
		if err != nil {
			t.Fatal(err)
		}
		if now.Status == webhook.HealthFailing {
			if now.FailingSince != since {
				failing++
			}
			since = now.FailingSince
			if !waits.IsZero() {
				longest = max(longest, min(time.Since(since), time.Since(waits)))
			}
		}
	}
	for i := range 900 {
		n := next(i)
		if id := w.publish(n); n != "content_deleted" {
			accepted = append(accepted, id)
		}
		time.Sleep(100 * time.Millisecond)
		watch()
	}
	for range 1200 {
		time.Sleep(time.Second)
		watch()
	}
	if failing > 0 && never {
		t.Errorf("it was failing %d times", failing)
	}
	if longest > webhook.MinProbeWait {
		t.Errorf("it was failing for %s while others waited", longest)
	}
	if failing > 30 {
		t.Errorf("it was failing %d times", failing)
	}
	got := events(r.accepted)
	slices.Sort(got)
	slices.Sort(accepted)
	if !slices.Equal(got, accepted) {
		t.Errorf("%d of %d events of the other types arrived", len(got), len(accepted))
	}
}

// A receiver rejects one event type of three, and the types are published in bursts, so
// that batches have all of them. The first batch is rejected as a whole; from then on each
// event is sent alone, and every one of the other types arrives.
func TestBreakerWithOneTypeOfABatchRejected(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		names := []string{"content_updated", "content_deleted", "channel_created"}
		r := w.receiver(func(got []string) int {
			if slices.Contains(got, "content_deleted") {
				return http.StatusUnprocessableEntity
			}
			return http.StatusOK
		})
		answer := r.respond
		r.respond = func(n int, rw http.ResponseWriter, req *http.Request) {
			time.Sleep(50 * time.Millisecond)
			answer(n, rw, req)
		}
		one := 1
		sub := w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Events, f.MaxInFlight = &names, &one })
		var accepted []string
		for range 20 {
			for i := range 30 {
				if id := w.publish(names[i%3]); i%3 != 1 {
					accepted = append(accepted, id)
				}
			}
			time.Sleep(10 * time.Second)
			w.health(sub)
		}
		for range 1200 {
			time.Sleep(time.Second)
			w.health(sub)
		}
		got := events(r.accepted)
		batches := 0
		for _, p := range r.rejected {
			if len(p.ids) > 1 {
				batches++
				for i, id := range p.ids {
					if p.names[i] != "content_deleted" {
						got = append(got, id)
					}
				}
			}
		}
		if batches != 1 {
			t.Errorf("%d batches were rejected, want the first alone", batches)
		}
		slices.Sort(got)
		slices.Sort(accepted)
		if !slices.Equal(got, accepted) {
			t.Errorf("%d of %d events of the other types arrived or were in the batch", len(got), len(accepted))
		}
	})
}

// A receiver accepts pings and rejects all else: it costs one event for each probe
// interval. A ping that succeeds triggers a probe at once.
func TestBreakerWhenPingsAreAccepted(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		r := w.receiver(func(names []string) int {
			if names[0] == webhook.EventPing {
				return http.StatusOK
			}
			return http.StatusGone
		})
		sub := w.subscribe(r.subscriber, nil)
		for range 1800 {
			w.publish("content_updated")
			time.Sleep(time.Second)
		}
		w.health(sub)
		for i, p := range r.rejected {
			if len(p.ids) > 1 {
				t.Errorf("a probe took %d events", len(p.ids))
			}
			if i < 5 {
				continue
			}
			wait := p.at.Sub(r.rejected[i-1].at)
			if least := min(webhook.MinProbeWait<<(i-5), webhook.MaxProbeWait); wait < least {
				t.Errorf("rejection %d came %s after the last, want %s", i+1, wait, least)
			}
		}
		if n := len(r.rejected); n < 14 || n > 17 {
			t.Errorf("%d events failed in half an hour", n)
		}
		before := len(r.rejected)
		w.d.store.Subscriptions().Ping(context.Background(), "p", sub.ID)
		w.health(sub)
		if len(r.rejected) != before+1 {
			t.Errorf("a ping triggered %d probes, want 1", len(r.rejected)-before)
		}
		r.mu.Lock()
		r.status = func([]string) int { return http.StatusOK }
		r.mu.Unlock()
		w.d.store.Subscriptions().Ping(context.Background(), "p", sub.ID)
		time.Sleep(time.Second)
		if got := w.health(sub); got != webhook.HealthHealthy {
			t.Errorf("after a probe that was accepted it is %s", got)
		}
	})
}

// A receiver that accepts pings and rejects all of many types costs one event for each
// interval between probes.
func TestBreakerWhenAllTypesAreRejected(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		r := w.receiver(func(names []string) int {
			if names[0] == webhook.EventPing {
				return http.StatusOK
			}
			return http.StatusGone
		})
		names := []string{"content_published", "content_updated", "content_deleted", "channel_created", "channel_updated", "channel_deleted"}
		w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Events = &names })
		for n := range 600 {
			w.publish(names[n/3%len(names)])
			time.Sleep(time.Second)
		}
		// 5 open the breaker; the probes come 5, 10, 20, 40, 80, 160 and 300 s after each other.
		if n := len(r.rejected); n < 10 || n > 5+6 {
			t.Errorf("%d events failed in ten minutes, want at most 11", n)
		}
	})
}

// An outage of six hours costs no event, and no probe takes a batch.
func TestBreakerSparesBatches(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		var broken atomic.Bool
		r := w.receiver(func([]string) int {
			if broken.Load() {
				return http.StatusBadGateway
			}
			return http.StatusOK
		})
		sub := w.subscribe(r.subscriber, nil)
		broken.Store(true)
		const published = 6 * 360 * 3
		for range published / 3 {
			for range 3 {
				w.publish("content_updated")
			}
			time.Sleep(10 * time.Second)
		}
		seen := make(map[string]bool)
		for _, p := range r.rejected {
			first := !seen[p.delivery]
			seen[p.delivery] = true
			if first && len(p.ids) > 1 && p.at.Sub(r.rejected[0].at) > 2*time.Minute {
				t.Errorf("a probe took %d events", len(p.ids))
			}
		}
		broken.Store(false)
		time.Sleep(webhook.MaxProbeWait)
		if got := w.health(sub); got != webhook.HealthHealthy {
			t.Errorf("it is %s", got)
		}
		time.Sleep(3 * time.Hour) // the last wait of a delivery that was sent before
		w.health(sub)
		got := events(r.accepted)
		slices.Sort(got)
		if n := len(slices.Compact(got)); n != published {
			t.Errorf("%d of %d events arrived", n, published)
		}
	})
}

// A server that is back is found within a probe interval, however late the next
// attempt of a delivery is due by the schedule, and without new events.
func TestBreakerRepeatsADeliveryEarly(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		cfg := breakerConfig()
		cfg.BatchWindow = time.Second
		cfg.HealthPolicy.FailingAfter = 3
		runInBubble(t, cfg, func(w *testbed) {
			var broken atomic.Bool
			r := w.receiver(func([]string) int {
				if broken.Load() {
					return http.StatusBadGateway
				}
				return http.StatusOK
			})
			sub := w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Ordered = &ordered })
			w.health(sub)
			broken.Store(true)
			w.publish("content_updated")
			time.Sleep(time.Minute)
			if got := w.health(sub); got != webhook.HealthHealthy {
				t.Fatalf("ordered %t: after two attempts it is %s", ordered, got)
			}
			time.Sleep(30 * time.Minute) // the third opens it; the fourth is due in two hours
			if got := w.health(sub); got != webhook.HealthFailing {
				t.Fatalf("ordered %t: after three attempts it is %s", ordered, got)
			}
			time.Sleep(30 * time.Minute)
			if len(r.rejected) != 4 {
				t.Errorf("ordered %t: %d attempts, want 4: the last is spared", ordered, len(r.rejected))
			}
			broken.Store(false)
			published := 1
			for range 2 * (webhook.MaxProbeWait / time.Second) { // there is always one in its batch window
				w.publish("content_updated")
				published++
				time.Sleep(time.Second / 2)
			}
			if got := w.health(sub); got != webhook.HealthHealthy {
				t.Errorf("ordered %t: it is %s", ordered, got)
			}
			time.Sleep(3 * time.Hour) // the last wait of the first delivery
			if got := w.health(sub); got != webhook.HealthHealthy || len(events(r.accepted)) != published {
				t.Errorf("ordered %t: it is %s, and %d events arrived of %d", ordered, got, len(events(r.accepted)), published)
			}
		})
	}
}

// A probe that is asked for is made at once, though the server has asked for a
// pause: a ping if it is rejecting, or if nothing waits.
func TestProbe(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		status := http.StatusOK
		r := w.receiver(func([]string) int { return status })
		answer := r.respond
		r.respond = func(n int, rw http.ResponseWriter, req *http.Request) {
			rw.Header().Set("Retry-After", "3600")
			answer(n, rw, req)
		}
		sub := w.subscribe(r.subscriber, nil)
		w.health(sub)
		set := func(code int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			status = code
		}
		subs := w.d.store.Subscriptions()
		var refused *webhook.Error
		if _, _, err := subs.Probe(context.Background(), "p", sub.ID); !errors.As(err, &refused) || refused.Code != webhook.CodeConflict {
			t.Errorf("a healthy one: %v, want a conflict", err)
		}
		probe := func(want int) []string { t.Helper(); return w.probe(r, sub, want) }
		set(http.StatusTooManyRequests)
		for range 5 {
			w.publish("content_updated")
			time.Sleep(2 * time.Hour)
		}
		if got := w.health(sub); got != webhook.HealthFailing {
			t.Fatalf("it is %s", got)
		}
		if names := probe(http.StatusTooManyRequests); !slices.Equal(names, []string{webhook.EventPing}) {
			t.Errorf("nothing waits: %v", names)
		}
		w.publish("content_updated")
		if names := probe(http.StatusTooManyRequests); !slices.Equal(names, []string{webhook.EventPing}) {
			t.Errorf("rejecting: %v", names)
		}
		set(http.StatusOK)
		probe(http.StatusOK)
		if got := w.health(sub); got != webhook.HealthHealthy || len(r.accepted) != 1 {
			t.Fatalf("it is %s, and %d events arrived", got, len(r.accepted))
		}

		set(http.StatusServiceUnavailable)
		for w.health(sub) != webhook.HealthFailing {
			w.publish("content_updated")
			time.Sleep(2 * time.Hour)
		}
		w.publish("content_updated") // it has attempts left
		if names := probe(http.StatusServiceUnavailable); len(names) == 0 || names[0] == webhook.EventPing {
			t.Errorf("unreachable: %v", names)
		}
	})
}

// probe has a subscription probed, which must be done at once with the wanted
// status, and returns the names of the events that were sent.
func (w *testbed) probe(r *receiver, sub webhook.Subscription, want int) (names []string) {
	w.t.Helper()
	begin := time.Now()
	_, got, err := w.d.store.Subscriptions().Probe(context.Background(), "p", sub.ID)
	if err != nil || got.Attempt.ResponseStatus != want || time.Since(begin) > time.Second {
		w.t.Errorf("%+v, %v after %s; want %d at once", got, err, time.Since(begin), want)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.requests {
		if r.requests[i].delivery == got.DeliveryID {
			names = r.requests[i].names
		}
	}
	return names
}

// Deleting a subscription ends a request that waits for its probe.
func TestProbeOfADeletedSubscription(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		r := w.receiver(func([]string) int { return http.StatusNotFound })
		sub := w.subscribe(r.subscriber, nil)
		for range 6 {
			w.publish("content_updated")
			time.Sleep(time.Second)
		}
		if got := w.health(sub); got != webhook.HealthFailing {
			t.Errorf("it is %s", got)
		}
		subs := w.d.store.Subscriptions()
		var refused *webhook.Error
		gone := make(chan error, 1)
		r.mu.Lock()
		r.respond = func(int, http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }
		r.mu.Unlock()
		go func() {
			_, _, err := subs.Probe(context.Background(), "p", sub.ID)
			gone <- err
		}()
		synctest.Wait()
		if _, err := subs.Delete(context.Background(), "p", sub.ID); err != nil {
			t.Fatal(err)
		}
		if err := <-gone; !errors.As(err, &refused) || refused.Code != webhook.CodeNotFound {
			t.Errorf("deleted: %v", err)
		}
	})
}

// Redeliveries and replays of a failing subscription wait like its events.
func TestBreakerHoldsRedeliveries(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		var broken atomic.Bool
		r := w.receiver(func([]string) int {
			if broken.Load() {
				return http.StatusNotFound
			}
			return http.StatusOK
		})
		sub := w.subscribe(r.subscriber, nil)
		start := time.Now()
		w.publish("content_updated")
		broken.Store(true)
		for range 5 {
			w.publish("content_updated")
			time.Sleep(time.Second)
		}
		if got := w.health(sub); got != webhook.HealthFailing {
			t.Fatalf("it is %s", got)
		}
		for _, p := range r.rejected {
			if _, err := w.d.store.Deliveries().Redeliver(context.Background(), "p", sub.ID, p.delivery); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.d.store.Replays().Create(context.Background(), "p", sub.ID, &webhook.ReplayFields{From: start.Add(-time.Second), Only: webhook.ReplayAll}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if len(r.rejected) != 5 {
			t.Errorf("%d events failed, want 5: pings are rejected too", len(r.rejected))
		}
		broken.Store(false)
		time.Sleep(6 * time.Minute)
		w.health(sub)
		if n := len(events(r.accepted)); n != 1+5+6 {
			t.Errorf("%d events arrived, want 12: one, 5 again, and 6 of the replay", n)
		}
		got, err := w.d.store.Subscriptions().Get(context.Background(), "p", sub.ID)
		if err != nil || got.Status != webhook.HealthHealthy || got.ResendFrom.IsZero() || got.ResendFrom.Before(start) {
			t.Errorf("it is %+v, %v; want an offer to send again what was rejected", got, err)
		}
	})
}

// A delivery that passes others and cannot be stored is tried once a second, like
// any other, and not without end.
func TestAPassingProbeThatCannotBeStoredWaits(t *testing.T) {
	var failing atomic.Bool
	var failed atomic.Int64
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		w := &testbed{t: t, dir: dir, cfg: breakerConfig(), subscribers: make(map[netip.Addr]*subscriber)}
		w.fault = func(query string, write bool) sqlite.Fault {
			if !write || !failing.Load() || !strings.HasPrefix(query, "INSERT INTO delivery_events") {
				return sqlite.NoFault
			}
			if failed.Add(1) == 1000 {
				failing.Store(false) // it goes round without end
			}
			return sqlite.FaultStatement
		}
		w.run(func() {
			r := w.receiver(func(names []string) int {
				if names[0] == "content_updated" {
					return http.StatusNotFound
				}
				return http.StatusOK
			})
			w.subscribe(r.subscriber, nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			answer := r.respond
			r.respond = func(n int, rw http.ResponseWriter, req *http.Request) {
				time.Sleep(time.Second)
				answer(n, rw, req)
			}
			w.publish("content_updated")
			time.Sleep(5 * time.Second) // it was rejected: the next deliveries go one at a time
			w.publish("content_updated")
			w.publish("content_updated")
			w.publish("content_deleted")
			failing.Store(true)
			time.Sleep(10 * time.Second)
			failing.Store(false)
			time.Sleep(2 * suspendTime)
			if n := failed.Load(); n == 0 || n > 24 {
				t.Errorf("it was tried %d times within 10 s", n)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(events(r.accepted)) != 1 || len(events(r.rejected)) != 3 {
				t.Errorf("%d events were accepted and %d rejected", len(events(r.accepted)), len(events(r.rejected)))
			}
		})
	})
}

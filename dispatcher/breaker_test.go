package dispatcher

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/store/sqlite"
	"service/store/storetest"
	"service/test/seed"
	"service/webhook"
)

// receiver is a server whose response status depends on the event names in the request.
type receiver struct {
	*subscriber
	status func(names []string) int

	accepted []receivedRequest
	rejected []receivedRequest // excluding pings
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

// delay makes a receiver wait before it answers.
func (r *receiver) delay(d time.Duration) {
	respond := r.respond
	r.respond = func(n int, rw http.ResponseWriter, req *http.Request) {
		time.Sleep(d)
		respond(n, rw, req)
	}
}

// rejects returns the status of a receiver that answers code to requests with an event of the name.
func rejects(code int, name string) func(names []string) int {
	return func(names []string) int {
		if slices.Contains(names, name) {
			return code
		}
		return http.StatusOK
	}
}

// acceptsPings is the status of a receiver that rejects everything else.
func acceptsPings(names []string) int {
	if names[0] == webhook.EventPing {
		return http.StatusOK
	}
	return http.StatusGone
}

// events returns the IDs of the events in the requests, in order.
func events(posts []receivedRequest) (ids []string) {
	for _, p := range posts {
		ids = append(ids, p.ids...)
	}
	return ids
}

// sameIDs reports whether two lists contain the same IDs, in any order.
func sameIDs(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func breakerConfig() Config {
	return Config{RetryPolicy: exactRetryPolicy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 10, RejectingAfter: 5}}
}

// A receiver answers 401 for ten minutes, even to pings. At most five events fail,
// the operator gets an alert within a minute, and all other events arrive, in order
// if ordered.
func TestBreakerOpensOnRejections(t *testing.T) {
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
	broken := statusSwitch{code: http.StatusUnauthorized}
	r := w.receiver(broken.status)
	sub := w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Ordered = &ordered })
	published := w.publishEvery(time.Second, 10, "content_updated")
	broken.Store(true)
	start := time.Now()
	published = append(published, w.publishEvery(time.Second, 600, "content_updated")...)
	if got := w.get(sub); got.Status != webhook.HealthFailing || got.FailingReason != webhook.FailingRejecting ||
		got.NextProbeAt.Before(time.Now()) || got.FailingSince.Sub(start) > 5*time.Second {
		t.Errorf("ordered %t: got %+v after 10 min, want rejecting since the first 5s, with a next probe", ordered, got)
	}
	broken.Store(false)
	published = append(published, w.publishEvery(time.Second, 400, "content_updated")...)
	w.health(sub)
	if len(r.rejected) > 5 {
		t.Errorf("ordered %t: got %d failed events, want at most 5", ordered, len(r.rejected))
	}
	failed := events(r.rejected)
	want := slices.DeleteFunc(slices.Clone(published), func(id string) bool { return slices.Contains(failed, id) })
	if got := events(r.accepted); !sameIDs(got, want) || ordered && !slices.Equal(got, want) {
		t.Errorf("ordered %t: got %d of %d events, or in the wrong order", ordered, len(got), len(want))
	}
	if len(alerts) != 2 || alerts[0].Sub(start) > time.Minute {
		t.Errorf("ordered %t: got alerts at %v after %v, want one within a minute and one after the recovery", ordered, alerts, start)
	}
}

// With eight deliveries in flight, only those and the few sent until the breaker opens fail.
func TestBreakerWithManyInFlight(t *testing.T) {
	cfg := breakerConfig()
	cfg.BatchSize = 1
	runInBubble(t, cfg, func(w *testbed) {
		broken := statusSwitch{code: http.StatusForbidden}
		r := w.receiver(broken.status)
		r.delay(2 * time.Second)
		sub := w.subscribe(r.subscriber, nil)
		time.Sleep(10 * time.Second)
		broken.Store(true)
		w.publishEvery(25*time.Millisecond, 400, "content_updated")
		if got := w.health(sub); got != webhook.HealthFailing || len(r.rejected) > 12 {
			t.Errorf("got status %s and %d failed events, want failing and at most 12", got, len(r.rejected))
		}
	})
}

// A receiver rejects one event type of three. Published in turn, the breaker never
// opens. In random order or in runs, it opens for one probe interval at a time
// while other types wait, and every event of the other types arrives.
func TestBreakerWithOneTypeRejected(t *testing.T) {
	names := []string{"content_updated", "content_deleted", "channel_created"}
	random := seed.Rand(t)
	for _, test := range []struct { // in this order, so that a seed repeats a run
		name string
		next func(i int) string
	}{
		{"in turn", func(i int) string { return names[i%3] }},
		{"in random order", func(int) string { return names[random.IntN(3)] }},
		{"in runs", func(i int) string { return names[i/30%3] }},
		{"in long runs", func(i int) string { return names[i/300%3] }}, // much longer than a probe interval
	} {
		t.Run(test.name, func(t *testing.T) {
			runInBubble(t, breakerConfig(), func(w *testbed) { rejectOneType(w, names, test.next, test.name == "in turn") })
		})
	}
}

func rejectOneType(w *testbed, names []string, next func(int) string, never bool) {
	t := w.t
	r := w.receiver(rejects(http.StatusUnprocessableEntity, "content_deleted"))
	sub := w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Events = &names })
	var accepted []string
	var since, waits time.Time // waits: since when an acceptable event has been waiting
	failing, longest := 0, time.Duration(0)
	watch := func() {
		w.health(sub)
		if r.mu.Lock(); len(events(r.accepted)) == len(accepted) {
			waits = time.Time{}
		} else if waits.IsZero() {
			waits = time.Now()
		}
		r.mu.Unlock()
		if now := w.get(sub); now.Status == webhook.HealthFailing {
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
		t.Errorf("got %d openings of the breaker, want 0", failing)
	}
	if longest > webhook.MinProbeWait {
		t.Errorf("the breaker was open for %s while other types waited, want at most one probe interval", longest)
	}
	if failing > 30 {
		t.Errorf("got %d openings of the breaker, want at most 30", failing)
	}
	if got := events(r.accepted); !sameIDs(got, accepted) {
		t.Errorf("got %d of %d events of the other types", len(got), len(accepted))
	}
}

// A receiver rejects one event type of three, and bursts put all types into each batch. The
// first batch is rejected as a whole; from then on each event is sent alone, including those
// of the batch, and every event of the other types arrives.
func TestBreakerWithOneTypeOfBatchRejected(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		names := []string{"content_updated", "content_deleted", "channel_created"}
		r := w.receiver(rejects(http.StatusUnprocessableEntity, "content_deleted"))
		r.delay(50 * time.Millisecond)
		sub := w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Events, f.MaxInFlight = &names, new(1) })
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
		batches := slices.DeleteFunc(slices.Clone(r.rejected), func(p receivedRequest) bool { return len(p.ids) == 1 })
		if len(batches) != 1 {
			t.Errorf("got %d rejected batches, want 1", len(batches))
			return
		}
		if got := events(r.accepted); !sameIDs(got, accepted) {
			t.Errorf("got %d of %d events of the other types", len(got), len(accepted))
		}
	})
}

// A receiver accepts pings and rejects everything else, which costs one event per
// probe interval. A successful ping triggers a probe immediately.
func TestBreakerWhenPingsAreAccepted(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		r := w.receiver(acceptsPings)
		sub := w.subscribe(r.subscriber, nil)
		w.publishEvery(time.Second, 1800, "content_updated")
		w.health(sub)
		for i, p := range r.rejected {
			if len(p.ids) > 1 {
				t.Errorf("got a probe with %d events, want 1", len(p.ids))
			}
			if i < 5 {
				continue
			}
			wait := p.at.Sub(r.rejected[i-1].at)
			if least := min(webhook.MinProbeWait<<(i-5), webhook.MaxProbeWait); wait < least {
				t.Errorf("rejection %d came %s after the previous one, want at least %s", i+1, wait, least)
			}
		}
		if n := len(r.rejected); n < 14 || n > 17 {
			t.Errorf("got %d failed events in 30 min, want 14 to 17", n)
		}
		before := len(r.rejected)
		w.d.store.Subscriptions().Ping(context.Background(), "p", sub.ID)
		w.health(sub)
		if len(r.rejected) != before+1 {
			t.Errorf("got %d probes after a successful ping, want 1", len(r.rejected)-before)
		}
		r.mu.Lock()
		r.status = func([]string) int { return http.StatusOK }
		r.mu.Unlock()
		w.d.store.Subscriptions().Ping(context.Background(), "p", sub.ID)
		time.Sleep(time.Second)
		w.wantHealth(sub, webhook.HealthHealthy, "after an accepted probe")
	})
}

// A receiver that accepts pings and rejects all of many types costs one event per
// probe interval.
func TestBreakerWhenAllTypesAreRejected(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		r := w.receiver(acceptsPings)
		names := []string{"content_published", "content_updated", "content_deleted", "channel_created", "channel_updated", "channel_deleted"}
		w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Events = &names })
		for n := range 600 {
			w.publish(names[n/3%len(names)])
			time.Sleep(time.Second)
		}
		// Five open the breaker; the probes come 5, 10, 20, 40, 80, 160 and 300 s
		// after each other.
		if n := len(r.rejected); n < 10 || n > 5+6 {
			t.Errorf("got %d failed events in 10 min, want 10 or 11", n)
		}
	})
}

// An outage of six hours costs no event, and probes send no batches.
func TestBreakerProbesSendNoBatches(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		broken := statusSwitch{code: http.StatusBadGateway}
		r := w.receiver(broken.status)
		sub := w.subscribe(r.subscriber, nil)
		broken.Store(true)
		const published = 6 * 360 * 3
		for range published / 3 {
			w.publishN(3, "content_updated")
			time.Sleep(10 * time.Second)
		}
		seen := make(map[string]bool)
		for _, p := range r.rejected {
			first := !seen[p.delivery]
			seen[p.delivery] = true
			if first && len(p.ids) > 1 && p.at.Sub(r.rejected[0].at) > 2*time.Minute {
				t.Errorf("got a probe with %d events, want 1", len(p.ids))
			}
		}
		broken.Store(false)
		time.Sleep(webhook.MaxProbeWait)
		w.wantHealth(sub, webhook.HealthHealthy, "after the outage")
		time.Sleep(3 * time.Hour) // the longest wait of a delivery that was sent before the outage
		w.health(sub)
		got := events(r.accepted)
		slices.Sort(got)
		if n := len(slices.Compact(got)); n != published {
			t.Errorf("got %d of %d events", n, published)
		}
	})
}

// A recovered receiver is detected within a probe interval, even if the next
// retry of a delivery is due much later and no new events arrive.
func TestBreakerProbesAheadOfSchedule(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		cfg := breakerConfig()
		cfg.BatchWindow = time.Second
		cfg.HealthPolicy.FailingAfter = 3
		runInBubble(t, cfg, func(w *testbed) {
			t := w.t // of the bubble, like that of the testbed's checks
			t.Logf("ordered %t", ordered)
			broken := statusSwitch{code: http.StatusBadGateway}
			r := w.receiver(broken.status)
			sub := w.subscribe(r.subscriber, func(f *webhook.SubscriptionFields) { f.Ordered = &ordered })
			w.health(sub)
			broken.Store(true)
			w.publish("content_updated")
			time.Sleep(time.Minute)
			w.wantHealth(sub, webhook.HealthHealthy, "after two attempts")
			time.Sleep(30 * time.Minute) // the third attempt opens the breaker; the fourth is due in two hours
			w.wantHealth(sub, webhook.HealthFailing, "after three attempts")
			time.Sleep(30 * time.Minute)
			if len(r.rejected) != 4 {
				t.Errorf("got %d attempts, want 4: probes do not use the last", len(r.rejected))
			}
			broken.Store(false)
			published := 1
			for range 2 * (webhook.MaxProbeWait / time.Second) { // an event is always within its batch window
				w.publish("content_updated")
				published++
				time.Sleep(time.Second / 2)
			}
			w.wantHealth(sub, webhook.HealthHealthy, "after the recovery")
			time.Sleep(3 * time.Hour) // the longest wait of the first delivery
			if got := w.health(sub); got != webhook.HealthHealthy || len(events(r.accepted)) != published {
				t.Errorf("got status %s and %d of %d events, want healthy and all", got, len(events(r.accepted)), published)
			}
		})
	}
}

// A requested probe is sent immediately, even during a pause that the receiver
// asked for. It is a ping if the receiver rejects deliveries or nothing is waiting.
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
			t.Errorf("healthy subscription: got error %v, want a conflict", err)
		}
		probe := func(want int) []string { t.Helper(); return w.wantProbe(r, sub, want) }
		set(http.StatusTooManyRequests)
		w.publishEvery(2*time.Hour, 5, "content_updated")
		w.wantHealth(sub, webhook.HealthFailing, "after five events")
		if names := probe(http.StatusTooManyRequests); !slices.Equal(names, []string{webhook.EventPing}) {
			t.Errorf("nothing waiting: got a probe with %v, want a ping", names)
		}
		w.publish("content_updated")
		if names := probe(http.StatusTooManyRequests); !slices.Equal(names, []string{webhook.EventPing}) {
			t.Errorf("rejecting: got a probe with %v, want a ping", names)
		}
		set(http.StatusOK)
		probe(http.StatusOK)
		if got := w.health(sub); got != webhook.HealthHealthy || len(r.accepted) != 1 {
			t.Fatalf("got status %s and %d events, want healthy and 1", got, len(r.accepted))
		}

		set(http.StatusServiceUnavailable)
		for w.health(sub) != webhook.HealthFailing {
			w.publish("content_updated")
			time.Sleep(2 * time.Hour)
		}
		w.publish("content_updated") // has attempts left
		if names := probe(http.StatusServiceUnavailable); len(names) == 0 || names[0] == webhook.EventPing {
			t.Errorf("unreachable: got a probe with %v, want the event", names)
		}
	})
}

// wantProbe requests a probe, checks that it is sent immediately and gets status want,
// and returns the names of the events that were sent.
func (w *testbed) wantProbe(r *receiver, sub webhook.Subscription, want int) (names []string) {
	w.t.Helper()
	begin := time.Now()
	_, got, err := w.d.store.Subscriptions().Probe(context.Background(), "p", sub.ID)
	if err != nil || got.Attempt.ResponseStatus != want || time.Since(begin) > time.Second {
		w.t.Errorf("got %+v (%v) after %s, want status %d immediately", got, err, time.Since(begin), want)
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
func TestProbeOfDeletedSubscription(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		r := w.receiver(func([]string) int { return http.StatusNotFound })
		sub := w.subscribe(r.subscriber, nil)
		w.publishEvery(time.Second, 6, "content_updated")
		w.wantHealth(sub, webhook.HealthFailing, "after six events")
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
		if _, err := storetest.DeleteSubscription(context.Background(), w.d.store, "p", sub.ID); err != nil {
			t.Fatal(err)
		}
		if err := <-gone; !errors.As(err, &refused) || refused.Code != webhook.CodeNotFound {
			t.Errorf("got error %v, want not_found", err)
		}
	})
}

// Redeliveries and replays of a failing subscription wait like its events.
func TestBreakerPausesRedeliveries(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		broken := statusSwitch{code: http.StatusNotFound}
		r := w.receiver(broken.status)
		sub := w.subscribe(r.subscriber, nil)
		start := time.Now()
		w.publish("content_updated")
		broken.Store(true)
		w.publishEvery(time.Second, 5, "content_updated")
		w.wantHealth(sub, webhook.HealthFailing, "after five rejections")
		for _, p := range r.rejected {
			w.redeliver(sub, p.delivery)
		}
		w.replay(sub, start.Add(-time.Second), webhook.ReplayAll)
		time.Sleep(5 * time.Minute)
		if len(r.rejected) != 5 {
			t.Errorf("got %d failed events, want 5: pings are rejected too", len(r.rejected))
		}
		broken.Store(false)
		time.Sleep(6 * time.Minute)
		w.wantHealth(sub, webhook.HealthHealthy, "after the recovery")
		if n := len(events(r.accepted)); n != 1+5+6 {
			t.Errorf("got %d events, want 12: 1, 5 redelivered and 6 replayed", n)
		}
	})
}

// A delivery that skips rejected events and cannot be stored is retried once per
// second like any other, not in a tight loop.
func TestUnstorableProbeIsRetriedSlowly(t *testing.T) {
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
				failing.Store(false) // a tight loop
			}
			return sqlite.FaultStatement
		}
		w.run(func() {
			r := w.receiver(rejects(http.StatusNotFound, "content_updated"))
			w.subscribe(r.subscriber, nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			r.delay(time.Second)
			w.publish("content_updated")
			time.Sleep(5 * time.Second) // rejected: the next deliveries carry one event each
			w.publish("content_updated")
			w.publish("content_updated")
			w.publish("content_deleted")
			failing.Store(true)
			time.Sleep(10 * time.Second)
			failing.Store(false)
			time.Sleep(2 * suspendTime)
			if n := failed.Load(); n == 0 || n > 24 {
				t.Errorf("got %d tries within 10s, want 1 to 24", n)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(events(r.accepted)) != 1 || len(events(r.rejected)) != 3 {
				t.Errorf("got %d accepted and %d rejected events, want 1 and 3", len(events(r.accepted)), len(events(r.rejected)))
			}
		})
	})
}

package dispatcher

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// gated starts a server that answers everything but pings with a status, once the gate is closed.
func (w *testbed) gated(gate chan struct{}, status int) *subscriber {
	var r *subscriber
	r = w.subscriber(func(n int, rw http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		ping := r.requests[n-1].names[0] == webhook.EventPing
		r.mu.Unlock()
		if !ping {
			<-gate
			rw.WriteHeader(status)
		}
	})
	return r
}

// The URL of a subscription changes while as many attempts as it may have are in flight to the old
// server, which then refuses them all. The refusals say nothing about the new server.
func TestResultsOfEarlierURL(t *testing.T) {
	for _, test := range []struct{ status, events int }{
		{http.StatusInternalServerError, 2}, {http.StatusServiceUnavailable, 1}, {http.StatusUnauthorized, 1}, {http.StatusUnauthorized, 2},
		{http.StatusTooManyRequests, 1}, {http.StatusTooManyRequests, 2}, {http.StatusRequestEntityTooLarge, 1},
		{http.StatusRequestEntityTooLarge, 2},
	} {
		for _, reloaded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d/%d/%t", test.status, test.events, reloaded), func(t *testing.T) {
				runInBubble(t, breakerConfig(), func(w *testbed) { w.refuseEarlier(test.status, test.events, reloaded) })
			})
		}
	}
}

// refuseEarlier changes the URL of a subscription while 8 attempts with some events each are in
// flight. reloaded says whether the dispatcher knows the new URL before they are refused.
func (w *testbed) refuseEarlier(status, events int, reloaded bool) {
	answered, ready := make(chan struct{}), make(chan struct{})
	before, after := w.gated(answered, status), w.gated(ready, http.StatusOK)
	sub := w.subscribe(before, nil)
	for range 8 {
		w.publishTogether(events)
	}
	sent := before.posts()
	if len(sent) != 8 || len(sent[0].ids) != events {
		w.t.Fatalf("got %d attempts with %d events, want 8 with %d", len(sent), len(sent[0].ids), events)
	}
	w.update(sub, &webhook.SubscriptionFields{URL: &after.url})
	if reloaded {
		synctest.Wait()
	}
	close(answered)
	synctest.Wait()
	w.wantUntouched(sub)

	close(ready)
	time.Sleep(time.Minute)
	w.wantUntouched(sub)
	final := webhook.Classify(status, webhook.ErrorNone) == webhook.ResultFailed
	for _, p := range sent {
		d := w.delivery(sub, p.delivery)
		urls := []string{before.url, after.url}
		if final {
			urls = urls[:1]
		}
		if (d.Status == webhook.StatusFailed) != final || !d.Status.Final() {
			w.t.Errorf("got status %s", d.Status)
		}
		if len(d.Attempts) != len(urls) {
			w.t.Fatalf("got %d attempts, want %d", len(d.Attempts), len(urls))
		}
		for i, a := range d.Attempts {
			if a.URL != urls[i] {
				w.t.Errorf("attempt %d: got URL %s, want %s", a.Number, a.URL, urls[i])
			}
		}
		if recovered := !d.RecoveredAt.IsZero(); recovered != (final && events > 1) {
			w.t.Errorf("got recovered %t", recovered)
		}
	}
	alerts, err := w.d.store.Alerts().Last(context.Background(), 10)
	if tell := final && events == 1; err != nil || tell != (len(alerts) == 1) || tell && alerts[0].Name != webhook.AlertFailed {
		w.t.Errorf("got alerts %+v (%v), want one about failed events: %t", alerts, err, tell)
	}
}

// wantUntouched checks that a subscription shows no trace of the failed attempts.
func (w *testbed) wantUntouched(sub webhook.Subscription) {
	w.t.Helper()
	ctx := context.Background()
	w.wantHealth(sub, webhook.HealthHealthy, "after the refusals")
	if open, err := w.d.store.Incidents().Open(ctx, "p", 10, 0); err != nil || len(open) > 0 {
		w.t.Errorf("got %d incidents (%v), want none", len(open), err)
	}
	stored, err := w.d.store.Queues().Get(ctx, sub.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	if stored.SizeBound != (webhook.SizeBound{}) || stored.Rejected {
		w.t.Errorf("got the size bound %+v and rejected %t, want neither", stored.SizeBound, stored.Rejected)
	}
	q := w.queue(sub)
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	if q.pace.Limited() || q.ramp != 0 || q.rejected || !q.rejectedAt.IsZero() {
		w.t.Errorf("got the pace %+v, ramp %d and rejected %t, want none", q.pace, q.ramp, q.rejected)
	}
}

// A pause that a server asked for, and the rate learned from it, are not kept for the server at the
// next URL.
func TestPaceOfEarlierURL(t *testing.T) {
	runInBubble(t, Config{BatchSize: 1, RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
		first := w.subscriber(afterPing(func(_ int, rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Retry-After", "3600")
			rw.WriteHeader(http.StatusTooManyRequests)
		}))
		next := w.subscriber(nil)
		sub := w.subscribe(first, nil)
		w.publish("content_updated")
		synctest.Wait()
		w.publish("content_updated")
		synctest.Wait()
		first.wantPosts(t, 1, "although the server asked for a pause")
		w.update(sub, &webhook.SubscriptionFields{URL: &next.url})
		at := time.Now()
		synctest.Wait()
		if got := next.posts(); len(got) == 0 || !got[0].at.Equal(at) {
			t.Errorf("got %d requests at the next URL, want the waiting event at once", len(got))
		}
	})
}

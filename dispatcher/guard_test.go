package dispatcher

import (
	"context"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"service/webhook"
)

// The guard checks every kind of request, including deliveries that were pending
// when their address was still allowed.
func TestEgressGuardCoversEveryRequest(t *testing.T) {
	t.Run("control", func(t *testing.T) { testEveryPath(t, false) })
	t.Run("guarded", func(t *testing.T) { testEveryPath(t, true) })
}

// testEveryPath makes the service send requests of every kind. If guarded, the
// addresses are forbidden first.
func testEveryPath(t *testing.T, guarded bool) {
	cfg := Config{
		RetryPolicy: exactRetryPolicy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 2}, BatchSize: 1,
		Alerts: &AlertTarget{URL: "http://10.0.0.0/alerts", Secret: webhook.NewSigningSecret()},
	}
	runInBubble(t, cfg, func(w *testbed) {
		var alerts atomic.Int32
		w.subscriber(nil).handler = func(rw http.ResponseWriter, _ *http.Request) {
			alerts.Add(1)
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
		failing, retried, well := w.subscriber(respondWith(502)), w.subscriber(respondWith(200, 502)), w.subscriber(nil)
		failingSub, _, wellSub := w.subscribe(failing, nil), w.subscribe(retried, nil), w.subscribe(well, nil)
		w.publishEvery(webhook.FailingOver/2, 3, "content_deleted")
		if status := w.health(failingSub); status != webhook.HealthFailing || alerts.Load() == 0 {
			t.Fatalf("got status %s and %d alerts, want failing and at least 1", status, alerts.Load())
		}
		sent := well.posts()[0].delivery
		requests := func() [4]int {
			return [...]int{int(alerts.Load()), len(failing.all()), len(retried.all()), len(well.all())}
		}
		before := requests()

		if guarded {
			for a := range w.subscribers {
				w.cfg.Own = append(w.cfg.Own, netip.AddrPortFrom(a, 80))
			}
		}
		w.crash()
		redelivery := w.sendEverything(wellSub, sent)
		time.Sleep(24 * time.Hour)
		for i, now := range requests() {
			// The last receives an event, a ping, a redelivery and four replayed events.
			of, least := []string{"alerts", "probes", "retries", "requests"}[i], []int{1, 1, 1, 7}[i]
			if n := now - before[i]; guarded && n != 0 || !guarded && n < least {
				t.Errorf("guarded %t: got %d %s, want 0 if guarded, else at least %d", guarded, n, of, least)
			}
		}
		if d := w.delivery(wellSub, redelivery.ID); guarded &&
			(d.Status != webhook.StatusFailed || d.FailureReason != webhook.FailureBlocked || d.Attempts[0].Error != webhook.ErrorBlocked) {
			t.Errorf("got redelivery %+v, want it failed as blocked", d)
		}
	})
}

// sendEverything publishes an event, pings a subscription, replays its events and
// redelivers the delivery sent. It returns the redelivery.
func (w *testbed) sendEverything(sub webhook.Subscription, sent string) webhook.Delivery {
	w.t.Helper()
	w.publish("content_updated")
	go w.d.store.Subscriptions().Ping(context.Background(), "p", sub.ID)
	redelivery := w.redeliver(sub, sent)
	w.replay(sub, time.Now().Add(-time.Hour), webhook.ReplayAll)
	return redelivery
}

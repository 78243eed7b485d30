package dispatcher

import (
	"context"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// TestEveryPathIsGuarded: whatever makes the service send, the guard stands
// before it. What was under way when the addresses were still allowed is as
// good as everything that begins later.
func TestEveryPathIsGuarded(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		name := map[bool]string{false: "control", true: "guarded"}[guarded]
		t.Run(name, func(t *testing.T) {
			cfg := Config{
				RetryPolicy: exact(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 2}, BatchSize: 1,
				Alerts: &AlertTarget{URL: "http://10.0.0.0/alerts", Secret: webhook.NewSigningSecret()},
			}
			inBubble(t, cfg, func(w *world) {
				var alerts atomic.Int32
				w.subscriber(nil).serve = func(rw http.ResponseWriter, _ *http.Request) {
					alerts.Add(1)
					rw.WriteHeader(http.StatusServiceUnavailable)
				}
				failing, retried, well := w.subscriber(statuses(502)), w.subscriber(statuses(200, 502)), w.subscriber(nil)
				failingSub, _, wellSub := w.subscribe(failing, nil), w.subscribe(retried, nil), w.subscribe(well, nil)
				for range 3 {
					w.publish("content_deleted")
					time.Sleep(webhook.FailingOver / 2)
				}
				synctest.Wait()
				if sub, err := w.d.store.Subscription(context.Background(), "p", failingSub.ID); err != nil || sub.Status != webhook.HealthFailing || alerts.Load() == 0 {
					t.Fatalf("the failing subscription is %s (%v), with %d alerts", sub.Status, err, alerts.Load())
				}
				sent := well.posts()[0].delivery
				before := []int{int(alerts.Load()), len(failing.all()), len(retried.all()), len(well.all())}

				if guarded {
					for a := range w.subscribers {
						w.cfg.Own = append(w.cfg.Own, netip.AddrPortFrom(a, 80))
					}
				}
				w.crash()
				w.publish("content_updated")
				go w.d.store.Ping(context.Background(), "p", wellSub.ID)
				again, err := w.d.store.Redeliver(context.Background(), "p", wellSub.ID, sent)
				if err != nil {
					t.Fatal(err)
				}
				_, err = w.d.store.CreateReplay(context.Background(), "p", wellSub.ID, &webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayAll})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(24 * time.Hour)
				for i, now := range []int{int(alerts.Load()), len(failing.all()), len(retried.all()), len(well.all())} {
					// The last has an event, a ping, a redelivery and four events of the log.
					of, least := []string{"alerts", "probes", "retries", "requests"}[i], []int{1, 1, 1, 7}[i]
					if n := now - before[i]; guarded && n != 0 || !guarded && n < least {
						t.Errorf("%d %s were sent", n, of)
					}
				}
				if d := w.delivery(wellSub, again.ID); guarded && (d.Status != webhook.StatusFailed || d.FailureReason != webhook.FailureBlocked || d.Attempts[0].Error != webhook.ErrorBlocked) {
					t.Errorf("the redelivery is %+v, want blocked", d)
				}
			})
		})
	}
}

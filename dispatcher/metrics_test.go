package dispatcher

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"service/webhook"
)

// wantMetrics checks lines of what a scrape would see.
func wantMetrics(t *testing.T, when string, registry *prometheus.Registry, lines ...string) {
	t.Helper()
	synctest.Wait()
	families, err := registry.Gather()
	if err != nil {
		t.Error(err)
	}
	var text bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range lines {
		if !strings.Contains(text.String(), line+"\n") {
			t.Errorf("%s: the metrics lack %s, and have\n", when, line)
			name, _, _ := strings.Cut(line, " ")
			for l := range strings.Lines(text.String()) {
				if strings.HasPrefix(l, strings.SplitN(name, "{", 2)[0]) {
					t.Log(l)
				}
			}
		}
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	cfg := Config{
		RetryPolicy: exactRetryPolicy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 9}, BatchSize: 1, MaxConnections: 20,
		Metrics: registry, Alerts: &AlertTarget{URL: "http://10.0.0.0/alerts", Secret: webhook.NewSigningSecret()},
	}
	runInBubble(t, cfg, func(w *testbed) {
		w.subscriber(nil).handler = func(rw http.ResponseWriter, _ *http.Request) {} // the operator's
		w.subscribe(w.subscriber(nil), nil)
		w.publish("content_updated") // 1
		wantMetrics(t, "after an event", registry,
			`service_attempts_total{answer="2xx",result="success"} 2`, // and the ping
			`service_attempts_total{answer="timeout",result="retryable"} 0`,
			`service_attempts_total{answer="blocked",result="failed"} 0`,
			`service_attempt_duration_seconds_count{result="success"} 2`,
			`service_delivery_lag_seconds_count 1`,
			`service_delivery_lag_seconds_sum 0`,
			`service_deliveries_in_flight{kind="event"} 0`,
			`service_deliveries_in_flight_limit{kind="event"} 20`,
			`service_deliveries_held 0`,
			`service_subscriptions{program="p",status="healthy"} 1`,
			`service_subscriptions{program="p",status="failing"} 0`,
			`service_subscriptions_inactive{program="p"} 0`,
			`service_backlog_subscriptions{program="p"} 0`,
			`service_backlog_distance_events{program="p"} 0`,
			`service_backlog_age_seconds{program="p"} 0`)

		names := []string{"content_archived"}
		bad := w.subscribe(w.subscriber(respondWith(200, 503)), func(f *webhook.SubscriptionFields) { f.Events = &names })
		for range 3 {
			w.publish("content_archived") // 2 to 4
		}
		time.Sleep(5*time.Minute + 5*time.Second) // two retries of each
		wantMetrics(t, "after failures", registry,
			`service_attempts_total{answer="5xx",result="retryable"} 9`,
			`service_attempt_duration_seconds_count{result="retryable"} 9`,
			`service_delivery_lag_seconds_count 4`, // first attempts alone
			`service_subscriptions{program="p",status="healthy"} 1`,
			`service_subscriptions{program="p",status="failing"} 1`,
			`service_subscriptions_failing{program="p",reason="unreachable"} 1`,
			`service_subscriptions_failing{program="p",reason="rejecting"} 0`,
			`service_alert_attempts_total{result="success"} 1`,
			`service_backlog_age_seconds{program="p"} 0`)

		w.publish("content_updated") // 5: not what it waits for
		time.Sleep(time.Second)
		for range 4 {
			w.publish("content_archived") // 6 to 9
			time.Sleep(500 * time.Millisecond)
		}
		wantMetrics(t, "while it is failing", registry,
			`service_backlog_subscriptions{program="p"} 1`,
			`service_backlog_distance_events{program="p"} 5`,
			`service_backlog_age_seconds{program="p"} 2`)
		for program, want := range map[string]int{"": 1, "p": 1, "another": 0} {
			b, err := w.d.Backlog(context.Background(), program)
			if err != nil || b.Subscriptions != want || b.Events != 4*want || b.More || want == 1 && time.Since(b.Oldest) != 2*time.Second || want == 0 && !b.Oldest.IsZero() {
				t.Errorf("the backlog of program %q: got %+v, %v; want %d subscription that waits for 4 events, the oldest 2s ago", program, b, err, want)
			}
		}

		off := false
		w.update(bad, &webhook.SubscriptionFields{Active: &off})
		wantMetrics(t, "after it was set inactive", registry,
			`service_subscriptions_inactive{program="p"} 1`,
			`service_backlog_subscriptions{program="p"} 0`,
			`service_backlog_age_seconds{program="p"} 0`)
	})
}

// A hanging attempt is in flight until its timeout, and a failing store holds
// deliveries.
func TestMetricsInFlight(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, Metrics: registry}, func(w *testbed) {
		names := []string{"channel_created"}
		slow := w.subscriber(hang)
		slow.respond = func(n int, rw http.ResponseWriter, r *http.Request) {
			if n > 1 {
				hang(n, rw, r)
			}
		}
		w.subscribe(slow, func(f *webhook.SubscriptionFields) { f.Events = &names })
		w.publish("channel_created")
		wantMetrics(t, "while one hangs", registry, `service_deliveries_in_flight{kind="event"} 1`)
		time.Sleep(10 * time.Second)
		wantMetrics(t, "after its time", registry,
			`service_deliveries_in_flight{kind="event"} 0`,
			`service_attempts_total{answer="timeout",result="retryable"} 1`)

		w.publish("channel_created")
		synctest.Wait()
		w.d.mu.Lock()
		w.d.pausedUntil = time.Now().Add(time.Minute)
		w.d.mu.Unlock()
		wantMetrics(t, "while the store fails", registry, `service_deliveries_held 1`)
	})
}

// The lag is of the oldest event of a delivery, from its acceptance on.
func TestLagIsThatOfTheOldestEvent(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	runInBubble(t, Config{Metrics: registry, BatchWindow: 4 * time.Second}, func(w *testbed) {
		w.subscribe(w.subscriber(nil), nil)
		w.publish("content_updated")
		time.Sleep(3 * time.Second)
		w.publish("content_updated")
		time.Sleep(time.Second)
		wantMetrics(t, "after the window", registry, `service_delivery_lag_seconds_count 1`, `service_delivery_lag_seconds_sum 4`)
	})
}

// Whatever an attempt came to, it is counted once, and costs no memory.
func TestCountingAnAttempt(t *testing.T) {
	m := newMetrics()
	var all []webhook.Attempt
	for status := 200; status < 600; status++ {
		all = append(all, webhook.Attempt{ResponseStatus: status, Result: webhook.Classify(status, "")})
	}
	for _, code := range webhook.ErrorCodes() {
		all = append(all, webhook.Attempt{Error: code, Result: webhook.Classify(0, code)})
	}
	n := testing.AllocsPerRun(1, func() {
		for i := range all {
			m.attempt(&all[i])
		}
	})
	if n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.attempts, m.durations)
	synctest.Test(t, func(t *testing.T) {
		wantMetrics(t, "twice each", registry,
			`service_attempts_total{answer="2xx",result="success"} 200`, `service_attempts_total{answer="3xx",result="failed"} 200`,
			`service_attempts_total{answer="4xx",result="failed"} 200`, `service_attempts_total{answer="5xx",result="retryable"} 200`,
			`service_attempts_total{answer="dns",result="retryable"} 2`, `service_attempts_total{answer="blocked",result="failed"} 2`,
			`service_attempt_duration_seconds_count{result="failed"} 402`)
	})
}

// The time of a delivery has the waits between its attempts in it; what is sent
// again later has none.
func TestDeliveryTime(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, Metrics: registry}, func(w *testbed) {
		r := w.subscriber(respondWith(200, 503, 503, 200)) // the ping first
		sub := w.subscribe(r, nil)
		w.publish("content_updated")
		time.Sleep(5*time.Minute + 5*time.Second)
		wantMetrics(t, "after two retries", registry, `service_delivery_time_seconds_count 1`, `service_delivery_time_seconds_sum 305`, `service_delivery_lag_seconds_count 1`)
		if _, err := w.d.store.Deliveries().Redeliver(t.Context(), "p", sub.ID, r.posts()[0].delivery); err != nil {
			t.Fatal(err)
		}
		wantMetrics(t, "after a redelivery", registry, `service_delivery_time_seconds_count 1`, `service_attempts_total{answer="2xx",result="success"} 3`)
	})
}

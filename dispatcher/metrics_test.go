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

// wantMetrics checks that a scrape contains the lines.
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
			t.Errorf("%s: want metric %s, got", when, line)
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
		w.subscriber(nil).handler = func(rw http.ResponseWriter, _ *http.Request) {} // the operator's server
		w.subscribe(w.subscriber(nil), nil)
		w.publish("content_updated") // 1
		wantMetrics(t, "after an event", registry,
			`webhooks_attempts_total{answer="2xx",result="success"} 2`, // including the ping
			`webhooks_attempts_total{answer="timeout",result="retryable"} 0`,
			`webhooks_attempts_total{answer="blocked",result="failed"} 0`,
			`webhooks_attempt_duration_seconds_count{result="success"} 2`,
			`webhooks_delivery_lag_seconds_count 1`,
			`webhooks_delivery_lag_seconds_sum 0`,
			`webhooks_deliveries_in_flight{kind="event"} 0`,
			`webhooks_deliveries_in_flight_limit{kind="event"} 20`,
			`webhooks_deliveries_held 0`,
			`webhooks_subscriptions{program="p",status="healthy"} 1`,
			`webhooks_subscriptions{program="p",status="failing"} 0`,
			`webhooks_subscriptions_inactive{program="p"} 0`,
			`webhooks_backlog_subscriptions{program="p"} 0`,
			`webhooks_backlog_distance_events{program="p"} 0`,
			`webhooks_backlog_age_seconds{program="p"} 0`)

		bad := w.subscribeIn("p", w.subscriber(respondWith(200, 503)), "content_archived")
		w.publishN(3, "content_archived")         // 2 to 4
		time.Sleep(5*time.Minute + 5*time.Second) // two retries each
		wantMetrics(t, "after failures", registry,
			`webhooks_attempts_total{answer="5xx",result="retryable"} 9`,
			`webhooks_attempt_duration_seconds_count{result="retryable"} 9`,
			`webhooks_delivery_lag_seconds_count 4`, // first attempts only
			`webhooks_subscriptions{program="p",status="healthy"} 1`,
			`webhooks_subscriptions{program="p",status="failing"} 1`,
			`webhooks_subscriptions_failing{program="p",reason="unreachable"} 1`,
			`webhooks_subscriptions_failing{program="p",reason="rejecting"} 0`,
			`webhooks_alert_attempts_total{result="success"} 1`,
			`webhooks_backlog_age_seconds{program="p"} 0`)

		w.publish("content_updated") // 5: not selected by the failing subscription
		time.Sleep(time.Second)
		w.publishEvery(500*time.Millisecond, 4, "content_archived") // 6 to 9
		wantMetrics(t, "while it is failing", registry,
			`webhooks_backlog_subscriptions{program="p"} 1`,
			`webhooks_backlog_distance_events{program="p"} 5`,
			`webhooks_backlog_age_seconds{program="p"} 2`)
		for program, want := range map[string]int{"": 1, "p": 1, "another": 0} {
			b, err := w.d.Backlog(context.Background(), program)
			if err != nil || b.Subscriptions != want || b.Events != 4*want || b.More || want == 1 && time.Since(b.Oldest) != 2*time.Second ||
				want == 0 && !b.Oldest.IsZero() {
				t.Errorf("backlog of program %q: got %+v (%v), want %d subscriptions with 4 events, the oldest 2s old", program, b, err, want)
			}
		}

		w.update(bad, &webhook.SubscriptionFields{Active: new(false)})
		wantMetrics(t, "after it was set inactive", registry,
			`webhooks_subscriptions_inactive{program="p"} 1`,
			`webhooks_backlog_subscriptions{program="p"} 0`,
			`webhooks_backlog_age_seconds{program="p"} 0`)
	})
}

// A hanging attempt is in flight until its timeout; a failing store pauses
// deliveries.
func TestMetricsInFlight(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, Metrics: registry}, func(w *testbed) {
		w.subscribeIn("p", w.subscriber(afterPing(hang)), "channel_created")
		w.publish("channel_created")
		wantMetrics(t, "while an attempt hangs", registry, `webhooks_deliveries_in_flight{kind="event"} 1`)
		time.Sleep(10 * time.Second)
		wantMetrics(t, "after the timeout", registry,
			`webhooks_deliveries_in_flight{kind="event"} 0`,
			`webhooks_attempts_total{answer="timeout",result="retryable"} 1`)

		w.publish("channel_created")
		synctest.Wait()
		w.d.mu.Lock()
		w.d.pausedUntil = time.Now().Add(time.Minute)
		w.d.mu.Unlock()
		wantMetrics(t, "while the store fails", registry, `webhooks_deliveries_held 1`)
	})
}

// The lag is measured from the acceptance of a delivery's oldest event.
func TestLagOfOldestEvent(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	runInBubble(t, Config{Metrics: registry, BatchWindow: 4 * time.Second}, func(w *testbed) {
		w.subscribe(w.subscriber(nil), nil)
		w.publish("content_updated")
		time.Sleep(3 * time.Second)
		w.publish("content_updated")
		time.Sleep(time.Second)
		wantMetrics(t, "after the window", registry, `webhooks_delivery_lag_seconds_count 1`, `webhooks_delivery_lag_seconds_sum 4`)
	})
}

// Each attempt is counted once, whatever its result, without allocating.
func TestAttemptMetrics(t *testing.T) {
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
		t.Errorf("got %v allocations, want 0", n)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.attempts, m.durations)
	synctest.Test(t, func(t *testing.T) {
		wantMetrics(t, "each attempt counted twice", registry,
			`webhooks_attempts_total{answer="2xx",result="success"} 200`, `webhooks_attempts_total{answer="3xx",result="failed"} 200`,
			`webhooks_attempts_total{answer="4xx",result="failed"} 200`, `webhooks_attempts_total{answer="5xx",result="retryable"} 200`,
			`webhooks_attempts_total{answer="dns",result="retryable"} 2`, `webhooks_attempts_total{answer="blocked",result="failed"} 2`,
			`webhooks_attempt_duration_seconds_count{result="failed"} 402`)
	})
}

// The delivery time includes the waits between attempts; redeliveries are not
// measured.
func TestDeliveryTime(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, Metrics: registry}, func(w *testbed) {
		r := w.subscriber(respondWith(200, 503, 503, 200)) // the ping first
		sub := w.subscribe(r, nil)
		w.publish("content_updated")
		time.Sleep(5*time.Minute + 5*time.Second)
		wantMetrics(t, "after two retries", registry, `webhooks_delivery_time_seconds_count 1`, `webhooks_delivery_time_seconds_sum 305`,
			`webhooks_delivery_lag_seconds_count 1`)
		w.redeliver(sub, r.posts()[0].delivery)
		wantMetrics(t, "after a redelivery", registry, `webhooks_delivery_time_seconds_count 1`,
			`webhooks_attempts_total{answer="2xx",result="success"} 3`)
	})
}

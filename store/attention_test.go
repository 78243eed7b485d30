package store

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store/record"
	"service/webhook"
)

// failUntil records attempts with status 503, a minute apart, until a subscription has the
// given health.
func failUntil(t *testing.T, s *Store, id string, health webhook.Health) {
	t.Helper()
	policy := webhook.HealthPolicy{FailingAfter: 2}
	if health == webhook.HealthDisabled {
		policy.DisableAfter = 3 * time.Minute
	}
	for range 20 {
		c := form(t, s, queue(t, s, id), 1)
		if c == nil {
			c = mustClaim(t, s, &Credit{Queue: queue(t, s, id), Kind: CreditDue})
		}
		a := webhook.Attempt{Number: c.Number, StartedAt: time.Now().UTC(), Duration: 7 * time.Millisecond, ResponseStatus: 503,
			Result:         webhook.ResultRetryable,
			ResponseHeader: "A: b\n", ResponseBody: []byte("no")}
		recordResult(t, s, c, &a, webhook.RetryPolicy{}.After(&a, time.Now(), 0), policy)
		sub, err := s.Subscriptions().Get(t.Context(), "p", id)
		must(t, err)
		if sub.Status == health {
			return
		}
		time.Sleep(time.Minute)
	}
	t.Fatalf("the subscription did not become %s", health)
}

func TestLossesAndAlerts(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		losses := func(limit int) ([]record.Loss, record.LossTotals) {
			t.Helper()
			got, totals, err := s.Subscriptions().Losses(t.Context(), limit)
			must(t, err)
			return got, totals
		}
		if got, totals := losses(10); len(got) != 0 || totals != (record.LossTotals{}) {
			t.Errorf("without losses: got %v, %v", got, totals)
		}
		if got, err := s.Alerts().Last(t.Context(), 10); err != nil || len(got) != 0 {
			t.Errorf("without alerts: got %v, %v", got, err)
		}
		start := time.Now().UTC()
		one := subscribe(t, s, "p", "content_updated")
		two := subscribe(t, s, "p", "content_deleted")
		publish(t, s, "p", "content_updated", "content_updated", "content_updated")
		time.Sleep(2 * time.Hour)
		publish(t, s, "p", "content_deleted", "content_updated")
		sweepAt(t, s, time.Now().Add(-time.Hour)) // removes the three events
		time.Sleep(2 * time.Hour)
		publish(t, s, "p", "channel_created")
		unsubscribe(t, s, "p", one.ID)
		sweepAt(t, s, time.Now().Add(-time.Hour)) // removes the one event
		first := record.Loss{SubscriptionID: one.ID, ProgramID: "p", URL: one.URL, Deleted: true, Events: 3, FirstAt: start.Add(2 * time.Hour),
			LastAt: start.Add(2 * time.Hour)}
		second := record.Loss{SubscriptionID: two.ID, ProgramID: "p", URL: two.URL, Events: 1, FirstAt: start.Add(4 * time.Hour),
			LastAt: start.Add(4 * time.Hour)}
		got, totals := losses(10)
		if diff := cmp.Diff([]record.Loss{second, first}, got); diff != "" || totals != (record.LossTotals{Subscriptions: 2, Events: 4}) {
			t.Errorf("totals %v, losses (-want +got):\n%s", totals, diff)
		}
		got, totals = losses(1)
		if diff := cmp.Diff([]record.Loss{second}, got); diff != "" || totals != (record.LossTotals{Subscriptions: 2, Events: 4}) {
			t.Errorf("limit 1: totals %v, losses (-want +got):\n%s", totals, diff)
		}

		publish(t, s, "p", "content_deleted")
		failUntil(t, s, two.ID, webhook.HealthFailing)
		if alerts, err := s.Alerts().Last(t.Context(), 1); err != nil || len(alerts) != 1 || alerts[0].Name != webhook.AlertFailing {
			t.Errorf("got %v, %v, want the last alert", alerts, err)
		}
		alerts, err := s.Alerts().Last(t.Context(), 10)
		if err != nil || len(alerts) != 2 {
			t.Fatalf("got %v, %v, want two alerts", alerts, err)
		}
		a := alerts[1]
		if a.ID == "" || alerts[0].ResponseStatus == 0 && alerts[0].Error == webhook.ErrorNone || alerts[0].IncidentID == "" {
			t.Errorf("an alert lacks its id, response or incident: %+v", alerts)
		}
		a.ID = ""
		want := record.Alert{Name: webhook.AlertLost, ProgramID: "p", SubscriptionID: two.ID, URL: two.URL, LostEvents: 1,
			Status:    record.AlertUnsent,
			CreatedAt: start.Add(4 * time.Hour)}
		if diff := cmp.Diff(want, a); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

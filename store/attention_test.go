package store

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/webhook"
)

// failUntil has every attempt for a subscription end in 503, a minute apart,
// until it has that health.
func failUntil(t *testing.T, s *Store, id string, health webhook.Health) {
	t.Helper()
	policy := webhook.HealthPolicy{FailingAfter: 2}
	if health == webhook.HealthDisabled {
		policy.DisableAfter = 3 * time.Minute
	}
	for range 20 {
		c := form(t, s, queue(t, s, id), 1)
		if c == nil {
			var err error
			again := &Credit{Queue: queue(t, s, id), Kind: CreditDue}
			if c, _, err = s.Queues().claimDue(t.Context(), again); err != nil || c == nil {
				t.Fatalf("nothing is due: %v", err)
			}
		}
		a := webhook.Attempt{Number: c.Number, StartedAt: time.Now().UTC(), Duration: 7 * time.Millisecond, ResponseStatus: 503, Result: webhook.ResultRetryable,
			ResponseHeader: "A: b\n", ResponseBody: []byte("no")}
		if _, err := s.Queues().Record(c, &a, webhook.RetryPolicy{}.After(&a, time.Now(), 0), policy); err != nil {
			t.Fatal(err)
		}
		sub, err := s.Subscriptions().Get(t.Context(), "p", id)
		if err != nil {
			t.Fatal(err)
		}
		if sub.Status == health {
			return
		}
		time.Sleep(time.Minute)
	}
	t.Fatalf("it did not become %s", health)
}

func TestUnhealthy(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		unhealthy := func(health webhook.Health, limit int) ([]UnhealthySubscription, int) {
			t.Helper()
			got, total, err := s.Subscriptions().Unhealthy(t.Context(), health, limit)
			must(t, err)
			return got, total
		}
		start := time.Now().UTC()
		subscribe(t, s, "p", "content_updated") // is well
		fails := subscribe(t, s, "p", "content_updated", "content_deleted")
		later := subscribe(t, s, "p", "channel_created")
		off := subscribe(t, s, "p", "channel_updated")
		gone := subscribe(t, s, "p", "channel_deleted")
		publish(t, s, "p", "content_updated", "channel_created", "channel_updated", "channel_deleted")
		if got, total := unhealthy(webhook.HealthFailing, 10); len(got) != 0 || total != 0 {
			t.Errorf("of a store where all is well: %v, %d", got, total)
		}

		failUntil(t, s, fails.ID, webhook.HealthFailing) // at 1 min
		failUntil(t, s, gone.ID, webhook.HealthFailing)  // at 2 min
		_, err := s.Subscriptions().Delete(t.Context(), "p", gone.ID)
		must(t, err)
		failUntil(t, s, off.ID, webhook.HealthDisabled)  // failing at 3 min, disabled at 6 min
		failUntil(t, s, later.ID, webhook.HealthFailing) // at 7 min
		time.Sleep(time.Minute)
		publish(t, s, "p", "channel_created", "content_updated", "channel_updated")
		time.Sleep(time.Minute)
		publish(t, s, "p", "content_updated", "content_deleted")
		ping, _, err := s.Queues().claimDue(t.Context(), duePing(later.ID))
		if err != nil || ping == nil {
			t.Fatalf("claim the ping: %v, %v", ping, err)
		}
		a := webhook.Attempt{Number: 1, StartedAt: time.Now(), ResponseStatus: 200, Result: webhook.ResultSuccess}
		_, err = s.Queues().Record(ping, &a, webhook.RetryPolicy{}.After(&a, time.Now(), 0), webhook.HealthPolicy{})
		must(t, err)

		at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
		answer := func(number, minutes int) *webhook.Attempt {
			return &webhook.Attempt{Number: number, StartedAt: at(minutes), Duration: 7 * time.Millisecond, ResponseStatus: 503, Result: webhook.ResultRetryable}
		}
		// An attempt that is tried again was begun before.
		want := []UnhealthySubscription{
			{ID: later.ID, ProgramID: "p", URL: later.URL, Status: webhook.HealthFailing, Failures: webhook.Failures{Count: 2, First: at(6), Reason: webhook.FailingUnreachable, Since: at(7), NextProbe: at(7).Add(5 * time.Second)},
				Last: answer(2, 7), Events: 1, OldestEvent: at(8), Deliveries: 1}, // its ping has succeeded, and is no answer to events
			{ID: fails.ID, ProgramID: "p", URL: fails.URL, Status: webhook.HealthFailing, Failures: webhook.Failures{Count: 2, First: start, Reason: webhook.FailingUnreachable, Since: at(1), NextProbe: at(1).Add(5 * time.Second)},
				Last: answer(2, 1), Events: 3, OldestEvent: at(8), Deliveries: 2}, // with its ping
		}
		got, total := unhealthy(webhook.HealthFailing, 10)
		if diff := cmp.Diff(want, got); diff != "" || total != 2 {
			t.Errorf("failing: %d in all (-want +got):\n%s", total, diff)
		}
		got, total = unhealthy(webhook.HealthFailing, 1)
		if diff := cmp.Diff(want[:1], got); diff != "" || total != 2 {
			t.Errorf("one of them: %d in all, want 2 (-want +got):\n%s", total, diff)
		}
		got, total = unhealthy(webhook.HealthDisabled, 10)
		wantOff := []UnhealthySubscription{{ID: off.ID, ProgramID: "p", URL: off.URL, Status: webhook.HealthDisabled,
			DisabledReason: "Its server has been failing since " + webhook.FormatTime(at(3)) + ".",
			Failures:       webhook.Failures{Count: 5, First: at(2), Reason: webhook.FailingUnreachable, Since: at(3), NextProbe: at(6).Add(40 * time.Second)}, Last: answer(5, 6), Deliveries: 1}}
		if diff := cmp.Diff(wantOff, got); diff != "" || total != 1 {
			t.Errorf("disabled: %d in all (-want +got):\n%s", total, diff)
		}

		// What is well again is no longer there.
		url := "https://another.example/"
		for _, id := range []string{fails.ID, off.ID} {
			_, err := s.Subscriptions().Update(t.Context(), "p", id, &webhook.SubscriptionFields{URL: &url})
			must(t, err)
		}
		if got, total := unhealthy(webhook.HealthFailing, 10); total != 1 || got[0].ID != later.ID {
			t.Errorf("after the change of a URL: %v", got)
		}
		if got, total := unhealthy(webhook.HealthDisabled, 10); total != 0 || len(got) != 0 {
			t.Errorf("after the change of a URL: %v", got)
		}
	})
}

// The last answer is that of the attempt that was begun last, not that of the
// newest delivery.
func TestUnhealthyLastAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "content_updated", "content_updated")
		for i, status := range []int{500, 501, 502, 503} { // two deliveries, by turns
			c := form(t, s, queue(t, s, sub.ID), 1)
			if c == nil {
				var err error
				if c, _, err = s.Queues().claimDue(t.Context(), due(sub.ID)); err != nil || c == nil {
					t.Fatalf("nothing is due: %v", err)
				}
			}
			a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), ResponseStatus: status, Result: webhook.ResultRetryable}
			if _, err := s.Queues().Record(c, &a, webhook.RetryPolicy{}.After(&a, time.Now(), 0), webhook.HealthPolicy{FailingAfter: 1 + min(i, 1)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			got, _, err := s.Subscriptions().Unhealthy(t.Context(), webhook.HealthFailing, 1)
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 && (len(got) != 1 || got[0].Last == nil || got[0].Last.ResponseStatus != status || got[0].Last.Number != 1+i/2) {
				t.Errorf("after %d: got %+v", status, got)
			}
		}
	})
}

// What waits is counted up to a limit, and begins after what retention took.
func TestUnhealthyCountsUpToALimit(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated", "content_deleted")
		publish(t, s, "p", "content_updated")
		failUntil(t, s, sub.ID, webhook.HealthFailing)
		for range 2 {
			names := make([]string, CountLimit/2+10)
			for i := range names {
				names[i] = []string{"content_updated", "content_deleted"}[i%2]
			}
			publish(t, s, "p", names...)
			time.Sleep(time.Hour)
		}
		got, _, err := s.Subscriptions().Unhealthy(t.Context(), webhook.HealthFailing, 1)
		if err != nil || len(got) != 1 || got[0].Events != CountLimit {
			t.Errorf("got %v, %v, want %d events", got, err, CountLimit)
		}
		sweepAt(t, s, time.Now().Add(-90*time.Minute))
		got, _, err = s.Subscriptions().Unhealthy(t.Context(), webhook.HealthFailing, 1)
		if err != nil || len(got) != 1 || got[0].Events != CountLimit/2+10 || !got[0].OldestEvent.Equal(time.Now().Add(-time.Hour)) {
			t.Errorf("got %v, %v, want the %d events of the last hour", got, err, CountLimit/2+10)
		}
	})
}

func TestLossesAndAlerts(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		losses := func(limit int) ([]Loss, LossTotals) {
			t.Helper()
			got, totals, err := s.Subscriptions().Losses(t.Context(), limit)
			must(t, err)
			return got, totals
		}
		if got, totals := losses(10); len(got) != 0 || totals != (LossTotals{}) {
			t.Errorf("of a store where nothing was lost: %v, %v", got, totals)
		}
		if got, err := s.Alerts().Last(t.Context(), 10); err != nil || len(got) != 0 {
			t.Errorf("of a store where all is well: %v, %v", got, err)
		}
		start := time.Now().UTC()
		one := subscribe(t, s, "p", "content_updated")
		two := subscribe(t, s, "p", "content_deleted")
		publish(t, s, "p", "content_updated", "content_updated", "content_updated")
		time.Sleep(2 * time.Hour)
		publish(t, s, "p", "content_deleted", "content_updated")
		sweepAt(t, s, time.Now().Add(-time.Hour)) // the three
		time.Sleep(2 * time.Hour)
		publish(t, s, "p", "channel_created")
		_, err := s.Subscriptions().Delete(t.Context(), "p", one.ID)
		must(t, err)
		sweepAt(t, s, time.Now().Add(-time.Hour)) // the one
		first := Loss{SubscriptionID: one.ID, ProgramID: "p", URL: one.URL, Deleted: true, Events: 3, FirstAt: start.Add(2 * time.Hour), LastAt: start.Add(2 * time.Hour)}
		second := Loss{SubscriptionID: two.ID, ProgramID: "p", URL: two.URL, Events: 1, FirstAt: start.Add(4 * time.Hour), LastAt: start.Add(4 * time.Hour)}
		got, totals := losses(10)
		if diff := cmp.Diff([]Loss{second, first}, got); diff != "" || totals != (LossTotals{Subscriptions: 2, Events: 4}) {
			t.Errorf("losses of %v (-want +got):\n%s", totals, diff)
		}
		got, totals = losses(1)
		if diff := cmp.Diff([]Loss{second}, got); diff != "" || totals != (LossTotals{Subscriptions: 2, Events: 4}) {
			t.Errorf("one of them: losses of %v (-want +got):\n%s", totals, diff)
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
		if a.ID == "" || a.Message == "" || a.Action == "" {
			t.Errorf("the alert does not say what happened, and what to do: %+v", a)
		}
		a.ID, a.Message, a.Action = "", "", ""
		want := Alert{Name: webhook.AlertLost, ProgramID: "p", SubscriptionID: two.ID, URL: two.URL, LostEvents: 1, Status: AlertUnsent, CreatedAt: start.Add(4 * time.Hour)}
		if diff := cmp.Diff(want, a); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestAttentionPlans holds that what needs attention is found by indexes, and
// that what is scanned is what was found, up to a limit.
func TestAttentionPlans(t *testing.T) {
	s := open(t)
	for _, tt := range []struct {
		query string
		args  int
		want  []string // the steps, in their order
	}{
		{selectUnhealthy, 3, []string{
			"MATERIALIZE shown", "CO-ROUTINE (subquery-16)", "CO-ROUTINE s",
			"SEARCH subscriptions USING INDEX subscriptions_by_health (status=?)", "SCAN s",
			"SEARCH f USING PRIMARY KEY (subscription_id=?)", "SCAN (subquery-16)", "USE TEMP B-TREE FOR ORDER BY",
			"SCAN x", "SEARCH c USING PRIMARY KEY (subscription_id=?)", "SEARCH d USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
			"CORRELATED SCALAR SUBQUERY 13", "CO-ROUTINE n",
			"MERGE (UNION ALL)", "LEFT", "SEARCH d USING COVERING INDEX deliveries_of_subscription (subscription=?)",
			"CORRELATED SCALAR SUBQUERY 10", "SEARCH subscriptions USING PRIMARY KEY (id=?)",
			"RIGHT", "SEARCH d USING INDEX deliveries_by_subscription (subscription_id=?)", "SCAN n",
			"SEARCH y USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH t USING PRIMARY KEY (delivery=?) LEFT-JOIN", "USE TEMP B-TREE FOR ORDER BY",
			"SEARCH a USING PRIMARY KEY (delivery=? AND number=?) LEFT-JOIN", "CORRELATED SCALAR SUBQUERY 14", "SEARCH attempts USING PRIMARY KEY (delivery=?)",
			"CORRELATED SCALAR SUBQUERY 4", "CO-ROUTINE (subquery-3)", "SEARCH i USING PRIMARY KEY (subscription_id=?)",
			"SEARCH e USING COVERING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)", "SCAN (subquery-3)",
			"CORRELATED SCALAR SUBQUERY 7", "SEARCH o USING INDEX events_by_seq (program_id=? AND seq=?)",
			"CORRELATED SCALAR SUBQUERY 6", "SEARCH i USING PRIMARY KEY (subscription_id=?)",
			"CORRELATED SCALAR SUBQUERY 5", "SEARCH e USING COVERING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)",
			"CORRELATED SCALAR SUBQUERY 9", "CO-ROUTINE (subquery-8)",
			"SEARCH w USING COVERING INDEX deliveries_due (subscription_id=? AND next_attempt_at>?)", "SCAN (subquery-8)",
		}},
		{selectLosses, 2, []string{
			"CO-ROUTINE (subquery-3)", "CO-ROUTINE l", "SCAN losses USING INDEX losses_by_time", "SCAN l",
			"SEARCH s USING PRIMARY KEY (id=?)", "SCAN (subquery-3)", "USE TEMP B-TREE FOR ORDER BY",
		}},
		{selectLastAlerts, 1, []string{"SCAN alerts"}},
	} {
		var got []string
		args := []any{math.MaxInt32, math.MaxInt32, math.MaxInt32}[:tt.args]
		err := s.db.Each(t.Context(), "EXPLAIN QUERY PLAN "+tt.query, args, func(scan func(...any) error) error {
			var id, parent, unused int
			var detail string
			err := scan(&id, &parent, &unused, &detail)
			got = append(got, detail)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.query, diff)
		}
	}
}

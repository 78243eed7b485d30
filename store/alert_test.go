package store

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// claimAlerts claims all alerts that are due.
func claimAlerts(t *testing.T, s *Store) (all []*AlertClaim) {
	t.Helper()
	queues, err := s.Alerts().Queues(t.Context())
	must(t, err)
	for _, channel := range slices.Sorted(maps.Keys(queues)) { // --alert-url first
		for after := ""; ; {
			c, err := s.Alerts().Claim(channel, after, time.Hour)
			must(t, err)
			if c == nil {
				break
			}
			all, after = append(all, c), c.ProgramID
		}
	}
	return all
}

// Alerts to a channel are claimed program by program, and those of a subscription one after the
// other: a failed attempt makes the next alert wait, and an alert with a delay does not.
func TestAlertQueues(t *testing.T) {
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, Config{Dir: dir, SendAlerts: true})
		var subs []webhook.Subscription
		for _, id := range []string{"a", "a", "b"} {
			program(t, s, id)
			subs = append(subs, subscribe(t, s, id, "content_updated"))
		}
		alert := func(delay time.Duration, sub int, name webhook.AlertName) {
			must(t, s.writer.do(func(t *tx) error {
				return s.alertAfter(t, delay, &webhook.Alert{Name: name, Subscription: subs[sub]}, 0)
			}))
		}
		alert(time.Minute, 0, webhook.AlertFailed)
		alert(0, 0, webhook.AlertFailing)
		alert(0, 0, webhook.AlertRecovered)
		alert(0, 1, webhook.AlertFailing)
		alert(0, 2, webhook.AlertFailing)
		queues, err := s.Alerts().Queues(t.Context())
		must(t, err)
		if at, ok := queues[""]; len(queues) != 1 || !ok || at.After(time.Now()) {
			t.Errorf("got queues %v, want one for --alert-url, due now", queues)
		}
		claims := claimAlerts(t, s)
		var got []string
		for _, c := range claims {
			got = append(got, c.SubscriptionID)
		}
		if len(got) != 3 || got[0] != subs[0].ID || got[1] != subs[2].ID || got[2] != subs[1].ID {
			t.Errorf("got alerts of %v, want one of each subscription, programs in turn", got)
		}
		record := func(c *AlertClaim, r webhook.Result, step webhook.Step) {
			must(t, s.Alerts().Record(c, &webhook.Attempt{Number: c.Number, Result: r}, step))
		}
		record(claims[0], webhook.ResultRetryable, webhook.Step{Status: webhook.StatusRetryable, NextAttemptAt: time.Now().Add(time.Hour)})
		if more := claimAlerts(t, s); len(more) != 0 {
			t.Errorf("got claim %+v while the alert before waits for its retry", more[0])
		}
		time.Sleep(time.Minute)
		delayed := claimAlerts(t, s)
		if len(delayed) != 1 {
			t.Fatalf("got %d claims after a minute, want the delayed alert", len(delayed))
		}
		for _, c := range []*AlertClaim{claims[0], delayed[0]} {
			record(c, webhook.ResultSuccess, webhook.Step{Status: webhook.StatusSuccess})
		}
		if more := claimAlerts(t, s); len(more) != 1 || more[0].SubscriptionID != subs[0].ID {
			t.Errorf("got claims %+v, want the end of the failure", more)
		}
		must(t, s.Close())
	})
}

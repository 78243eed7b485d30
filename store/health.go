package store

import (
	"database/sql"
	"errors"
	"time"

	"service/webhook"
)

// recordHealth decides how a subscription is doing after an attempt. While all
// goes well it costs nothing.
func (s Queues) recordHealth(t *tx, c *Claim, a *webhook.Attempt, policy webhook.HealthPolicy, now time.Time) error {
	id := c.SubscriptionID
	if failing, err := t.mayHaveFailures(id); err != nil || !failing && a.Result != webhook.ResultRetryable {
		return err
	}
	var before webhook.Failures
	var first int64
	var since sql.NullInt64
	err := t.Scan("SELECT count, first_at, failing_since FROM failures WHERE subscription_id = ?", []any{id}, &before.Count, &first, &since)
	if errors.Is(err, sql.ErrNoRows) {
		if a.Result != webhook.ResultRetryable {
			return nil
		}
	} else if err != nil {
		return err
	} else {
		before.First, before.Since = time.UnixMilli(first), fromMillis(since)
	}
	sub, err := scanSubscription(func(dest ...any) error {
		return t.Scan("SELECT "+subscriptionColumns+" FROM subscriptions WHERE id = ?", []any{id}, dest...)
	})
	if err != nil || !sub.DeletedAt.IsZero() {
		return err
	}
	status, after := policy.After(sub.Status, before, a, now)
	reason := ""
	if status == webhook.HealthDisabled {
		reason = "Its server has been failing since " + webhook.FormatTime(after.Since) + "."
	}
	if status == sub.Status {
		if after == before {
			return nil
		}
		return t.setFailures(id, after)
	}
	if err := t.setHealth(id, status, reason, after); err != nil {
		return err
	}
	t.AfterCommit(func() { s.watchers.subscriptionChanged(id) })
	is := sub
	is.Status, is.DisabledReason, is.Active = status, reason, status != webhook.HealthDisabled && sub.Active
	alert := webhook.Alert{Subscription: is, Failures: after, DeliveryID: c.ID, Attempt: a}
	switch status {
	case webhook.HealthFailing:
		alert.Name = webhook.AlertFailing
	case webhook.HealthDisabled:
		alert.Name = webhook.AlertDisabled
	default:
		alert.Name, alert.Failures = webhook.AlertRecovered, before
	}
	if err := s.alert(t, &alert); err != nil {
		return err
	}
	if status != webhook.HealthDisabled {
		return t.Exec("UPDATE subscriptions SET revision = revision + 1 WHERE id = ?", id)
	}
	if err := t.Exec("UPDATE subscriptions SET active = 0, revision = revision + 1, updated_at = ? WHERE id = ?", now.UnixMilli(), id); err != nil {
		return err
	}
	return t.moveInterests(&sub, &is)
}

// setHealth stores how a subscription is doing, and why.
func (t *tx) setHealth(id string, status webhook.Health, reason string, f webhook.Failures) error {
	var why any
	if reason != "" {
		why = reason
	}
	if err := t.Exec("UPDATE subscriptions SET status = ?, disabled_reason = ? WHERE id = ?", string(status), why, id); err != nil {
		return err
	}
	return t.setFailures(id, f)
}

func (t *tx) setFailures(id string, f webhook.Failures) error {
	if f.Count == 0 {
		return t.Exec("DELETE FROM failures WHERE subscription_id = ?", id)
	}
	if t.w.fails != nil {
		t.w.fails[id] = struct{}{}
	}
	return t.Exec("INSERT INTO failures (subscription_id, count, first_at, failing_since) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET count = ?2, first_at = ?3, failing_since = ?4",
		id, f.Count, f.First.UnixMilli(), millis(f.Since))
}

// mayHaveFailures says whether a subscription may have a row of failures. A few
// subscriptions have one, so they are known by heart.
func (t *tx) mayHaveFailures(id string) (bool, error) {
	if t.w.fails == nil {
		fails := make(map[string]struct{})
		err := t.Each("SELECT subscription_id FROM failures", nil, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			fails[id] = struct{}{}
			return err
		})
		if err != nil {
			return false, err
		}
		t.w.fails = fails
	}
	_, ok := t.w.fails[id]
	return ok, nil
}

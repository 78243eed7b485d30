package store

import (
	"database/sql"
	"time"

	"service/webhook"
)

// recordHealth decides how a subscription is doing after an attempt, and tells r
// what its queue has to know. While all goes well it costs nothing.
func (s Queues) recordHealth(t *tx, c *Claim, a *webhook.Attempt, policy webhook.HealthPolicy, now time.Time, r *Recorded) error {
	id := c.SubscriptionID
	if failing, err := t.mayHaveFailures(id); err != nil || !failing && (c.Ping || a.Result == webhook.ResultSuccess) {
		return err
	}
	before, err := t.failures(id)
	if err != nil || before == (webhook.Failures{}) && (c.Ping || a.Result == webhook.ResultSuccess) {
		return err
	}
	sub, err := scanSubscription(func(dest ...any) error {
		return t.Scan("SELECT "+subscriptionColumns+" FROM subscriptions WHERE id = ?", []any{id}, dest...)
	})
	if err != nil || !sub.DeletedAt.IsZero() {
		return err
	}
	var status webhook.Health
	var after webhook.Failures
	if c.Ping {
		status, after = policy.AfterPing(sub.Status, before, a, c.Probe, now)
	} else {
		status, after = policy.After(sub.Status, before, a, c.Probe, now)
		if after.Rejected > before.Rejected {
			if err := t.noteRejected(c, &after); err != nil {
				return err
			}
			r.Rejected = after.RejectedName
		}
	}
	if status == sub.Status {
		if after == before {
			return nil
		}
		r.HealthChanged = after.NextProbe != before.NextProbe || after.Pinged != before.Pinged
		if r.HealthChanged {
			t.AfterCommit(func() { s.watchers.subscriptionChanged(id) })
		}
		return t.setFailures(id, after)
	}
	t.AfterCommit(func() { s.watchers.subscriptionChanged(id) })
	r.HealthChanged = true
	return s.changeHealth(t, c, a, &sub, status, before, after, now)
}

// changeHealth stores that a subscription has begun to fail, has recovered, or was
// switched off, and alerts the operator.
func (s Queues) changeHealth(t *tx, c *Claim, a *webhook.Attempt, sub *webhook.Subscription, status webhook.Health, before, after webhook.Failures, now time.Time) error {
	id, reason := sub.ID, ""
	if status == webhook.HealthDisabled {
		reason = "Its server has been failing since " + webhook.FormatTime(after.Since) + "."
	}
	if err := t.setHealth(id, status, reason, after); err != nil {
		return err
	}
	is := *sub
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
	return t.moveInterests(sub, &is)
}

// noteRejected remembers what was rejected: the type that a probe avoids, and
// where sending again begins.
func (t *tx) noteRejected(c *Claim, f *webhook.Failures) error {
	if from := c.AcceptedAt; !from.IsZero() && (f.RejectedFrom.IsZero() || from.Before(f.RejectedFrom)) {
		f.RejectedFrom = from
	}
	err := t.Scan("SELECT e.name FROM deliveries d CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = d.seqs ->> 0 WHERE d.num = ?", []any{c.num}, &f.RejectedName)
	return ignoreNoRows(err)
}

// setHealth stores how a subscription is doing, and why. When it is well again,
// what was rejected while it was failing is offered to be sent again.
func (t *tx) setHealth(id string, status webhook.Health, reason string, f webhook.Failures) error {
	var why any
	if reason != "" {
		why = reason
	}
	if status == webhook.HealthHealthy {
		err := t.Exec("UPDATE subscriptions SET resend_from = coalesce(min(resend_from, f.rejected_from), f.rejected_from, resend_from) FROM failures f WHERE f.subscription_id = id AND f.failing_since IS NOT NULL AND id = ?", id)
		if err != nil {
			return err
		}
	}
	if err := t.Exec("UPDATE subscriptions SET status = ?, disabled_reason = ? WHERE id = ?", string(status), why, id); err != nil {
		return err
	}
	return t.setFailures(id, f)
}

const failureColumns = "count, rejected, first_at, rejected_name, rejected_from, failing_reason, failing_since, next_probe_at, probes, pinged"

// failures returns what is remembered of a subscription's attempts.
func (t *tx) failures(id string) (f webhook.Failures, err error) {
	var first int64
	var name, reason sql.NullString
	var from, since, next sql.NullInt64
	err = t.Scan("SELECT "+failureColumns+" FROM failures WHERE subscription_id = ?", []any{id},
		&f.Count, &f.Rejected, &first, &name, &from, &reason, &since, &next, &f.Probes, &f.Pinged)
	if err != nil {
		return webhook.Failures{}, ignoreNoRows(err)
	}
	f.First, f.RejectedName, f.RejectedFrom, f.Reason = time.UnixMilli(first), name.String, fromMillis(from), webhook.FailingReason(reason.String)
	f.Since, f.NextProbe = fromMillis(since), fromMillis(next)
	return f, nil
}

func (t *tx) setFailures(id string, f webhook.Failures) error {
	if f.InARow() == 0 {
		return t.Exec("DELETE FROM failures WHERE subscription_id = ?", id)
	}
	if t.w.fails != nil {
		t.w.fails[id] = struct{}{}
	}
	return t.Exec("INSERT OR REPLACE INTO failures (subscription_id, "+failureColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		id, f.Count, f.Rejected, f.First.UnixMilli(), orNull(f.RejectedName), millis(f.RejectedFrom), orNull(string(f.Reason)), millis(f.Since), millis(f.NextProbe), f.Probes, f.Pinged)
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

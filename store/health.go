package store

import (
	"database/sql"
	"errors"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// recordHealth updates the health of a subscription after an attempt with the outcome r.Step. It
// stores the health with the incident, sets the fields of r for the queue, and returns the open
// incident, 0 for none. It costs nothing while all attempts succeed.
//
// If several events were refused together, the deliveries of their own that follow decide: only the
// breaker counts the refusal, and a 413 affects only the size of later deliveries and, for a probe,
// the wait before the next. An attempt that was sent to an earlier URL is ignored, since it says
// nothing about the current one.
func (s Queues) recordHealth(t *tx, c *Claim, a *webhook.Attempt, policy webhook.HealthPolicy, now time.Time,
	r *Recorded) (openIncident int64, err error) {
	id := c.SubscriptionID
	failing, err := t.mayBeIn(&t.w.fails, "SELECT subscription_id FROM failures", id)
	if err != nil || !failing && (c.Ping || a.Result == webhook.ResultSuccess) {
		return 0, err
	}
	if r.earlierURL, err = t.toEarlierURL(c); err != nil || r.earlierURL {
		return 0, err
	}
	if err := t.noteSize(c, a, r, now); err != nil || r.Resized && !c.Probe {
		return 0, err
	}
	before, was, err := t.failures(id)
	if err != nil || before == (webhook.Failures{}) && (c.Ping || a.Result == webhook.ResultSuccess) {
		return 0, err
	}
	sub, err := record.ScanSubscription(t.Row(selectAnySubscription, id))
	if err != nil || !sub.DeletedAt.IsZero() {
		return 0, err
	}
	next := policy.After
	if c.Ping || r.Resized {
		next = policy.AfterPing
	}
	status, after := next(sub.Status, before, a, c.Probe, now)
	if err := t.noteRejected(c, &before, &after, r); err != nil {
		return 0, err
	}
	failed := !c.Ping && r.Status == webhook.StatusFailed && !r.Split
	is, err := t.recordIncident(c, a, failed, &sub, status, &after, was, now)
	if err != nil {
		return 0, err
	}
	r.HealthChanged = status != sub.Status || after.NextProbe != before.NextProbe || after.Pinged != before.Pinged
	if r.HealthChanged {
		t.AfterCommit(func() { s.watchers.SubscriptionChanged(id) })
	}
	switch {
	case status != sub.Status:
		return is.num, s.changeHealth(t, c, a, &sub, &healthChange{status, before, after, is}, now)
	case after == before && is == was:
		return is.num, nil
	}
	return is.num, t.setFailures(id, after, is)
}

const (
	// failedAlertInterval is the time between two alerts about failed events of a subscription, and
	// failedAlertDelay the time for which an alert waits for further failures. If the circuit breaker
	// opens during the delay, the alert about that replaces it.
	failedAlertInterval = time.Hour
	failedAlertDelay    = time.Minute

	countUndeliveredOf = "SELECT count(DISTINCT seq) FROM undelivered WHERE incident = ? AND incident IS NOT NULL"
	countOutside       = `SELECT count(DISTINCT u.seq) FROM undelivered u CROSS JOIN deliveries d ON d.num = u.delivery
		WHERE u.subscription = (SELECT num FROM subscriptions WHERE id = ?) AND u.incident IS NULL AND ` + record.IsNewest + `
		AND d.failure_reason IN ('rejected', 'attempts_exhausted') AND u.delivery NOT IN (SELECT p.delivery FROM splits p)`
	selectFailedAlert = `SELECT num, id, created_at FROM alerts WHERE subscription_id = ? AND name = 'events_failed' AND created_at > ?
		ORDER BY num DESC LIMIT 1`
	updateAlert    = "UPDATE alerts SET json = ? WHERE num = ? AND attempts_made = 0"
	withdrawSends  = "DELETE FROM alert_sends WHERE alert IN (SELECT num FROM alerts WHERE " + withdrawable + ")"
	withdrawAlerts = "DELETE FROM alerts WHERE " + withdrawable
	withdrawable   = "subscription_id = ?1 AND name = 'events_failed' AND created_at > ?2 AND attempts_made = 0"
)

// alertFailed alerts the operator that an event failed permanently although the subscription is not
// failing, once per hour and subscription. incident is 0 if the event failed at an earlier URL.
func (s Queues) alertFailed(t *tx, c *Claim, a *webhook.Attempt, incident int64) error {
	sub, err := record.ScanSubscription(t.Row(selectAnySubscription, c.SubscriptionID))
	if err != nil || sub.Status == webhook.HealthFailing {
		return err
	}
	alert := webhook.Alert{Name: webhook.AlertFailed, Subscription: sub, DeliveryID: c.ID, Attempt: a}
	if incident != 0 {
		err = t.Scan(countUndeliveredOf, []any{incident}, &alert.Failed)
	} else {
		err = t.Scan(countOutside, []any{c.SubscriptionID}, &alert.Failed)
	}
	if err != nil {
		return err
	}
	if alert.Failures, _, err = t.failures(sub.ID); err != nil {
		return err
	}
	now := s.clock.Now()
	var num, created int64
	err = t.Scan(selectFailedAlert, []any{sub.ID, now.Add(-failedAlertInterval).UnixMilli()}, &num, &alert.ID, &created)
	if errors.Is(err, sql.ErrNoRows) {
		return s.alertAfter(t, failedAlertDelay, &alert, incident)
	}
	alert.At = time.UnixMilli(created).UTC()
	if err != nil || now.Sub(alert.At) >= failedAlertDelay {
		return err
	}
	json, err := alert.JSON()
	if err != nil {
		return err
	}
	return t.Exec(updateAlert, json, num)
}

// withdrawFailedAlert removes an alert about failed events of a subscription that waits to be sent.
func (t *tx) withdrawFailedAlert(subscriptionID string) error {
	since := t.s.clock.Now().Add(-failedAlertDelay).UnixMilli()
	if err := t.Exec(withdrawSends, subscriptionID, since); err != nil {
		return err
	}
	return t.Exec(withdrawAlerts, subscriptionID, since)
}

// toEarlierURL reports whether the subscription's URL has changed since an attempt was sent.
func (t *tx) toEarlierURL(c *Claim) (earlier bool, err error) {
	err = t.Scan("SELECT url_number > ? FROM subscriptions WHERE id = ?", []any{c.URLNumber, c.SubscriptionID}, &earlier)
	return earlier, sqlite.NoRows(err, nil)
}

// recordIncident returns the incident of a subscription after an attempt, and opens one if
// necessary. The caller stores it with the failures.
// failed says whether events failed permanently with the attempt.
func (t *tx) recordIncident(c *Claim, a *webhook.Attempt, failed bool, sub *webhook.Subscription, after webhook.Health,
	f *webhook.Failures, in incident, now time.Time) (incident, error) {
	if err := in.note(c, a, now); err != nil {
		return in, err
	}
	opens := webhook.IncidentAfter(in.num != 0, failed, sub.Status, after) == webhook.IncidentOpens
	if opens {
		// Discard the counts of an earlier incident.
		in.failed, in.failedFrom, in.quietAt, in.probeLog = 0, 0, 0, ""
	}
	if failed {
		in.noteFailed(t.s.clock, now, c.AcceptedAt)
	}
	if !opens {
		return in, nil
	}
	first := f.First
	if first.IsZero() {
		first = now
	}
	return in, t.openIncident(&in, sub.ProgramID, sub.ID, first)
}

// healthChange contains the new status of a subscription, its failures before and after the
// attempt that changed it, and its incident after that.
type healthChange struct {
	status        webhook.Health
	before, after webhook.Failures
	incident      incident
}

// changeHealth stores that a subscription started to fail, recovered or was disabled, and
// alerts the operator.
func (s Queues) changeHealth(t *tx, c *Claim, a *webhook.Attempt, sub *webhook.Subscription, ch *healthChange, now time.Time) error {
	id, reason := sub.ID, ""
	if ch.status == webhook.HealthDisabled {
		reason = "Its server has been failing since " + webhook.FormatTime(ch.after.Since) + "."
	}
	is := *sub
	is.Status, is.DisabledReason, is.Active = ch.status, reason, ch.status != webhook.HealthDisabled && sub.Active
	alert := webhook.Alert{Subscription: is, Failures: ch.after, DeliveryID: c.ID, Attempt: a}
	in := ch.incident
	switch ch.status {
	case webhook.HealthFailing:
		alert.Name = webhook.AlertFailing
		if err := t.withdrawFailedAlert(id); err != nil {
			return err
		}
	case webhook.HealthDisabled:
		alert.Name = webhook.AlertDisabled
	default:
		alert.Name, alert.Failures = webhook.AlertRecovered, ch.before
		var err error
		if alert.ResendFrom, err = t.leftFrom(in.num, c.num); err != nil {
			return err
		}
		if err := t.closeIncident(&in, &ch.before, webhook.IncidentHealthy); err != nil {
			return err
		}
		in = incident{}
	}
	if err := t.setHealth(id, ch.status, reason, ch.after, in); err != nil {
		return err
	}
	if err := s.alert(t, &alert, ch.incident.num); err != nil {
		return err
	}
	if ch.status != webhook.HealthDisabled {
		return t.Exec("UPDATE subscriptions SET revision = revision + 1 WHERE id = ?", id)
	}
	if err := t.Exec("UPDATE subscriptions SET active = 0, revision = revision + 1, updated_at = ? WHERE id = ?", now.UnixMilli(),
		id); err != nil {
		return err
	}
	return t.moveInterests(sub, &is)
}

// noteSize records in r that a receiver refused several events for their size, and stores the bound.
func (t *tx) noteSize(c *Claim, a *webhook.Attempt, r *Recorded, now time.Time) error {
	if r.Resized = r.Split && webhook.RefusesSize(a.ResponseStatus); !r.Resized {
		return nil
	}
	return t.learnSize(c, now)
}

// noteRejected records the event type that was rejected, which a probe avoids.
func (t *tx) noteRejected(c *Claim, before, after *webhook.Failures, r *Recorded) error {
	if after.Rejected <= before.Rejected || r.Split {
		return nil
	}
	err := t.Scan("SELECT e.name FROM deliveries d CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = d.seqs ->> 0 "+
		"WHERE d.num = ?", []any{c.num}, &after.RejectedName)
	r.Rejected = after.RejectedName
	return sqlite.NoRows(err, nil)
}

// setHealth stores the health of a subscription and the reason.
func (t *tx) setHealth(id string, status webhook.Health, reason string, f webhook.Failures, in incident) error {
	if err := t.Exec("UPDATE subscriptions SET status = ?, disabled_reason = ? WHERE id = ?",
		string(status), sqlite.OrNull(reason), id); err != nil {
		return err
	}
	return t.setFailures(id, f, in)
}

const failureColumns = "count, rejected, first_at, rejected_name, failing_reason, failing_since, next_probe_at, " +
	"probes, pinged, " +
	"last_at, last_status, last_error, last_delivery, incident, failed, failed_from, quiet_at, probe_log"

// failures returns the stored failures of a subscription, and its incident.
func (t *tx) failures(id string) (f webhook.Failures, in incident, err error) {
	err = t.Scan("SELECT "+failureColumns+" FROM failures WHERE subscription_id = ?", []any{id},
		&f.Count, &f.Rejected, (*sqlite.Time)(&f.First), sqlite.OrZero(&f.RejectedName), sqlite.OrZero(&f.Reason),
		(*sqlite.Time)(&f.Since), (*sqlite.Time)(&f.NextProbe), &f.Probes, &f.Pinged,
		sqlite.OrZero(&in.lastAt), sqlite.OrZero(&in.lastStatus), sqlite.OrZero(&in.lastError), sqlite.OrZero(&in.lastDelivery),
		sqlite.OrZero(&in.num), &in.failed, sqlite.OrZero(&in.failedFrom), sqlite.OrZero(&in.quietAt), sqlite.OrZero(&in.probeLog))
	if err != nil {
		return webhook.Failures{}, incident{}, sqlite.NoRows(err, nil)
	}
	if f.InARow() == 0 {
		return webhook.Failures{}, in, nil // only the incident is stored
	}
	return f, in, nil
}

// setFailures stores the failures of a subscription and its incident. If there are neither, it
// removes the row, so that healthy subscriptions have none.
func (t *tx) setFailures(id string, f webhook.Failures, in incident) error {
	if f.InARow() == 0 {
		if in.num == 0 {
			return t.Exec("DELETE FROM failures WHERE subscription_id = ?", id)
		}
		f.First = time.UnixMilli(in.lastAt) // NOT NULL, but not read without failures in a row
	} else if t.w.fails != nil {
		t.w.fails[id] = struct{}{}
	}
	return t.Exec("INSERT OR REPLACE INTO failures (subscription_id, "+failureColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "+
		"?, ?, ?, ?, ?, ?)",
		id, f.Count, f.Rejected, f.First.UnixMilli(), sqlite.OrNull(f.RejectedName), sqlite.OrNull(string(f.Reason)),
		sqlite.Millis(f.Since), sqlite.Millis(f.NextProbe), f.Probes, f.Pinged,
		sqlite.OrNull(in.lastAt), sqlite.OrNull(in.lastStatus), sqlite.OrNull(in.lastError), sqlite.OrNull(in.lastDelivery),
		sqlite.OrNull(in.num), in.failed,
		sqlite.OrNull(in.failedFrom), sqlite.OrNull(in.quietAt), sqlite.OrNull(in.probeLog))
}

// mayBeIn reports whether a subscription may be in a set of IDs, which query reads if it is
// unknown. Few subscriptions have failures, so their IDs are cached.
func (t *tx) mayBeIn(set *map[string]struct{}, query, id string) (bool, error) {
	if *set == nil {
		ids := make(map[string]struct{})
		err := t.Each(query, nil, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			ids[id] = struct{}{}
			return err
		})
		if err != nil {
			return false, err
		}
		*set = ids
	}
	_, ok := (*set)[id]
	return ok, nil
}

// leaveIfNone removes a subscription from a set of IDs if query finds nothing for it, so that its
// deliveries cost nothing again.
func (t *tx) leaveIfNone(set map[string]struct{}, query, id string) error {
	var some bool
	err := t.Scan(query, []any{id}, &some)
	if err == nil && !some {
		delete(set, id)
		t.left = true
	}
	return err
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// deliveryColumns end with the ids and names of the events, an array of pairs in their
// order, and, for a pending delivery, when its subscription was deleted.
const deliveryColumns = `d.num, d.id, d.subscription_id, d.program_id, d.status, d.failure_reason, d.attempts_made, d.next_attempt_at,
	d.redelivery_of, d.split_of, d.created_at, d.completed_at, d.ping,
	CASE WHEN d.status = 'failed' THEN (SELECT r.at FROM recovered r WHERE r.delivery = d.num) END,
	d.status = 'failed' AND EXISTS (SELECT 1 FROM splits p WHERE p.delivery = d.num),
	(SELECT json_group_array(json_array(e.id, e.name) ORDER BY s.key) FROM json_each(d.seqs) s CROSS JOIN events e
	ON e.program_id = d.program_id AND e.seq = s.value),
	CASE WHEN d.next_attempt_at IS NOT NULL THEN (SELECT z.deleted_at FROM subscriptions z WHERE z.id = d.subscription_id) END`

// createdOf continues a query of the deliveries d of the subscription whose id is an expression, in the
// order of their creation.
func createdOf(subscriptionID string) string {
	return ofSubscription("deliveries_of_subscription", subscriptionID)
}

// completedOf is createdOf for the completed ones, in the order of their completion.
func completedOf(subscriptionID string) string {
	return ofSubscription("deliveries_completed", subscriptionID) + " AND d.completed_at IS NOT NULL"
}

func ofSubscription(index, subscriptionID string) string {
	return "FROM deliveries d INDEXED BY " + index +
		" WHERE d.subscription = (SELECT num FROM subscriptions WHERE id = " + subscriptionID + ")"
}

// Get returns a delivery of a subscription with its attempts.
func (s Deliveries) Get(ctx context.Context, programID, subscriptionID, id string) (webhook.Delivery, error) {
	if _, err := Subscriptions(s).Get(ctx, programID, subscriptionID); err != nil {
		return webhook.Delivery{}, err
	}
	var num int64
	d, num, err := s.scanDelivery(func(dest ...any) error {
		return s.db.Scan(ctx, "SELECT "+deliveryColumns+" FROM deliveries d WHERE d.id = ? AND d.subscription_id = ?",
			[]any{shortID(id), subscriptionID}, dest...)
	})
	if err != nil {
		return d, sqlite.NoRows(err, webhook.NotFound("delivery"))
	}
	d.Attempts, err = s.attempts(ctx, num)
	return d, err
}

// scanDelivery reads a row of deliveryColumns. A pending delivery of a deleted subscription
// counts as failed, even before housekeeping ends it.
func (s *core) scanDelivery(scan func(...any) error) (d webhook.Delivery, num int64, err error) {
	var reason, redelivery, split, refs sql.NullString
	var next, completed, recovered, deleted sql.NullInt64
	var created int64
	var ping []byte
	err = scan(&num, (*deliveryID)(&d.ID), &d.SubscriptionID, &d.ProgramID, &d.Status, &reason, &d.AttemptsMade, &next,
		&redelivery, &split, &created, &completed, &ping, &recovered, &d.Splitting, &refs, &deleted)
	if err != nil {
		return d, num, err
	}
	d.FailureReason = webhook.FailureReason(reason.String)
	d.RedeliveryOf, d.SplitOf, d.RecoveredAt = longID(redelivery.String), longID(split.String), sqlite.FromMillis(recovered)
	d.NextAttemptAt, d.CreatedAt, d.CompletedAt = s.clock.Shown(next), time.UnixMilli(created).UTC(), sqlite.FromMillis(completed)
	if deleted.Valid {
		d.Status, d.FailureReason, d.NextAttemptAt, d.CompletedAt = webhook.StatusFailed, webhook.FailureSubscriptionDeleted, time.Time{},
			sqlite.FromMillis(deleted)
	}
	if ping != nil {
		var ref webhook.EventRef
		if err := json.Unmarshal(ping, &ref); err != nil {
			return d, num, err
		}
		d.Events = []webhook.EventRef{ref}
		return d, num, nil
	}
	var pairs [][2]string
	if err := json.Unmarshal([]byte(refs.String), &pairs); err != nil {
		return d, num, err
	}
	d.Events = make([]webhook.EventRef, len(pairs))
	for i, p := range pairs {
		d.Events[i] = webhook.EventRef{ID: p[0], Name: p[1]}
	}
	return d, num, nil
}

// Ping queues a ping to a subscription, waits until its first attempt completes, and returns
// the delivery with that attempt. If ctx ends first, it returns ctx's error, and the ping
// continues. The functions also run in the same write.
func (s Subscriptions) Ping(ctx context.Context, programID, subscriptionID string,
	also ...func(Write) error) (webhook.Subscription, webhook.Delivery, error) {
	return s.sendOwn(ctx, programID, subscriptionID, nil, also)
}

// Test is Ping with a test event instead of a ping, see [webhook.Catalog.TestEvent]. It is sent
// only to this subscription, whatever that asks for, and is not in the log.
func (s Subscriptions) Test(ctx context.Context, programID, subscriptionID string, event webhook.Event,
	also ...func(Write) error) (webhook.Subscription, webhook.Delivery, error) {
	return s.sendOwn(ctx, programID, subscriptionID, &event, also)
}

// sendOwn queues a delivery with an event outside of the log, nil for a ping, and waits like
// Ping.
func (s Subscriptions) sendOwn(ctx context.Context, programID, subscriptionID string, event *webhook.Event,
	also []func(Write) error) (webhook.Subscription, webhook.Delivery, error) {
	id := webhook.NewID()
	result, stop := s.watchers.awaitResult(id)
	defer stop()
	var d webhook.Delivery
	sub, err := s.change(ctx, programID, subscriptionID, also, func(t *tx, sub *webhook.Subscription) (err error) {
		d, err = s.queueOwn(t, sub, id, event)
		return err
	})
	if err != nil {
		return sub, d, err
	}
	select {
	case a, sent := <-result:
		if !sent {
			if _, err := s.Get(ctx, programID, subscriptionID); err != nil {
				return sub, d, err // deleted while waiting
			}
			return sub, d, webhook.NewError(webhook.CodeConflict, "The delivery was cancelled before it was sent.")
		}
		d.Attempts = []webhook.Attempt{a}
		return sub, d, nil
	case <-ctx.Done():
		return sub, d, ctx.Err()
	}
}

// change runs fn with a subscription, and the other functions, in one write.
func (s Subscriptions) change(ctx context.Context, programID, subscriptionID string, also []func(Write) error,
	fn func(*tx, *webhook.Subscription) error) (sub webhook.Subscription, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		if sub, err = w.t.subscription(programID, subscriptionID); err == nil {
			err = fn(w.t, &sub)
		}
		for _, do := range also {
			if err == nil {
				err = do(w)
			}
		}
		return err
	})
	return sub, err
}

// ProbeResult is the first attempt of a probe.
type ProbeResult struct {
	DeliveryID string
	Attempt    webhook.Attempt
}

// Probe makes the next probe of a failing subscription due now, and waits until its first
// attempt completes. That is a ping if the subscription is rejecting, or if nothing waits for
// it. If ctx ends first, it returns ctx's error, and the probe continues. The functions also
// run in the same write.
func (s Subscriptions) Probe(ctx context.Context, programID, subscriptionID string,
	also ...func(Write) error) (webhook.Subscription, ProbeResult, error) {
	ping := webhook.NewID()
	pinged, stopPing := s.watchers.awaitResult(ping)
	defer stopPing()
	probed, stopProbe := s.watchers.awaitProbe(subscriptionID)
	defer stopProbe()
	sub, err := s.change(ctx, programID, subscriptionID, also, func(t *tx, sub *webhook.Subscription) error {
		return s.probeNow(t, sub, ping)
	})
	if err != nil {
		return sub, ProbeResult{}, err
	}
	select {
	case a, sent := <-pinged:
		if sent {
			return sub, ProbeResult{ping, a}, nil
		}
	case r, sent := <-probed:
		if sent {
			return sub, r, nil
		}
	case <-ctx.Done():
		return sub, ProbeResult{}, ctx.Err()
	}
	if _, err := s.Get(ctx, programID, subscriptionID); err != nil {
		return sub, ProbeResult{}, err // deleted while waiting
	}
	return sub, ProbeResult{}, webhook.NewError(webhook.CodeConflict, "The probe was cancelled before it was sent.")
}

// selectWaits reports whether a delivery, an event or a replay waits for a subscription.
const selectWaits = `SELECT EXISTS (SELECT 1 FROM deliveries WHERE subscription_id = ?1 AND next_attempt_at IS NOT NULL AND ping IS NULL)
	OR EXISTS (SELECT 1 FROM replays WHERE subscription_id = ?1 AND status = 'running')
	OR EXISTS (SELECT 1 FROM subscriptions x CROSS JOIN cursors c ON c.subscription_id = x.id CROSS JOIN interests i
	ON i.subscription_id = x.id CROSS JOIN events e ON ` + waitingEvents + ` WHERE x.id = ?1)`

// probeNow makes the next probe of a failing subscription due: a ping if the subscription is
// rejecting. If nothing waits that a probe could send, it queues a ping.
func (s *core) probeNow(t *tx, sub *webhook.Subscription, ping string) error {
	switch {
	case sub.Status != webhook.HealthFailing:
		return webhook.NewError(webhook.CodeConflict, "The subscription is not failing, so there is nothing to probe. Ping it instead.")
	case !sub.Active:
		return notActive()
	}
	var waits bool
	if err := t.Scan(selectWaits, []any{sub.ID}, &waits); err != nil {
		return err
	}
	if !waits {
		if _, err := s.queuePing(t, sub, ping); err != nil {
			return err
		}
	}
	t.AfterCommit(func() { s.watchers.subscriptionChanged(sub.ID) })
	return t.Exec("UPDATE failures SET next_probe_at = ?, pinged = pinged AND failing_reason <> 'rejecting' WHERE subscription_id = ?",
		s.clock.Now().UnixMilli(), sub.ID)
}

// maxOpenPings is the maximum number of pending pings of a subscription.
const maxOpenPings = 100

// queuePing stores a ping that is due immediately.
func (s *core) queuePing(t *tx, sub *webhook.Subscription, id string) (webhook.Delivery, error) {
	return s.queueOwn(t, sub, id, nil)
}

// queueOwn stores a delivery with an event outside of the log that is due immediately: a ping
// if event is nil, else a test.
func (s *core) queueOwn(t *tx, sub *webhook.Subscription, id string, event *webhook.Event) (webhook.Delivery, error) {
	now, err := t.now()
	if err != nil {
		return webhook.Delivery{}, err
	}
	var open int
	if err := t.Scan("SELECT count(*) FROM (SELECT 1 FROM deliveries WHERE subscription_id = ? AND next_attempt_at IS NOT NULL "+
		"AND ping IS NOT NULL LIMIT ?)", []any{sub.ID, maxOpenPings}, &open); err != nil {
		return webhook.Delivery{}, err
	}
	if open >= maxOpenPings {
		return webhook.Delivery{}, webhook.NewError(webhook.CodeConflict,
			fmt.Sprintf("%d pings and tests of the subscription wait for an attempt, the maximum. Try again when some of them were sent.", open))
	}
	at := s.clock.Now().UTC().Truncate(time.Millisecond)
	if event == nil {
		ping := webhook.NewID()
		event = &webhook.Event{ID: ping, Name: webhook.EventPing, JSON: webhook.PingEvent(ping, at)}
	}
	d := webhook.Delivery{
		ID: id, SubscriptionID: sub.ID, ProgramID: sub.ProgramID, Status: webhook.StatusPending,
		NextAttemptAt: at, CreatedAt: at,
		Events: []webhook.EventRef{{ID: event.ID, Name: event.Name}},
	}
	t.deliveryChanged(0)
	t.AfterCommit(func() { s.watchers.queued(sub.ID) })
	return d, t.Exec("INSERT INTO deliveries (id, subscription_id, subscription, program_id, status, attempts_made, next_attempt_at, "+
		"ping, created_at, counted_at) SELECT ?1, id, num, ?3, 'pending', 0, ?4, ?5, ?6, ?7 FROM subscriptions WHERE id = ?2",
		shortID(id), sub.ID, sub.ProgramID, s.clock.Wait(at), event.JSON, now, t.counted())
}

// Redeliver queues a new delivery with the events of an existing one, whatever its status,
// linked to it.
func (w DeliveryWrites) Redeliver(programID, subscriptionID, id string, by webhook.AuditEntry) (webhook.Delivery, error) {
	s, t := w.t.s, w.t
	again := webhook.NewID()
	sub, err := t.subscription(programID, subscriptionID)
	if err != nil {
		return webhook.Delivery{}, err
	}
	now, err := t.now()
	if err != nil {
		return webhook.Delivery{}, err
	}
	var num int64
	var seqs sql.NullString
	err = t.Scan(`INSERT INTO deliveries (id, subscription_id, subscription, program_id, status, attempts_made, next_attempt_at, seqs,
		ping, redelivery_of, created_at, counted_at)
		SELECT ?1, d.subscription_id, s.num, d.program_id, 'pending', 0, ?5, d.seqs, d.ping, d.id, ?2, ?6
		FROM deliveries d CROSS JOIN subscriptions s ON s.id = ?4 WHERE d.id = ?3 AND d.subscription_id = ?4
		RETURNING num, seqs`, []any{shortID(again), now, shortID(id), subscriptionID, s.clock.Wait(s.clock.Now()), t.counted()}, &num, &seqs)
	if err != nil {
		return webhook.Delivery{}, sqlite.NoRows(err, webhook.NotFound("delivery"))
	}
	if seqs.Valid && !sub.Active {
		return webhook.Delivery{}, notActive()
	}
	if err := t.requested(num); err != nil {
		return webhook.Delivery{}, err
	}
	quota := s.quotas.redeliveries
	if open, err := t.openRedeliveries(subscriptionID, quota+1); err != nil {
		return webhook.Delivery{}, err
	} else if open > quota {
		return webhook.Delivery{}, webhook.NewError(webhook.CodeRateLimited,
			webhook.Count(quota, "redelivery")+" of the subscription are open, the maximum. Try again when some of them have completed.")
	}
	t.deliveryChanged(num)
	t.AfterCommit(func() { s.watchers.queued(subscriptionID) })
	if seqs.Valid {
		if err := t.linkEvents(programID, num, seqs.String); err != nil {
			return webhook.Delivery{}, err
		}
	}
	d, _, err := s.scanDelivery(func(dest ...any) error {
		return t.Scan("SELECT "+deliveryColumns+" FROM deliveries d WHERE d.num = ?", []any{num}, dest...)
	})
	if err != nil {
		return d, err
	}
	return d, w.t.people.Record(by, webhook.ActionDeliveryRedeliver, programID, id, "as "+d.ID)
}

// notActive returns the error for a request that would send events to a paused subscription.
func notActive() *webhook.Error {
	return webhook.NewError(webhook.CodeConflict, "The subscription is not active, so only pings and tests are sent to it. Activate it first.")
}

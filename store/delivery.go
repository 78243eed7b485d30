package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"service/store/erasure"
	"service/store/record"
	"service/store/sqlite"
	"service/store/watch"
	"service/webhook"
)

// Ping queues a ping to a subscription, waits until its first attempt completes, and returns
// the delivery with that attempt. If ctx ends first, it returns ctx's error, and the ping
// continues. The functions run in the same write.
func (s Subscriptions) Ping(ctx context.Context, programID, subscriptionID string,
	also ...func(Write) error) (webhook.Subscription, webhook.Delivery, error) {
	return s.sendOwn(ctx, programID, subscriptionID, nil, also)
}

// Test is Ping with a test event instead of a ping, see [webhook.Catalog.TestEvent]. It is sent
// only to this subscription, whatever events that selects, and is not in the log.
func (s Subscriptions) Test(ctx context.Context, programID, subscriptionID string, event webhook.Event,
	also ...func(Write) error) (webhook.Subscription, webhook.Delivery, error) {
	return s.sendOwn(ctx, programID, subscriptionID, &event, also)
}

// sendOwn queues a delivery with an event outside of the log, nil for a ping, and waits like
// Ping.
func (s Subscriptions) sendOwn(ctx context.Context, programID, subscriptionID string, event *webhook.Event,
	also []func(Write) error) (webhook.Subscription, webhook.Delivery, error) {
	id := webhook.NewID()
	result, stop := s.watchers.Attempts.Await(id)
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

// Probe makes the next probe of a failing subscription due now, and waits until its first
// attempt completes. The probe is a ping if the subscription is rejecting, or if nothing waits
// for it. If ctx ends first, it returns ctx's error, and the probe continues. The functions
// run in the same write.
func (s Subscriptions) Probe(ctx context.Context, programID, subscriptionID string,
	also ...func(Write) error) (webhook.Subscription, watch.ProbeResult, error) {
	ping := webhook.NewID()
	pinged, stopPing := s.watchers.Attempts.Await(ping)
	defer stopPing()
	probed, stopProbe := s.watchers.Probes.Await(subscriptionID)
	defer stopProbe()
	sub, err := s.change(ctx, programID, subscriptionID, also, func(t *tx, sub *webhook.Subscription) error {
		return s.probeNow(t, sub, ping)
	})
	if err != nil {
		return sub, watch.ProbeResult{}, err
	}
	select {
	case a, sent := <-pinged:
		if sent {
			return sub, watch.ProbeResult{DeliveryID: ping, Attempt: a}, nil
		}
	case r, sent := <-probed:
		if sent {
			return sub, r, nil
		}
	case <-ctx.Done():
		return sub, watch.ProbeResult{}, ctx.Err()
	}
	if _, err := s.Get(ctx, programID, subscriptionID); err != nil {
		return sub, watch.ProbeResult{}, err // deleted while waiting
	}
	return sub, watch.ProbeResult{}, webhook.NewError(webhook.CodeConflict, "The probe was cancelled before it was sent.")
}

// selectWaits reports whether a delivery, an event or a replay waits for a subscription.
const selectWaits = `SELECT EXISTS (SELECT 1 FROM deliveries WHERE subscription_id = ?1 AND next_attempt_at IS NOT NULL AND ping IS NULL)
	OR EXISTS (SELECT 1 FROM replays WHERE subscription_id = ?1 AND status = 'running')
	OR EXISTS (SELECT 1 FROM subscriptions x CROSS JOIN cursors c ON c.subscription_id = x.id CROSS JOIN interests i
	ON i.subscription_id = x.id CROSS JOIN events e ON ` + record.WaitingEvents + ` WHERE x.id = ?1)`

// probeNow makes the next probe of a failing subscription due: a ping if the subscription is
// rejecting. It queues a ping if a probe would have nothing to send.
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
	t.AfterCommit(func() { s.watchers.SubscriptionChanged(sub.ID) })
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
	t.AfterCommit(func() { s.watchers.Queued(sub.ID) })
	return d, t.Exec("INSERT INTO deliveries (id, subscription_id, subscription, program_id, status, attempts_made, next_attempt_at, "+
		"ping, created_at, counted_at) SELECT ?1, id, num, ?3, 'pending', 0, ?4, ?5, ?6, ?7 FROM subscriptions WHERE id = ?2",
		record.ShortID(id), sub.ID, sub.ProgramID, s.clock.Wait(at), event.JSON, now, t.counted())
}

// Redeliver queues a new delivery with the events of an existing one that were not erased, whatever
// its status, linked to it. The error has CodeConflict if none are left.
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
		SELECT ?1, d.subscription_id, s.num, d.program_id, 'pending', 0, ?5, `+erasure.RemainingSeqs+`, d.ping, d.id, ?2, ?6
		FROM deliveries d CROSS JOIN subscriptions s ON s.id = ?4 WHERE d.id = ?3 AND d.subscription_id = ?4
		RETURNING num, seqs`, []any{record.ShortID(again), now, record.ShortID(id), subscriptionID, s.clock.Wait(s.clock.Now()), t.counted()},
		&num, &seqs)
	if err != nil {
		return webhook.Delivery{}, sqlite.NoRows(err, webhook.NotFound("delivery"))
	}
	if seqs.String == "[]" {
		return webhook.Delivery{}, webhook.NewError(webhook.CodeConflict, "All events of the delivery were erased, so nothing is left to send.")
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
	t.AfterCommit(func() { s.watchers.Queued(subscriptionID) })
	if seqs.Valid {
		if err := t.linkEvents(programID, num, seqs.String); err != nil {
			return webhook.Delivery{}, err
		}
	}
	d, _, err := record.ScanDelivery(s.clock, t.Row("SELECT "+record.DeliveryColumns+" FROM deliveries d WHERE d.num = ?", num))
	if err != nil {
		return d, err
	}
	return d, w.t.people.Record(by, webhook.ActionDeliveryRedeliver, programID, id, "as "+d.ID)
}

// notActive returns the error for a request that would send events to a paused subscription.
func notActive() *webhook.Error {
	return webhook.NewError(webhook.CodeConflict, "The subscription is not active, so only pings and tests are sent to it. Activate it first.")
}

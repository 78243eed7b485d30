package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"service/webhook"
)

// CountLimit is as far as [Totals] counts: a number of CountLimit stands for
// that many or more, so that an overview costs the same however much there is.
const CountLimit = 1000

// Totals say how much there is over all programs, for admins.
type Totals struct {
	Programs            int   // at most CountLimit
	Subscriptions       int   // that were not deleted, at most CountLimit
	ActiveSubscriptions int   // of those
	InFlight            int   // deliveries with an attempt under way, at most CountLimit
	Waiting             int   // deliveries with a time for their next attempt, at most CountLimit
	WaitingEvents       int64 // that are in those, pings aside
	Events              int64 // accepted so far by the programs counted, those that retention removed too

	LastEventName string // of the event accepted last, "" when there is none
	LastEventAt   time.Time
}

const (
	selectProgramTotals = `SELECT count(*), coalesce(sum((SELECT max(e.seq) FROM events e WHERE e.program_id = p.id)), 0)
		FROM (SELECT id FROM programs ORDER BY id LIMIT ?) p`
	selectSubscriptionTotals = `SELECT count(*), coalesce(sum(active), 0)
		FROM (SELECT active FROM subscriptions INDEXED BY subscriptions_by_program WHERE deleted_at IS NULL LIMIT ?)`
	selectInFlightTotal = `SELECT count(*)
		FROM (SELECT 1 FROM deliveries INDEXED BY deliveries_by_status WHERE status = 'pending' AND status <> 'success' AND claimed_at IS NOT NULL LIMIT ?)`
	selectWaitingTotal = `SELECT count(*), coalesce(sum(json_array_length(seqs)), 0)
		FROM (SELECT seqs FROM deliveries INDEXED BY deliveries_due WHERE next_attempt_at IS NOT NULL LIMIT ?)`
	// Rows of the log are only ever appended, and the newest is never removed.
	selectLastEvent = "SELECT name, received_at FROM events ORDER BY rowid DESC LIMIT 1"
)

// Totals counts what there is. The numbers are read one after the other: each
// is right, and they may be of moments a little apart.
func (s *Store) Totals(ctx context.Context) (t Totals, err error) {
	limit := []any{CountLimit}
	if err = s.db.Scan(ctx, selectProgramTotals, limit, &t.Programs, &t.Events); err != nil {
		return t, err
	}
	if err = s.db.Scan(ctx, selectSubscriptionTotals, limit, &t.Subscriptions, &t.ActiveSubscriptions); err != nil {
		return t, err
	}
	if err = s.db.Scan(ctx, selectInFlightTotal, limit, &t.InFlight); err != nil {
		return t, err
	}
	if err = s.db.Scan(ctx, selectWaitingTotal, limit, &t.Waiting, &t.WaitingEvents); err != nil {
		return t, err
	}
	var received int64
	err = s.db.Scan(ctx, selectLastEvent, nil, &t.LastEventName, &received)
	if errors.Is(err, sql.ErrNoRows) {
		return t, nil
	}
	t.LastEventAt = time.UnixMilli(received).UTC()
	return t, err
}

const selectSubscriptionLabels = "SELECT s.id, s.url, s.description FROM json_each(?) i CROSS JOIN subscriptions s ON s.id = i.value"

// SubscriptionLabel is what a list calls a subscription.
type SubscriptionLabel struct{ URL, Description string }

// Labels returns what to call subscriptions of any program, deleted ones too, by
// their ids, for admins. An id that is unknown is left out.
func (s Subscriptions) Labels(ctx context.Context, ids []string) (map[string]SubscriptionLabel, error) {
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	labels := make(map[string]SubscriptionLabel, len(ids))
	err = s.db.Each(ctx, selectSubscriptionLabels, []any{string(list)}, func(scan func(...any) error) error {
		var id string
		var l SubscriptionLabel
		err := scan(&id, &l.URL, &l.Description)
		labels[id] = l
		return err
	})
	return labels, err
}

const selectLastAttempts = "SELECT d.id, " + lastAttemptColumns + ` FROM json_each(?) i CROSS JOIN deliveries d ON d.id = i.value
	LEFT JOIN attempts a ON a.delivery = d.num AND a.number = (SELECT max(number) FROM attempts WHERE delivery = d.num)
	WHERE a.delivery IS NOT NULL OR d.duration_ms IS NOT NULL`

// LastAttempts returns the last attempt that has ended of deliveries of any
// program, by the ids of the deliveries, for admins. What the server answered
// is left out but for its status. A delivery without such an attempt is left
// out too.
func (s Deliveries) LastAttempts(ctx context.Context, deliveryIDs []string) (map[string]webhook.Attempt, error) {
	list, err := json.Marshal(storedIDs(deliveryIDs))
	if err != nil {
		return nil, err
	}
	last := make(map[string]webhook.Attempt, len(deliveryIDs))
	err = s.db.Each(ctx, selectLastAttempts, []any{string(list)}, func(scan func(...any) error) error {
		var a webhook.Attempt
		var id string
		var started, duration int64
		var status sql.NullInt64
		var code sql.NullString
		err := scan((*deliveryID)(&id), &a.Number, &started, &duration, &a.Result, &status, &code)
		a.StartedAt, a.Duration = time.UnixMilli(started).UTC(), time.Duration(duration)*time.Millisecond
		a.ResponseStatus, a.Error = int(status.Int64), webhook.ErrorCode(code.String)
		last[id] = a
		return err
	})
	return last, err
}

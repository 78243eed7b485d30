package store

import (
	"context"
	"database/sql"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// CountLimit bounds the counts in [Totals], so that their cost is bounded. A count of
// CountLimit means that many or more.
const CountLimit = 1000

// Totals counts the records of all programs.
type Totals struct {
	Subscriptions int   // not deleted, at most CountLimit
	Waiting       int   // deliveries with a scheduled next attempt, at most CountLimit
	WaitingEvents int64 // events in these deliveries, excluding pings
}

var (
	selectSubscriptionTotal = `SELECT count(*)
		FROM (SELECT 1 FROM subscriptions INDEXED BY subscriptions_by_program WHERE deleted_at IS NULL
		AND program_id` + list.CanBeUsed + ` LIMIT ?1)`
	selectWaitingTotal = `SELECT count(*), coalesce(sum(json_array_length(seqs)), 0)
		FROM (SELECT seqs FROM deliveries INDEXED BY deliveries_due WHERE next_attempt_at IS NOT NULL
		AND program_id` + list.CanBeUsed + ` LIMIT ?1)`
)

// Totals counts the records. It reads the counts one after another, so they may be of slightly
// different moments.
func (s Figures) Totals(ctx context.Context) (t Totals, err error) {
	limit := []any{CountLimit}
	if err = s.db.Scan(ctx, selectSubscriptionTotal, limit, &t.Subscriptions); err != nil {
		return t, err
	}
	return t, s.db.Scan(ctx, selectWaitingTotal, limit, &t.Waiting, &t.WaitingEvents)
}

// Arrived counts the events of all programs that were accepted since a time. Events of programs that
// moved here, which keep their times, make the count inexact.
func (s Figures) Arrived(ctx context.Context, since time.Time) (n int64, err error) {
	scan := func(query string, args []any, into ...any) error { return s.db.Scan(ctx, query, args, into...) }
	var newest, oldest, received int64
	if err = scan(selectNewestRow, nil, &newest); err != nil || newest == 0 {
		return 0, err
	}
	if err = scan(selectEventFrom, []any{1}, &oldest, &received); err != nil {
		return 0, err
	}
	from, _, err := rowAt(scan, oldest, newest, since)
	return newest - from + 1, err
}

const selectSubscriptionLabels = "SELECT s.id, s.program_id, s.url, s.description " +
	"FROM json_each(?) i CROSS JOIN subscriptions s ON s.id = i.value"

// SubscriptionLabel is what a list shows for a subscription.
type SubscriptionLabel struct{ ProgramID, URL, Description string }

// Labels returns the labels of subscriptions of any program by id, including deleted ones.
// Unknown ids are omitted.
func (s Subscriptions) Labels(ctx context.Context, ids []string) (map[string]SubscriptionLabel, error) {
	labels := make(map[string]SubscriptionLabel, len(ids))
	err := s.db.Each(ctx, selectSubscriptionLabels, []any{sqlite.JSON(ids)}, func(scan func(...any) error) error {
		var id string
		var l SubscriptionLabel
		err := scan(&id, &l.ProgramID, &l.URL, &l.Description)
		labels[id] = l
		return err
	})
	return labels, err
}

const selectLastAttempts = "SELECT d.id, " + lastAttemptColumns + ` FROM json_each(?) i CROSS JOIN deliveries d ON d.id = i.value
	LEFT JOIN attempts a ON a.delivery = d.num AND a.number = (SELECT max(number) FROM attempts WHERE delivery = d.num)
	WHERE a.delivery IS NOT NULL OR d.duration_ms IS NOT NULL`

// LastAttempts returns the last completed attempt of deliveries of any program, by delivery id,
// with the response status but without the response. Deliveries without a completed attempt are
// omitted.
func (s Deliveries) LastAttempts(ctx context.Context, deliveryIDs []string) (map[string]webhook.Attempt, error) {
	last := make(map[string]webhook.Attempt, len(deliveryIDs))
	err := s.db.Each(ctx, selectLastAttempts, []any{sqlite.JSON(shortIDs(deliveryIDs))}, func(scan func(...any) error) error {
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

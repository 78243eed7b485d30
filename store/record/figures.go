package record

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"service/store/list"
	"service/store/sqlite"
)

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
	SelectWaitingTotal = `SELECT count(*), coalesce(sum(json_array_length(seqs)), 0)
		FROM (SELECT seqs FROM deliveries INDEXED BY deliveries_due WHERE next_attempt_at IS NOT NULL
		AND program_id` + list.CanBeUsed + ` LIMIT ?1)`
)

// Totals counts the records. It reads the counts one after another, so they may be of slightly
// different moments.
func (s Figures) Totals(ctx context.Context) (t Totals, err error) {
	limit := []any{CountLimit}
	if err = s.lists.DB.Scan(ctx, selectSubscriptionTotal, limit, &t.Subscriptions); err != nil {
		return t, err
	}
	return t, s.lists.DB.Scan(ctx, SelectWaitingTotal, limit, &t.Waiting, &t.WaitingEvents)
}

// Arrived counts the events of all programs that were accepted since a time. Events of programs that
// moved here, which keep their times, make the count inexact.
func (s Figures) Arrived(ctx context.Context, since time.Time) (n int64, err error) {
	scan, _ := s.lists.DB.Reads(ctx)
	var newest, oldest, received int64
	if err = scan(SelectNewestRow, nil, &newest); err != nil || newest == 0 {
		return 0, err
	}
	if err = scan(SelectEventFrom, []any{1}, &oldest, &received); err != nil {
		return 0, err
	}
	from, _, err := RowAt(scan, oldest, newest, since)
	return newest - from + 1, err
}

// Rows of the log are only appended, so the rowid rises with time.
const (
	SelectNewestRow = "SELECT coalesce(max(rowid), 0) FROM events"
	SelectEventFrom = "SELECT rowid, received_at FROM events WHERE rowid >= ? ORDER BY rowid LIMIT 1"
)

// RowAt returns the first row of the log that was accepted at a time or later, and when;
// newest+1 if there is none.
func RowAt(scan sqlite.ScanRow, oldest, newest int64, at time.Time) (row int64, accepted time.Time, err error) {
	low, high := oldest, newest+1 // rows may be missing in between
	for row = high; low < high; {
		middle := low + (high-low)/2
		var found, received int64
		err := scan(SelectEventFrom, []any{middle}, &found, &received)
		if errors.Is(err, sql.ErrNoRows) {
			high = middle
			continue
		} else if err != nil {
			return 0, time.Time{}, err
		}
		if received < at.UnixMilli() {
			low = found + 1
		} else {
			row, high, accepted = found, middle, time.UnixMilli(received).UTC()
		}
	}
	return row, accepted, nil
}

// Package list reads lists: pages with filters, in an order, with cursors. It does not read
// records: it returns the keys of a page's rows, and the caller reads their records in the same
// view.
//
// A page costs a bounded number of rows, whatever is stored, see [Limits]. A cursor is valid only
// for its own list.
package list

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// Reader reads the lists of a database.
type Reader struct {
	DB       *sqlite.DB
	Limits   Limits
	Key      Key
	Imported ImportedRanges
}

// Limits bound the cost of a page of a feed, regardless of the number of rows. A page finds
// its rows by an index, or walks along the order of the list and stops with a cursor after a
// number of rows or some time.
type Limits struct {
	Set        int           // rows that a page reads by the index of a filter and sorts
	Scan       int           // rows that a page reads in the order of the list
	CostlyScan int           // Scan if the filters need the events of each row
	Time       time.Duration // a walk stops after this time and minScan rows; 0 for no limit
}

// MinScan is how many rows a walk reads regardless of the time, so that a page without filters
// is always full.
const MinScan = 500

// DefaultLimits are the production values. Reading a row takes about 1 µs if it is next to
// the previous one, 10 µs if it must be looked up, and 100 µs for a delivery of a hundred
// events that must be read.
var DefaultLimits = Limits{Set: 2500, Scan: 10_000, CostlyScan: 5000, Time: 15 * time.Millisecond}

// Deadline returns when a walk that begins now must stop.
func (l *Limits) Deadline(now time.Time) time.Time { return now.Add(l.Time) }

// Late reports whether a walk must stop because its time is up.
func (l *Limits) Late(looked int, deadline time.Time) bool {
	return l.Time > 0 && looked >= MinScan && time.Now().After(deadline)
}

// Between converts a time range to a range of a key along which time never decreases. Both
// bounds are exclusive. Imported rows of the table may be out of this order: the caller checks
// the time of each row.
func (r *Reader) Between(ctx context.Context, table string, within webhook.TimeRange,
	before func(context.Context, time.Time) (int64, error)) (low, high int64, err error) {
	high = math.MaxInt64
	if !within.From.IsZero() {
		if low, err = before(ctx, within.From); err != nil {
			return low, high, err
		}
	}
	if !within.To.IsZero() {
		high, err = before(ctx, within.To)
		high++
	}
	low, high = widen(r.Imported.Of(table), low, high, within)
	return low, high, err
}

// LastBefore returns the highest key of a row with an earlier time, the lower end if there is
// none. ends selects a key below and a key above all rows; from selects the key and the time of
// the first row from a key on, since old rows may have been removed. It ignores imported rows of
// the table.
func (r *Reader) LastBefore(ctx context.Context, table, ends, from string, at time.Time) (int64, error) {
	imported := r.Imported.Of(table)
	var low, high int64 // before at; not before at
	err := r.DB.Scan(ctx, ends, nil, &low, &high)
	for err == nil && high-low > 1 {
		middle := low + (high-low)/2
		var key, t int64
		err = r.DB.Scan(ctx, from, []any{middle}, &key, &t)
		for in := RangeOf(imported, key, t); err == nil && in != nil; in = RangeOf(imported, key, t) {
			err = r.DB.Scan(ctx, from, []any{in.Last + 1}, &key, &t)
		}
		switch {
		case errors.Is(err, sql.ErrNoRows):
			high, err = middle, nil
		case err == nil && t < at.UnixMilli():
			low = key
		default:
			high = middle
		}
	}
	return low, err
}

// NumberedPage reads the page with the number of q, and counts all rows. b contains the values
// besides the number.
func NumberedPage[T any](ctx context.Context, db *sqlite.DB, q *webhook.ListQuery, b Binds, count, all Statement,
	scanRow func(scan func(...any) error) (T, error)) (rows []T, total int, err error) {
	b["size"], b["offset"] = q.Size, (q.Number-1)*q.Size
	err = db.View(ctx, func(v *sqlite.View) error {
		if err := v.Scan(count.Text, count.Args(b), &total); err != nil || q.Number-1 > total/q.Size {
			return err
		}
		page := all.Ordered(q.Sort)
		return v.Each(page.Text, page.Args(b), sqlite.ScanInto(&rows, scanRow))
	})
	return rows, total, err
}

package list

import (
	"context"
	"slices"
	"sync/atomic"

	"service/store/sqlite"
	"service/webhook"
)

// ImportedRange is a range of numbers of a table, such as nums of deliveries, that an import has
// added. The times of its rows are earlier than those of the rows that existed before.
type ImportedRange struct {
	Table       string
	First, Last int64
	From, To    int64 // the times of the first and of the last row, in Unix milliseconds
	Ahead       int64 // the times of its rows minus the time that retention counts, in milliseconds
}

// ImportedRanges are the ranges that imports have added, a copy of the table imported_ranges.
type ImportedRanges struct {
	current atomic.Pointer[[]ImportedRange]
}

// Of returns the ranges of a table.
func (a *ImportedRanges) Of(table string) []ImportedRange {
	all := a.current.Load()
	if all == nil {
		return nil
	}
	var ranges []ImportedRange
	for _, r := range *all {
		if r.Table == table {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// add adds a range, or extends the one that begins at its first number.
func (a *ImportedRanges) add(r ImportedRange) {
	var all []ImportedRange
	if before := a.current.Load(); before != nil {
		all = slices.Clone(*before)
	}
	i := slices.IndexFunc(all, func(old ImportedRange) bool { return old.Table == r.Table && old.First == r.First })
	if i < 0 {
		all = append(all, r)
	} else {
		old := &all[i]
		old.Last, old.From, old.To = max(old.Last, r.Last), min(old.From, r.From), max(old.To, r.To)
	}
	a.current.Store(&all)
}

// Open reads the ranges.
func (a *ImportedRanges) Open(ctx context.Context, db *sqlite.DB) error {
	const query = "SELECT of_table, first, last, from_at, to_at, ahead FROM imported_ranges ORDER BY of_table, first"
	return db.Each(ctx, query, nil, func(scan func(...any) error) error {
		var r ImportedRange
		err := scan(&r.Table, &r.First, &r.Last, &r.From, &r.To, &r.Ahead)
		a.add(r)
		return err
	})
}

// Record stores a range in the write that reserves its numbers, or extends one.
func (a *ImportedRanges) Record(t *sqlite.Tx, r ImportedRange) error {
	t.AfterCommit(func() { a.add(r) })
	return t.Exec("INSERT INTO imported_ranges (of_table, first, last, from_at, to_at, ahead) VALUES (?, ?, ?, ?, ?, ?) "+
		"ON CONFLICT DO UPDATE SET last = max(last, excluded.last), from_at = min(from_at, excluded.from_at), to_at = max(to_at, excluded.to_at)",
		r.Table, r.First, r.Last, r.From, r.To, r.Ahead)
}

// RangeOf returns the imported range that a row is in, by its number and time, nil if there is
// none. A row that reuses the number of a removed imported row is newer.
func RangeOf(ranges []ImportedRange, n, at int64) *ImportedRange {
	for i := range ranges {
		if r := &ranges[i]; r.First <= n && n <= r.Last && at <= r.To {
			return r
		}
	}
	return nil
}

// widen extends a range of numbers, both exclusive, to the imported ranges with times between
// those that the numbers represent. The rows are then checked one by one.
func widen(ranges []ImportedRange, low, high int64, between webhook.TimeRange) (int64, int64) {
	for _, r := range ranges {
		if !between.From.IsZero() && r.To < between.From.UnixMilli() || !between.To.IsZero() && r.From >= between.To.UnixMilli() {
			continue
		}
		low, high = min(low, r.First-1), max(high, r.Last+1)
	}
	return low, high
}

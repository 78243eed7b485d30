package store

import (
	"context"
	"slices"
	"sync/atomic"

	"service/webhook"
)

// importedRange is a range of numbers of a table, such as nums of deliveries, that an import has
// added. The times of its rows are before those of the rows that were there.
type importedRange struct {
	table       string
	first, last int64
	from, to    int64 // the times of the first and of the last row, in Unix milliseconds
	ahead       int64 // its times minus the time that retention counts, in milliseconds
}

// importedRanges are the ranges that imports have added, a copy of the table imported_ranges.
type importedRanges struct {
	current atomic.Pointer[[]importedRange]
}

// of returns the ranges of a table.
func (a *importedRanges) of(table string) []importedRange {
	all := a.current.Load()
	if all == nil {
		return nil
	}
	var ranges []importedRange
	for _, r := range *all {
		if r.table == table {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// add adds a range, or extends the one that begins at its first number.
func (a *importedRanges) add(r importedRange) {
	var all []importedRange
	if before := a.current.Load(); before != nil {
		all = slices.Clone(*before)
	}
	i := slices.IndexFunc(all, func(old importedRange) bool { return old.table == r.table && old.first == r.first })
	if i < 0 {
		all = append(all, r)
	} else {
		old := &all[i]
		old.last, old.from, old.to = max(old.last, r.last), min(old.from, r.from), max(old.to, r.to)
	}
	a.current.Store(&all)
}

// openImportedRanges reads the ranges.
func (s *core) openImportedRanges(ctx context.Context) error {
	const query = "SELECT of_table, first, last, from_at, to_at, ahead FROM imported_ranges ORDER BY of_table, first"
	return s.db.Each(ctx, query, nil, func(scan func(...any) error) error {
		var r importedRange
		err := scan(&r.table, &r.first, &r.last, &r.from, &r.to, &r.ahead)
		s.imported.add(r)
		return err
	})
}

// addImportedRange records a range in the write that reserves its numbers, or extends one.
func (s *core) addImportedRange(t *tx, r importedRange) error {
	t.AfterCommit(func() { s.imported.add(r) })
	return t.Exec("INSERT INTO imported_ranges (of_table, first, last, from_at, to_at, ahead) VALUES (?, ?, ?, ?, ?, ?) "+
		"ON CONFLICT DO UPDATE SET last = max(last, excluded.last), from_at = min(from_at, excluded.from_at), to_at = max(to_at, excluded.to_at)",
		r.table, r.first, r.last, r.from, r.to, r.ahead)
}

// rangeOf returns the imported range that a row is in, by its number and time, nil if there is
// none. A row that got the number of an imported one that is gone is newer.
func rangeOf(ranges []importedRange, n, at int64) *importedRange {
	for i := range ranges {
		if r := &ranges[i]; r.first <= n && n <= r.last && at <= r.to {
			return r
		}
	}
	return nil
}

// widen extends a range of numbers, both exclusive, to the imported ranges with times between
// those that the numbers stand for. The rows are then checked one by one.
func widen(ranges []importedRange, low, high int64, between webhook.TimeRange) (int64, int64) {
	for _, r := range ranges {
		if !between.From.IsZero() && r.to < between.From.UnixMilli() || !between.To.IsZero() && r.from >= between.To.UnixMilli() {
			continue
		}
		low, high = min(low, r.first-1), max(high, r.last+1)
	}
	return low, high
}

package store

import (
	"context"
	"errors"
	"math"
	"time"

	"service/store/clock"
	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// marks is the number of marks in a retention period, so that a record is removed late by at most
// 1/marks of it.
const marks = 64

// maxStep returns the maximum that retention counts of one jump of the wall clock. A machine may
// sleep for most of a day, every day; a wrong clock costs no more than that.
func maxStep(r webhook.Retention) time.Duration {
	step := max(day, r.All/10)
	if r.All > 0 {
		step = min(step, r.All/2)
	}
	return step
}

// mark records the newest records when retention looked. Numbers rise in the order of creation,
// whatever the wall clock does, so a record with the same or a lower number is at least as old.
type mark struct {
	counted  time.Duration // time that retention had counted
	at       time.Time     // by the wall clock
	delivery int64         // num
	event    int64         // rowid
	audit    int64         // num of an entry of the audit log
}

// cutoff separates the records that are old enough to be removed from the others.
type cutoff struct {
	counted time.Duration // records created or completed by then are old
	mark    mark          // the newest mark by then; zero if there is none
	before  time.Time     // for people: events accepted before it, by the wall clock, are old
}

// seconds returns the highest counted_at of an old record.
func (c *cutoff) seconds() int64 { return -clock.WholeSeconds(-c.counted) }

// imported returns the time before which the rows of an imported range are old, by their own times.
func (c *cutoff) imported(r *list.ImportedRange) int64 { return c.counted.Milliseconds() + r.Ahead }

// hasEvent reports whether an event is old.
func (c *cutoff) hasEvent(imported []list.ImportedRange, row, received int64) bool {
	if row <= c.mark.event {
		return true
	}
	r := list.RangeOf(imported, row, received)
	return r != nil && received >= r.From && received < c.imported(r)
}

const (
	selectMarkAt = "SELECT counted, at, delivery, event, audit FROM retention_marks WHERE counted <= ? ORDER BY counted DESC LIMIT 1"
	insertMark   = "INSERT INTO retention_marks (counted, at, delivery, event, audit) VALUES (?, ?, " +
		"(SELECT coalesce(max(num), 0) FROM deliveries), (SELECT coalesce(max(rowid), 0) FROM events), " +
		"(SELECT coalesce(max(num), 0) FROM audit))"
	dropMarks = "DELETE FROM retention_marks WHERE counted < ?"
	// Among the marks before ?1, the first of each interval stays.
	thinMarks = "DELETE FROM retention_marks WHERE counted < ?1 AND EXISTS (SELECT 1 FROM retention_marks m " +
		"WHERE m.counted < retention_marks.counted AND m.counted / ?2 = retention_marks.counted / ?2)"
	// lowerMarks is for a write that has removed the newest events of the log: the next events get
	// their rowids.
	lowerMarks = "UPDATE retention_marks SET event = (SELECT coalesce(max(rowid), 0) FROM events) " +
		"WHERE event > (SELECT coalesce(max(rowid), 0) FROM events)"
)

// look stores a mark if one is due, and returns the cutoffs of records in general, successful
// deliveries, and entries of the audit log, none of which is old if they are kept for ever. Since
// look makes a commit, a jump of the wall clock is recorded even if the service is idle.
func (s *core) look(keep webhook.Retention) (all, delivered, audit cutoff, err error) {
	err = s.writer.do(func(t *tx) (err error) {
		counted := s.clock.Counted()
		if err := t.mark(counted, keep.DeliveredFor()/marks); err != nil {
			return err
		}
		for _, of := range []struct {
			cutoff *cutoff
			keep   time.Duration
		}{{&all, keep.All}, {&delivered, keep.DeliveredFor()}, {&audit, keep.Audit}} {
			if *of.cutoff, err = t.cutoff(counted, of.keep); err != nil {
				return err
			}
		}
		oldest := all
		if keep.Audit > keep.All {
			oldest = audit
		}
		thin := func(before *cutoff, keep time.Duration) error {
			return t.Exec(thinMarks, before.mark.counted.Milliseconds(), max(keep.Milliseconds()/marks, 1))
		}
		return errors.Join(t.Exec(dropMarks, oldest.mark.counted.Milliseconds()), thin(&delivered, keep.All), thin(&all, keep.Audit))
	})
	return all, delivered, audit, err
}

// mark stores a mark if the last one is at least interval ago.
func (t *tx) mark(counted, interval time.Duration) error {
	last, err := t.markAt(math.MaxInt64)
	if err != nil || !last.at.IsZero() && counted-last.counted < max(interval, time.Millisecond) {
		return err
	}
	return t.Exec(insertMark, counted.Milliseconds(), t.s.clock.Now().UnixMilli())
}

// markAt returns the newest mark up to a counted time in milliseconds; zero if there is none.
func (t *tx) markAt(ms int64) (m mark, err error) {
	var counted int64
	err = sqlite.NoRows(t.Scan(selectMarkAt, []any{ms}, &counted, (*sqlite.Time)(&m.at), &m.delivery, &m.event, &m.audit), nil)
	m.counted = time.Duration(counted) * time.Millisecond
	return m, err
}

// cutoff returns the cutoff of records that are kept for keep.
func (t *tx) cutoff(counted, keep time.Duration) (c cutoff, err error) {
	c.counted = counted - keep
	c.mark, err = t.markAt(c.counted.Milliseconds())
	if c.before = c.mark.at; c.before.IsZero() {
		c.before = t.s.clock.Now().Add(-keep)
	}
	return c, err
}

// clockDifference returns how much further the wall clock has advanced than the time that retention
// counts, since the mark that is one retention old, else the oldest, and the time of that mark; zero
// if there is no mark.
func (s *core) clockDifference(ctx context.Context) (more time.Duration, since time.Time, err error) {
	scan, _ := s.db.Reads(ctx)
	return clock.Difference(scan, s.clock.Now(), s.clock.Counted(), s.retention.All)
}

// counted returns the counted_at of records that are created or completed now.
func (t *tx) counted() int64 { return clock.WholeSeconds(t.s.clock.Counted()) }

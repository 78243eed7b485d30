package store

import (
	"math"
	"service/store/sqlite"
)

// removalByNum removes the deliveries in a JSON array of nums.
var removalByNum = newRemoval("num IN (SELECT value FROM json_each(?1))")

// deliveredAtOnce is how many rows one query reads while looking for successful deliveries to
// remove. The rows include deliveries that stay, for example failures.
const deliveredAtOnce = 2048

const (
	// The newest delivery stays, as in selectAged. A redelivery stays as long as the
	// original delivery, since the original's page shows it.
	selectDelivered = `SELECT d.num, d.created_at, d.counted_at, d.completed_at IS NOT NULL, d.status = 'success',
			d.redelivery_of IS NOT NULL AND EXISTS (SELECT 1 FROM deliveries o WHERE o.id = d.redelivery_of)
		FROM deliveries d WHERE d.num > ? AND d.num <= ? AND d.num < (SELECT max(num) FROM deliveries) ORDER BY d.num LIMIT ?`
	selectAccepted = `SELECT d.program_id, d.subscription_id, e.name, e.seq
		FROM json_each(?) i CROSS JOIN deliveries d ON d.num = i.value CROSS JOIN json_each(d.seqs) j
		CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = j.value
		WHERE d.seqs IS NOT NULL ORDER BY d.subscription_id, e.name, e.seq`

	countNames = "SELECT count(*) FROM events INDEXED BY events_by_name WHERE program_id = ? AND name = ? AND seq > ? AND seq < ?"
	hasName    = "SELECT EXISTS (SELECT 1 FROM events INDEXED BY events_by_name WHERE program_id = ? AND name = ? AND seq > ? " +
		"AND seq < ?)"
	selectRangeBefore = "SELECT first_seq, last_seq FROM delivered WHERE subscription_id = ? AND name = ? AND first_seq <= ? " +
		"ORDER BY first_seq DESC LIMIT 1"
	selectRangeAfter = "SELECT first_seq, last_seq FROM delivered WHERE subscription_id = ? AND name = ? AND first_seq > ? " +
		"ORDER BY first_seq LIMIT 1"
	removeRange = "DELETE FROM delivered WHERE subscription_id = ? AND name = ? AND first_seq = ?"
	putRange    = `INSERT INTO delivered (subscription_id, name, first_seq, last_seq) VALUES (?1, ?2, ?3, ?4)
		ON CONFLICT DO UPDATE SET last_seq = ?4`

	// Ranges of a program's subscriptions that end before the log of the program begins.
	selectAgedRanges = `SELECT json_array(r.subscription_id, r.name, r.first_seq)
		FROM subscriptions s INDEXED BY subscriptions_of_program CROSS JOIN delivered r ON r.subscription_id = s.id
		WHERE s.program_id = ? AND r.last_seq < (SELECT min(seq) FROM events WHERE program_id = s.program_id) LIMIT ?`
	removeRanges = `DELETE FROM delivered WHERE (subscription_id, name, first_seq) IN (
		SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?))`

	// wasDelivered is true if the subscription ?2 accepted the event e in a delivery that has
	// been removed.
	wasDelivered = `coalesce((SELECT r.last_seq FROM delivered r
		WHERE r.subscription_id = ?2 AND r.name = e.name AND r.first_seq <= e.seq ORDER BY r.first_seq DESC LIMIT 1), 0) >= e.seq`
)

// removeEarly removes the successful deliveries that are older than w.delivered, if that is later
// than w.old. It records which events they carried, so that a replay does not treat those as missed
// or failed.
//
// It starts at the first delivery that the last sweep left for later. Failures after that are
// read again.
func (w *sweep) removeEarly() error {
	if w.delivered.counted <= w.old.counted {
		return nil
	}
	last := w.delivered.mark.delivery
	for _, r := range w.s.lists.Imported.Of("deliveries") { // older than those before them
		if err := w.removeEarlyIn(max(r.First-1, last), r.Last, w.delivered.imported(&r), false); err != nil {
			return err
		}
	}
	return w.removeEarlyIn(w.s.deliveredFrom.Load(), last, math.MaxInt64, true)
}

// removeEarlyIn is removeEarly for the deliveries after a num and up to last, until the first created at
// the time before or later. mayMove says whether the next sweep may begin where this one ends.
func (w *sweep) removeEarlyIn(after, last, before int64, mayMove bool) error {
	for {
		nums, to, settled, err := w.findDelivered(after, last, before)
		if err != nil || to == after {
			return err
		}
		if err := w.removeDelivered(nums); err != nil {
			return err
		}
		if mayMove {
			w.s.deliveredFrom.Store(settled)
		}
		mayMove = mayMove && settled == to
		after = to
	}
}

// findDelivered looks at the deliveries after a num and up to last that were created before a time.
// It returns the deliveries to remove, how far it looked, and the num up to which no delivery needs
// another look.
func (w *sweep) findDelivered(after, last, before int64) (nums []int64, to, settled int64, err error) {
	to, settled = after, after
	young, open, old := false, false, w.delivered.seconds()
	err = w.s.db.Each(w.ctx, selectDelivered, []any{after, last, deliveredAtOnce}, func(scan func(...any) error) error {
		var num, created, counted int64
		var completed, success, kept bool
		if err := scan(&num, &created, &counted, &completed, &success, &kept); err != nil {
			return err
		}
		if young = young || created >= before; young { // as are all that follow
			return nil
		}
		to = num
		switch {
		case kept: // removed by w.old instead
		case success && counted <= old:
			nums = append(nums, num)
		case success || !completed:
			open = true
		}
		if !open {
			settled = num
		}
		return nil
	})
	return nums, to, settled, err
}

// accepted is an event that a subscription accepted in a delivery.
type accepted struct {
	program, subscription, name string
	seq                         int64
}

// acceptedRange is a range of delivered events of one name, with no undelivered event of that
// name in between.
type acceptedRange struct {
	accepted       // the first event
	last     int64 // seq of the last event
}

// removeDelivered removes successful deliveries, with all their records, in steps.
func (w *sweep) removeDelivered(nums []int64) error {
	for len(nums) > 0 {
		some := nums[:min(len(nums), w.size)]
		nums = nums[len(some):]
		list := sqlite.JSON(some)
		ranges, err := w.acceptedRanges(list)
		if err != nil {
			return err
		}
		var removed int64
		err = w.write(func(t *tx) (err error) {
			for i := range ranges {
				if err := t.addDelivered(&ranges[i]); err != nil {
					return err
				}
			}
			removed, err = t.removeDeliveries(&removalByNum, list)
			return err
		})
		if err != nil {
			return err
		}
		w.swept.Deliveries += removed
	}
	return nil
}

// acceptedRanges returns the events that some deliveries carried, by subscription and name.
// Completed deliveries and their events no longer change, so reading them outside the writer is
// safe.
func (w *sweep) acceptedRanges(nums any) (ranges []acceptedRange, err error) {
	var all []accepted
	err = w.s.db.Each(w.ctx, selectAccepted, []any{nums}, func(scan func(...any) error) error {
		var a accepted
		err := scan(&a.program, &a.subscription, &a.name, &a.seq)
		all = append(all, a)
		return err
	})
	for i := 0; i < len(all) && err == nil; {
		end := i + 1
		for end < len(all) && all[end].subscription == all[i].subscription && all[end].name == all[i].name {
			end++
		}
		var some []acceptedRange
		some, err = w.joinAccepted(all[i:end])
		ranges = append(ranges, some...)
		i = end
	}
	return ranges, err
}

// joinAccepted joins sorted events of one subscription and name into ranges.
func (w *sweep) joinAccepted(all []accepted) (ranges []acceptedRange, err error) {
	a, last := &all[0], all[len(all)-1].seq
	var between int
	if err := w.s.db.Scan(w.ctx, countNames, []any{a.program, a.name, a.seq - 1, last + 1}, &between); err != nil {
		return nil, err
	}
	if between == len(all) { // the usual case
		return []acceptedRange{{*a, last}}, nil
	}
	for i := range all {
		if n := len(ranges); n > 0 {
			var gap bool
			if err := w.s.db.Scan(w.ctx, hasName, []any{a.program, a.name, ranges[n-1].last, all[i].seq}, &gap); err != nil {
				return nil, err
			}
			if !gap {
				ranges[n-1].last = all[i].seq
				continue
			}
		}
		ranges = append(ranges, acceptedRange{all[i], all[i].seq})
	}
	return ranges, nil
}

// addDelivered adds a range to the ranges of its subscription and name, and merges it with
// neighbors if no event of the name lies between them.
func (t *tx) addDelivered(r *acceptedRange) error {
	first, last := r.seq, r.last
	adjacent := func(after, before int64) (bool, error) {
		if after >= before-1 {
			return true, nil
		}
		var gap bool
		err := t.Scan(hasName, []any{r.program, r.name, after, before}, &gap)
		return !gap, err
	}
	var otherFirst, otherLast int64
	err := t.Scan(selectRangeBefore, []any{r.subscription, r.name, first}, &otherFirst, &otherLast)
	if sqlite.NoRows(err, nil) != nil {
		return err
	}
	if err == nil {
		if otherLast >= last {
			return nil
		}
		joins, err := adjacent(otherLast, first)
		if err != nil {
			return err
		}
		if joins {
			first = otherFirst
		}
	}
	for {
		err := t.Scan(selectRangeAfter, []any{r.subscription, r.name, first}, &otherFirst, &otherLast)
		if err != nil {
			if sqlite.NoRows(err, nil) != nil {
				return err
			}
			break
		}
		joins, err := adjacent(last, otherFirst)
		if err != nil {
			return err
		}
		if !joins {
			break
		}
		if err := t.Exec(removeRange, r.subscription, r.name, otherFirst); err != nil {
			return err
		}
		last = max(last, otherLast)
	}
	return t.Exec(putRange, r.subscription, r.name, first, last)
}

// forgetDelivered removes the ranges of a program whose events have been removed.
func (w *sweep) forgetDelivered(programID string) error {
	return w.removeFound(selectAgedRanges, programID, removeRanges)
}

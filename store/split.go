package store

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"service/store/erasure"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// A split sends the events of a failed delivery again, see
// docs/decisions/0058-a-batch-costs-no-event.md. Its deliveries are formed one at a time, like those
// of a replay. It is open until they have completed; until then the failed delivery counts as being
// retried.

const (
	// fromSplits selects the events e that the open splits p, of the failed deliveries d, have yet
	// to send. It leaves out those that have been delivered since, that the split has sent, that
	// an earlier open split sends, erased ones, and those of types that the subscription no longer wants.
	fromSplits = ` FROM splits p CROSS JOIN deliveries d ON d.num = p.delivery
		CROSS JOIN undelivered u INDEXED BY undelivered_by_delivery ON u.delivery = p.delivery AND u.seq > p.after_seq
		CROSS JOIN events e INDEXED BY events_by_seq ON e.program_id = d.program_id AND e.seq = u.seq AND e.erased_at IS NULL
		WHERE NOT EXISTS (SELECT 1 FROM delivery_events x CROSS JOIN deliveries r ON r.num = x.delivery
			WHERE x.program_id = d.program_id AND x.seq = u.seq AND r.split_of = d.id)
		AND NOT EXISTS (SELECT 1 FROM undelivered o CROSS JOIN splits y ON y.delivery = o.delivery
			WHERE o.subscription = u.subscription AND o.seq = u.seq AND o.delivery < u.delivery)
		AND e.name IN (SELECT value FROM json_each((SELECT events FROM subscriptions WHERE id = p.subscription_id)))`

	selectSplitNext = "SELECT p.delivery, d.id, p.whole, p.after_seq, u.seq" + fromSplits +
		" AND p.subscription_id = ?1 AND e.name NOT IN (SELECT value FROM json_each(?2)) ORDER BY p.delivery, u.seq LIMIT ?3"

	openSplit = "INSERT INTO splits (delivery, subscription_id, whole, after_seq) SELECT num, subscription_id, ?2 AND split_of IS NULL, 0 " +
		"FROM deliveries WHERE num = ?1"

	advanceSplit = "UPDATE splits SET after_seq = ?2 WHERE delivery = ?1 AND after_seq = ?3 AND EXISTS (SELECT 1 FROM subscriptions " +
		"WHERE id = splits.subscription_id AND revision = ?4 AND active = 1)"

	finishSplits = "UPDATE splits SET after_seq = 9223372036854775807 WHERE after_seq < 9223372036854775807 " +
		"AND NOT EXISTS (SELECT 1" + fromSplits + " AND p.delivery = splits.delivery) AND "
	removeSplits = "DELETE FROM splits WHERE after_seq = 9223372036854775807 AND NOT EXISTS (SELECT 1 FROM deliveries r " +
		"WHERE r.split_of = (SELECT id FROM deliveries WHERE num = splits.delivery) AND r.completed_at IS NULL) AND "
	hasSplits = "SELECT EXISTS (SELECT 1 FROM splits WHERE subscription_id = ?)"

	selectSplitOf = "SELECT p.delivery FROM deliveries d CROSS JOIN deliveries o ON o.id = d.split_of " +
		"CROSS JOIN splits p ON p.delivery = o.num WHERE d.num = ?"
	selectWithSplits = "SELECT DISTINCT subscription_id FROM splits"
	selectUnfinished = "SELECT EXISTS (SELECT 1 FROM splits WHERE subscription_id = ? AND after_seq < 9223372036854775807)"
)

// splitEnd selects the splits that may have ended: those of a subscription, or the one of a
// failed delivery.
type splitEnd struct{ finish, remove string }

var (
	ofQueue  = newSplitEnd("subscription_id = ?")
	ofFailed = newSplitEnd("delivery = ?")
)

func newSplitEnd(which string) splitEnd {
	return splitEnd{finishSplits + which, removeSplits + which + " RETURNING delivery, subscription_id"}
}

// openSplit opens the split of a delivery of several events that failed. After a 429 the events are
// sent as one delivery once more, since the receiver refused the rate.
func (t *tx) openSplit(num int64, subscriptionID string, a *webhook.Attempt) error {
	if _, err := t.mayBeIn(&t.w.splits, selectWithSplits, subscriptionID); err != nil {
		return err
	}
	t.w.splits[subscriptionID] = struct{}{}
	return t.Exec(openSplit, num, webhook.RefusesRate(a.ResponseStatus))
}

// endSplits ends the selected splits that have nothing left to send and whose deliveries have
// completed.
func (t *tx) endSplits(which splitEnd, id any) error {
	if err := t.Exec(which.finish, id); err != nil {
		return err
	}
	var subscription string // all are of one subscription
	err := t.Each(which.remove, []any{id}, func(scan func(...any) error) error {
		var num int64
		err := scan(&num, &subscription)
		t.deliveryChanged(num)
		return err
	})
	if err != nil || subscription == "" {
		return err
	}
	return t.leaveIfNone(t.w.splits, hasSplits, subscription)
}

// endSplitOf ends the split that formed a delivery, if that was its last. It costs nothing if the
// subscription has no splits.
func (t *tx) endSplitOf(num int64, subscriptionID string) error {
	may, err := t.mayBeIn(&t.w.splits, selectWithSplits, subscriptionID)
	if err != nil || !may {
		return err
	}
	var parent int64
	if err := t.Scan(selectSplitOf, []any{num}, &parent); err != nil {
		return sqlite.NoRows(err, nil)
	}
	return t.endSplits(ofFailed, parent)
}

// splitRun contains the events that a split sends next.
type splitRun struct {
	eventParts
	parent int64  // the failed delivery
	id     string // its ID, as stored
	after  int64  // the position of the split
	seqs   []int64
}

// splitNext reads the next events of a queue's oldest split, excluding the event types except: at
// most count events, and as many as fit into size bytes, but at least one. It returns no seqs if
// nothing is left.
func (s Queues) splitNext(ctx context.Context, q *Queue, except []string, count, size int) (r splitRun, err error) {
	names := sqlite.JSON(append([]string{}, except...))
	err = s.db.Each(ctx, selectSplitNext, []any{q.SubscriptionID, names, count}, func(scan func(...any) error) error {
		var parent, after, seq int64
		var id string
		var whole bool
		if err := scan(&parent, &id, &whole, &after, &seq); err != nil {
			return err
		}
		if len(r.seqs) > 0 && parent != r.parent {
			return sqlite.ErrStop
		}
		r.parent, r.id, r.after = parent, id, after
		r.seqs = append(r.seqs, seq)
		if !whole {
			return sqlite.ErrStop
		}
		return nil
	})
	if err != nil && err != sqlite.ErrStop || len(r.seqs) == 0 {
		return r, err
	}
	r.eventParts, r.seqs, err = s.fitting(ctx, q.ProgramID, r.seqs, size)
	return r, err
}

// formSplit forms the next delivery of a queue's splits, like Spend for the log, and returns it
// once it is stored, nil if nothing is left to send.
func (s Queues) formSplit(ctx context.Context, c *Credit, except []string) (*Forming, error) {
	q := c.Queue
	r, err := s.splitNext(ctx, q, except, c.Count, c.Size)
	if err != nil || len(r.seqs) == 0 {
		return nil, err
	}
	f := &Forming{Queue: q, made: q.newClaim(r.bodies, r.trace)}
	f.made.AcceptedAt, f.made.Split = time.UnixMilli(r.oldest), true
	f.claim = &f.made
	f.err = s.writer.do(func(t *tx) error {
		if t.use(q.ProgramID, "") != nil {
			return ErrStale
		}
		after := r.after // an event that except left out is sent later
		if len(except) == 0 {
			after = r.seqs[len(r.seqs)-1]
		}
		n, err := t.Affected(advanceSplit, r.parent, after, r.after, q.Revision)
		if err == nil && n == 0 {
			err = ErrStale
		}
		if err != nil {
			return err
		}
		// A delivery may have succeeded since, or an event have been erased.
		var left int
		seqs := appendSeqs(nil, r.seqs)
		if err := t.Scan(countUndelivered, []any{r.parent, seqs}, &left); err != nil {
			return err
		}
		if left != len(r.seqs) {
			return ErrStale
		}
		return t.insertFormed(f.claim, seqs, maker{split: r.id})
	})
	return f, nil
}

const countUndelivered = `SELECT count(*) FROM undelivered u CROSS JOIN deliveries d ON d.num = u.delivery
	CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = u.seq AND e.erased_at IS NULL
	WHERE u.delivery = ? AND u.seq IN (SELECT value FROM json_each(?))`

// finishSplits ends the splits of a queue that have nothing left to send. It reports whether others are
// left: a split has more to send once an earlier one has ended that was to send the same event.
func (s Queues) finishSplits(ctx context.Context, q *Queue) (left bool, err error) {
	err = s.db.Scan(ctx, selectUnfinished, []any{q.SubscriptionID}, &left)
	if err != nil || !left {
		return false, err
	}
	err = s.writer.doRepeatable(func(t *tx) error {
		if err := t.endSplits(ofQueue, q.SubscriptionID); err != nil {
			return err
		}
		return t.Scan(selectUnfinished, []any{q.SubscriptionID}, &left)
	})
	return left, err
}

const (
	putSizeBound  = "INSERT OR REPLACE INTO size_bounds (subscription_id, bytes, learned_at) VALUES (?, ?, ?)"
	dropSizeBound = "DELETE FROM size_bounds WHERE subscription_id = ?"
)

// learnSize records that the receiver refused a delivery for its size.
func (t *tx) learnSize(c *Claim, now time.Time) error {
	var known webhook.SizeBound
	var at sql.NullInt64
	err := sqlite.NoRows(t.Scan(record.SelectSizeBound, []any{c.SubscriptionID}, &known.Bytes, &at), nil)
	if err != nil {
		return err
	}
	known.LearnedAt = t.s.clock.Shown(at)
	bytes := 0
	for _, e := range c.Events {
		bytes += len(e)
	}
	t.AfterCommit(func() { t.s.watchers.SubscriptionChanged(c.SubscriptionID) })
	return t.Exec(putSizeBound, c.SubscriptionID, known.Refused(bytes, now).Bytes, t.s.clock.Wait(now))
}

const (
	// The splits of failed deliveries in a range that retention is about to remove.
	selectAgedSplits = `SELECT p.delivery, p.subscription_id, t.program_id FROM splits p CROSS JOIN deliveries t ON t.num = p.delivery
		WHERE p.delivery > ?1 AND p.delivery <= ?2 AND t.completed_at IS NOT NULL AND t.counted_at <= ?3`
	countSplitRest = "SELECT count(*)" + fromSplits + " AND p.delivery = ?"
	deleteSplit    = "DELETE FROM splits WHERE delivery = ?"
)

// splitLoss is a number of events that a split had not sent when retention removed it.
type splitLoss struct {
	num                   int64 // the failed delivery
	program, subscription string
	events                int64
}

// loseSplits ends the splits of failed deliveries in a range that had completed at a counted_at and
// are about to be removed. The events that they have not sent are lost.
func (t *tx) loseSplits(after, to, old int64) (lost []splitLoss, err error) {
	err = t.Each(selectAgedSplits, []any{after, to, old}, func(scan func(...any) error) error {
		var l splitLoss
		err := scan(&l.num, &l.subscription, &l.program)
		lost = append(lost, l)
		return err
	})
	for i := range lost {
		l := &lost[i]
		if err == nil {
			err = t.Scan(countSplitRest, []any{l.num}, &l.events)
		}
		if err == nil && l.events > 0 {
			err = t.Exec(addLost, l.subscription, l.events, t.s.clock.Now().UnixMilli())
		}
		if err == nil {
			err = t.Exec(deleteSplit, l.num)
		}
	}
	return lost, err
}

// unsendableAtOnce is how many deliveries one write ends because of removed event types and erased
// events, and endedAtOnce how many events these have together, unless the first has more: each of them is
// noted as undelivered.
const (
	unsendableAtOnce = 16
	endedAtOnce      = 64
)

const (
	// hasUnsubscribed is the condition of the deliveries d of the subscriptions s with an event of a
	// type that the subscription no longer selects (spec, section 6.1.4). The type decides, not the
	// interests, which are closed while the subscription is paused.
	hasUnsubscribed = `EXISTS (SELECT 1 FROM json_each(d.seqs) j CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = j.value
		WHERE e.name NOT IN (SELECT value FROM json_each(s.events)))`

	// The deliveries that are due and cannot be sent, and whether an event was erased.
	selectUnsendable = `SELECT d.num, json_array_length(d.seqs), ` + erasure.HasErased + ` FROM (SELECT num FROM deliveries WHERE subscription_id = ?1
		AND next_attempt_at <= ?2 AND next_attempt_at IS NOT NULL AND attempts_made < ?4 AND ping IS NULL ORDER BY next_attempt_at, num LIMIT ?3) l
		CROSS JOIN deliveries d ON d.num = l.num CROSS JOIN subscriptions s ON s.id = d.subscription_id AND s.active = 1
		WHERE EXISTS (SELECT 1 FROM json_each(d.seqs) j CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = j.value
		WHERE e.erased_at IS NOT NULL OR e.name NOT IN (SELECT value FROM json_each(s.events)))`
	failUnsendable = `UPDATE deliveries SET status = 'failed', failure_reason = ?4, next_attempt_at = NULL,
		completed_at = ?2, counted_at = ?3 WHERE num = ?1`
)

// endUnsendable fails the deliveries that a claim could take, due until a time of the wait clock and with
// fewer attempts, and that have an event that was erased or is no longer requested. The others of their
// events are sent by a split. It looks at the next few only if the first delivery was one, and reports that.
func (t *tx) endUnsendable(subscriptionID string, until int64, attempts int) (ended bool, err error) {
	room := endedAtOnce
	for _, limit := range []int{1, unsendableAtOnce} {
		some, err := t.unsendable(subscriptionID, until, attempts, limit)
		if err != nil || len(some) == 0 {
			return ended, err
		}
		for _, u := range some {
			if room -= u.events; ended && room < 0 {
				return ended, nil
			}
			if err := t.failUnsendable(u.num, subscriptionID, u.reason); err != nil {
				return ended, err
			}
			ended = true
		}
	}
	return ended, nil
}

// unsendable is a delivery that is due and cannot be sent.
type unsendable struct {
	num    int64
	events int
	reason webhook.FailureReason
}

// unsendable returns those of the next few deliveries that are due.
func (t *tx) unsendable(subscriptionID string, until int64, attempts, limit int) (all []unsendable, err error) {
	err = t.Each(selectUnsendable, []any{subscriptionID, until, limit, attempts}, func(scan func(...any) error) error {
		u := unsendable{reason: webhook.FailureUnsubscribed}
		var erased bool
		err := scan(&u.num, &u.events, &erased)
		if erased {
			u.reason = webhook.FailureCancelled
		}
		all = append(all, u)
		return err
	})
	return all, err
}

// failUnsendable fails a delivery that waits for an attempt, and splits it if it has several events.
func (t *tx) failUnsendable(num int64, subscriptionID string, reason webhook.FailureReason) error {
	at, err := t.now()
	if err != nil {
		return err
	}
	t.deliveryChanged(num)
	t.AfterCommit(t.s.metrics.Ended[reason].Inc)
	if err := t.Exec(failUnsendable, num, at, t.counted(), string(reason)); err != nil {
		return err
	}
	left, err := t.noteUndelivered(num, subscriptionID, 0)
	if err != nil {
		return err
	}
	several := false
	if err := t.Scan("SELECT json_array_length(seqs) > 1 FROM deliveries WHERE num = ?", []any{num}, &several); err != nil {
		return err
	}
	if several && left > 0 {
		if err := t.openSplit(num, subscriptionID, &webhook.Attempt{}); err != nil {
			return err
		}
	}
	return t.endSplitOf(num, subscriptionID)
}

// requested returns an error that names the event types of a delivery that its subscription no
// longer selects, nil if there is none.
func (t *tx) requested(num int64) error {
	var names []string
	err := t.Each(selectRemovedTypes, []any{num}, sqlite.Into(&names))
	if err != nil || len(names) == 0 {
		return err
	}
	return webhook.NewError(webhook.CodeConflict, "The subscription no longer requests "+strings.Join(names, ", ")+
		", which the delivery has. Add it to the subscription's events first.")
}

const selectRemovedTypes = `SELECT DISTINCT e.name FROM deliveries d CROSS JOIN subscriptions s ON s.id = d.subscription_id
	CROSS JOIN json_each(d.seqs) j CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = j.value
	WHERE d.num = ? AND d.seqs IS NOT NULL AND e.name NOT IN (SELECT value FROM json_each(s.events)) ORDER BY 1`

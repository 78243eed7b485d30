package store

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"time"

	"service/store/clock"
	"service/store/pending"
	"service/store/people"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

const day = 24 * time.Hour

// Swept counts what retention has removed.
type Swept struct {
	Events     int64
	Deliveries int64 // with their attempts
	Expired    int64 // deliveries that failed because of their age
	Lost       int64 // events removed before a subscription received them, counted once per subscription
	Audit      int64 // entries of the audit log
	Shrunk     int64 // bytes by which the database file was shrunk
}

func (a *Swept) add(b Swept) {
	a.Events += b.Events
	a.Deliveries += b.Deliveries
	a.Expired += b.Expired
	a.Lost += b.Lost
	a.Audit += b.Audit
	a.Shrunk += b.Shrunk
}

// Retain periodically removes records older than keep.All, in small steps, until ctx
// ends. Their age is measured by the time that retention counts, see [clock.Clock]:
//
//   - A delivery is removed with its attempts when it completed that long ago. One that
//     has been pending for that long first fails as expired.
//   - A successful delivery is removed when it completed keep.Delivered ago. Its events
//     stay, for other subscriptions and replays, with a record of their delivery.
//   - An event is removed when it was accepted that long ago and no delivery carries it
//     any more. The newest event of a program stays.
//   - A subscription that was waiting for a removed event has lost it. Losses are
//     counted, and the operator is alerted.
//   - Alerts, completed replays and bulk runs, closed incidents, idempotency keys and
//     the records of deleted subscriptions are removed in the same way.
//   - Entries of the audit log are removed keep.Audit after they were made. An entry names
//     the last one removed.
//
// Retention starts a while after startup, so that deliveries that waited during a downtime are sent
// first.
func (s *Store) Retain(ctx context.Context, keep webhook.Retention) error {
	ctx = inBackground(ctx)
	pause := min(max(keep.DeliveredFor()/48, time.Second), time.Hour)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var pruned time.Time // when entries of the audit log were last removed
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		all, delivered, audit, err := s.look(keep)
		w := &sweep{}
		if err == nil && s.sweeping.TryAcquire(1) { // otherwise a program is being imported
			w, err = s.sweep(ctx, all, delivered)
			if began := time.Now(); err == nil && keep.Audit > 0 && began.Sub(pruned) >= people.PruneInterval(keep.Audit) {
				if err = w.each(func() error { return w.audit(audit.mark.audit) }); err == nil {
					pruned = began
				}
			}
			s.sweeping.Release(1)
			s.noteSwept(w.swept)
		}
		if ctx.Err() != nil {
			return nil
		}
		if swept := w.swept; err != nil {
			s.logger.Error("failed to remove records older than the retention, will retry", "error", err)
		} else if swept != (Swept{}) {
			s.logger.Info("removed records older than the retention", "events", swept.Events, "deliveries", swept.Deliveries,
				"expired", swept.Expired, "lost", swept.Lost, "audit_entries", swept.Audit, "shrunk_bytes", swept.Shrunk,
				"longest_step", w.longest)
		}
		timer.Reset(pause)
	}
}

// Swept returns what retention has removed since Open.
func (s Figures) Swept() Swept {
	s.sweptMu.Lock()
	defer s.sweptMu.Unlock()
	return s.swept
}

func (s *core) noteSwept(swept Swept) {
	s.sweptMu.Lock()
	defer s.sweptMu.Unlock()
	s.swept.add(swept)
}

// sweep removes all old records, and successful deliveries that are old by delivered.
func (s *core) sweep(ctx context.Context, old, delivered cutoff) (*sweep, error) {
	w := &sweep{steps: s.newSteps(ctx, sweepPace), old: old, delivered: delivered}
	shrink := func() error { return w.shrink(&w.swept.Shrunk) }
	return w, w.each(w.removeEarly, w.deliveries, w.events, w.stats, w.rest, shrink)
}

// sweep is one run of retention.
type sweep struct {
	steps
	old cutoff // records up to it are removed
	// delivered is the cutoff for successful deliveries, if it is later.
	delivered cutoff
	swept     Swept
	splits    []splitLoss // of the last step
}

const (
	// The newest delivery stays, so that its num is not reused.
	selectAged = `SELECT num, created_at FROM deliveries WHERE num > ? AND num <= ? AND num < (SELECT max(num) FROM deliveries)
		ORDER BY num LIMIT ?`
	expireAged = `UPDATE deliveries SET status = 'failed', failure_reason = 'expired', next_attempt_at = NULL, completed_at = ?4,
		counted_at = ?5 WHERE num > ?1 AND num <= ?2 AND created_at < ?3 AND next_attempt_at IS NOT NULL
		RETURNING num`
)

// removal is a set of queries that remove deliveries with all their records.
type removal struct {
	parts      [6]string
	deliveries string
}

// newRemoval returns the removal of the deliveries that match a condition.
func newRemoval(which string) removal {
	return removal{
		parts: [...]string{
			"DELETE FROM delivery_events WHERE (program_id, seq, delivery) IN (SELECT d.program_id, j.value, d.num " +
				"FROM deliveries d, json_each(d.seqs) j WHERE d.seqs IS NOT NULL AND " + which + ")",
			"DELETE FROM stored_responses WHERE (program_id, delivery) IN (SELECT program_id, num FROM deliveries WHERE " + which + ")",
			"DELETE FROM attempts WHERE delivery IN (SELECT num FROM deliveries WHERE " + which + ")",
			"DELETE FROM responses WHERE delivery IN (SELECT num FROM deliveries WHERE " + which + ")",
			"DELETE FROM undelivered WHERE delivery IN (SELECT num FROM deliveries WHERE " + which + " AND status = 'failed')",
			"DELETE FROM recovered WHERE delivery IN (SELECT num FROM deliveries WHERE " + which + " AND status = 'failed')",
		},
		deliveries: "DELETE FROM deliveries WHERE " + which,
	}
}

// removalByAge removes the deliveries in a range that had completed at a counted_at.
var removalByAge = newRemoval("num > ?1 AND num <= ?2 AND completed_at IS NOT NULL AND counted_at <= ?3")

// removeDeliveries removes deliveries, and returns their number.
func (t *tx) removeDeliveries(r *removal, args ...any) (int64, error) {
	for _, query := range r.parts {
		if err := t.Exec(query, args...); err != nil {
			return 0, err
		}
	}
	return t.Affected(r.deliveries, args...)
}

// deliveries expires old pending deliveries, and removes old completed ones.
func (w *sweep) deliveries() error {
	err := w.deliveriesIn(0, w.old.mark.delivery, math.MaxInt64)
	for _, r := range w.s.lists.Imported.Of("deliveries") { // older than those before them
		if err == nil {
			err = w.deliveriesIn(max(r.First-1, w.old.mark.delivery), r.Last, w.old.imported(&r))
		}
	}
	return err
}

// deliveriesIn is deliveries for those after a num and up to last, up to the first that was
// created at the time before or later.
func (w *sweep) deliveriesIn(after, last, before int64) error {
	for more := true; more; {
		to, n, err := w.aged(after, last, before)
		if err != nil || to == after {
			return err
		}
		more = n == w.size
		var swept Swept
		err = w.write(func(t *tx) (err error) {
			swept, err = w.removeAged(t, after, to, before)
			return err
		})
		if err != nil {
			return err
		}
		w.swept.add(swept)
		w.s.metrics.Ended[webhook.FailureExpired].Add(float64(swept.Expired))
		for _, l := range w.splits {
			if l.events == 0 {
				continue
			}
			if err := w.alertLosses(l.program, map[string]int64{l.subscription: l.events}); err != nil {
				return err
			}
		}
		after = to
	}
	return nil
}

// aged returns the last of the next deliveries after a num and up to last that were created before
// a time, and their number, at most one step.
func (w *sweep) aged(after, last, before int64) (to int64, n int, err error) {
	to = after
	err = w.s.db.Each(w.ctx, selectAged, []any{after, last, w.size}, func(scan func(...any) error) error {
		var num, created int64
		if err := scan(&num, &created); err != nil {
			return err
		}
		if created < before { // as are all before it
			to, n = num, n+1
		}
		return nil
	})
	return to, n, err
}

// removeAged expires the pending deliveries in a range that were created before a time, and removes
// those that completed before the cutoff.
func (w *sweep) removeAged(t *tx, after, to, before int64) (swept Swept, err error) {
	now, err := t.now()
	if err != nil {
		return swept, err
	}
	if err := w.announceExpired(t, after, to, before); err != nil {
		return swept, err
	}
	var expired []int64
	err = t.Each(expireAged, []any{after, to, before, now, t.counted()}, sqlite.Into(&expired))
	if err == nil {
		swept.Expired = int64(len(expired))
		err = t.noteAllUndelivered(expired)
	}
	if err == nil {
		w.splits, err = t.loseSplits(after, to, w.old.seconds())
	}
	if err != nil {
		return swept, err
	}
	for _, l := range w.splits {
		swept.Lost += l.events
	}
	swept.Deliveries, err = t.removeDeliveries(&removalByAge, after, to, w.old.seconds())
	return swept, err
}

// selectExpiring finds the deliveries of a range that expire. An event is kept as long as a
// delivery that contains it.
const selectExpiring = `SELECT d.id, d.subscription_id, d.program_id, d.ping IS NOT NULL, s.deleted_at IS NOT NULL,
	(SELECT e.received_at FROM events e WHERE e.program_id = d.program_id AND e.seq = d.seqs ->> 0)
	FROM deliveries d JOIN subscriptions s ON s.id = d.subscription_id
	WHERE d.num > ? AND d.num <= ? AND d.created_at < ? AND d.next_attempt_at IS NOT NULL`

// expiredOf counts the deliveries of a subscription that expire in one step.
type expiredOf struct {
	program, subscription string
	n, accepted           int64 // accepted is the time of the oldest event, 0 if unknown
}

// announceExpired counts expiring deliveries in the incidents of their subscriptions. After the commit
// it ends the wait for expired pings, and wakes the queues: an ordered one sends the next delivery.
func (w *sweep) announceExpired(t *tx, after, to, before int64) error {
	var all []expiredOf
	at := make(map[string]int)
	err := t.Each(selectExpiring, []any{after, to, before}, func(scan func(...any) error) error {
		var id, subscription, program string
		var ping, deleted bool
		var accepted sql.NullInt64
		if err := scan((*record.DeliveryID)(&id), &subscription, &program, &ping, &deleted, &accepted); err != nil {
			return err
		}
		t.AfterCommit(func() {
			if ping {
				w.s.watchers.Attempts.End(id, nil)
			}
			w.s.watchers.Queued(subscription)
		})
		t.deliveryChanged(0)
		if ping || deleted {
			return nil
		}
		i, known := at[subscription]
		if !known {
			i = len(all)
			at[subscription], all = i, append(all, expiredOf{program: program, subscription: subscription})
		}
		all[i].n++
		if accepted.Valid && (all[i].accepted == 0 || accepted.Int64 < all[i].accepted) {
			all[i].accepted = accepted.Int64
		}
		return nil
	})
	for _, e := range all {
		if err != nil {
			return err
		}
		_, err = t.noteEnded(e.program, e.subscription, e.n, sqlite.FromMillis(sql.NullInt64{Int64: e.accepted, Valid: e.accepted != 0}))
	}
	return err
}

const (
	selectAgedEvents = "SELECT seq FROM events WHERE program_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
	// Subscriptions that still wait for some of these events, and for how many.
	selectPendingLosses = `SELECT c.subscription_id, c.seq, (
			SELECT count(*) FROM interests i JOIN events e ON e.program_id = s.program_id AND e.name = i.name
				AND e.seq > max(i.after_seq, c.seq, ?2) AND e.seq <= min(coalesce(i.until_seq, ?3), ?3)
				AND e.erased_at IS NULL AND ` + record.PassesFilter + `
			WHERE i.subscription_id = c.subscription_id) AS lost
		FROM subscriptions s INDEXED BY subscriptions_by_program JOIN cursors c ON c.subscription_id = s.id
		WHERE s.program_id = ?1 AND s.deleted_at IS NULL AND c.seq < ?3 AND lost > 0`
	skipLost = "UPDATE cursors SET seq = ? WHERE subscription_id = ? AND seq = ?"
	addLost  = `INSERT INTO losses (subscription_id, events, first_at, last_at) VALUES (?1, ?2, ?3, ?3)
		ON CONFLICT DO UPDATE SET events = events + ?2, last_at = ?3`
	removeEvents = `DELETE FROM events WHERE program_id = ?1 AND seq > ?2 AND seq <= ?3
		AND NOT EXISTS (SELECT 1 FROM delivery_events x WHERE x.program_id = events.program_id AND x.seq = events.seq)`
)

// events removes the oldest events of each program.
func (w *sweep) events() error {
	programs, err := w.s.ids(w.ctx, "SELECT id FROM programs")
	for _, id := range programs {
		if err == nil {
			err = w.eventsOf(id)
		}
	}
	return err
}

// eventsOf removes the oldest events of one program, and alerts about losses.
func (w *sweep) eventsOf(programID string) error {
	imported := w.s.lists.Imported.Of("events")
	until, err := w.s.records.LastSeq(w.ctx, programID, func(row, received int64) bool { return w.old.hasEvent(imported, row, received) })
	if err != nil {
		return err
	}
	var head int64
	if err := w.s.db.Scan(w.ctx, "SELECT coalesce(max(seq), 0) FROM events WHERE program_id = ?", []any{programID}, &head); err != nil {
		return err
	}
	until = min(until, head-1) // the newest event marks the end of the log
	lost := make(map[string]int64)
	// Alert about skipped events even if the sweep fails.
	err = errors.Join(w.eventsUpTo(programID, until, lost), w.alertLosses(programID, lost))
	if err == nil {
		err = w.forgetDelivered(programID)
	}
	return err
}

// eventsUpTo removes the events of a program up to a seq in steps, after skipping the cursors
// before it. It adds the losses to lost, by subscription.
func (w *sweep) eventsUpTo(programID string, until int64, lost map[string]int64) error {
	for after := int64(0); after < until; {
		to := after
		err := w.s.db.Each(w.ctx, selectAgedEvents, []any{programID, after, until, w.size},
			func(scan func(...any) error) error { return scan(&to) })
		if err != nil {
			return err
		}
		if to == after {
			return nil
		}
		if err := w.skipLosses(programID, after, to, lost); err != nil {
			return err
		}
		var removed int64
		err = w.write(func(t *tx) (err error) {
			removed, err = t.Affected(removeEvents, programID, after, to)
			return err
		})
		if err != nil {
			return err
		}
		w.swept.Events += removed
		after = to
	}
	return nil
}

// pendingLoss is a subscription that waits for events that are about to be removed.
type pendingLoss struct {
	id     string
	cursor int64
	events int64
}

// skipLosses moves the cursors that have not passed a part of the log to its end, so that nothing
// can be delivered from it any more, and counts the losses. It reads the cursors outside the
// writer: they can only become fewer, since new interests begin at the end of the log.
func (w *sweep) skipLosses(programID string, after, to int64, lost map[string]int64) error {
	for {
		losses, err := w.pendingLosses(programID, after, to)
		if err != nil || len(losses) == 0 {
			return err
		}
		err = inSteps(&w.steps, losses, func(t *tx, some []pendingLoss) error {
			skipped, err := w.skip(t, some, to)
			t.AfterCommit(func() {
				for _, l := range skipped {
					lost[l.id] += l.events
					w.swept.Lost += l.events
				}
			})
			return err
		})
		if err != nil {
			return err
		}
	}
}

// pendingLosses returns the subscriptions that wait for events in a part of the log.
func (w *sweep) pendingLosses(programID string, after, to int64) (losses []pendingLoss, err error) {
	err = w.s.db.Each(w.ctx, selectPendingLosses, []any{programID, after, to}, func(scan func(...any) error) error {
		var l pendingLoss
		err := scan(&l.id, &l.cursor, &l.events)
		losses = append(losses, l)
		return err
	})
	return losses, err
}

// skip moves cursors to a seq, and returns those that had not moved since they were read.
// The others have advanced or were deleted.
func (w *sweep) skip(t *tx, losses []pendingLoss, to int64) (skipped []pendingLoss, err error) {
	now := w.s.clock.Now().UnixMilli()
	for _, l := range losses {
		n, err := t.Affected(skipLost, to, l.id, l.cursor)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			continue
		}
		if err := t.Exec(addLost, l.id, l.events, now); err != nil {
			return nil, err
		}
		skipped = append(skipped, l)
		t.AfterCommit(func() { w.s.watchers.SubscriptionChanged(l.id) })
	}
	return skipped, nil
}

// alertLosses alerts the operator of losses, at most once per day and subscription.
func (w *sweep) alertLosses(programID string, lost map[string]int64) error {
	for id := range lost {
		err := w.s.writer.do(func(t *tx) error {
			var alerted bool
			since := clock.WholeSeconds(w.s.clock.Counted() - lossAlertInterval)
			if err := t.Scan(selectAlerted, []any{id, string(webhook.AlertLost), since}, &alerted); err != nil || alerted {
				return err
			}
			sub, err := t.subscription(programID, id)
			var gone *webhook.Error
			if errors.As(err, &gone) {
				return nil // the subscription was deleted
			} else if err != nil {
				return err
			}
			var n int64
			if err := t.Scan("SELECT coalesce(sum(events), 0) FROM losses WHERE subscription_id = ?", []any{id}, &n); err != nil {
				return err
			}
			_, in, err := t.failures(id)
			if err != nil {
				return err
			}
			return w.s.alert(t, &webhook.Alert{Name: webhook.AlertLost, Subscription: sub, Lost: n, LostBefore: w.old.before}, in.num)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	lossAlertInterval = 24 * time.Hour

	selectAlerted = "SELECT EXISTS (SELECT 1 FROM alerts WHERE subscription_id = ? AND name = ? AND counted_at > ?)"
)

const removeStats = "DELETE FROM stats WHERE (program_id, subscription_id, span, at) IN " +
	"(SELECT program_id, subscription_id, span, at FROM stats WHERE span = ? AND counted_at <= ? ORDER BY counted_at LIMIT ?)"

// stats removes statistics by minute after two days, and those by hour with all other records.
func (w *sweep) stats() error {
	old := w.old.seconds()
	minutes := max(old, clock.WholeSeconds(w.s.clock.Counted()-pending.MinutesFor))
	if err := w.remove(removeStats, record.StatMinute.Milliseconds(), minutes); err != nil {
		return err
	}
	return w.remove(removeStats, record.StatHour.Milliseconds(), old)
}

// rest removes all other kinds of records.
func (w *sweep) rest() error {
	now, old := w.s.clock.Wait(w.s.clock.Now()), w.old.seconds()
	for _, part := range []struct {
		find   string // selects the keys of the records to remove
		edge   int64
		remove []string
	}{
		{selectExpired, now, []string{"DELETE FROM idempotency_keys WHERE rowid IN (SELECT value FROM json_each(?))"}},
		{selectAgedReplays, old, []string{"DELETE FROM replays WHERE id IN (SELECT value FROM json_each(?))"}},
		{selectAgedBulkLinks, old,
			[]string{"DELETE FROM bulk_run_deliveries WHERE (run, delivery) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))"}},
		{selectAgedBulkRuns, old, []string{
			"DELETE FROM bulk_run_subscriptions WHERE run IN (SELECT value FROM json_each(?))",
			"DELETE FROM bulk_runs WHERE num IN (SELECT value FROM json_each(?))",
		}},
		{selectAgedAlerts, old, []string{
			"DELETE FROM alert_sends WHERE alert IN (SELECT value FROM json_each(?))",
			"DELETE FROM alerts WHERE num IN (SELECT value FROM json_each(?))",
		}},
		{selectAgedSends, old, []string{"DELETE FROM alert_sends WHERE num IN (SELECT value FROM json_each(?))"}},
		{selectAgedIncidents, old, []string{"DELETE FROM incidents WHERE num IN (SELECT value FROM json_each(?))"}},
		{selectUnnamedURLs, old,
			[]string{"DELETE FROM old_urls WHERE (subscription_id, number) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))"}},
		{selectForgotten, old, []string{
			"DELETE FROM alert_sends WHERE alert IN (SELECT num FROM alerts WHERE subscription_id IN (SELECT value FROM json_each(?)))",
			"DELETE FROM alerts WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM incidents WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM bulk_run_subscriptions WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM losses WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM response_marks WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM delivered WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM replays WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM old_urls WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM subscriptions WHERE id IN (SELECT value FROM json_each(?))",
		}},
	} {
		if err := w.removeFound(part.find, part.edge, part.remove...); err != nil {
			return err
		}
	}
	return nil
}

var (
	selectAgedReplays  = "SELECT id FROM replays WHERE counted_at <= ? ORDER BY counted_at LIMIT ?"
	selectAgedBulkRuns = "SELECT num FROM bulk_runs WHERE counted_at <= ? ORDER BY counted_at LIMIT ?"
	// A run may have many.
	selectAgedBulkLinks = "SELECT json_array(x.run, x.delivery) FROM bulk_runs r CROSS JOIN bulk_run_deliveries x ON x.run = r.num " +
		"WHERE r.counted_at <= ? LIMIT ?"
	// Unsent alerts are newer, unless sending was switched off.
	selectAgedAlerts    = "SELECT num FROM (SELECT num, counted_at FROM alerts ORDER BY num LIMIT ?2) WHERE counted_at <= ?1"
	selectAgedSends     = "SELECT num FROM (SELECT num, counted_at FROM alert_sends ORDER BY num LIMIT ?2) WHERE counted_at <= ?1"
	selectAgedIncidents = "SELECT num FROM incidents WHERE counted_at <= ? ORDER BY counted_at LIMIT ?"
	// Attempts were sent to the URL that was current when their delivery was created, or to a later one.
	selectUnnamedURLs = "SELECT json_array(o.subscription_id, o.number) FROM old_urls o WHERE o.last_delivery < coalesce((SELECT d.num " +
		record.CreatedOf("o.subscription_id") + " ORDER BY d.num LIMIT 1), o.last_delivery + 1) LIMIT ?2"
	// Deleted subscriptions without deliveries.
	selectForgotten = "SELECT id FROM subscriptions s WHERE counted_at <= ? AND NOT EXISTS (SELECT 1 " +
		record.CreatedOf("s.id") + ") ORDER BY counted_at LIMIT ?"
)

// audit removes the entries of the audit log through last, oldest first. It first records last in the
// log.
func (w *sweep) audit(last int64) (err error) {
	recorded := false
	w.swept.Audit, err = w.repeat(func(t *tx, size int) (removed int64, err error) {
		through := last
		if !recorded {
			if through, err = t.people.RecordPrune(last); err != nil || through == 0 {
				return 0, err
			}
			t.AfterCommit(func() { last, recorded = through, true })
		}
		return t.people.Prune(through, size)
	})
	return err
}

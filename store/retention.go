package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"service/webhook"
)

const (
	// sweepTime is how long one step of a sweep should hold the writer.
	sweepTime = 2 * time.Millisecond
	// sweepRest is how long a sweep leaves the writer alone after a step, in
	// multiples of the step: it takes a fifth of the writer at the most.
	sweepRest = 4
	// firstSweep is how many records the first step of each kind looks at, and
	// mostSweep the most that one looks at.
	firstSweep, mostSweep = 8, 256
)

// Retention is for how long records are kept.
type Retention struct {
	All time.Duration // events, deliveries and attempts
	// Delivered is for how long deliveries that succeeded are kept, with their
	// attempts; 0 is as long as All.
	Delivered time.Duration
}

// delivered returns for how long deliveries that succeeded are kept.
func (r Retention) delivered() time.Duration {
	if r.Delivered <= 0 {
		return r.All
	}
	return min(r.Delivered, r.All)
}

// Swept is what retention has removed.
type Swept struct {
	Events     int64
	Deliveries int64 // with their attempts
	Expired    int64 // deliveries that failed for their age
	Lost       int64 // events that a subscription was still waiting for, counted for each subscription
	Shrunk     int64 // bytes of the database's file that were given back
}

func (a *Swept) add(b Swept) {
	a.Events += b.Events
	a.Deliveries += b.Deliveries
	a.Expired += b.Expired
	a.Lost += b.Lost
	a.Shrunk += b.Shrunk
}

// Retain removes what is older than keep.All, now and then, in small steps, until
// ctx ends:
//
//   - A delivery goes, with its attempts, when it ended that long ago. One that
//     has waited for so long ends first: it has failed, as expired.
//   - One that succeeded goes when it ended keep.Delivered ago. Its events stay, for
//     other subscriptions and replays, and so does the fact that it brought them.
//   - An event goes when it was accepted that long ago and no delivery is left
//     that carries it. The newest event of a program stays.
//   - A subscription that still waited for a removed event has lost it: that is
//     counted for the subscription, and the operator is alerted.
//   - Alerts, ended replays and bulk runs, closed incidents, idempotency keys and the
//     records of deleted subscriptions go likewise.
//
// Nothing is removed for a while after the start, so that what waited while
// nothing ran is sent first, nor for a day after the clock was set forward.
func (s *Store) Retain(ctx context.Context, keep Retention) error {
	pause := min(max(keep.delivered()/48, time.Second), time.Hour)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		now, doubted, err := s.retentionTime()
		w := &sweep{}
		if err == nil && !doubted {
			w, err = s.sweep(ctx, now.Add(-keep.All), now.Add(-keep.delivered()))
			s.noteSwept(w.swept)
		}
		if ctx.Err() != nil {
			return nil
		}
		if swept := w.swept; err != nil {
			s.logger.Error("what is older than the retention could not be removed; it is tried again", "error", err)
		} else if swept != (Swept{}) {
			s.logger.Info("removed what is older than the retention", "events", swept.Events, "deliveries", swept.Deliveries,
				"expired", swept.Expired, "lost", swept.Lost, "shrunk_bytes", swept.Shrunk, "longest_step", w.longest)
		}
		timer.Reset(pause)
	}
}

// retentionTime returns the time from which the age of records is counted, and
// whether the clock was set forward in the last day. It makes a commit, since an
// idle service notices a jump of the clock only then.
func (s *core) retentionTime() (now time.Time, doubted bool, err error) {
	err = s.writer.do(func(*tx) error {
		now, doubted = s.clock.now(), s.clock.jump() > 0
		return nil
	})
	since := s.clock.doubted.Load()
	return now, doubted || since != nil && time.Since(*since) < clockDoubt, err
}

// Swept returns what was removed since Open.
func (s *Store) Swept() Swept {
	s.sweptMu.Lock()
	defer s.sweptMu.Unlock()
	return s.swept
}

func (s *core) noteSwept(swept Swept) {
	s.sweptMu.Lock()
	defer s.sweptMu.Unlock()
	s.swept.add(swept)
}

// sweep removes everything that is older than edge, and deliveries that succeeded
// before delivered, once.
func (s *core) sweep(ctx context.Context, edge, delivered time.Time) (*sweep, error) {
	w := &sweep{s: s, ctx: ctx, edge: edge.UnixMilli(), delivered: delivered.UnixMilli()}
	for _, part := range []func() error{w.removeEarly, w.deliveries, w.events, w.stats, w.rest, w.shrink} {
		w.step = firstSweep
		if err := part(); err != nil {
			return w, err
		}
	}
	return w, nil
}

// sweep is one round of retention.
type sweep struct {
	s    *core
	ctx  context.Context
	edge int64 // what is older goes
	// delivered is the edge of deliveries that succeeded, if it is later.
	delivered int64
	step      int // how many records the next step looks at
	swept     Swept

	longest time.Duration // a step has held the writer
}

// write runs one step, rests, and has the next one be as large as it can be
// without holding the writer for longer than sweepTime. fn may be called a second
// time, when what it wrote was undone.
func (w *sweep) write(fn func(*tx) error) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	var took time.Duration
	err := w.s.writer.doRepeatable(func(t *tx) error {
		began := time.Now()
		err := fn(t)
		took = time.Since(began)
		return err
	})
	w.longest = max(w.longest, took)
	if w.s.afterStep != nil {
		w.s.afterStep()
	}
	switch {
	case took > sweepTime:
		w.step = max(w.step/2, 1)
	case took < sweepTime/3:
		w.step = min(w.step*2, mostSweep)
	}
	rest := time.NewTimer(sweepRest * took)
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-w.ctx.Done():
	}
	return err
}

const (
	// The newest delivery stays: its number must not be given again.
	selectAged = `SELECT num, created_at FROM deliveries WHERE num > ? AND num < (SELECT max(num) FROM deliveries) ORDER BY num LIMIT ?`
	expireAged = `UPDATE deliveries SET status = 'failed', failure_reason = 'expired', next_attempt_at = NULL, completed_at = ?4
		WHERE num > ?1 AND num <= ?2 AND created_at < ?3 AND next_attempt_at IS NOT NULL`
)

// removal is the removal of some deliveries with all that belongs to them.
type removal struct {
	parts      [4]string
	deliveries string
}

// newRemoval returns the removal of the deliveries for which a condition holds.
func newRemoval(which string) removal {
	return removal{
		parts: [...]string{
			"DELETE FROM delivery_events WHERE (program_id, seq, delivery) IN (SELECT d.program_id, j.value, d.num FROM deliveries d, json_each(d.seqs) j WHERE d.seqs IS NOT NULL AND " + which + ")",
			"DELETE FROM stored_responses WHERE (program_id, delivery) IN (SELECT program_id, num FROM deliveries WHERE " + which + ")",
			"DELETE FROM attempts WHERE delivery IN (SELECT num FROM deliveries WHERE " + which + ")",
			"DELETE FROM responses WHERE delivery IN (SELECT num FROM deliveries WHERE " + which + ")",
		},
		deliveries: "DELETE FROM deliveries WHERE " + which,
	}
}

// removalOfAged removes those of a range of deliveries that ended before a time.
var removalOfAged = newRemoval("num > ?1 AND num <= ?2 AND completed_at < ?3")

// removeDeliveries removes deliveries, and returns how many there were.
func (t *tx) removeDeliveries(r *removal, args ...any) (int64, error) {
	for _, query := range r.parts {
		if err := t.Exec(query, args...); err != nil {
			return 0, err
		}
	}
	return t.Affected(r.deliveries, args...)
}

// deliveries ends what has waited too long, and removes what ended long ago.
func (w *sweep) deliveries() error {
	for after, more := int64(0), true; more; {
		to, n, err := w.aged(after)
		if err != nil || to == after {
			return err
		}
		more = n == w.step
		var swept Swept
		err = w.write(func(t *tx) (err error) {
			swept, err = w.removeAged(t, after, to)
			return err
		})
		if err != nil {
			return err
		}
		w.swept.add(swept)
		w.s.metrics.ended[webhook.FailureExpired].Add(float64(swept.Expired))
		after = to
	}
	return nil
}

// aged returns how far the deliveries after a num are older than the edge, and
// how many those are: as many as one step looks at.
func (w *sweep) aged(after int64) (to int64, n int, err error) {
	to = after
	err = w.s.db.Each(w.ctx, selectAged, []any{after, w.step}, func(scan func(...any) error) error {
		var num, created int64
		if err := scan(&num, &created); err != nil {
			return err
		}
		if created < w.edge { // and so is every one before it
			to, n = num, n+1
		}
		return nil
	})
	return to, n, err
}

// removeAged expires those of a range of deliveries that still wait, and removes
// those that ended before the edge.
func (w *sweep) removeAged(t *tx, after, to int64) (swept Swept, err error) {
	now, err := t.now()
	if err != nil {
		return swept, err
	}
	if err := w.announceExpired(t, after, to); err != nil {
		return swept, err
	}
	if swept.Expired, err = t.Affected(expireAged, after, to, w.edge, now); err != nil {
		return swept, err
	}
	swept.Deliveries, err = t.removeDeliveries(&removalOfAged, after, to, w.edge)
	return swept, err
}

// announceExpired tells after the commit who waits for one of the pings that
// expire, and the queues of what expires: an ordered one goes on with the next.
func (w *sweep) announceExpired(t *tx, after, to int64) error {
	return t.Each("SELECT id, subscription_id, ping IS NOT NULL FROM deliveries WHERE num > ? AND num <= ? AND created_at < ? AND next_attempt_at IS NOT NULL", []any{after, to, w.edge}, func(scan func(...any) error) error {
		var id, subscription string
		var ping bool
		err := scan((*deliveryID)(&id), &subscription, &ping)
		t.AfterCommit(func() {
			if ping {
				w.s.watchers.dropped(id)
			}
			w.s.watchers.queued(subscription)
		})
		t.deliveryChanged(0)
		return err
	})
}

const (
	selectAgedEvents = "SELECT seq FROM events WHERE program_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
	// Whose cursor has yet to pass some of these events, and how many of them it
	// would have brought.
	selectLosers = `SELECT c.subscription_id, c.seq, (
			SELECT count(*) FROM interests i JOIN events e ON e.program_id = s.program_id AND e.name = i.name
				AND e.seq > max(i.after_seq, c.seq, ?2) AND e.seq <= min(coalesce(i.until_seq, ?3), ?3)
			WHERE i.subscription_id = c.subscription_id) AS lost
		FROM subscriptions s INDEXED BY subscriptions_by_program JOIN cursors c ON c.subscription_id = s.id
		WHERE s.program_id = ?1 AND s.deleted_at IS NULL AND c.seq < ?3 AND lost > 0`
	passLost = "UPDATE cursors SET seq = ? WHERE subscription_id = ? AND seq = ?"
	addLost  = `INSERT INTO losses (subscription_id, events, first_at, last_at) VALUES (?1, ?2, ?3, ?3)
		ON CONFLICT DO UPDATE SET events = events + ?2, last_at = ?3`
	removeEvents = `DELETE FROM events WHERE program_id = ?1 AND seq > ?2 AND seq <= ?3
		AND NOT EXISTS (SELECT 1 FROM delivery_events x WHERE x.program_id = events.program_id AND x.seq = events.seq)`
)

// events removes the oldest of each program's log.
func (w *sweep) events() error {
	var programs []string
	err := w.s.db.Each(w.ctx, "SELECT id FROM programs", nil, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		programs = append(programs, id)
		return err
	})
	for _, id := range programs {
		if err == nil {
			err = w.eventsOf(id)
		}
	}
	return err
}

func (w *sweep) eventsOf(programID string) error {
	until, err := w.s.seqBefore(w.ctx, programID, time.UnixMilli(w.edge))
	if err != nil {
		return err
	}
	var head int64
	if err := w.s.db.Scan(w.ctx, "SELECT coalesce(max(seq), 0) FROM events WHERE program_id = ?", []any{programID}, &head); err != nil {
		return err
	}
	until = min(until, head-1) // the newest holds the log's end
	lost := make(map[string]int64)
	// What was passed is lost, also when the sweep does not come to its end.
	err = errors.Join(w.eventsUpTo(programID, until, lost), w.alertLosses(programID, lost))
	if err == nil {
		err = w.forgetDelivered(programID)
	}
	return err
}

func (w *sweep) eventsUpTo(programID string, until int64, lost map[string]int64) error {
	for after := int64(0); after < until; {
		to := after
		err := w.s.db.Each(w.ctx, selectAgedEvents, []any{programID, after, until, w.step}, func(scan func(...any) error) error { return scan(&to) })
		if err != nil {
			return err
		}
		if to == after {
			return nil
		}
		if err := w.passLosses(programID, after, to, lost); err != nil {
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

// loser is a subscription that waits for events that are about to be removed.
type loser struct {
	id     string
	cursor int64
	events int64
}

// passLosses moves the cursors that have not come past a piece of the log, so
// that nothing can be formed from it any more, and counts what that costs. Who
// loses is found out by reading: it can only become less meanwhile, since new
// interest begins at the end of the log.
func (w *sweep) passLosses(programID string, after, to int64, lost map[string]int64) error {
	for {
		losers, err := w.losers(programID, after, to)
		if err != nil || len(losers) == 0 {
			return err
		}
		for len(losers) > 0 {
			some := losers[:min(len(losers), w.step)]
			losers = losers[len(some):]
			var passed []loser
			err := w.write(func(t *tx) (err error) {
				passed, err = w.pass(t, some, to)
				return err
			})
			if err != nil {
				return err
			}
			for _, l := range passed {
				lost[l.id] += l.events
				w.swept.Lost += l.events
			}
		}
	}
}

// losers returns the subscriptions that wait for events of a piece of the log.
func (w *sweep) losers(programID string, after, to int64) (losers []loser, err error) {
	err = w.s.db.Each(w.ctx, selectLosers, []any{programID, after, to}, func(scan func(...any) error) error {
		var l loser
		err := scan(&l.id, &l.cursor, &l.events)
		losers = append(losers, l)
		return err
	})
	return losers, err
}

// pass moves the cursors of losers to a seq, and returns those whose cursor was
// still where it was read: the others have moved on or are deleted.
func (w *sweep) pass(t *tx, losers []loser, to int64) (passed []loser, err error) {
	now := w.s.clock.now().UnixMilli()
	for _, l := range losers {
		n, err := t.Affected(passLost, to, l.id, l.cursor)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			continue
		}
		if err := t.Exec(addLost, l.id, l.events, now); err != nil {
			return nil, err
		}
		passed = append(passed, l)
		t.AfterCommit(func() { w.s.watchers.subscriptionChanged(l.id) })
	}
	return passed, nil
}

// alertLosses tells the operator what retention has cost subscriptions so far:
// once a day each, however many sweeps go on costing more.
func (w *sweep) alertLosses(programID string, lost map[string]int64) error {
	for id := range lost {
		err := w.s.writer.do(func(t *tx) error {
			var told bool
			if err := t.Scan(selectTold, []any{id, w.s.clock.now().Add(-lossesTold).UnixMilli()}, &told); err != nil || told {
				return err
			}
			sub, err := t.subscription(programID, id)
			var gone *webhook.Error
			if errors.As(err, &gone) {
				return nil // with its subscription
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
			return w.s.alert(t, &webhook.Alert{Name: webhook.AlertLost, Subscription: sub, Lost: n, LostBefore: time.UnixMilli(w.edge)}, in.num)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	lossesTold = 24 * time.Hour
	selectTold = "SELECT EXISTS (SELECT 1 FROM alerts WHERE subscription_id = ? AND name = 'events_lost' AND created_at > ?)"
)

// stats removes the statistics by the minute after two days, those by the hour
// with all else.
func (w *sweep) stats() error {
	for _, part := range []struct {
		span time.Duration
		edge int64
	}{{StatMinute, max(w.edge, w.s.clock.now().Add(-minutesFor).UnixMilli())}, {StatHour, w.edge}} {
		for removed := int64(1); removed > 0; {
			err := w.write(func(t *tx) (err error) {
				removed, err = t.Affected(removeStats, part.span.Milliseconds(), part.edge, w.step)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// rest removes what is small.
func (w *sweep) rest() error {
	now := w.s.clock.wait(w.s.clock.now())
	for _, part := range []struct {
		find   string // the keys of what goes
		edge   int64
		remove []string
	}{
		{selectExpired, now, []string{"DELETE FROM idempotency_keys WHERE rowid IN (SELECT value FROM json_each(?))"}},
		{selectAgedReplays, w.edge, []string{"DELETE FROM replays WHERE id IN (SELECT value FROM json_each(?))"}},
		{selectAgedBulkLinks, w.edge, []string{"DELETE FROM bulk_run_deliveries WHERE (run, delivery) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))"}},
		{selectAgedBulkRuns, w.edge, []string{"DELETE FROM bulk_runs WHERE num IN (SELECT value FROM json_each(?))"}},
		{selectAgedAlerts, w.edge, []string{
			"DELETE FROM alert_sends WHERE alert IN (SELECT value FROM json_each(?))",
			"DELETE FROM alerts WHERE num IN (SELECT value FROM json_each(?))",
		}},
		{selectAgedSends, w.edge, []string{"DELETE FROM alert_sends WHERE num IN (SELECT value FROM json_each(?))"}},
		{selectAgedIncidents, w.edge, []string{"DELETE FROM incidents WHERE num IN (SELECT value FROM json_each(?))"}},
		{selectForgotten, w.edge, []string{
			"DELETE FROM incidents WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM losses WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM response_marks WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM delivered WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM replays WHERE subscription_id IN (SELECT value FROM json_each(?))",
			"DELETE FROM subscriptions WHERE id IN (SELECT value FROM json_each(?))",
		}},
	} {
		for more := true; more; {
			keys, err := w.keys(part.find, part.edge)
			if err != nil {
				return err
			}
			if more = len(keys) > 0; more {
				if err := w.remove(keys, part.remove); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// keys returns the keys that a query finds for one step.
func (w *sweep) keys(find string, which any) (keys []any, err error) {
	err = w.s.db.Each(w.ctx, find, []any{which, w.step}, func(scan func(...any) error) error {
		var key any
		err := scan(&key)
		if text, ok := key.([]byte); ok { // as one of the drivers has it
			key = string(text)
		}
		keys = append(keys, key)
		return err
	})
	return keys, err
}

// remove runs the queries with the keys in one step.
func (w *sweep) remove(keys []any, queries []string) error {
	list, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	return w.write(func(t *tx) error {
		for _, query := range queries {
			if err := t.Exec(query, string(list)); err != nil {
				return err
			}
		}
		return nil
	})
}

var (
	selectAgedReplays  = "SELECT id FROM replays WHERE completed_at < ? ORDER BY completed_at LIMIT ?"
	selectAgedBulkRuns = "SELECT num FROM bulk_runs WHERE completed_at < ? ORDER BY completed_at LIMIT ?"
	// They are many for one run.
	selectAgedBulkLinks = "SELECT json_array(x.run, x.delivery) FROM bulk_runs r CROSS JOIN bulk_run_deliveries x ON x.run = r.num WHERE r.completed_at < ? LIMIT ?"
	// One that is yet to be sent is young, unless alerts are not sent any more.
	selectAgedAlerts    = "SELECT num FROM (SELECT num, created_at FROM alerts ORDER BY num LIMIT ?2) WHERE created_at < ?1"
	selectAgedSends     = "SELECT num FROM (SELECT num, created_at FROM alert_sends ORDER BY num LIMIT ?2) WHERE created_at < ?1"
	selectAgedIncidents = "SELECT num FROM incidents WHERE closed_at < ? ORDER BY closed_at LIMIT ?"
	// Deleted subscriptions of which no delivery is left.
	selectForgotten = "SELECT id FROM subscriptions s WHERE deleted_at < ? AND NOT EXISTS (" + byCreation.query("1", "s.id", "", "") + ") ORDER BY deleted_at LIMIT ?"
)

// LostEvents returns how many events a subscription has lost to retention.
func (s Subscriptions) LostEvents(ctx context.Context, subscriptionID string) (n int64, err error) {
	return n, s.db.Scan(ctx, "SELECT coalesce(sum(events), 0) FROM losses WHERE subscription_id = ?", []any{subscriptionID}, &n)
}

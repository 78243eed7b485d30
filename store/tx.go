package store

import (
	"database/sql"
	"errors"
	"sync/atomic"

	"service/store/commits"
	"service/store/people"
	"service/store/replica"
	"service/store/sqlite"
	"service/store/watch"
	"service/webhook"
)

// writer is the writer of the database, with the store's state between commits. Fields without
// another owner belong to the leader of the writer.
type writer struct {
	*sqlite.Writer // set by Open before the first write

	commits *commits.Count // set by Open before the first write
	packed  []byte         // buffer for the stored form of an event

	lease   atomic.Pointer[Lease] // required for writing; nil for none
	credits atomic.Pointer[Credits]

	heads    map[string]head // of each program's log
	typeUses typeUses
	// IDs of all subscriptions with a row in failures, in undelivered and in splits, and possibly
	// more; nil if unknown.
	fails, undelivered, splits map[string]struct{}

	last    int64 // newest created_at of a delivery; 0 if unknown
	running bool  // the clock has been recovered, so chores may run
	tx      tx
}

// tx is the transaction of a write, with the store's state of the commit. It is valid until the
// function that it was passed to returns.
type tx struct {
	*sqlite.Tx
	s      *core
	w      *writer // the writer of s
	people people.Writes

	touched   []string // programs whose head this write has moved
	published int      // how many of accepted are from earlier writes
	left      bool     // this write has removed a subscription from one of the sets of failures

	dropped []string // event types that this commit deletes
	kept    int      // how many of dropped are from earlier writes

	changed []int64 // deliveries that this commit stores or changes; see deliveryChanged

	states []stateSet // of programs, oldest first
	set    int        // how many of states are from earlier writes

	accepted []webhook.Event // events published in this commit so far
	many     bool            // more events were published than accepted contains
	spending bool            // credits are being spent, or spending them failed
	formed   []*Forming      // from these credits
}

func newWriter(s *core) *writer {
	w := &writer{heads: make(map[string]head), typeUses: make(typeUses)}
	w.tx.s, w.tx.w = s, w
	return w
}

// do is [sqlite.Writer.Do] with the store's transaction.
func (w *writer) do(fn func(*tx) error) error {
	return w.Do(func(*sqlite.Tx) error { return fn(&w.tx) })
}

// doRepeatable is [sqlite.Writer.DoRepeatable] with the store's transaction.
func (w *writer) doRepeatable(fn func(*tx) error) error {
	return w.DoRepeatable(func(*sqlite.Tx) error { return fn(&w.tx) })
}

// permit is the hook [sqlite.Hooks].Permit: it forbids commits after the lease has ended.
func (w *writer) permit() error {
	if !w.leased() {
		return replica.ErrLeaseExpired
	}
	return nil
}

// leased reports whether the required lease, if any, is valid.
func (w *writer) leased() bool {
	l := w.lease.Load()
	return l == nil || l.Valid()
}

// beforeWrite is the hook [sqlite.Hooks].BeforeWrite.
func (w *writer) beforeWrite(t *sqlite.Tx) {
	w.tx.Tx, w.tx.people = t, people.NewWrites(t, w.tx.s.clock.Now)
	w.tx.touched, w.tx.published, w.tx.kept, w.tx.left = w.tx.touched[:0], len(w.tx.accepted), len(w.tx.dropped), false
	w.tx.set = len(w.tx.states)
}

// undoWrite is the hook [sqlite.Hooks].UndoWrite.
func (w *writer) undoWrite() {
	t := &w.tx
	for _, p := range t.touched {
		delete(w.heads, p)
	}
	t.accepted, t.dropped, t.states = t.accepted[:t.published], t.dropped[:t.kept], t.states[:t.set]
	if t.left {
		w.forgetFailures()
	}
}

// beforeCommit is the hook [sqlite.Hooks].BeforeCommit: it spends the credits offered for the
// events in this transaction.
func (w *writer) beforeCommit(*sqlite.Tx) error {
	c, t := w.credits.Load(), &w.tx
	if c == nil || len(t.accepted) == 0 || t.many {
		return nil
	}
	t.spending = true
	err := t.spend(c)
	t.spending = err != nil
	return err
}

// afterCommit is the hook [sqlite.Hooks].AfterCommit.
func (w *writer) afterCommit() {
	w.commits.Committed()
	w.tx.s.watchers.DeliveriesChanged(w.tx.changed)
	w.tx.end(nil)
}

// stamp is the hook [sqlite.Hooks].Stamp.
func (w *writer) stamp(t *sqlite.Tx) error { return w.commits.Stamp(t) }

// rollback is the hook [sqlite.Hooks].Rollback: it discards cached state of the database, which
// may be outdated.
func (w *writer) rollback(err error) {
	w.commits.Undone()
	clear(w.heads)
	w.forgetFailures()
	t := &w.tx
	if errors.Is(err, sqlite.ErrRolledBack) {
		if t.spending {
			t.s.logger.Error("failed to store deliveries in the commit of their events; storing them afterwards", "error", err)
		}
		err = ErrStale
	}
	t.end(err)
}

// forgetFailures makes the next write that needs the sets of failures read them again.
func (w *writer) forgetFailures() { w.fails, w.undelivered, w.splits = nil, nil, nil }

// end ends the transaction with the result err, nil for a commit: it settles the spent credits
// and discards what was published.
func (t *tx) end(err error) {
	t.settle(err)
	clear(t.accepted)
	t.accepted, t.many, t.spending, t.dropped, t.states = t.accepted[:0], false, false, t.dropped[:0], nil
	t.changed = t.changed[:0]
}

// head is the end of a program's log, zero for an empty log.
type head struct {
	seq      int64
	received int64 // Unix milliseconds
}

// head returns the end of a program's log.
func (t *tx) head(programID string) (head, error) {
	if h, ok := t.w.heads[programID]; ok {
		return h, nil
	}
	var h head
	err := t.Scan("SELECT seq, received_at FROM events WHERE program_id = ? ORDER BY seq DESC LIMIT 1", []any{programID}, &h.seq, &h.received)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return h, err
	}
	t.w.heads[programID] = h
	return h, nil
}

// setHead caches the new end of a log. If the write fails, undoWrite drops it.
func (t *tx) setHead(programID string, h head) {
	t.touched = append(t.touched, programID)
	t.w.heads[programID] = h
}

// now returns the created_at for a new delivery, in Unix milliseconds. It never decreases from
// one delivery to the next, even if the clock is set back, so that a range of time is a range
// of deliveries.
func (t *tx) now() (int64, error) {
	if t.w.last == 0 {
		err := t.Scan("SELECT coalesce(max(created_at), 0) FROM (SELECT created_at FROM deliveries ORDER BY num DESC LIMIT 1)", nil, &t.w.last)
		if err != nil {
			return 0, err
		}
	}
	t.w.last = max(t.w.last, t.s.clock.Now().UnixMilli())
	return t.w.last, nil
}

// deliveryChanged notes that the current write stores or changes a delivery; num 0 stands for
// any deliveries. The watchers of deliveries are notified after the commit, even if this write
// is undone.
func (t *tx) deliveryChanged(num int64) {
	if len(t.changed) < watch.MaxChanged {
		t.changed = append(t.changed, num)
	} else {
		t.changed[watch.MaxChanged-1] = 0
	}
}

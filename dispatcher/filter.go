package dispatcher

import (
	"time"

	"service/store"
	"service/store/watch"
)

const (
	// passedWithin is the maximum delay of storing a cursor that has passed events which its filters
	// exclude. It is stored earlier once the stored cursor is maxPassed events behind.
	passedWithin = time.Minute
	maxPassed    = 1000
)

// passing is a queue without a waiting event up to a seq.
type passing struct {
	queue *subscriptionQueue
	seq   int64
}

// examine returns a function that returns the newest seq of a key's events that an interest
// includes, among those after the last examination and up to seq; it returns seq if that is unknown.
// The first call reads the events.
func (s *queueSet) examine(st *store.Store, key watch.EventKey, seq int64) func(*store.Interest) int64 {
	var events *store.Examined
	return func(in *store.Interest) int64 {
		if events == nil {
			events = st.Queues().Examine(key, s.examined, seq)
			s.examined = seq
		}
		if !events.Complete {
			return seq
		}
		return events.Newest(in)
	}
}

// pass lets a queue without waiting events pass events that its filters exclude. The caller holds
// d.mu.
func (d *Dispatcher) pass(q *subscriptionQueue, seq int64, now time.Time) {
	if q.readSeq < q.wantedSeq || seq <= q.readSeq {
		return
	}
	withdrawn := d.withdraw(q)
	if q.phase != phaseCurrent {
		return
	}
	q.Seen, q.readSeq, q.wantedSeq = seq, seq, seq
	d.notePassed(q, now)
	if withdrawn { // otherwise nothing depends on the cursor, and ten thousand queues may pass one event
		d.reschedule(q, phaseCurrent, now)
	}
}

// withdraw withdraws the offered credit of a queue, if there is one and it has not been spent, and
// reports whether it did. The cursor of a queue in phaseCurrent belongs to the caller, who holds d.mu, and
// calls reschedule next if a credit was withdrawn.
func (d *Dispatcher) withdraw(q *subscriptionQueue) bool {
	if q.phase != phaseOffered || !d.credits.Withdraw(&q.credit) {
		return false
	}
	d.enter(q, phaseCurrent)
	q.forming--
	return true
}

// notePassed schedules the storing of a queue's cursor if it has passed events. The caller holds
// d.mu, and owns the cursor.
func (d *Dispatcher) notePassed(q *subscriptionQueue, now time.Time) {
	by := now.Add(passedWithin)
	switch behind := q.Seen - q.Cursor; {
	case behind == 0 || behind < maxPassed && !d.passedBy.IsZero():
		return
	case behind >= maxPassed:
		by = now
	}
	if _, filtered := d.filtered[q]; filtered {
		d.passedBy = by
		d.wake()
	}
}

// storePassed begins to store the cursors of the queues with filters that have passed events. The
// caller holds d.mu, and must call the returned function next, which waits for the end.
func (d *Dispatcher) storePassed(now time.Time) (wait func()) {
	d.passedBy = time.Time{}
	var passed []store.Passed
	for q := range d.filtered {
		withdrawn := d.withdraw(q)
		if q.phase == phaseCurrent && q.forming == 0 && q.Seen > q.Cursor {
			passed = append(passed, q.Pass())
		}
		if withdrawn {
			d.reschedule(q, phaseCurrent, now)
		}
	}
	wait = func() {}
	if len(passed) > 0 {
		stored := d.store.Queues().StorePassed(passed)
		wait = func() {
			if err := stored(); err != nil { // these queues are reloaded, and the events examined again
				d.logger.Debug("failed to store how far filters have read", "error", err)
			}
		}
	}
	return wait
}

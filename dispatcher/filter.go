package dispatcher

import (
	"time"

	"service/store"
)

const (
	// passedWithin is how long a cursor that has passed events which do not match is at most behind
	// in the store, unless it is maxPassed events behind before.
	passedWithin = time.Minute
	maxPassed    = 1000
)

// passing is a queue without a waiting event up to a seq.
type passing struct {
	queue *subscriptionQueue
	seq   int64
}

// examine returns a function for the filters of the queues in the set: the newest seq of a key that
// an interest includes, after those that were examined before, up to seq. It is seq if that is not
// known. The events are read with its first call.
func (s *queueSet) examine(st *store.Store, key store.EventKey, seq int64) func(*store.Interest) int64 {
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

// pass lets a queue for which nothing waits pass events that its filters exclude. The caller holds
// d.mu.
func (d *Dispatcher) pass(q *subscriptionQueue, seq int64, now time.Time) {
	if q.readSeq < q.wantedSeq || seq <= q.readSeq || !d.own(q) {
		return
	}
	q.Seen, q.readSeq, q.wantedSeq = seq, seq, seq
	d.notePassed(q, now)
	d.reschedule(q, phaseCurrent, now)
}

// own reports whether the cursor of a queue belongs to the caller, once its offered credit is
// withdrawn. The caller holds d.mu, and calls reschedule next.
func (d *Dispatcher) own(q *subscriptionQueue) bool {
	if q.phase == phaseOffered && d.credits.Withdraw(&q.credit) {
		d.enter(q, phaseCurrent)
		q.forming--
	}
	return q.phase == phaseCurrent
}

// notePassed makes sure that the cursor of a queue is stored in time, if it has passed events. The
// caller holds d.mu, and owns the cursor.
func (d *Dispatcher) notePassed(q *subscriptionQueue, now time.Time) {
	_, filtered := d.filtered[q]
	switch behind := q.Seen - q.Cursor; {
	case !filtered || behind == 0:
	case behind >= maxPassed:
		d.passedBy = now
		d.wake()
	case d.passedBy.IsZero():
		d.passedBy = now.Add(passedWithin)
		d.wake()
	}
}

// storePassed begins to store the cursors of the queues with filters that have passed events, and
// returns a function that must be called next, and waits for it. The caller holds d.mu.
func (d *Dispatcher) storePassed(now time.Time) (wait func()) {
	d.passedBy = time.Time{}
	var passed []store.Passed
	for q := range d.filtered {
		if !d.own(q) {
			continue
		}
		if q.forming == 0 && q.Seen > q.Cursor {
			passed = append(passed, q.Pass())
		}
		d.reschedule(q, phaseCurrent, now)
	}
	wait = func() {}
	if len(passed) > 0 {
		stored := d.store.Queues().StorePassed(passed)
		wait = func() {
			if err := stored(); err != nil { // these queues are read again, and the events examined again
				d.logger.Debug("failed to store how far filters have read", "error", err)
			}
		}
	}
	return wait
}

package dispatcher

import (
	"container/heap"
	"time"
)

// move moves a queue to a phase, where the table at phase allows it, and does what
// its state asks for then: it has the queue read again, puts it into the run queue
// of its priority if it can use a slot now, and sets its timer for the next time
// at which it may. If it has nothing to do its next delivery is offered to the
// writer. Every change of a queue ends with move, to the phase that it is
// in if that is not what has changed. The caller holds d.mu.
func (d *Dispatcher) reschedule(q *subscriptionQueue, to phase, now time.Time) {
	if q.phase == phaseOffered && d.credits.Withdraw(&q.credit) {
		q.phase = phaseCurrent
		q.forming--
		if to == phaseOffered {
			to = phaseCurrent
		}
	}
	from := q.phase
	q.phase = q.transition(to, now)
	if q.phase == phaseReloadPending && from != phaseReloadPending {
		d.reloads = append(d.reloads, q)
		d.wake()
	}
	if _, ok := q.runnable(now, q.wanted, &d.cfg); ok {
		if p := q.priority(now); !q.ready[p] {
			q.ready[p] = true
			d.ready[p].push(q)
			d.credits.Pause(true) // until it is known that it cannot use a slot
		}
	} else if d.offer(q, now) {
		q.phase = phaseOffered
		q.forming++
	}
	if !q.pingReady && q.hasPing(now) {
		q.pingReady = true
		d.pings.push(q)
	}
	at := q.nextTime(now)
	switch {
	case at.Equal(q.timer.at):
		return
	case at.IsZero():
		heap.Remove(&d.timers, q.timer.index())
		q.timer.at = at
		return
	case q.timer.queued():
		q.timer.at = at
		heap.Fix(&d.timers, q.timer.index())
	default:
		q.timer.at = at
		heap.Push(&d.timers, q)
	}
	if d.timers[0] == q {
		d.wake() // the loop waits for a later time
	}
}

// expire looks at the queues whose timers have ended. The caller holds d.mu, which
// others may have in between.
func (d *Dispatcher) expire(now time.Time) {
	for n := 1; len(d.timers) > 0 && !d.timers[0].timer.at.After(now); n++ {
		if n%yieldEvery == 0 {
			d.yield()
			continue // it may be another's turn
		}
		q := heap.Pop(&d.timers).(*subscriptionQueue)
		q.timer.at = time.Time{}
		d.reschedule(q, q.phase, now)
	}
}

// nextTime returns when the loop must look again if nothing else happens, zero for
// never. The caller holds d.mu.
func (d *Dispatcher) nextTime(now time.Time) time.Time {
	var at time.Time
	if len(d.timers) > 0 {
		at = d.timers[0].timer.at
	}
	if now.Before(d.pausedUntil) {
		at = earliest(at, d.pausedUntil)
	}
	return at
}

func due(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// earliest returns the earlier of two times, zero being none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// timer is when a queue may have a job that it does not have now.
type timer struct {
	at        time.Time // zero: none
	heapIndex int       // index in timers + 1; 0: none
}

func (t *timer) queued() bool { return t.heapIndex > 0 }
func (t *timer) index() int   { return t.heapIndex - 1 }

// timers is a heap of queues, the one with the earliest timer first. It
// implements [heap.Interface].
type timers []*subscriptionQueue

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].timer.at.Before(t[j].timer.at) }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer.heapIndex, t[j].timer.heapIndex = i+1, j+1
}

func (t *timers) Push(q any) {
	*t = append(*t, q.(*subscriptionQueue))
	q.(*subscriptionQueue).timer.heapIndex = len(*t)
}

func (t *timers) Pop() any {
	old := *t
	q := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	q.timer.heapIndex = 0
	return q
}

// runQueue holds the subscription queues that can use a slot, first in, first
// out.
type runQueue struct {
	queues []*subscriptionQueue
	head   int // index of the first; those before it were popped
}

func (r *runQueue) len() int { return len(r.queues) - r.head }

func (r *runQueue) push(q *subscriptionQueue) {
	if r.head > 64 && r.head > len(r.queues)/2 {
		n := copy(r.queues, r.queues[r.head:])
		clear(r.queues[n:])
		r.queues, r.head = r.queues[:n], 0
	}
	r.queues = append(r.queues, q)
}

// pop must not be called on an empty run queue.
func (r *runQueue) pop() *subscriptionQueue {
	q := r.queues[r.head]
	r.queues[r.head] = nil
	r.head++
	if r.head == len(r.queues) {
		r.queues, r.head = r.queues[:0], 0
	}
	return q
}

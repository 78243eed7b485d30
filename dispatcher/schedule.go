package dispatcher

import (
	"container/heap"
	"time"
)

// reschedule sets q's phase to what transition returns for the requested phase to, and
// updates everything that depends on q's state: pending reloads, the run queue that it is
// in, its timer and its offered credit. It must be called after every change of a
// queue, with q.phase if the phase stays the same. The caller holds d.mu.
func (d *Dispatcher) reschedule(q *subscriptionQueue, to phase, now time.Time) {
	if d.withdraw(q) && to == phaseOffered {
		to = phaseCurrent
	}
	from := q.phase
	d.enter(q, q.transition(to, now))
	if q.phase == phaseReloadPending && from != phaseReloadPending {
		d.reloads = append(d.reloads, q)
		d.wake()
	}
	if _, ok := q.runnable(now, q.wantedSeq, &d.cfg); ok {
		d.enterRunQueue(q)
	} else {
		d.leaveRunQueue(q)
		if d.offer(q, now) {
			d.enter(q, phaseOffered)
			q.forming++
		}
	}
	if !q.inPingQueue && q.hasPing(now) {
		q.inPingQueue = true
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

// enter sets q's phase. The caller holds d.mu.
func (d *Dispatcher) enter(q *subscriptionQueue, to phase) {
	if d.entered != nil {
		d.entered(q.phase, to)
	}
	q.phase = to
}

// expire reschedules the queues whose timers have expired. The caller holds d.mu,
// which expire may release for a moment.
func (d *Dispatcher) expire(now time.Time) {
	for n := 1; len(d.timers) > 0 && !d.timers[0].timer.at.After(now); n++ {
		if n%yieldEvery == 0 {
			d.yield()
			continue // another queue may be first now
		}
		q := heap.Pop(&d.timers).(*subscriptionQueue)
		q.timer.at = time.Time{}
		d.reschedule(q, q.phase, now)
	}
}

// nextTime returns when the loop must run again if nothing else happens, zero for never. The
// caller holds d.mu.
func (d *Dispatcher) nextTime(now time.Time) time.Time {
	var at time.Time
	if len(d.timers) > 0 {
		at = d.timers[0].timer.at
	}
	if now.Before(d.pausedUntil) {
		at = earliest(at, d.pausedUntil)
	}
	return earliest(at, d.passedBy)
}

func due(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// earliest returns the earlier of two times, where zero means none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// timer is the next time at which a queue may have work that it does not have now.
type timer struct {
	at        time.Time // zero for never
	heapIndex int       // index in timers plus 1; 0 when not in it
}

func (t *timer) queued() bool { return t.heapIndex > 0 }
func (t *timer) index() int   { return t.heapIndex - 1 }

// timers is a heap of queues ordered by their timers, earliest first. It implements
// [heap.Interface].
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

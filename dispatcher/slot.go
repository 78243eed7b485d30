package dispatcher

import (
	"context"
	"time"

	"service/store"
	"service/webhook"
)

// job is a slot given to a queue, and what to use it for.
type job struct {
	queue     *subscriptionQueue
	id        string // subscription id
	kind      store.CreditKind
	priority  priority // of the queue when it got the slot
	beforeDue bool     // for CreditDue: nothing is due, and a probe repeats a delivery ahead of its schedule
	probe     bool     // for CreditPing: the ping is the next probe
	splits    int      // for CreditEvents: splitsOpened of the queue when it got the slot
}

// dispatch starts a worker for each free slot that a queue can use. Slots that
// remain are available to offered credits. The caller holds d.mu.
func (d *Dispatcher) dispatch(sendCtx context.Context, now time.Time) {
	d.credits.Pause(true)
	for {
		j, ok := d.reserve(now)
		if !ok {
			break
		}
		d.workers.Add(1)
		go d.runJobs(sendCtx, j, nil)
	}
	_, waits := d.nextPriority()
	d.credits.Pause(waits || d.stopping || d.restoreHold || now.Before(d.pausedUntil))
}

// reserve takes a slot for the next queue in turn. It returns false if no slot is
// free or no queue can use one. The caller holds d.mu and has paused the credits.
func (d *Dispatcher) reserve(now time.Time) (job, bool) {
	if d.stopping || now.Before(d.pausedUntil) {
		return job{}, false
	}
	if j, ok := d.reservePing(now); ok {
		return j, true
	}
	if d.restoreHold {
		return job{}, false
	}
	for n := 1; ; n++ {
		p, ok := d.nextPriority()
		if !ok {
			return job{}, false
		}
		if n == yieldEvery {
			d.wake() // let others lock d.mu; the loop of Run then calls reserve again
			return job{}, false
		}
		q := d.runQueues[p].pop()
		q.inRunQueue[p] = false
		kind, ok := q.runnable(now, q.wantedSeq, &d.cfg)
		if !ok || q.priority(now) != p {
			if !ok {
				d.ungrant(q)
			}
			d.reschedule(q, q.phase, now) // not yet, or with another priority
			d.unpark(q.program, now)
			continue
		}
		if !d.takeSlot(q) {
			continue
		}
		j := job{queue: q, id: q.SubscriptionID, kind: kind, priority: p, beforeDue: kind == store.CreditDue && !due(q.nextDue, now),
			splits: q.splitsOpened}
		d.occupy(j)
		d.nextTurn = (p + 1) % priorities
		to := q.phase
		switch kind {
		case store.CreditDue:
			q.nextDue = time.Time{}
		case store.CreditReplay:
			q.replayForming = true
		default:
			q.forming++
			to = phaseReading
		}
		d.unpark(q.program, now)
		d.reschedule(q, to, now)
		return j, true
	}
}

// occupy counts a slot that was given to a queue. The caller holds d.mu.
func (d *Dispatcher) occupy(j job) {
	j.queue.inFlight++
	j.queue.pace.take(j.queue.MaxPerSecond, time.Now())
	if j.priority > priorityIdle {
		d.lowInFlight++
	}
}

// reservePing takes a ping slot for the next queue in turn. It returns false if no
// slot is free, or if no program with a due ping may have one. The caller holds d.mu.
func (d *Dispatcher) reservePing(now time.Time) (job, bool) {
	for q := d.pings.next(); q != nil; q = d.pings.next() {
		q.inPingQueue = false
		if !q.hasPing(now) {
			d.reschedule(q, q.phase, now) // not yet
			continue
		}
		// Decided here, while the queue is known to be current: when the worker spends the
		// credit, the ping of another worker may just have ended as this probe.
		probe := q.pingsInFlight == 0 && q.pingProbeDue(now)
		q.probeEarly = q.probeEarly && !probe
		d.pings.acquire(q)
		q.pingsInFlight++
		q.nextPing = time.Time{}
		return job{queue: q, id: q.SubscriptionID, kind: store.CreditPing, probe: probe}, true
	}
	return job{}, false
}

// nextPriority returns the next priority in turn whose queues may have a slot. Each
// priority leaves some slots to the ones before it, so a receiver that responds
// finds a free slot however many hang. Receivers that respond may use all slots, which
// could starve retries: the low priorities therefore get up to d.lowReserve slots even
// beyond their shares. The caller holds d.mu.
func (d *Dispatcher) nextPriority() (priority, bool) {
	taken := d.credits.Taken()
	if taken >= d.cfg.MaxConnections {
		return 0, false
	}
	for i := range priorities {
		p := (d.nextTurn + i) % priorities
		if d.runQueues[p].len() > 0 && (taken < d.shares[p] || p > priorityIdle && d.lowInFlight < d.lowReserve) {
			return p, true
		}
	}
	return 0, false
}

// runJobs is a worker: it makes the attempt of j, then of the next job in turn,
// until there is none. f is the delivery of j if the store is already forming it,
// else nil.
func (d *Dispatcher) runJobs(sendCtx context.Context, j job, f *store.Forming) {
	defer d.workers.Done()
	for ok := true; ok; f = nil {
		var prep *prepared
		if f == nil {
			f = d.spendCredit(sendCtx, j)
		} else {
			prep = d.prepare(j, f)
		}
		claim := d.awaitClaim(sendCtx, j, f)
		var a webhook.Attempt
		var r store.Recorded
		if claim != nil {
			a, r = d.attempt(sendCtx, j.queue, claim, prep)
		} else {
			prep.discard()
		}
		d.mu.Lock()
		now := time.Now()
		if claim != nil && j.kind != store.CreditPing {
			j.queue.recordAttempt(claim, &a, &r, now, &d.cfg)
		}
		d.release(j, &r, now)
		j, ok = d.reserve(now)
		d.dispatch(sendCtx, now)
		d.mu.Unlock()
	}
}

// release returns the slot of j. Waiting queues get it before offered credits. r is
// the result of the attempt. The caller holds d.mu.
func (d *Dispatcher) release(j job, r *store.Recorded, now time.Time) {
	q, next, to := j.queue, r.NextAttemptAt, j.queue.phase
	if r.HealthChanged || r.Resized {
		to = phaseStale
	}
	d.credits.Pause(true)
	if j.kind == store.CreditPing {
		d.pings.release(q)
		q.pingsInFlight--
		q.nextPing = earliest(q.nextPing, next)
	} else {
		d.credits.Return(q.program.slots)
		d.unpark(q.program, now) // before q asks for another slot
		d.forget(q.program)
		q.inFlight--
		if j.priority > priorityIdle {
			d.lowInFlight--
		}
		q.nextDue = earliest(q.nextDue, next)
	}
	d.reschedule(q, to, now)
}

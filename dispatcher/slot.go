package dispatcher

import (
	"context"
	"time"

	"service/store"
	"service/webhook"
)

// job is a slot given to a queue, and what to use it for.
type job struct {
	queue *subscriptionQueue
	id    string // subscription ID
	kind  store.CreditKind
	class store.SlotClass // in which the slot was taken; not for pings
	// credit was created with the slot, while the queue was known to be current. If the subscription
	// changes before the worker spends the credit, the store refuses it. Not set for inline delivery.
	credit store.Credit
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
	d.credits.Pause(d.stopping || d.restoreHold || now.Before(d.pausedUntil))
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
	for {
		slots, class := d.credits.Take()
		if slots == nil {
			return job{}, false
		}
		q := d.programs[slots.ID].waiting[class].Front().Value.(*subscriptionQueue)
		kind, ok := q.runnable(now, q.wantedSeq, &d.cfg)
		if !ok {
			d.credits.Return(slots, class)
			d.reschedule(q, q.phase, now)
			continue
		}
		j := job{queue: q, id: q.SubscriptionID, kind: kind, class: class}
		d.leaveRunQueue(q) // it enters at the end again
		d.occupy(j)
		j.credit = d.credit(q, kind)
		j.credit.BeforeDue = kind == store.CreditDue && q.Failing && !due(q.nextDue, now)
		if j.credit.Splits {
			q.splitting = false // unless the store finds something to send, or another split is opened
		}
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
		d.reschedule(q, to, now)
		return j, true
	}
}

// occupy counts a slot that was given to a queue. The caller holds d.mu.
func (d *Dispatcher) occupy(j job) {
	j.queue.inFlight++
	j.queue.pace.Take(j.queue.MaxPerSecond, time.Now())
}

// reservePing takes a ping slot for the next queue in turn. It returns false if no
// slot is free, or if no program with a due ping may have one. The caller holds d.mu.
func (d *Dispatcher) reservePing(now time.Time) (job, bool) {
	for q := d.pings.next(); q != nil; q = d.pings.next() {
		q.inPingQueue = false
		if !q.hasPing(now) {
			d.reschedule(q, q.phase, now) // its ping is not due yet
			continue
		}
		j := job{queue: q, id: q.SubscriptionID, kind: store.CreditPing, credit: d.credit(q, store.CreditPing)}
		j.credit.Probe = q.pingsInFlight == 0 && q.pingProbeDue(now)
		q.probeEarly = q.probeEarly && !j.credit.Probe
		d.pings.acquire(q)
		q.pingsInFlight++
		q.nextPing = time.Time{}
		return j, true
	}
	return job{}, false
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
		if claim != nil {
			j.queue.quick = a.Duration < quickWithin
			if j.kind != store.CreditPing {
				j.queue.quickAttempt = j.queue.quick
				j.queue.recordAttempt(claim, &a, &r, now, &d.cfg)
			}
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
		d.credits.Return(q.program.slots, j.class)
		q.inFlight--
		d.forget(q.program)
		q.nextDue = earliest(q.nextDue, next)
	}
	d.reschedule(q, to, now)
}

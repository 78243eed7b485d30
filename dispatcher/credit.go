package dispatcher

import (
	"context"
	"errors"
	"math"
	"time"

	"service/store"
	"service/webhook"
)

// maxInline is the largest number of subscriptions whose deliveries of an event
// are stored in the event's own commit: its publisher waits for them.
const maxInlineSubscriptions = 8

// spend has the delivery of a job formed by the store.
func (d *Dispatcher) spendCredit(sendCtx context.Context, j job) *store.Forming {
	q := j.queue
	d.mu.Lock()
	c := d.credit(q, j.kind)
	c.Early = j.aheadOfTime && q.Failing
	d.mu.Unlock()
	f := d.store.Queues().Spend(sendCtx, &c)
	if j.kind == store.CreditEvents {
		// What comes next in the log can be read while this is being stored.
		d.mu.Lock()
		now, to := time.Now(), q.phase
		if to == phaseReading {
			to = phaseCurrent
		}
		q.seen = q.Seen
		q.pace.backlogged = q.seen < q.wanted
		d.reschedule(q, to, now)
		d.dispatch(sendCtx, now)
		// Last, since publishers wait for who submits; and before another worker can
		// submit the queue's next delivery.
		f.Submit()
		d.mu.Unlock()
	}
	return f
}

// formed waits until the attempt of a job is counted in the store, notes what came
// of it, and returns the claim, nil when there is nothing to send.
func (d *Dispatcher) awaitClaim(sendCtx context.Context, j job, f *store.Forming) *store.Claim {
	claim, err := f.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	q, next := j.queue, f.Next
	to := q.phase
	if to == phaseOffered && j.kind == store.CreditEvents { // it is the delivery that was on offer
		to, q.seen = phaseCurrent, q.Seen
		q.wanted = max(q.wanted, q.seen)
	}
	switch {
	case err != nil && !errors.Is(err, store.ErrStale):
		next = d.claimFailed(q, j.id, err) // when it is due is not known
	case err != nil || f.Passed:
		to = phaseStale
	}
	switch j.kind {
	case store.CreditEvents:
		q.forming--
		if err != nil {
			to = phaseStale
		}
	case store.CreditReplay:
		q.replaying = false
		if err == nil && q.Queue == f.Queue { // else the queue was read again after the step
			q.hasReplay, q.pace.backlogged = f.More, f.More
		}
	case store.CreditDue:
		q.nextDue, q.pace.backlogged = earliest(q.nextDue, next), due(next, time.Now())
		q.spared = f.Spared
	case store.CreditPing:
		q.nextPing = earliest(q.nextPing, next)
	}
	if claim == nil && j.kind != store.CreditPing {
		q.pace.refund(q.MaxPerSecond)
	}
	now := time.Now()
	d.reschedule(q, to, now)
	d.dispatch(sendCtx, now) // more may be due, and need not wait for this attempt
	return claim
}

// credit returns a credit for one delivery of a queue. The caller holds d.mu.
func (d *Dispatcher) credit(q *subscriptionQueue, kind store.CreditKind) store.Credit {
	c := store.Credit{Queue: q.Queue, Kind: kind, Newest: q.wanted, Count: d.cfg.BatchSize, Size: webhook.MaxDeliveryBytes}
	if q.singleEvent(time.Now()) {
		c.Count = 1
	}
	if q.Failing {
		c.Probe = kind == store.CreditPing && q.pingsInFlight == 1 && q.pingProbeDue(time.Now())
		c.Spare = kind == store.CreditDue && !q.Rejecting && !q.Pinged
		if c.Probe || kind != store.CreditPing {
			q.probeEarly = false
		}
	}
	// With others in flight the queue could be read further before it is read again.
	if q.rejected && !q.Ordered && q.inFlight == 1 {
		c.Except = q.rejectedNames
	}
	return c
}

// offer offers the writer a credit for a queue that has nothing to do, if an event
// would change that: then its delivery is stored in the commit of the event. It
// returns false if there is no offer to make. The caller holds d.mu.
func (d *Dispatcher) offer(q *subscriptionQueue, now time.Time) bool {
	if q.phase != phaseCurrent || !q.idle() || d.cfg.BatchWindow > 0 {
		return false
	}
	if kind, ok := q.runnable(now, math.MaxInt64, &d.cfg); !ok || kind != store.CreditEvents {
		return false
	}
	keys := q.credit.Keys[:0]
	for i := range q.Interests {
		in := &q.Interests[i]
		key := store.EventKey{ProgramID: q.ProgramID, Name: in.Name}
		if in.Until == math.MaxInt64 && d.interested[key].len() <= maxInlineSubscriptions {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return false
	}
	q.credit = d.credit(q, store.CreditEvents)
	q.credit.Keys, q.credit.Slots = keys, d.shares[max(q.priority(now), priorityIdle)]
	d.credits.Offer(&q.credit)
	return true
}

// receive starts a worker for each delivery that was formed of an offered credit,
// until there are no more credits.
func (d *Dispatcher) receiveInline(sendCtx context.Context) {
	for f := range d.credits.C {
		d.mu.Lock()
		q := d.queues[f.Queue.SubscriptionID] // it is not read again before that
		j := job{queue: q, id: q.SubscriptionID, kind: store.CreditEvents, priority: q.priority(time.Now())}
		d.occupy(j)
		d.mu.Unlock()
		d.workers.Add(1)
		go d.runJobs(sendCtx, j, f)
	}
}

// claimFailed suspends claims after one that failed with err, and returns until
// when: all claims when the store cannot be read or written, otherwise those of
// this queue, since one of its own records is unusable. The caller holds d.mu.
func (d *Dispatcher) claimFailed(q *subscriptionQueue, id string, err error) time.Time {
	if store.Unavailable(err) {
		d.storeFailed(err)
		return d.pausedUntil
	}
	now := time.Now()
	q.suspendedUntil = now.Add(suspendTime)
	d.reschedule(q, q.phase, now) // nothing of it is on offer until then
	d.logger.Error("a subscription's deliveries are held for a while", "subscription", id, "error", err)
	return q.suspendedUntil
}

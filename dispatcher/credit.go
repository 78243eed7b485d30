package dispatcher

import (
	"context"
	"errors"
	"math"
	"time"

	"service/store"
	"service/store/watch"
	"service/webhook"
)

// maxInlineSubscriptions is the maximum number of subscriptions per event whose deliveries
// are stored inline, since the publisher waits for that commit.
const maxInlineSubscriptions = 8

// spendCredit spends the credit of j. The store then stores the next delivery from the
// log, or claims a stored one. awaitClaim waits for it.
func (d *Dispatcher) spendCredit(sendCtx context.Context, j job) *store.Forming {
	q := j.queue
	f := d.store.Queues().Spend(sendCtx, &j.credit)
	if j.kind == store.CreditEvents {
		// The next events can be read from the log while this delivery is being
		// stored.
		d.mu.Lock()
		now, to := time.Now(), q.phase
		if to == phaseReading {
			to = phaseCurrent
		}
		q.readSeq = q.Seen
		d.notePassed(q, now)
		q.splitting = q.splitting || j.credit.Splits && !f.Unsplit
		q.pace.Backlogged = q.readSeq < q.wantedSeq || q.splitting
		d.reschedule(q, to, now)
		d.dispatch(sendCtx, now)
		// Submit last: as leader of a commit this goroutine would keep publishers
		// waiting. Still under d.mu: no other worker may submit the queue's next
		// delivery first.
		f.Submit()
		d.mu.Unlock()
	}
	return f
}

// awaitClaim waits until the store has counted the attempt of j, updates the queue,
// and returns the claim, nil if there is nothing to send.
func (d *Dispatcher) awaitClaim(sendCtx context.Context, j job, f *store.Forming) *store.Claim {
	claim, err := f.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	q, next := j.queue, f.Next
	to := q.phase
	if to == phaseOffered && j.kind == store.CreditEvents { // this delivery has spent the offered credit
		to, q.readSeq = phaseCurrent, q.Seen
		q.wantedSeq = max(q.wantedSeq, q.readSeq)
	}
	switch {
	case err != nil && !errors.Is(err, store.ErrStale):
		next = d.pauseClaims(q, j.id, err) // the due time is unknown: try again after the pause
	case err != nil || f.Skipped:
		to = phaseStale
	}
	switch j.kind {
	case store.CreditEvents:
		q.forming--
		if err != nil {
			to = phaseStale
		}
	case store.CreditReplay:
		q.replayForming = false
		if err == nil && q.Queue == f.Queue { // else the queue was reloaded since the credit was spent
			q.hasReplay, q.pace.Backlogged = f.More, f.More
		}
	case store.CreditDue:
		q.nextDue, q.pace.Backlogged = earliest(q.nextDue, next), due(next, time.Now())
		q.lastAttemptDue = f.Spared
	case store.CreditPing:
		q.nextPing = earliest(q.nextPing, next)
	}
	if claim == nil && j.kind != store.CreditPing {
		q.pace.Refund(q.MaxPerSecond)
	}
	now := time.Now()
	d.reschedule(q, to, now)
	d.dispatch(sendCtx, now) // more may be due, and need not wait for this attempt
	return claim
}

// credit returns a credit for one delivery of q. The caller holds d.mu.
func (d *Dispatcher) credit(q *subscriptionQueue, kind store.CreditKind) store.Credit {
	now := time.Now()
	c := store.Credit{
		Queue: q.Queue, Kind: kind, Newest: q.wantedSeq,
		Count: webhook.BatchSize(d.cfg.BatchSize, q.MaxEvents), Size: q.SizeBound.At(now),
	}
	if q.singleEvent(now) {
		c.Count = 1
	}
	c.Splits = kind == store.CreditEvents && q.takesSplit(now)
	if q.Failing {
		c.Spare = kind == store.CreditDue && !q.Rejecting && !q.Pinged
		if kind != store.CreditPing {
			q.probeEarly = false
		}
	}
	// Except is set only while nothing else is in flight: the success of another attempt
	// would raise the limit of slots, and a second worker could read waiting events before
	// the queue is reloaded.
	if q.rejected && !q.Ordered && q.inFlight == 1 {
		c.Except = q.rejectedNames
	}
	return c
}

// offer offers the store a credit for an idle queue, so that its next event is
// stored together with its delivery in one commit (inline delivery). It returns
// false if no offer is possible. The caller holds d.mu.
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
		key := watch.EventKey{ProgramID: q.ProgramID, Name: in.Name}
		// A range that has ended contains no new event.
		if in.Until == math.MaxInt64 && d.interested[key].len() <= maxInlineSubscriptions {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return false
	}
	q.credit = d.credit(q, store.CreditEvents)
	q.credit.Program, q.credit.Class, q.credit.Keys = q.program.slots, q.class(), keys
	d.credits.Offer(&q.credit)
	return true
}

// receiveInline starts a worker for each delivery that the store forms inline,
// until the credits are closed.
func (d *Dispatcher) receiveInline(sendCtx context.Context) {
	for f := range d.credits.C {
		d.mu.Lock()
		q := d.queues[f.Queue.SubscriptionID] // the queue is not reloaded before awaitClaim
		j := job{queue: q, id: q.SubscriptionID, kind: store.CreditEvents, class: q.credit.Class}
		d.occupy(j)
		d.mu.Unlock()
		d.workers.Add(1)
		go d.runJobs(sendCtx, j, f)
	}
}

// pauseClaims pauses claims after err and returns the end of the pause: all claims if the
// store is unavailable, otherwise only those of q, since one of its records is unusable. The
// caller holds d.mu.
func (d *Dispatcher) pauseClaims(q *subscriptionQueue, id string, err error) time.Time {
	if store.Unavailable(err) {
		d.storeFailed(err)
		return d.pausedUntil
	}
	now := time.Now()
	q.suspendedUntil = now.Add(suspendTime)
	d.reschedule(q, q.phase, now) // withdraws an offer
	d.logger.Error("pausing a subscription: one of its records is unusable", "subscription", id, "error", err)
	return q.suspendedUntil
}

package dispatcher

import (
	"context"
	"errors"
	"time"

	"service/store"
	"service/webhook"
)

// claim counts the attempt of a job in the store, before it is made. It returns
// nil when there is none to make.
func (d *Dispatcher) claim(ctx context.Context, j job) *store.Claim {
	switch j.kind {
	case jobForm:
		return d.form(ctx, j)
	case jobReplay:
		return d.replay(ctx, j)
	}
	claim, next, err := d.store.Queues().ClaimDue(ctx, j.id, j.kind == jobPing)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		next = d.claimFailed(j.queue, j.id, err) // when it is due is not known
	}
	if j.kind == jobPing {
		j.queue.nextPing = earliest(j.queue.nextPing, next)
	} else {
		j.queue.nextDue = earliest(j.queue.nextDue, next)
	}
	now := time.Now()
	d.move(j.queue, j.queue.phase, now)
	d.dispatch(ctx, now) // more may be due, and need not wait for this attempt
	return claim
}

// claimFailed suspends claims after one that failed with err, and returns until
// when: all claims when the store cannot be read or written, otherwise those of
// this queue, since one of its own records is unusable. The caller holds d.mu.
func (d *Dispatcher) claimFailed(q *subscriptionQueue, id string, err error) time.Time {
	if store.Unavailable(err) {
		d.storeFailed(err)
		return d.pausedUntil
	}
	q.suspendedUntil = time.Now().Add(suspendTime)
	d.logger.Error("a subscription's deliveries are held for a while", "subscription", id, "error", err)
	return q.suspendedUntil
}

// form stores the next delivery of a queue, made from the log.
func (d *Dispatcher) form(ctx context.Context, j job) *store.Claim {
	q := j.queue
	// phaseReading makes this goroutine the owner of q.Queue's cursor.
	d.mu.Lock()
	newest := q.wanted
	d.mu.Unlock()
	waiting, err := d.store.Queues().Waiting(ctx, q.Queue, newest, d.cfg.BatchSize, webhook.MaxDeliveryBytes)
	var forming *store.Forming
	if err == nil && len(waiting.Seqs) > 0 {
		forming = d.store.Queues().Form(q.Queue, &waiting)
	} else if err == nil {
		q.Seen = waiting.To
	}
	d.mu.Lock()
	d.read(q)
	d.dispatch(ctx, time.Now())
	d.mu.Unlock()

	var claim *store.Claim
	if forming != nil {
		claim, err = forming.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.formed(j, err)
	return claim
}

// read notes that the cursor of a queue belongs to it again. The caller holds d.mu.
func (d *Dispatcher) read(q *subscriptionQueue) {
	q.seen = q.Seen
	to := q.phase
	if to == phaseReading {
		to = phaseCurrent
	}
	d.move(q, to, time.Now())
}

// formed notes that a delivery of a queue was stored, or was not, with err. The
// caller holds d.mu.
func (d *Dispatcher) formed(j job, err error) {
	q := j.queue
	q.forming--
	to := q.phase
	if err != nil {
		to = phaseStale
	}
	if err != nil && !errors.Is(err, store.ErrStale) {
		d.claimFailed(q, j.id, err)
	}
	d.move(q, to, time.Now())
}

// replay stores the next delivery of a queue's replay, if the next part of the log
// has events for it.
func (d *Dispatcher) replay(ctx context.Context, j job) *store.Claim {
	q := j.queue
	d.mu.Lock()
	from := q.Queue
	d.mu.Unlock()
	claim, more, err := d.store.Queues().StepReplay(ctx, from, d.cfg.BatchSize, webhook.MaxDeliveryBytes)
	d.mu.Lock()
	defer d.mu.Unlock()
	q.replaying = false
	to := q.phase
	switch {
	case errors.Is(err, store.ErrStale):
		to = phaseStale
	case err != nil:
		d.claimFailed(q, j.id, err)
	case q.Queue == from: // else the queue was read again after the step
		q.hasReplay = more
	}
	now := time.Now()
	d.move(q, to, now)
	d.dispatch(ctx, now)
	return claim
}

package dispatcher

import (
	"context"
	"time"

	"service/store"
	"service/webhook"
)

// maxInline is the largest number of subscriptions for which an event's deliveries
// are stored in the event's own commit: its publisher waits for them.
const maxInline = 8

// formInline forms the deliveries of events that are about to be stored, in the
// same commit, for each subscription that has nothing else to do: they are then
// sent at once. All other deliveries are formed after the commit, see form.
func (d *Dispatcher) formInline(sending context.Context, a *store.Accepted) {
	jobs := d.reserveInline(a.Events(), time.Now())
	left := jobs
	defer func() { // of a panic too
		for _, j := range left {
			d.cancelInline(j)
		}
	}()
	for i, j := range jobs {
		q := j.queue // this goroutine owns its cursor
		ok := a.FormInline(q.Queue, d.cfg.BatchSize, webhook.MaxDeliveryBytes, func(c *store.Claim, err error) { d.startInline(sending, j, c, err) })
		left = jobs[i+1:]
		if !ok {
			d.cancelInline(j)
			continue
		}
		d.mu.Lock()
		d.read(q)
		d.mu.Unlock()
	}
}

// reserveInline takes a slot for each queue that wants one of the events and is
// idle, none while another queue waits for a slot that is free. One that waits
// until its share is free is not passed: the slot would not have been its. The
// caller owns the cursors of their queues, and gives each slot to startInline or
// to cancelInline.
func (d *Dispatcher) reserveInline(events []webhook.Event, now time.Time) (jobs []job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping || d.restoreHold || now.Before(d.pausedUntil) || d.cfg.BatchWindow > 0 {
		return nil
	}
	if _, waits := d.nextPriority(); waits {
		return nil // a slot is free for a queue that waits for one
	}
	for i := range events {
		e := &events[i]
		queues := d.interested[store.EventKey{ProgramID: e.ProgramID, Name: e.Name}]
		if len(queues) > maxInline {
			continue
		}
		for q := range queues {
			p := q.priority(now)
			if !q.idle() || !q.Wants(e.Name, e.Seq) || d.inFlight >= d.shares[p] {
				continue
			}
			if kind, ok := q.work(now, e.Seq, &d.cfg); !ok || kind != jobForm {
				continue
			}
			d.inFlight++
			q.inFlight++
			if p > priorityIdle {
				d.lowInFlight++
			}
			q.forming++
			d.move(q, phaseReading, now)
			d.workers.Add(1)
			jobs = append(jobs, job{queue: q, id: q.SubscriptionID, kind: jobForm, priority: p})
		}
	}
	return jobs
}

// cancelInline gives back a slot, and the cursor, for which no delivery is formed.
func (d *Dispatcher) cancelInline(j job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read(j.queue)
	d.releaseInline(j, nil)
}

// releaseInline gives back a slot for which no delivery was stored, with the error
// of that if there was one. The caller holds d.mu.
func (d *Dispatcher) releaseInline(j job, err error) {
	d.formed(j, err)
	d.release(j, time.Time{}, time.Now())
	d.workers.Done()
	d.wake() // a queue may wait for the slot
}

// startInline is called after the commit. It sends the delivery that was stored
// with its events; c is nil when none was.
func (d *Dispatcher) startInline(sending context.Context, j job, c *store.Claim, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c == nil {
		d.releaseInline(j, err)
		return
	}
	d.formed(j, nil)
	j.queue.wanted = max(j.queue.wanted, j.queue.seen)
	go d.work(sending, j, c)
}

package dispatcher

import (
	"context"
	"time"

	"service/store"
	"service/webhook"
)

// mostEarly is how many subscriptions an event may have for their deliveries to be
// stored with it: its publisher waits for them.
const mostEarly = 8

// early has what is about to be stored leave at once where nothing stands before
// it: its delivery is stored with it, in the same commit. All else is formed
// after the commit, see form.
func (d *Dispatcher) early(sending context.Context, a *store.Accepted) {
	now := time.Now()
	for _, j := range d.takeEarly(a.Events(), now) {
		l := j.lane // whose cursor is ours
		ok := a.Form(l.Lane, d.cfg.BatchSize, webhook.MaxDeliveryBytes, func(c *store.Claim, err error) { d.formedEarly(sending, j, c, err) })
		d.mu.Lock()
		l.reading, l.seen = false, l.Seen
		if !ok {
			d.formed(j, nil)
			d.release(j, time.Time{}, now)
			d.workers.Done()
		}
		d.mu.Unlock()
	}
}

// takeEarly reserves a slot for each lane that wants one of the events, has
// nothing else to do, and whose turn it would be.
func (d *Dispatcher) takeEarly(events []webhook.Event, now time.Time) (jobs []job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping || d.held || now.Before(d.paused) || d.cfg.BatchWindow > 0 {
		return nil
	}
	for r := range d.lines {
		if d.lines[r].len() > 0 {
			return nil // they wait for slots
		}
	}
	for i := range events {
		e := &events[i]
		lanes := d.wanting[store.EventKey{ProgramID: e.ProgramID, Name: e.Name}]
		if len(lanes) > mostEarly {
			continue
		}
		for l := range lanes {
			r := l.rank(now)
			if !l.idle() || !l.Wants(e.Name, e.Seq) || d.inFlight >= d.shares[r] || !l.couldForm(e.Seq, now, &d.cfg) {
				continue
			}
			d.inFlight++
			l.inFlight++
			if r > rankProven {
				d.rest++
			}
			l.reading = true
			l.forming++
			d.workers.Add(1)
			jobs = append(jobs, job{lane: l, id: l.SubscriptionID, kind: jobForm, rank: r})
		}
	}
	return jobs
}

// formedEarly sends a delivery that was stored with its events.
func (d *Dispatcher) formedEarly(sending context.Context, j job, c *store.Claim, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := j.lane
	d.formed(j, err)
	if c == nil {
		d.release(j, time.Time{}, time.Now())
		d.workers.Done()
		return
	}
	l.wanted = max(l.wanted, l.seen)
	go d.work(sending, j, c)
}

// idle says whether the lane has nothing in flight and, for all it knows, nothing
// that waits.
func (l *lane) idle() bool {
	return l.inFlight == 0 && l.forming == 0 && !l.reading && l.seen >= l.wanted
}

// couldForm says whether an idle lane would form a delivery if an event waited.
func (l *lane) couldForm(seq int64, now time.Time, cfg *Config) bool {
	wanted := l.wanted
	l.wanted = seq
	kind, ok := l.work(now, cfg)
	l.wanted = wanted
	return ok && kind == jobForm
}

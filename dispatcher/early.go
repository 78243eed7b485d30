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
	jobs := d.takeEarly(a.Events(), time.Now())
	left := jobs
	defer func() { // of a panic too
		for _, j := range left {
			d.dropEarly(j)
		}
	}()
	for i, j := range jobs {
		l := j.lane // whose cursor is ours
		ok := a.Form(l.Lane, d.cfg.BatchSize, webhook.MaxDeliveryBytes, func(c *store.Claim, err error) { d.formedEarly(sending, j, c, err) })
		left = jobs[i+1:]
		if !ok {
			d.dropEarly(j)
			continue
		}
		d.mu.Lock()
		l.reading, l.seen = false, l.Seen
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

// dropEarly gives a slot back for which no delivery is formed.
func (d *Dispatcher) dropEarly(j job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j.lane.reading = false
	d.endEarly(j, nil)
}

// endEarly gives back a slot for which no delivery was stored. Owns d.mu.
func (d *Dispatcher) endEarly(j job, err error) {
	d.formed(j, err)
	d.release(j, time.Time{}, time.Now())
	d.workers.Done()
	d.poke() // somebody may wait for the slot
}

// formedEarly sends a delivery that was stored with its events.
func (d *Dispatcher) formedEarly(sending context.Context, j job, c *store.Claim, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c == nil {
		d.endEarly(j, err)
		return
	}
	d.formed(j, nil)
	j.lane.wanted = max(j.lane.wanted, j.lane.seen)
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

package dispatcher

import (
	"context"
	"math"
	"time"

	"service/store"
)

// program is the dispatcher's state of one program that has subscriptions or deliveries in
// flight. Dispatcher.mu guards its fields.
//
// A program may have a limit of deliveries in flight, excluding pings. A queue that finds its
// program at the limit is parked. Each slot that the program returns is granted to the queue
// that was parked first: it enters its run queue, and no other queue of the program can use
// that slot. So queues of one program take turns, and parked ones delay no other program.
type program struct {
	id      string
	queues  int                 // subscriptions
	slots   *store.ProgramSlots // in use, and the limit
	waiting runQueue            // parked queues
	granted int                 // queues with a granted slot that they have not taken yet
	sending int                 // attempts that use ctx
	base    context.Context     // parent of ctx
	ctx     context.Context     // of the attempts, nil before the first
	cancel  context.CancelFunc  // ends ctx
}

// beginSending returns the context of an attempt of a program, which [Dispatcher.Cut] ends.
// Attempts of a program share it, because the client binds each connection to the context of its
// attempt. The caller must call endSending.
func (d *Dispatcher) beginSending(id string, base context.Context) (*program, context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.program(id)
	p.sending++
	if p.base != base {
		if p.cancel != nil && p.sending == 1 {
			p.cancel() // no attempt uses it
		}
		p.base = base
		p.ctx, p.cancel = context.WithCancel(base)
	}
	return p, p.ctx
}

// endSending ends the use of a program's context.
func (d *Dispatcher) endSending(p *program) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.sending--
	d.forget(p)
}

// Cut cuts the attempts of a program that are in flight: they are recorded as interrupted. It
// does not prevent new ones.
func (d *Dispatcher) Cut(programID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.programs[programID]; p != nil && p.cancel != nil {
		p.cancel()
		p.base = nil
	}
}

// program returns the state of a program, and creates it if it is new. The caller holds d.mu.
func (d *Dispatcher) program(id string) *program {
	p := d.programs[id]
	if p == nil {
		p = &program{id: id, slots: new(store.ProgramSlots)}
		d.credits.Limit(p.slots, d.limits[id])
		d.programs[id] = p
	}
	return p
}

// join adds a queue to its program. The caller holds d.mu.
func (d *Dispatcher) join(q *subscriptionQueue) {
	if q.program == nil {
		q.program = d.program(q.ProgramID)
		q.program.queues++
	}
}

// leave removes a queue from its program. The caller holds d.mu.
func (d *Dispatcher) leave(q *subscriptionQueue) {
	if q.program != nil {
		q.program.queues--
		d.forget(q.program)
	}
}

// forget drops a program without subscriptions and deliveries in flight. The caller holds
// d.mu.
func (d *Dispatcher) forget(p *program) {
	if p.queues > 0 || p.sending > 0 || d.programs[p.id] != p {
		return
	}
	if taken, _ := d.credits.Program(p.slots); taken == 0 {
		delete(d.programs, p.id)
		if p.cancel != nil {
			p.cancel()
		}
	}
}

// takeSlot takes a slot for a queue from a run queue, while the credits are paused. If its
// program has none for it, takeSlot parks the queue and returns false. The caller holds d.mu.
func (d *Dispatcher) takeSlot(q *subscriptionQueue) bool {
	p := q.program
	_, free := d.credits.Program(p.slots)
	if q.granted {
		d.ungrant(q)
	} else if free != math.MaxInt && (p.waiting.len() > 0 || free <= p.granted) {
		free = 0
	}
	if free == 0 {
		if !q.parked {
			q.parked = true
			p.waiting.push(q)
		}
		return false
	}
	d.credits.Take(p.slots)
	return true
}

// ungrant ends the grant of a queue. The caller holds d.mu.
func (d *Dispatcher) ungrant(q *subscriptionQueue) {
	if q.granted {
		q.granted = false
		q.program.granted--
	}
}

// limitedProgram is the state of a program with a limit of its own.
type limitedProgram struct {
	id                 string
	taken, limit, held int
}

// limitedPrograms returns the programs with a limit of their own.
func (d *Dispatcher) limitedPrograms() (all []limitedProgram) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, limit := range d.limits {
		if d.store.Programs().Hidden(id) {
			continue
		}
		one := limitedProgram{id: id, limit: limit}
		if p := d.programs[id]; p != nil {
			one.taken, _ = d.credits.Program(p.slots)
			one.held = p.waiting.len()
		}
		all = append(all, one)
	}
	return all
}

// unpark grants the free slots of a program to its parked queues. The caller holds d.mu.
func (d *Dispatcher) unpark(p *program, now time.Time) {
	for p.waiting.len() > 0 {
		if _, free := d.credits.Program(p.slots); free <= p.granted {
			return
		}
		q := p.waiting.pop()
		q.parked = false
		d.reschedule(q, q.phase, now)
		if q.inRunQueue != [priorities]bool{} && !q.granted {
			q.granted = true
			p.granted++
		}
	}
}

// readLimits reads the limits of programs that have changed. While the store cannot be read,
// it keeps the ids for the next call. Only the loop of Run calls it.
func (d *Dispatcher) readLimits(ctx context.Context, changed map[string]struct{}) {
	for id := range changed {
		d.staleLimits[id] = struct{}{}
	}
	for id := range d.staleLimits {
		limit := 0
		p, err := d.store.Programs().Get(ctx, id)
		switch {
		case isNotFound(err):
		case err != nil:
			if ctx.Err() == nil {
				d.mu.Lock()
				d.storeFailed(err)
				d.mu.Unlock()
			}
			return
		case p.Limits.MaxInFlight != nil:
			limit = *p.Limits.MaxInFlight
		}
		delete(d.staleLimits, id)
		d.mu.Lock()
		d.setLimit(id, limit)
		d.mu.Unlock()
	}
}

// setLimit sets the limit of a program, 0 for none. The caller holds d.mu.
func (d *Dispatcher) setLimit(id string, limit int) {
	if limit > 0 {
		d.limits[id] = limit
	} else {
		delete(d.limits, id)
	}
	if p := d.programs[id]; p != nil {
		d.credits.Limit(p.slots, limit)
		d.unpark(p, time.Now())
		d.wake()
	}
}

// readAllLimits reads the limits of all programs, before Run sends anything.
func (d *Dispatcher) readAllLimits(ctx context.Context) error {
	programs, err := d.store.Programs().List(ctx)
	if err != nil {
		return err
	}
	for i := range programs {
		if limit := programs[i].Limits.MaxInFlight; limit != nil {
			d.limits[programs[i].ID] = *limit
		}
	}
	return nil
}

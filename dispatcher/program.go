package dispatcher

import (
	"container/list"
	"context"

	"service/store"
)

// program is the dispatcher's state of one program that has subscriptions or deliveries in
// flight. Dispatcher.mu guards its fields.
//
// Its queues that have work and may use a slot wait in one run queue per class. [store.Credits]
// decides which program gets the next slot, and in which class.
type program struct {
	queues  int                          // subscriptions
	slots   *store.ProgramSlots          // in use, and the limit, which excludes pings
	waiting [store.SlotClasses]list.List // run queues of *subscriptionQueue, first in, first out
	sending int                          // attempts that use ctx
	base    context.Context              // parent of ctx
	ctx     context.Context              // of the attempts, nil before the first
	cancel  context.CancelFunc           // ends ctx
}

// enterRunQueue lets a queue wait for a slot at the end of the run queue of its class, unless it
// waits there already. The caller holds d.mu.
func (d *Dispatcher) enterRunQueue(q *subscriptionQueue) {
	class := q.class()
	if q.waiting != nil && q.waitingAs == class {
		return
	}
	d.leaveRunQueue(q)
	d.credits.Pause(true) // until it is known whether it can use a slot
	run := &q.program.waiting[class]
	q.waiting, q.waitingAs = run.PushBack(q), class
	if run.Len() == 1 {
		d.credits.Wait(q.program.slots, class, true)
	}
}

// leaveRunQueue removes a queue from the run queue that it waits in, if any. The caller holds d.mu.
func (d *Dispatcher) leaveRunQueue(q *subscriptionQueue) {
	if q.waiting == nil {
		return
	}
	run := &q.program.waiting[q.waitingAs]
	run.Remove(q.waiting)
	q.waiting = nil
	if run.Len() == 0 {
		d.credits.Wait(q.program.slots, q.waitingAs, false)
	}
}

// beginSending returns the context of an attempt of a program, which [Dispatcher.Cut] ends.
// Attempts of a program share the context, because the client binds each connection to the
// context of its attempt. The caller must call endSending.
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
		p = &program{slots: &store.ProgramSlots{ID: id}}
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
	if p.queues > 0 || p.sending > 0 || d.programs[p.slots.ID] != p {
		return
	}
	if d.credits.Program(p.slots) == 0 {
		delete(d.programs, p.slots.ID)
		if p.cancel != nil {
			p.cancel()
		}
	}
}

// limitedProgram is the state of a program with a limit of its own.
type limitedProgram struct {
	id                 string
	taken, limit, held int
}

// limitedPrograms returns the programs that set their own limit.
func (d *Dispatcher) limitedPrograms() (all []limitedProgram) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, limit := range d.limits {
		if d.store.Programs().Hidden(id) {
			continue
		}
		one := limitedProgram{id: id, limit: limit}
		if p := d.programs[id]; p != nil {
			if one.taken = d.credits.Program(p.slots); one.taken >= limit {
				for i := range p.waiting {
					one.held += p.waiting[i].Len()
				}
			}
		}
		all = append(all, one)
	}
	return all
}

// readLimits reads the limits of programs that have changed. While the store cannot be read,
// it keeps the IDs for the next call. A program whose limit is unreadable keeps its last one.
// Only the loop of Run calls it.
func (d *Dispatcher) readLimits(ctx context.Context, changed map[string]struct{}) {
	for id := range changed {
		d.staleLimits[id] = struct{}{}
	}
	for id := range d.staleLimits {
		limit, err := d.store.Programs().MaxInFlight(ctx, id)
		if err != nil && (ctx.Err() != nil || store.Unavailable(err)) {
			if ctx.Err() == nil {
				d.mu.Lock()
				d.storeFailed(err)
				d.mu.Unlock()
			}
			return
		}
		delete(d.staleLimits, id)
		if err != nil {
			d.logger.Error("failed to read a program's limit", "program", id, "error", err)
			continue
		}
		d.mu.Lock()
		d.setLimit(id, limit)
		d.mu.Unlock()
	}
}

// setLimit sets a program's limit, 0 for none. The caller holds d.mu.
func (d *Dispatcher) setLimit(id string, limit int) {
	if limit > 0 {
		d.limits[id] = limit
	} else {
		delete(d.limits, id)
	}
	if p := d.programs[id]; p != nil {
		d.credits.Limit(p.slots, limit)
		d.wake()
	}
}

// readAllLimits reads the limits of all programs, before Run sends anything.
func (d *Dispatcher) readAllLimits(ctx context.Context) error {
	limits, unreadable, err := d.store.Programs().AllMaxInFlight(ctx)
	if err != nil {
		return err
	}
	if unreadable != nil {
		d.logger.Error("failed to read the limits of programs", "error", unreadable)
	}
	d.limits = limits
	return nil
}

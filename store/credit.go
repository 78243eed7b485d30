package store

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"service/store/tail"
	"service/store/watch"
	"service/webhook"
)

// Bounds of a commit's work for offered credits, since its publishers wait for it.
// Deliveries beyond them are formed after the commit.
const (
	// maxInline is the largest number of events in one commit for which deliveries are formed
	// in it. With more, deliveries are batched better afterwards.
	maxInline = 32
	// maxSpent is the maximum number of deliveries formed in one commit.
	maxSpent = 64
	// maxInlineSeen is the maximum number of earlier events that one commit scans for all its
	// deliveries together.
	maxInlineSeen = 1_000
)

// CreditKind is the kind of attempt that a credit is for.
type CreditKind int

const (
	CreditEvents CreditKind = iota // the next delivery from the log
	CreditDue                      // a delivery whose retry is due
	CreditReplay                   // the next delivery of a replay
	CreditPing                     // a ping that is due
)

// Credit is the right to count one attempt for a queue, created when a slot is free for it.
// [Queues.Spend] spends it immediately. If it is offered instead, the writer spends it in the
// commit of an event that the queue selects (inline delivery), which saves a second commit.
type Credit struct {
	Queue       *Queue // for CreditEvents, the store owns its cursor until the credit is spent or withdrawn
	Kind        CreditKind
	Newest      int64 // for CreditEvents, unless offered: the newest committed seq that may match
	Count, Size int   // maximum number of events, and of bytes, in one delivery

	// For a queue that is failing or was rejected:
	Probe     bool // CreditPing: claim the earliest ping even if it is not due yet, or create one
	BeforeDue bool // CreditDue: claim a retry that is not due yet if none is due
	Spare     bool // CreditDue: do not use the last attempt of a delivery

	// Except are the names of rejected events, the most recent last. CreditEvents with
	// Count 1 prefers an event with none of these names, then one without the most
	// recent of them, then any.
	Except []string

	// Splits: CreditEvents takes from an open split before the log. Forming reports whether the
	// split had nothing.
	Splits bool

	// For an offered credit:
	Program *ProgramSlots    // of the queue's program
	Class   SlotClass        // of the queue
	Keys    []watch.EventKey // the events that it matches

	offered bool
}

// SlotClass is the class in which a queue waits for a slot. It depends on the duration of the
// queue's last attempt: a quick receiver returns its slot soon.
type SlotClass int

const (
	SlotQuick SlotClass = iota // nothing is in flight, and the last attempt or ping took less than a second
	SlotBusy                   // attempts are in flight, and the last one that ended took less than a second
	SlotSlow                   // the others

	SlotClasses // their number
)

// ProgramSlots counts the slots of a program, and records whether its queues wait for one. The
// zero value has no limit, and nothing waits. It belongs to one Credits, which guards it.
type ProgramSlots struct {
	ID    string // of the program; never changes
	taken int
	limit int // 0 for no limit
	waits [SlotClasses]bool
	turns [SlotClasses]*list.Element // in Credits.turns while it waits in this class and is not full
}

// Credits holds the slots of one dispatcher and the credits that it offers. Spending a credit
// takes a slot; the dispatcher returns the slot.
//
// Programs share the slots, in turn:
//   - Any queue may take a slot while more than an eighth are free and, if queues of another program
//     wait, its program has fewer in flight than are free. So one program alone gets seven eighths,
//     and n programs that need more than they get have an n+1-th each.
//   - Half of the last eighth is for quick receivers, whatever they have in flight: a receiver that
//     needs several slots keeps up however many others hang.
//   - The other half is for SlotQuick, and the last 32nd for queues of it whose program has nothing
//     in flight.
//
// The last eighth and 32nd are one slot at least, but a single slot is for all queues.
type Credits struct {
	// C receives each offered credit that was spent, before its commit; Forming.Wait
	// waits for the commit. C is closed after Close, once the last credit was sent.
	C <-chan *Forming

	c   chan *Forming // has room for all slots, so the writer never blocks
	log *tail.Tail

	mu      sync.Mutex
	offers  map[watch.EventKey][]*Credit
	slots   int                    // their number
	taken   int                    // slots
	quick   int                    // of them, taken for SlotQuick and SlotBusy
	turns   [SlotClasses]list.List // of *ProgramSlots that wait, next first
	next    SlotClass              // the class whose turn it is
	row     int                    // slots that it got in this turn
	waiting int                    // programs in turns
	spent   int                    // offered credits that were spent but are not in c yet
	paused  bool
	closed  bool
}

// quickTurns is how many slots SlotQuick gets in its turn. Its attempts return slots soon. With few
// slots and one slot per turn, it would wait for a slow attempt before each of its own.
const quickTurns = 64

// NewCredits returns the credits for a number of slots, at least 1. They are paused.
func NewCredits(slots int) *Credits {
	c := make(chan *Forming, slots)
	return &Credits{C: c, c: c, slots: slots, offers: make(map[watch.EventKey][]*Credit), paused: true}
}

// SetCredits makes the writer spend the credits offered in c from now on.
func (s Queues) SetCredits(c *Credits) {
	c.log = s.tail
	s.writer.credits.Store(c)
}

// Taken returns how many slots are taken.
func (c *Credits) Taken() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken
}

// Wait sets whether queues of a program wait for a slot in a class.
func (c *Credits) Wait(p *ProgramSlots, class SlotClass, waits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.waits[class] = waits
	c.stand(p)
}

// Take takes a slot for the next program in turn that waits and may have one, while the credits
// are paused, and returns the program and the class in which it waits. It returns nil if there is
// none. The classes take turns too, and SlotQuick gets quickTurns slots in its turn.
func (c *Credits) Take() (*ProgramSlots, SlotClass) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range SlotClasses {
		class := c.next
		// The programs that are skipped are fewer than the slots that are taken: each has as many in
		// flight as are free, or, for the last 32nd, at least one.
		for e := c.turns[class].Front(); e != nil && c.open(class); e = e.Next() {
			if p := e.Value.(*ProgramSlots); c.admits(p, class) {
				c.turns[class].MoveToBack(e)
				c.count(p, class, 1)
				if c.row++; class != SlotQuick || c.row == quickTurns {
					c.nextClass()
				}
				return p, class
			}
		}
		c.nextClass()
	}
	return nil, 0
}

// nextClass gives the turn to the next class. The caller must hold c.mu.
func (c *Credits) nextClass() { c.next, c.row = (c.next+1)%SlotClasses, 0 }

// open reports whether a program without slots could have one in a class. The caller must hold
// c.mu.
func (c *Credits) open(class SlotClass) bool {
	free := c.slots - c.taken
	return free > 0 && (class == SlotQuick || c.shared() || class == SlotBusy && c.quick < c.reserve(8)/2)
}

// shared reports whether a slot is free that is for all classes. The caller must hold c.mu.
func (c *Credits) shared() bool {
	eighth := c.reserve(8)
	return c.slots-c.taken+min(c.quick, eighth/2) > eighth
}

// admits reports whether a program may have a slot in a class. The caller must hold c.mu.
func (c *Credits) admits(p *ProgramSlots, class SlotClass) bool {
	free := c.slots - c.taken
	switch {
	case p.full() || !c.open(class):
		return false
	case class == SlotQuick:
		return free > c.reserve(32) || p.taken == 0
	case class == SlotBusy && c.quick < c.reserve(8)/2:
		return true
	}
	others := c.waiting
	if p.stands() {
		others--
	}
	return others == 0 || p.taken < free
}

// reserve returns the size of a part of the slots that is not for all queues: one of n parts, but
// at least one slot. A single slot is for all queues.
func (c *Credits) reserve(n int) int { return min(max(c.slots/n, 1), c.slots-1) }

// Return returns a slot of a program that it got in a class.
func (c *Credits) Return(p *ProgramSlots, class SlotClass) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(p, class, -1)
}

// count adds n slots of a program. The caller must hold c.mu.
func (c *Credits) count(p *ProgramSlots, class SlotClass, n int) {
	c.taken += n
	p.taken += n
	if class != SlotSlow {
		c.quick += n
	}
	c.stand(p)
}

// Limit sets the maximum number of slots of a program, 0 for no limit. Slots beyond a lower
// limit are not taken away.
func (c *Credits) Limit(p *ProgramSlots, limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.limit = limit
	c.stand(p)
}

// Program returns how many slots a program has taken.
func (c *Credits) Program(p *ProgramSlots) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.taken
}

// full reports whether a program has reached its limit. The caller must hold c.mu.
func (p *ProgramSlots) full() bool { return p.limit > 0 && p.taken >= p.limit }

// stands reports whether a program waits in turns. The caller must hold c.mu.
func (p *ProgramSlots) stands() bool { return p.turns != [SlotClasses]*list.Element{} }

// stand adds a program to the turns of the classes in which it waits, unless it is full: it then
// waits for itself, not for others. The caller must hold c.mu.
func (c *Credits) stand(p *ProgramSlots) {
	stood := p.stands()
	for class := range SlotClasses {
		switch stands := p.waits[class] && !p.full(); {
		case stands && p.turns[class] == nil:
			p.turns[class] = c.turns[class].PushBack(p)
		case !stands && p.turns[class] != nil:
			c.turns[class].Remove(p.turns[class])
			p.turns[class] = nil
		}
	}
	switch {
	case p.stands() && !stood:
		c.waiting++
	case !p.stands() && stood:
		c.waiting--
	}
}

// Pause stops or resumes the spending of offered credits.
func (c *Credits) Pause(pause bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = pause
}

// Offer offers a credit to the writer. The writer owns it, and the cursor of its queue, until
// it is received from C or withdrawn.
func (c *Credits) Offer(cr *Credit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cr.offered = true
	for _, key := range cr.Keys {
		c.offers[key] = append(c.offers[key], cr)
	}
}

// Withdraw withdraws an offer. It returns false if the credit has been spent and will be
// received from C.
func (c *Credits) Withdraw(cr *Credit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	offered := cr.offered
	if offered {
		c.close(cr)
	}
	return offered
}

// close ends an offer. The caller must hold c.mu.
func (c *Credits) close(cr *Credit) {
	cr.offered = false
	for _, key := range cr.Keys {
		all := c.offers[key]
		if i := slices.Index(all, cr); i >= 0 {
			all[i] = all[len(all)-1]
			all[len(all)-1] = nil
			c.offers[key] = all[:len(all)-1] // kept when empty, so the next offer allocates nothing
		}
	}
}

// Forget frees the memory kept for a key that no subscription selects any more. No credit may
// be offered for it.
func (c *Credits) Forget(key watch.EventKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.offers, key)
}

// Close ends all offers.
func (c *Credits) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.spent == 0 {
		close(c.c)
	}
	c.closed = true
}

// accept records the events published in this transaction.
func (t *tx) accept(events []webhook.Event) {
	if t.many = t.many || len(t.accepted)+len(events) > maxInline; !t.many {
		t.accepted = append(t.accepted, events...)
	}
}

// take spends the credits that the accepted events of a transaction match, and appends the
// deliveries to t.formed. It skips queues with nothing waiting, queues that would need reads
// from disk or too many events scanned, and everything beyond maxSpent.
func (c *Credits) take(t *tx) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused || c.closed {
		return
	}
	budget, bytes := maxInlineSeen, inlineBytes
	for i := range t.accepted {
		e := &t.accepted[i]
		key := watch.EventKey{ProgramID: e.ProgramID, Name: e.Name}
		for n := len(c.offers[key]) - 1; n >= 0; n-- { // close replaces the closed offer by the last one
			if len(t.formed) == maxSpent {
				return
			}
			cr := c.offers[key][n]
			if !c.admits(cr.Program, cr.Class) || cr.Queue.Interest(e.Name, e.Seq) == nil {
				continue
			}
			g := newGathering(cr.Queue, cr.Count, cr.Size)
			g.budget, g.Erasures = bytes, t.s.erasures.Load()
			waits := t.gather(&g, c.log, &budget)
			bytes = g.budget
			g.release()
			if !waits {
				continue
			}
			f := t.w.newForming(cr.Queue, &g.logRun)
			f.commit.Add(1)
			c.close(cr)
			c.count(cr.Program, cr.Class, 1)
			c.spent++
			t.formed = append(t.formed, f) // settle releases it even after an error
		}
	}
}

// gather collects a queue's waiting events from memory, including the accepted ones. It returns
// false if nothing waits, or if it would have to read from disk or scan more than budget earlier
// events. It subtracts the events it scanned from budget.
func (t *tx) gather(g *gathering, log *tail.Tail, budget *int) bool {
	if g.fields != nil && g.budget <= 0 {
		return false
	}
	reached, full := g.queue.Seen, false
	visit := func(seq int64, e *tail.Event) bool {
		reached, full = seq, !g.visit(seq, e)
		return !full
	}
	first := true
	for i := range t.accepted {
		e := &t.accepted[i]
		if e.ProgramID != g.queue.ProgramID {
			continue
		}
		if first && reached+1 < e.Seq {
			if e.Seq-reached-1 > int64(*budget) {
				return false
			}
			log.Scan(g.queue.ProgramID, g.queue.Seen, visit)
			*budget -= int(reached - g.queue.Seen)
		}
		first = false
		if full {
			break
		}
		if reached+1 != e.Seq {
			return false
		}
		visit(e.Seq, &tail.Event{Id: e.ID, Name: e.Name, Received: e.ReceivedAt.UnixMilli(), Json: e.JSON, Trace: e.Trace})
	}
	return len(g.Seqs) > 0
}

// spend forms deliveries for offered credits from the events that the transaction is about to
// store, and sends them through C.
func (t *tx) spend(c *Credits) error {
	defer func() { c.handOut(t.formed) }() // after a panic too
	c.take(t)
	for _, f := range t.formed {
		if f.err = f.store(t); f.err != nil && !errors.Is(f.err, ErrStale) {
			return f.err
		}
	}
	return nil
}

// handOut sends deliveries through C. Their requests can be prepared during the commit.
func (c *Credits) handOut(formed []*Forming) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range formed {
		c.spent--
		c.c <- f
	}
	if c.closed && c.spent == 0 && len(formed) > 0 {
		close(c.c)
	}
}

// settle ends the wait for the transaction of inline deliveries. err is nil after a commit.
func (t *tx) settle(err error) {
	for _, f := range t.formed {
		if err != nil {
			f.err = err
		}
		f.commit.Done()
	}
	clear(t.formed)
	t.formed = t.formed[:0]
}

// Spend spends a credit: it reads the next delivery and counts its attempt. For CreditEvents
// the caller must store the delivery with Submit or Wait, and owns the queue's cursor again.
func (s Queues) Spend(ctx context.Context, c *Credit) *Forming {
	if c.Kind == CreditEvents {
		return s.formNext(ctx, c)
	}
	f := &Forming{Queue: c.Queue}
	if c.Kind == CreditReplay {
		f.claim, f.More, f.err = s.stepReplay(ctx, c.Queue, c.Count, c.Size)
	} else {
		f.claim, f.Next, f.err = s.claimDue(ctx, c)
		f.Spared = c.Spare && f.claim == nil && f.err == nil && !f.Next.IsZero() && (c.BeforeDue || !f.Next.After(time.Now()))
	}
	return f
}

package store

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"service/webhook"
)

// Bounds of the work that a commit does for offered credits, since its publishers wait
// for it. Deliveries beyond them are formed after the commit.
const (
	// maxInline is the largest number of events in one commit for which deliveries are formed
	// in it. With more, deliveries are batched better afterwards.
	maxInline = 32
	// maxSpent is the largest number of deliveries formed in one commit.
	maxSpent = 64
	// maxInlineSeen is the largest number of earlier events that one commit scans for all of
	// them together.
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
// commit of an event that the queue wants (inline delivery), which saves a second commit.
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

	// Splits: CreditEvents takes from an open split before the log. Forming reports if there was
	// nothing.
	Splits bool

	// For an offered credit:
	Program *ProgramSlots // of the queue's program
	Keys    []EventKey    // the events that it matches
	Slots   int           // spend it only while fewer slots than this are taken

	offered bool
}

// ProgramSlots counts the slots of a program. The zero value has no limit. It belongs to one
// Credits, which guards it.
type ProgramSlots struct {
	taken int
	limit int // 0 for no limit
}

// Credits holds the slots of one dispatcher and the credits that it offers. Spending a credit
// takes a slot; the dispatcher returns the slot.
type Credits struct {
	// C receives each offered credit that was spent, before its commit; Forming.Wait
	// waits for the commit. C is closed after Close, once the last credit was sent.
	C <-chan *Forming

	c   chan *Forming // has room for all slots, so the writer never blocks
	log *tail

	mu     sync.Mutex
	offers map[EventKey][]*Credit
	taken  int // slots
	spent  int // offered credits that were spent but are not in c yet
	paused bool
	closed bool
}

// NewCredits returns the credits for a number of slots. They are paused.
func NewCredits(slots int) *Credits {
	c := make(chan *Forming, slots)
	return &Credits{C: c, c: c, offers: make(map[EventKey][]*Credit), paused: true}
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

// Take takes a slot for a program while the credits are paused. The caller has checked that
// both have one.
func (c *Credits) Take(p *ProgramSlots) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken++
	p.taken++
}

// Return returns a slot of a program.
func (c *Credits) Return(p *ProgramSlots) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken--
	p.taken--
}

// Limit sets the maximum number of slots of a program, 0 for no limit. Slots beyond a lower
// limit are not taken away.
func (c *Credits) Limit(p *ProgramSlots, limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.limit = limit
}

// Program returns how many slots a program has taken, and how many more it may take;
// [math.MaxInt] without a limit.
func (c *Credits) Program(p *ProgramSlots) (taken, free int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.limit == 0 {
		return p.taken, math.MaxInt
	}
	return p.taken, max(0, p.limit-p.taken)
}

// full reports whether a program has reached its limit. The caller must hold c.mu.
func (p *ProgramSlots) full() bool { return p.limit > 0 && p.taken >= p.limit }

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

// Forget frees the memory kept for a key that no subscription wants any more. No credit may be
// offered for it.
func (c *Credits) Forget(key EventKey) {
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
	budget := maxInlineSeen
	for i := range t.accepted {
		e := &t.accepted[i]
		key := EventKey{e.ProgramID, e.Name}
		for n := len(c.offers[key]) - 1; n >= 0; n-- { // close replaces the closed offer by the last one
			if len(t.formed) == maxSpent {
				return
			}
			cr := c.offers[key][n]
			if c.taken >= cr.Slots || cr.Program.full() || !cr.Queue.Wants(e.Name, e.Seq) {
				continue
			}
			g := gathering{logRun{To: cr.Queue.Seen}, cr.Queue, cr.Count, cr.Size}
			if !t.gather(&g, c.log, &budget) {
				continue
			}
			f := t.w.newForming(cr.Queue, &g.logRun)
			f.commit.Add(1)
			c.close(cr)
			c.taken++
			cr.Program.taken++
			c.spent++
			t.formed = append(t.formed, f) // settle releases it even after an error
		}
	}
}

// gather collects from memory what waits for a queue, including the accepted events. It returns
// false if nothing waits, or if it would have to read from disk or scan more than budget
// earlier events. It subtracts those it scanned from budget.
func (t *tx) gather(g *gathering, log *tail, budget *int) bool {
	reached, full := g.queue.Seen, false
	visit := func(seq int64, e *tailEvent) bool {
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
			log.scan(g.queue.ProgramID, g.queue.Seen, visit)
			*budget -= int(reached - g.queue.Seen)
		}
		first = false
		if full {
			break
		}
		if reached+1 != e.Seq {
			return false
		}
		visit(e.Seq, &tailEvent{id: e.ID, name: e.Name, received: e.ReceivedAt.UnixMilli(), json: e.JSON, trace: e.Trace})
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

// Spend spends a credit: it reads what is next and counts its attempt. For CreditEvents the
// caller must store the delivery with Submit or Wait, and owns the queue's cursor again.
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

package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"service/webhook"
)

// What a commit does for offered credits is bounded: all that publish in it wait
// for that. What is beyond is formed after it.
const (
	// maxInline is of how many events in one commit deliveries are formed in it:
	// many of them are in no hurry, and share deliveries better later.
	maxInline = 32
	// maxSpent is how many deliveries are formed in one commit.
	maxSpent = 64
	// maxInlineSeen is how many events that were published before are looked
	// through for them, all together.
	maxInlineSeen = 1_000
)

// CreditKind is what a credit is for.
type CreditKind int

const (
	CreditEvents CreditKind = iota // the next delivery from the log
	CreditDue                      // a delivery that is due again
	CreditReplay                   // the next delivery of a replay
	CreditPing                     // a ping that is due
)

// Credit is leave to count one attempt for a queue, given by who has a slot free
// for it. It is spent at once by [Queues.Spend]; or it is offered, and the writer
// spends it in the commit of an event that the queue wants (inline delivery): it
// is on its way after one commit then, and not after two.
type Credit struct {
	Queue       *Queue // of CreditEvents: its cursor is the store's until it is known what came of the credit
	Kind        CreditKind
	Newest      int64 // of CreditEvents, unless it is offered: how far the log may be of interest, committed before
	Count, Size int   // the most events and bytes of one delivery

	// Of a queue that is failing or was rejected:
	Probe bool // of CreditPing: the ping that is due the earliest, however late that is, or a new one
	Early bool // of CreditDue: a delivery that is due later if none is now
	Spare bool // of CreditDue: not the last attempt of a delivery

	// Except are the names of events that were rejected, the last one last. Of
	// CreditEvents with Count 1: an event with none of these names if one waits,
	// else one without the last of them, else any.
	Except []string

	// Of a credit that is offered:
	Keys  []EventKey // the events that it is for
	Slots int        // while fewer slots than this are taken

	open bool // it is offered
}

// Credits are the slots of one sender of deliveries, and the credits that it
// offers. A credit that is spent takes a slot, which its owner gives back.
type Credits struct {
	// C receives each credit that was offered and spent, before its commit, for
	// which Forming.Wait waits. It is closed after Close when the last was received.
	C <-chan *Forming

	c   chan *Forming // has room for all slots, so that the writer never waits
	log *tail

	mu     sync.Mutex
	open   map[EventKey][]*Credit // those that are offered
	taken  int                    // slots
	spent  int                    // offered credits that were spent, and are not in c yet
	paused bool
	closed bool
}

// NewCredits returns the credits of a sender with so many slots. They are paused.
func NewCredits(slots int) *Credits {
	c := make(chan *Forming, slots)
	return &Credits{C: c, c: c, open: make(map[EventKey][]*Credit), paused: true}
}

// SetCredits has the writer spend what is offered there, from now on.
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

// Take takes a slot, while the credits are paused.
func (c *Credits) Take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken++
}

// Return gives a slot back.
func (c *Credits) Return() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken--
}

// Pause has nothing spent of what is offered, or ends that.
func (c *Credits) Pause(pause bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = pause
}

// Offer offers a credit to the writer, which owns it, and its queue's cursor, until
// it comes through C or is withdrawn.
func (c *Credits) Offer(cr *Credit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cr.open = true
	for _, key := range cr.Keys {
		c.open[key] = append(c.open[key], cr)
	}
}

// Withdraw takes an offer back. It returns false when the credit is being spent:
// then it comes through C.
func (c *Credits) Withdraw(cr *Credit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := cr.open
	if open {
		c.close(cr)
	}
	return open
}

// close ends an offer. The caller holds c.mu.
func (c *Credits) close(cr *Credit) {
	cr.open = false
	for _, key := range cr.Keys {
		all := c.open[key]
		if i := slices.Index(all, cr); i >= 0 {
			all[i] = all[len(all)-1]
			all[len(all)-1] = nil
			c.open[key] = all[:len(all)-1] // kept, also when it is empty: the next offer needs no memory
		}
	}
}

// Forget frees what is kept for an event that nobody wants any more. No credit is
// offered for it.
func (c *Credits) Forget(key EventKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, key)
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

// accept notes that events were published.
func (t *tx) accept(events []webhook.Event) {
	if t.many = t.many || len(t.accepted)+len(events) > maxInline; !t.many {
		t.accepted = append(t.accepted, events...)
	}
}

// take spends the credits that the accepted events of a transaction are for, and
// appends what is formed of each to t.formed. It leaves alone those of queues that
// nothing waits for, or more than is in memory, or for which much of the log would
// have to be looked through, and those beyond maxSpent.
func (c *Credits) take(t *tx) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused || c.closed {
		return
	}
	looks := maxInlineSeen
	for i := range t.accepted {
		e := &t.accepted[i]
		key := EventKey{e.ProgramID, e.Name}
		for n := len(c.open[key]) - 1; n >= 0; n-- { // close moves the last to the place of the one that is closed
			if len(t.formed) == maxSpent {
				return
			}
			cr := c.open[key][n]
			if c.taken >= cr.Slots || !cr.Queue.Wants(e.Name, e.Seq) {
				continue
			}
			g := gathering{logRun{To: cr.Queue.Seen}, cr.Queue, cr.Count, cr.Size}
			if !t.gather(&g, c.log, &looks) {
				continue
			}
			f := t.w.newForming(cr.Queue, &g.logRun)
			f.commit.Add(1)
			c.close(cr)
			c.taken++
			c.spent++
			t.formed = append(t.formed, f) // and settle gives the slot away, whatever happens
		}
	}
}

// gather gathers what waits for a queue, the accepted events included, from
// memory. It returns false when nothing does, or it would have to read, or to look
// at more than looks events that were published before; it lowers that.
func (t *tx) gather(g *gathering, log *tail, looks *int) bool {
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
			if e.Seq-reached-1 > int64(*looks) {
				return false
			}
			log.scan(g.queue.ProgramID, g.queue.Seen, visit)
			*looks -= int(reached - g.queue.Seen)
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

// spend forms deliveries of the events that the transaction is about to store, for
// those who have offered a credit, and hands them out.
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

// settle ends the wait for the transaction of the deliveries that were formed of
// offered credits. err is nil for a commit.
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

// Spend spends a credit: it reads what there is to send, and counts its attempt.
// Of CreditEvents the caller has that stored, by Submit or Wait, and the queue's
// cursor is the caller's again.
func (s Queues) Spend(ctx context.Context, c *Credit) *Forming {
	if c.Kind == CreditEvents {
		w, err := s.waiting(ctx, c.Queue, c.Newest, c.Count, c.Size)
		switch {
		case err == nil && len(w.Seqs) > 0 && len(c.Except) > 0:
			return s.formExcept(ctx, c, &w)
		case err == nil && len(w.Seqs) > 0:
			return s.form(c, &w)
		case err == nil:
			c.Queue.Seen = w.To
		}
		return &Forming{Queue: c.Queue, err: err}
	}
	f := &Forming{Queue: c.Queue}
	if c.Kind == CreditReplay {
		f.claim, f.More, f.err = s.stepReplay(ctx, c.Queue, c.Count, c.Size)
	} else {
		f.claim, f.Next, f.err = s.claimDue(ctx, c)
		f.Spared = c.Spare && f.claim == nil && f.err == nil && !f.Next.IsZero() && (c.Early || !f.Next.After(time.Now()))
	}
	return f
}

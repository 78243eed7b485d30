package store

import (
	"errors"

	"service/webhook"
)

// Inline delivery: a delivery of an event that nothing stands before is stored in
// the commit of the event. It is on its way after one commit, and not after two.

// maxInline is of how many events in one commit deliveries are formed inline at
// the most: many of them are in no hurry, and share deliveries better later.
const maxInline = 32

// maxInlineSeen is how much of the log is looked through for that at the most,
// for each delivery.
const maxInlineSeen = 1_000

// accept notes that events were published.
func (t *tx) accept(events []webhook.Event) {
	if t.many = t.many || len(t.accepted)+len(events) > maxInline; !t.many {
		t.accepted = append(t.accepted, events...)
	}
}

// Accepted are the events that a commit is about to store. It is valid until
// the function that it was given to returns.
type Accepted struct {
	s       *core
	t       *tx
	failure error // of the transaction
}

// inlineDelivery is a delivery on its way into the store together with its
// events.
type inlineDelivery struct {
	*Forming
	err  error
	done func(*Claim, error)
}

// inlineFormer is who forms deliveries inline.
type inlineFormer struct {
	s  *core
	fn func(*Accepted)
}

// SetInlineFormer has fn called with the events of each commit that stores a
// few, from now on; nil for no more. What it forms of them is stored in the same
// commit. The leader of the writer calls it, while other writes wait: it must be
// quick, and must not wait for a write.
func (s Queues) SetInlineFormer(fn func(*Accepted)) {
	if fn == nil {
		s.writer.inline.Store(nil)
		return
	}
	s.writer.inline.Store(&inlineFormer{s.core, fn})
}

// Events returns the events, of each program in the order of its log. They are
// not to be changed.
func (a *Accepted) Events() []webhook.Event { return a.t.accepted }

// FormInline is [Queues.Waiting] and [Queues.Form] of a queue, the accepted events
// included. It returns false, and does nothing, when nothing waits, or some of it
// may not be in memory, or much of the log would have to be looked through for
// it. Otherwise done is called after the commit, before the publishers go on,
// with the claim or the error: it must be quick, and must not wait for a write.
func (a *Accepted) FormInline(q *Queue, count, size int, done func(*Claim, error)) bool {
	if a.failure != nil {
		return false
	}
	g := gathering{Waiting{To: q.Seen}, q, count, size}
	reached, full := q.Seen, false
	visit := func(seq int64, e *tailEvent) bool {
		reached, full = seq, !g.visit(seq, e)
		return !full
	}
	first := true
	for i := range a.t.accepted {
		e := &a.t.accepted[i]
		if e.ProgramID != q.ProgramID {
			continue
		}
		if e.Seq-q.Seen > maxInlineSeen {
			return false
		}
		if first && reached+1 < e.Seq {
			a.s.tail.scan(q.ProgramID, q.Seen, visit)
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
	if len(g.Seqs) == 0 {
		return false
	}
	f := a.s.newForming(q, &g.Waiting)
	err := f.store(a.t)
	if err != nil && !errors.Is(err, ErrStale) {
		a.failure = err
	}
	a.t.formed = append(a.t.formed, inlineDelivery{f, err, done})
	return true
}

// formInline has deliveries formed of the events that the transaction is about
// to store.
func (t *tx) formInline(former *inlineFormer) error {
	a := &Accepted{s: former.s, t: t}
	former.fn(a)
	return a.failure
}

// releaseInline tells those who formed deliveries inline what came of the
// transaction, nil for a commit. It calls each done once, also when another one
// panics.
func (t *tx) releaseInline(err error) {
	defer func() {
		if len(t.formed) > 0 { // a done has panicked
			t.releaseInline(err)
		}
	}()
	for len(t.formed) > 0 {
		f := t.formed[0]
		t.formed = t.formed[1:]
		switch {
		case err != nil:
			f.done(nil, err)
		case f.err != nil:
			f.done(nil, f.err)
		default:
			f.done(&f.claim, nil)
		}
	}
	t.formed = nil
}

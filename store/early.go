package store

import (
	"errors"

	"service/webhook"
)

// maxEarly is of how many events in one commit deliveries are formed early at the
// most: a crowd of them is in no hurry, and makes better company later.
const maxEarly = 32

// maxEarlySeen is how much of the log is looked through for that at the most, for
// each delivery.
const maxEarlySeen = 1_000

// accept notes that events were published.
func (t *tx) accept(events []webhook.Event) {
	if t.many = t.many || len(t.accepted)+len(events) > maxEarly; !t.many {
		t.accepted = append(t.accepted, events...)
	}
}

// Accepted are the events that a commit is about to store. It is valid until
// the function that it was given to returns.
type Accepted struct {
	s       *Store
	t       *tx
	formed  []early
	failure error // of the transaction
}

// early is a delivery on its way into the store together with its events.
type early struct {
	*Forming
	err  error
	done func(*Claim, error)
}

// FormEarly has fn called with the events of each commit that stores a few, from
// now on; nil for no more. What it forms of them is stored in the same commit. So an event that
// nothing stands before is on its way after one commit, and not after two. It is
// called by whoever commits, while others wait: it must be quick, and must not
// wait for a write.
func (s *Store) FormEarly(fn func(*Accepted)) {
	if fn == nil {
		s.writer.early.Store(nil)
		return
	}
	s.writer.early.Store(&earlyFormer{s, fn})
}

// earlyFormer is who forms deliveries early.
type earlyFormer struct {
	s  *Store
	fn func(*Accepted)
}

// Events returns the events, of each program in the order of its log. They are
// not to be changed.
func (a *Accepted) Events() []webhook.Event { return a.t.accepted }

// Form is [Store.Waiting] and [Store.Form] of a lane, the accepted events
// included. It returns false, and does nothing, when nothing waits, or some of it
// may not be in memory, or much of the log would have to be looked through for it. Otherwise done is called after the commit, before anyone
// hears of it, with the claim or the error: it must be quick, and must not wait
// for a write.
func (a *Accepted) Form(l *Lane, count, size int, done func(*Claim, error)) bool {
	if a.failure != nil {
		return false
	}
	g := gathering{Waiting{To: l.Seen}, l, count, size}
	reached, full := l.Seen, false
	visit := func(seq int64, e *tailEvent) bool {
		reached, full = seq, !g.visit(seq, e)
		return !full
	}
	first := true
	for i := range a.t.accepted {
		e := &a.t.accepted[i]
		if e.ProgramID != l.ProgramID {
			continue
		}
		if e.Seq-l.Seen > maxEarlySeen {
			return false
		}
		if first && reached+1 < e.Seq {
			a.s.tail.scan(l.ProgramID, l.Seen, visit)
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
	f := a.s.newForming(l, &g.Waiting)
	err := f.store(a.t)
	if err != nil && !errors.Is(err, ErrStale) {
		a.failure = err
	}
	a.formed = append(a.formed, early{f, err, done})
	return true
}

// formEarly has deliveries formed of the events that the transaction is about to
// store. It returns errUndone when one of them could not be stored.
func (t *tx) formEarly() error {
	former := t.w.early.Load()
	if former == nil || len(t.accepted) == 0 || t.many {
		return nil
	}
	a := &Accepted{s: former.s, t: t}
	own := &write{run: func(*tx) error {
		former.fn(a)
		return a.failure
	}}
	ok := t.try(own)
	t.formed, t.formedAfter = a.formed, own.after
	if !ok {
		t.w.logger.Error("deliveries could not be stored together with their events; they are stored after them", "error", own.err)
		return errUndone
	}
	return nil
}

// endEarly tells those who formed deliveries early what came of the transaction.
func (t *tx) endEarly(err error) {
	if err == nil {
		for _, fn := range t.formedAfter {
			fn()
		}
	}
	for i := range t.formed {
		f := &t.formed[i]
		switch {
		case err != nil:
			f.done(nil, err)
		case f.err != nil:
			f.done(nil, f.err)
		default:
			f.done(&f.claim, nil)
		}
	}
	t.formed, t.formedAfter = nil, nil
}

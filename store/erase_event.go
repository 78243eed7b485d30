package store

import (
	"context"
	"slices"
	"time"

	"service/store/erasure"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// staleIfErased returns [ErrStale] if one of some events, an array of seqs, was erased.
func (t *tx) staleIfErased(programID, seqs string) error {
	erased, err := erasure.Any(t.Tx, programID, seqs)
	if err == nil && erased {
		err = ErrStale
	}
	return err
}

// EraseEvent erases the payload of an event: nothing sends it after the commit. [Store.Housekeep]
// removes the copies outside of the log. Erasing it again changes nothing. It returns the stored event.
func (w Write) EraseEvent(programID, id string, by webhook.AuditEntry) (webhook.Event, error) {
	s, t := w.t.s, w.t
	e, err := w.Event(programID, id)
	if err != nil || !e.ErasedAt.IsZero() {
		return e, err
	}
	s.erasures.Add(1)
	t.many = true // nothing is formed in this commit from events that are in memory only
	if err := erasure.Mark(t.Tx, &s.dictionaries, programID, e.Seq, s.clock.Now().UnixMilli()); err != nil {
		return e, err
	}
	t.deliveryChanged(0)
	t.AfterCommit(func() {
		s.tail.Erase(programID, e.Seq)
		s.erasures.Add(1)
		wake(s.housekeeping.erased)
	})
	if err := t.people.Record(by, webhook.ActionEventErase, programID, e.ID, e.Name); err != nil {
		return e, err
	}
	return w.Event(programID, id)
}

// Event returns an event as of a write.
func (w Write) Event(programID, id string) (webhook.Event, error) {
	if err := w.t.use(programID, "event"); err != nil {
		return webhook.Event{}, err
	}
	e, err := record.ScanEvent(&w.t.s.dictionaries, programID, w.t.Row(record.SelectEvent, programID, id))
	return e, sqlite.NoRows(err, webhook.NotFound("event"))
}

// ClearErased removes the copies of erased events in a process without [Store.Housekeep] and attempts.
func (s Events) ClearErased(ctx context.Context) error {
	_, err := s.clearErased(ctx)
	return err
}

// clearRetry is the pause before what a read prevented is tried again.
const clearRetry = 10 * time.Second

// clearErased removes the copies of erased events: from rows, then from unused space, then from the WAL.
// Of removed programs only the last two have copies. It leaves deliveries with an attempt in flight;
// [Queues.Record] wakes it. A zero next means that nothing else is left.
func (s *core) clearErased(ctx context.Context) (next time.Time, err error) {
	s.clearing.Lock()
	defer s.clearing.Unlock()
	s.erasedInFlight.Expect()
	c := &clearing{steps: s.newSteps(ctx, sweepPace), inFlight: make(map[int64]bool)}
	began := time.Now()
	if err := c.rows(); err != nil {
		return next, err
	}
	s.erasedInFlight.Set(c.inFlight)
	var cleared bool
	if err := s.db.Scan(ctx, erasure.HasCleared, nil, &cleared); err != nil || !cleared {
		return next, err
	}
	if s.blanked = s.blanked && c.events == 0; !s.blanked {
		if err := c.each(c.residue, c.fill, c.drop, c.residue); err != nil {
			return next, err
		}
		s.blanked = true
	}
	if !s.truncateWAL() {
		return time.Now().Add(clearRetry), nil // a long read uses it
	}
	if err := c.remove(erasure.RemoveCleared); err != nil {
		return next, err
	}
	s.logger.Info("removed the copies of erased events", "events", c.events, "duration", time.Since(began).Round(time.Millisecond),
		"longest_step", c.longest)
	return next, nil
}

// clearing is one run of clearErased.
type clearing struct {
	steps
	events   int
	inFlight map[int64]bool
}

// rows removes the copies in rows.
func (c *clearing) rows() error {
	_, each := c.s.db.Reads(c.ctx)
	for last := (erasure.Pending{}); ; {
		some, err := erasure.Next(each, &c.s.dictionaries, last.ProgramID, last.Seq)
		if err != nil || len(some) == 0 {
			return err
		}
		last = some[len(some)-1]
		for len(some) > 0 { // a program at a time
			n := 1
			for n < len(some) && some[n].ProgramID == some[0].ProgramID {
				n++
			}
			// Otherwise the program is erased as a whole, or frozen.
			if id := some[0].ProgramID; id == "" || c.s.use(id, "") == nil {
				if err := c.program(some[:n]); err != nil {
					return err
				}
			}
			some = some[n:]
		}
	}
}

// program removes the copies of events of one program.
func (c *clearing) program(events []erasure.Pending) error {
	if err := c.answers(events); err != nil {
		return err
	}
	c.size = firstStep
	var done []erasure.Pending
	for i := range events {
		left, err := c.deliveries(&events[i])
		if err != nil {
			return err
		}
		if !left {
			done = append(done, events[i])
		}
	}
	c.events += len(done)
	return inSteps(&c.steps, done, func(t *tx, some []erasure.Pending) error {
		for i := range some {
			if err := erasure.Cleared(t.Tx, &some[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// deliveries ends the deliveries of an event that wait, and removes the responses to all of them. It
// reports whether one is in flight.
func (c *clearing) deliveries(p *erasure.Pending) (inFlight bool, err error) {
	for after := int64(0); ; {
		nums, err := c.s.nums(c.ctx, erasure.SelectCarriers, p.ProgramID, p.Seq, after, c.size)
		if err != nil || len(nums) == 0 {
			return inFlight, err
		}
		var claimed []int64
		err = c.write(func(t *tx) (err error) {
			after, claimed, err = t.clearDeliveries(nums, p.Seq)
			return err
		})
		if err != nil {
			return inFlight, err
		}
		for _, num := range claimed {
			c.inFlight[num], inFlight = true, true
		}
	}
}

// clearDeliveries is clearing.deliveries for the first of a few deliveries, through the num last.
func (t *tx) clearDeliveries(nums []int64, seq int64) (last int64, inFlight []int64, err error) {
	carriers, err := erasure.Carriers(t.Tx, sqlite.JSON(nums))
	if err != nil {
		return 0, nil, err
	}
	room, ended := endedAtOnce, false
	for i := range carriers {
		d := &carriers[i]
		if !d.Waits {
			if d.InFlight {
				inFlight = append(inFlight, d.Num)
			}
			continue
		}
		if room -= d.Events; ended && room < 0 {
			n, _ := slices.BinarySearch(nums, d.Num)
			nums = nums[:n]
			break
		}
		ended = true
		if err := t.failUnsendable(d.Num, d.SubscriptionID, webhook.FailureCancelled); err != nil {
			return 0, nil, err
		}
		t.AfterCommit(func() {
			t.s.watchers.SubscriptionChanged(d.SubscriptionID) // a split may have begun
			t.s.watchers.Queued(d.SubscriptionID)              // and an ordered subscription waits no longer
		})
	}
	left, err := erasure.Clear(t.Tx, sqlite.JSON(nums), seq)
	for _, num := range left {
		if err == nil {
			err = t.noteRecovered(num)
		}
		if err == nil {
			err = t.endSplits(ofFailed, num)
		}
	}
	t.deliveryChanged(0)
	return nums[len(nums)-1], inFlight, err
}

// answers removes the events from stored answers. A key rotation may change a row between its read and
// its write; then all are read again.
func (c *clearing) answers(events []erasure.Pending) error {
	a := erasure.NewAnswers(c.s.keys, events)
	c.size = firstStep
	for after, read, again := int64(0), 1, false; read > 0 || again; {
		if read == 0 {
			after, again = 0, false
		}
		read = 0
		var found []*erasure.Answer
		err := c.s.db.Each(c.ctx, erasure.SelectAnswers, []any{events[0].ProgramID, after, c.size}, func(scan func(...any) error) error {
			var place string
			var body []byte
			if err := scan(&after, &place, &body); err != nil {
				return err
			}
			read++
			if answer := a.Erase(after, place, body); answer != nil {
				found = append(found, answer)
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = inSteps(&c.steps, found, func(t *tx, some []*erasure.Answer) error {
			for _, answer := range some {
				changed, err := a.Store(t.Tx, answer)
				if again = again || changed; err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fill overwrites the pages that are free, and drop makes them free again.
func (c *clearing) fill() error {
	c.size = 1
	return c.until(func(t *tx, size int) (end bool, err error) {
		left, err := erasure.Fill(t.Tx, min(size, 8))
		return left == 0, err
	})
}

func (c *clearing) drop() error { return c.remove(erasure.DropBlanks) }

// residue overwrites what rows left in pages that are in use.
func (c *clearing) residue() error {
	var r erasure.Residue
	return c.until(func(t *tx, size int) (bool, error) {
		next, end, err := r.Next(t.Tx, size)
		t.AfterCommit(func() { r = next })
		return end, err
	})
}

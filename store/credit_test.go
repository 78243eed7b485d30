package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"service/store/record"
	"service/store/tail"
	"service/store/watch"
	"service/webhook"
)

// offer offers a credit for a queue, for all the events that it selects.
func offer(s *Store, q *Queue) *Credits {
	c := NewCredits(16)
	c.Pause(false)
	s.Queues().SetCredits(c)
	c.Offer(creditFor(q))
	return c
}

// due and duePing return credits for the retries, or the pings, of a subscription in its current
// revision.
func due(s *Store, id string) *Credit     { return dueKind(s, id, CreditDue) }
func duePing(s *Store, id string) *Credit { return dueKind(s, id, CreditPing) }

func dueKind(s *Store, id string, kind CreditKind) *Credit {
	q := &Queue{SubscriptionID: id}
	if err := s.db.Scan(context.Background(), "SELECT revision FROM subscriptions WHERE id = ?", []any{id}, &q.Revision); err != nil {
		panic(err)
	}
	return &Credit{Queue: q, Kind: kind}
}

func creditFor(q *Queue) *Credit {
	return &Credit{Queue: q, Count: 100, Size: webhook.MaxDeliveryBytes, Program: new(ProgramSlots),
		Keys: []watch.EventKey{{ProgramID: q.ProgramID, Name: "content_updated"}}}
}

// offered returns the result of an offered credit that was spent.
func offered(t *testing.T, c *Credits) (*Claim, error) {
	t.Helper()
	if len(c.C) != 1 {
		t.Fatalf("%d credits were spent, want 1", len(c.C))
	}
	return (<-c.C).Wait()
}

// Waiting events and the one being published are stored in one delivery in the same commit, and
// Wait returns after it.
func TestInlineDelivery(t *testing.T) {
	s := openProgram(t)
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	waiting := publish(t, s, "p", "content_updated", "content_created")
	credits := offer(s, l)
	before := committed(t, s)
	published := publish(t, s, "p", "content_created", "content_updated")
	if n := committed(t, s) - before; n != 1 {
		t.Errorf("it took %d commits, want 1", n)
	}
	claim, err := offered(t, credits)
	if err != nil || len(claim.Events) != 2 || string(claim.Events[0]) != string(waiting[0].JSON) ||
		string(claim.Events[1]) != string(published[1].JSON) {
		t.Fatalf("got claim %+v, %v; want one with the two events that the subscription wants", claim, err)
	}
	var cursor, made int64
	err = s.db.Scan(t.Context(),
		"SELECT c.seq, d.attempts_made FROM cursors c JOIN deliveries d USING (subscription_id) WHERE d.id = ? AND d.claimed_at IS NOT NULL",
		[]any{record.ShortID(claim.ID)}, &cursor, &made)
	if err != nil || cursor != 4 || made != 1 || l.Cursor != 4 || l.Seen != 4 {
		t.Errorf("got cursor %d (%v), %d in the queue, %d attempts; want 4, 4, 1", cursor, err, l.Cursor, made)
	}

	// A credit is spent once.
	publish(t, s, "p", "content_updated")

	// No delivery is formed if no event is selected or too many are published, or if the credit
	// is paused, withdrawn, or has no free slot.
	l.Seen = 5
	l.Cursor = 5
	credit := creditFor(l)
	credits.Offer(credit)
	publish(t, s, "p", "content_created")
	names := slices.Repeat([]string{"content_updated"}, maxInline+1)
	publish(t, s, "p", names...)
	credits.Pause(true)
	publish(t, s, "p", "content_updated")
	credits.Pause(false)
	other := &ProgramSlots{ID: "other"}
	slow, quick := takeAll(credits, other, SlotSlow), takeAll(credits, credit.Program, SlotQuick)
	before = uint64(credits.Taken())
	publish(t, s, "p", "content_updated")
	if n := uint64(credits.Taken()); n != before {
		t.Errorf("%d slots are taken, want %d", n, before)
	}
	returnSlots(credits, other, SlotSlow, slow)
	returnSlots(credits, credit.Program, SlotQuick, quick)
	if !credits.Withdraw(credit) || credits.Withdraw(credit) {
		t.Error("Withdraw did not return true once, then false")
	}
	publish(t, s, "p", "content_updated")
	if n := len(credits.C); n != 0 || credits.Taken() != 1 {
		t.Errorf("%d more deliveries, %d slots taken; want 0 and 1", n, credits.Taken())
	}
	credits.Close()
	if _, some := <-credits.C; some {
		t.Error("a credit was spent by Close")
	}
}

// Events that are no longer in memory are not skipped.
func TestInlineDeliverySkipsUnreadLog(t *testing.T) {
	s := openProgram(t)
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	publish(t, s, "p", "content_updated", "content_updated")
	s.tail = tail.New(0)
	publish(t, s, "p", "content_created") // the tail drops everything
	credits := offer(s, l)
	publish(t, s, "p", "content_updated")
	if n := len(credits.C); n != 0 || l.Seen != 0 {
		t.Errorf("%d deliveries, Seen %d; want 0 and 0", n, l.Seen)
	}
	if c := form(t, s, queue(t, s, l.SubscriptionID), 100); c == nil || len(c.Events) != 3 {
		t.Errorf("got claim %+v, want one with all three events", c)
	}
}

// If an inline delivery cannot be stored, nothing of it is stored, but the events are.
func TestInlineDeliveryFailureKeepsEvents(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(t *testing.T, s *Store, id string)
		want  error
	}{
		"the queue is stale": {func(t *testing.T, s *Store, id string) {
			text := "changed"
			_, err := s.Subscriptions().Update(t.Context(), "p", id, &webhook.SubscriptionFields{Description: &text})
			must(t, err)
		}, ErrStale},
		"its last row cannot be stored": {func(t *testing.T, s *Store, _ string) {
			execute(t, s, "ALTER TABLE delivery_events RENAME TO away")
		}, ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			s := openProgram(t)
			l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
			test.spoil(t, s, l.SubscriptionID)
			credits := offer(s, l)
			if e := publish(t, s, "p", "content_updated"); e[0].Seq != 1 {
				t.Errorf("got seq %d, want 1", e[0].Seq)
			}
			if claim, err := offered(t, credits); claim != nil || !errors.Is(err, test.want) {
				t.Errorf("got %+v, %v; want %v", claim, err, test.want)
			}
			var events, deliveries int
			err := s.db.Scan(t.Context(), "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM deliveries WHERE ping IS NULL)", nil,
				&events, &deliveries)
			if err != nil || events != 1 || deliveries != 0 {
				t.Errorf("%d events and %d deliveries are stored (%v), want 1 and 0", events, deliveries, err)
			}
		})
	}
}

// Inline deliveries of a failed commit get its error.
func TestFailedCommitFailsInlineDelivery(t *testing.T) {
	s := openProgram(t)
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	credits := offer(s, l)
	err := s.WriteAgain(context.Background(), func(w Write) error {
		// A deferred foreign key is checked by COMMIT.
		if err := w.t.Exec("PRAGMA defer_foreign_keys = ON"); err != nil {
			return err
		}
		if err := w.t.Exec("INSERT INTO cursors (subscription_id, seq) VALUES ('unknown', 1)"); err != nil {
			return err
		}
		_, err := w.Publish("p", []webhook.Event{event("content_updated")})
		return err
	})
	if !s.writer.Failed() {
		t.Error("the failure was not recorded")
	}
	if claim, failed := offered(t, credits); err == nil || claim != nil || !errors.Is(failed, ErrUnavailable) {
		t.Errorf("write: got %v; delivery: got %+v, %v; want both to fail", err, claim, failed)
	}
	if c := form(t, s, queue(t, s, l.SubscriptionID), 100); c != nil {
		t.Errorf("%+v is stored, want no delivery", c)
	}
}

// After a panic in an AfterCommit function the delivery is stored, so its error must not be
// ErrUnavailable.
func TestPanicAfterCommitKeepsDelivery(t *testing.T) {
	s := openProgram(t)
	credits := offer(s, queue(t, s, subscribe(t, s, "p", "content_updated").ID))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		s.WriteAgain(context.Background(), func(w Write) error {
			w.t.AfterCommit(func() { panic("after") })
			_, err := w.Publish("p", []webhook.Event{event("content_updated")})
			return err
		})
	}()
	claim, err := offered(t, credits)
	if claim != nil || err == nil || Unavailable(err) {
		t.Errorf("got %+v, %v; want an error other than %v", claim, err, ErrUnavailable)
	}
	var stored int
	err = s.db.Scan(t.Context(), "SELECT count(*) FROM deliveries WHERE ping IS NULL", nil, &stored)
	if err != nil || stored != 1 {
		t.Errorf("%d deliveries stored (%v), want 1", stored, err)
	}
}

// An inline delivery is received from C before its commit, so that its request can be prepared,
// but Wait returns after it.
func TestInlineDeliverySentAfterCommit(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		credits := offer(s, queue(t, s, subscribe(t, s, "p", "content_updated").ID))
		waited := make(chan struct{})
		err := s.WriteAgain(t.Context(), func(w Write) error {
			w.t.AfterCommit(func() { // before Wait may return
				if len(credits.C) != 1 {
					t.Errorf("%d deliveries were handed out, want 1", len(credits.C))
					close(waited)
					return
				}
				f := <-credits.C
				if c := f.Peek(); c == nil || len(c.Events) != 1 {
					t.Errorf("Peek: got claim %+v, want one with one event", c)
				}
				go func() {
					defer close(waited)
					if claim, err := f.Wait(); claim == nil || err != nil {
						t.Errorf("got claim %+v, %v", claim, err)
					}
				}()
				synctest.Wait()
				select {
				case <-waited:
					t.Error("the wait ended before the commit")
				default:
				}
			})
			_, err := w.Publish("p", []webhook.Event{event("content_updated")})
			return err
		})
		must(t, err)
		<-waited
	})
}

// C is closed only after the last spent credit was sent.
func TestCreditsCloseAfterLastSpent(t *testing.T) {
	s := openProgram(t)
	credits := offer(s, queue(t, s, subscribe(t, s, "p", "content_updated").ID))
	err := s.WriteAgain(t.Context(), func(w Write) error {
		w.t.AfterCommit(func() {
			credits.Close()
			credits.Close()
		})
		_, err := w.Publish("p", []webhook.Event{event("content_updated")})
		return err
	})
	must(t, err)
	f, some := <-credits.C
	if claim, err := f.Wait(); !some || claim == nil || err != nil {
		t.Errorf("got claim %+v, %v", claim, err)
	}
	if _, some := <-credits.C; some {
		t.Error("more than one credit was spent")
	}
}

// One commit spends a bounded number of credits; the others stay offered.
func TestCommitBoundsSpentCredits(t *testing.T) {
	s := openProgram(t)
	credits := NewCredits(2 * maxSpent)
	credits.Pause(false)
	s.Queues().SetCredits(credits)
	all := make([]*Credit, maxSpent+6)
	for i := range all {
		all[i] = creditFor(queue(t, s, subscribe(t, s, "p", "content_updated").ID))
		credits.Offer(all[i])
	}
	publish(t, s, "p", "content_updated")
	if len(credits.C) != maxSpent || credits.Taken() != maxSpent {
		t.Errorf("%d credits were spent, with %d slots taken; want %d", len(credits.C), credits.Taken(), maxSpent)
	}
	left := 0
	for _, c := range all {
		if credits.Withdraw(c) {
			left++
		}
	}
	if left != 6 {
		t.Errorf("%d credits are still offered, want 6", left)
	}

	// Scanning the log is bounded as well.
	names := slices.Repeat([]string{"content_created"}, maxInlineSeen/2)
	publish(t, s, "p", names...)
	credits = NewCredits(16)
	credits.Pause(false)
	s.Queues().SetCredits(credits)
	for _, c := range all[:4] {
		c.Queue.Seen, c.Queue.Cursor = 1, 1
		credits.Offer(c)
	}
	publish(t, s, "p", "content_updated")
	if n := len(credits.C); n != 2 {
		t.Errorf("spent %d credits that were %d events behind, want 2", n, len(names))
	}
}

// A panic while one credit is spent loses neither other credits nor the event.
func TestPanicReturnsCredits(t *testing.T) {
	s := openProgram(t)
	credits := NewCredits(16)
	credits.Pause(false)
	s.Queues().SetCredits(credits)
	bad := creditFor(&Queue{ProgramID: "p"})
	bad.Queue = nil
	credits.Offer(bad)
	credits.Offer(creditFor(queue(t, s, subscribe(t, s, "p", "content_updated").ID))) // the last one offered is spent first
	publish(t, s, "p", "content_updated")
	if claim, err := offered(t, credits); claim != nil || !errors.Is(err, ErrStale) {
		t.Errorf("got %+v, %v; want %v", claim, err, ErrStale)
	}
	credits.Return(bad.Program, bad.Class)
	credits.Close()
	if _, some := <-credits.C; some || credits.Taken() != 0 {
		t.Errorf("%d slots are taken at the end, want 0", credits.Taken())
	}
}

func committed(t *testing.T, s *Store) uint64 {
	t.Helper()
	y, err := s.Figures().System(t.Context())
	must(t, err)
	return y.Commits
}

// takeAll takes slots for a program in a class until it may take no more, and returns how many it
// has taken.
func takeAll(c *Credits, p *ProgramSlots, class SlotClass) int {
	c.Wait(p, class, true)
	defer c.Wait(p, class, false)
	for range c.slots + 1 {
		if got, as := c.Take(); got != p {
			if got != nil {
				c.Return(got, as)
			}
			break
		}
	}
	return c.Program(p)
}

func returnSlots(c *Credits, p *ProgramSlots, class SlotClass, n int) {
	for range n {
		c.Return(p, class)
	}
}

// One program alone gets seven eighths of the slots; its quick queues with nothing in flight get
// more, but the rest is for programs with nothing in flight.
func TestSlotShares(t *testing.T) {
	for _, test := range []struct{ slots, other, quick, idle int }{
		{512, 448, 496, 497}, {64, 56, 62, 63}, {16, 14, 15, 16}, {8, 7, 7, 8}, {3, 2, 2, 3}, {2, 1, 1, 2}, {1, 1, 1, 1},
	} {
		c := NewCredits(test.slots)
		a, b := &ProgramSlots{ID: "a"}, &ProgramSlots{ID: "b"}
		if n := takeAll(c, a, SlotSlow); n != test.other {
			t.Errorf("%d slots: a program alone took %d, want %d", test.slots, n, test.other)
		}
		if n := takeAll(c, b, SlotSlow); n != 0 {
			t.Errorf("%d slots: another took %d of those for quick queues", test.slots, n)
		}
		if n := takeAll(c, a, SlotQuick); n != test.quick {
			t.Errorf("%d slots: with its quick queues it took %d, want %d", test.slots, n, test.quick)
		}
		last := takeAll(c, b, SlotQuick)
		if c.Taken() != test.idle {
			t.Errorf("%d slots: with a quick queue of a program with nothing in flight %d are taken, want %d", test.slots, c.Taken(), test.idle)
		}
		returnSlots(c, a, SlotSlow, test.other)
		returnSlots(c, a, SlotQuick, test.quick-test.other)
		returnSlots(c, b, SlotQuick, last)
		if c.Taken() != 0 || c.waiting != 0 || c.quick != 0 {
			t.Errorf("%d slots: at the end %d are taken and %d programs wait", test.slots, c.Taken(), c.waiting)
		}
	}
}

// Programs that all need more than they get have equal shares, and leave as many slots free. A limit
// of a program only lowers its share, and the others get the slots that it does not use.
func TestSlotsAreSharedByPrograms(t *testing.T) {
	for _, test := range []struct {
		programs, limit int
		want            []int
	}{
		{2, 0, []int{21, 21}}, {3, 0, []int{16, 16, 16}}, {7, 0, []int{8, 8, 8, 8, 8, 8, 8}}, {3, 4, []int{4, 20, 20}},
	} {
		c := NewCredits(64)
		all := takeInTurn(c, test.programs, test.limit)
		for i, p := range all {
			if n := c.Program(p); n < test.want[i]-1 || n > test.want[i]+1 {
				t.Errorf("%d programs, limit %d: program %d has %d slots, want %d", test.programs, test.limit, i, n, test.want[i])
			}
		}
	}
}

// takeInTurn lets programs take and return slots, as attempts end. The first has a limit.
func takeInTurn(c *Credits, programs, limit int) (all []*ProgramSlots) {
	fill := func() {
		for got, _ := c.Take(); got != nil; got, _ = c.Take() {
		}
	}
	for i := range programs {
		all = append(all, &ProgramSlots{ID: string(rune('a' + i))})
		if i == 0 {
			c.Limit(all[i], limit)
		}
		c.Wait(all[i], SlotSlow, true)
		fill()
	}
	for range 1000 {
		c.Return(slices.MaxFunc(all, func(a, b *ProgramSlots) int { return c.Program(a) - c.Program(b) }), SlotSlow)
		fill()
	}
	return all
}

// A program at its limit is not in turn, so it restricts no other, until it has returned a slot or
// its limit has changed.
func TestFullProgramIsNotInTurn(t *testing.T) {
	c := NewCredits(64)
	a, b := &ProgramSlots{ID: "a"}, &ProgramSlots{ID: "b"}
	c.Limit(a, 2)
	c.Wait(a, SlotSlow, true)
	c.Take()
	c.Take()
	if n := takeAll(c, b, SlotSlow); n != 54 || c.Program(a) != 2 {
		t.Errorf("while a program is full, another took %d slots, want 54", n)
	}
	for _, change := range []func(){func() { c.Return(a, SlotSlow) }, func() { c.Limit(a, 3) }} {
		c.Return(b, SlotSlow)
		if change(); c.waiting != 1 {
			t.Errorf("%d programs wait, want 1", c.waiting)
		}
		if got, _ := c.Take(); got != a {
			t.Errorf("got %v, want the program that was full", got)
		}
	}
}

// A quick receiver keeps up however many slots slow receivers hold, and however many slots it
// needs, but it leaves the slots for queues with nothing in flight.
func TestBusyQueuesHaveSlots(t *testing.T) {
	c := NewCredits(64)
	a := &ProgramSlots{ID: "a"}
	if n := takeAll(c, a, SlotSlow); n != 56 {
		t.Fatalf("slow queues took %d slots, want 56", n)
	}
	if n := takeAll(c, a, SlotBusy); n != 60 {
		t.Errorf("with busy ones %d are taken, want 60", n)
	}
	if n := takeAll(c, a, SlotSlow); n != 60 {
		t.Errorf("then slow queues took more: %d are taken, want 60", n)
	}
	if n := takeAll(c, a, SlotQuick); n != 62 {
		t.Errorf("with quick ones %d are taken, want 62", n)
	}
}

// The classes take turns, a long one for quick receivers, and programs within a class.
func TestSlotTurns(t *testing.T) {
	c := NewCredits(64)
	a, b := &ProgramSlots{ID: "a"}, &ProgramSlots{ID: "b"}
	for _, p := range []*ProgramSlots{a, b} {
		for class := range SlotClasses {
			c.Wait(p, class, true)
		}
	}
	var got string
	for range 2 * (quickTurns + 2) {
		p, class := c.Take()
		got += p.ID + []string{"q ", "b ", "s "}[class]
		c.Return(p, class)
	}
	quick := strings.Repeat("aq bq ", quickTurns/2)
	if want := quick + "ab as " + quick + "bb bs "; got != want {
		t.Errorf("got turns %q, want %q", got, want)
	}
}

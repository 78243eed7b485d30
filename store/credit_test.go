package store

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"service/webhook"
)

// offer offers a credit for a queue, for all the events that it wants.
func offer(s *Store, q *Queue) *Credits {
	c := NewCredits(16)
	c.Pause(false)
	s.Queues().SetCredits(c)
	c.Offer(creditFor(q, 16))
	return c
}

// due and duePing return credits for the retries, or the pings, of a subscription.
func due(id string) *Credit     { return &Credit{Queue: &Queue{SubscriptionID: id}, Kind: CreditDue} }
func duePing(id string) *Credit { return &Credit{Queue: &Queue{SubscriptionID: id}, Kind: CreditPing} }

func creditFor(q *Queue, slots int) *Credit {
	return &Credit{Queue: q, Count: 100, Size: webhook.MaxDeliveryBytes, Slots: slots, Program: new(ProgramSlots),
		Keys: []EventKey{{q.ProgramID, "content_updated"}}}
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
	s := open(t)
	program(t, s, "p")
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	waiting := publish(t, s, "p", "content_updated", "content_created")
	credits := offer(s, l)
	before := commits(t, s)
	published := publish(t, s, "p", "content_created", "content_updated")
	if n := commits(t, s) - before; n != 1 {
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
		[]any{shortID(claim.ID)}, &cursor, &made)
	if err != nil || cursor != 4 || made != 1 || l.Cursor != 4 || l.Seen != 4 {
		t.Errorf("got cursor %d (%v), %d in the queue, %d attempts; want 4, 4, 1", cursor, err, l.Cursor, made)
	}

	// A credit is spent once.
	publish(t, s, "p", "content_updated")

	// No delivery is formed if no event is wanted or too many are published, or if the
	// credit is paused, withdrawn, or has no free slot.
	l.Seen = 5
	l.Cursor = 5
	credit := creditFor(l, 2)
	credits.Offer(credit)
	publish(t, s, "p", "content_created")
	names := make([]string, maxInline+1)
	for i := range names {
		names[i] = "content_updated"
	}
	publish(t, s, "p", names...)
	credits.Pause(true)
	publish(t, s, "p", "content_updated")
	credits.Pause(false)
	credits.Take(credit.Program)
	publish(t, s, "p", "content_updated")
	if n := credits.Taken(); n != 2 {
		t.Errorf("%d slots are taken, want 2", n)
	}
	credits.Return(credit.Program)
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
	s := open(t)
	program(t, s, "p")
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	publish(t, s, "p", "content_updated", "content_updated")
	s.tail.limit = 0
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
			if _, err := s.Subscriptions().Update(t.Context(), "p", id, &webhook.SubscriptionFields{Description: &text}); err != nil {
				t.Fatal(err)
			}
		}, ErrStale},
		"its last row cannot be stored": {func(t *testing.T, s *Store, _ string) {
			if err := s.writer.do(func(t *tx) error { return t.Exec("ALTER TABLE delivery_events RENAME TO away") }); err != nil {
				t.Fatal(err)
			}
		}, ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			program(t, s, "p")
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
	s := open(t)
	program(t, s, "p")
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
	s := open(t)
	program(t, s, "p")
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
	s := open(t)
	program(t, s, "p")
	credits := offer(s, queue(t, s, subscribe(t, s, "p", "content_updated").ID))
	err := s.WriteAgain(t.Context(), func(w Write) error {
		w.t.AfterCommit(func() {
			credits.Close()
			credits.Close()
		})
		_, err := w.Publish("p", []webhook.Event{event("content_updated")})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
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
	s := open(t)
	program(t, s, "p")
	credits := NewCredits(2 * maxSpent)
	credits.Pause(false)
	s.Queues().SetCredits(credits)
	all := make([]*Credit, maxSpent+6)
	for i := range all {
		all[i] = creditFor(queue(t, s, subscribe(t, s, "p", "content_updated").ID), 2*maxSpent)
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

	// Scanning the log is bounded too.
	names := make([]string, maxInlineSeen/2)
	for i := range names {
		names[i] = "content_created"
	}
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
	s := open(t)
	program(t, s, "p")
	credits := NewCredits(16)
	credits.Pause(false)
	s.Queues().SetCredits(credits)
	bad := creditFor(&Queue{ProgramID: "p"}, 16)
	bad.Queue = nil
	credits.Offer(bad)
	credits.Offer(creditFor(queue(t, s, subscribe(t, s, "p", "content_updated").ID), 16)) // the last one offered is spent first
	publish(t, s, "p", "content_updated")
	if claim, err := offered(t, credits); claim != nil || !errors.Is(err, ErrStale) {
		t.Errorf("got %+v, %v; want %v", claim, err, ErrStale)
	}
	credits.Return(bad.Program)
	credits.Close()
	if _, some := <-credits.C; some || credits.Taken() != 0 {
		t.Errorf("%d slots are taken at the end, want 0", credits.Taken())
	}
}

func commits(t *testing.T, s *Store) uint64 {
	t.Helper()
	y, err := s.Figures().System(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return y.Commits
}

package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"service/webhook"
)

// offer offers a credit for a queue, and for the events that it wants.
func offer(s *Store, q *Queue) *Credits {
	c := NewCredits(16)
	c.Pause(false)
	s.Queues().SetCredits(c)
	c.Offer(creditFor(q, 16))
	return c
}

// due and duePing are leave to count an attempt of what is due of a subscription.
func due(id string) *Credit     { return &Credit{Queue: &Queue{SubscriptionID: id}, Kind: CreditDue} }
func duePing(id string) *Credit { return &Credit{Queue: &Queue{SubscriptionID: id}, Kind: CreditPing} }

func creditFor(q *Queue, slots int) *Credit {
	return &Credit{Queue: q, Count: 100, Size: webhook.MaxDeliveryBytes, Slots: slots, Keys: []EventKey{{q.ProgramID, "content_updated"}}}
}

// offered returns what came of a credit that was spent.
func offered(t *testing.T, c *Credits) (*Claim, error) {
	t.Helper()
	if len(c.C) != 1 {
		t.Fatalf("%d credits were spent, want 1", len(c.C))
	}
	return (<-c.C).Wait()
}

// What waits for a queue and what is being published are stored together, and
// those who wait for the commit are told after it.
func TestADeliveryIsStoredWithItsEvents(t *testing.T) {
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
	if err != nil || len(claim.Events) != 2 || string(claim.Events[0]) != string(waiting[0].JSON) || string(claim.Events[1]) != string(published[1].JSON) {
		t.Fatalf("got the claim %+v, %v; want one on the two events that the subscription wants", claim, err)
	}
	var cursor, made int64
	err = s.db.Scan(t.Context(), "SELECT c.seq, d.attempts_made FROM cursors c JOIN deliveries d USING (subscription_id) WHERE d.id = ? AND d.claimed_at IS NOT NULL", []any{shortID(claim.ID)}, &cursor, &made)
	if err != nil || cursor != 4 || made != 1 || l.Cursor != 4 || l.Seen != 4 {
		t.Errorf("the cursor is %d (%v), %d in the queue, after %d attempts; want 4, 4, 1", cursor, err, l.Cursor, made)
	}

	// It was spent once.
	publish(t, s, "p", "content_updated")

	// Nothing is formed when nothing is wanted, nor when it is published by many, nor
	// of a credit that is paused, withdrawn, or for slots that are all taken.
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
	credits.Take()
	publish(t, s, "p", "content_updated")
	if n := credits.Taken(); n != 2 {
		t.Errorf("%d slots are taken, want 2", n)
	}
	credits.Return()
	if !credits.Withdraw(credit) || credits.Withdraw(credit) {
		t.Error("an offer is not withdrawn once")
	}
	publish(t, s, "p", "content_updated")
	if n := len(credits.C); n != 0 || credits.Taken() != 1 {
		t.Errorf("%d more were formed, with %d slots taken; want none and 1", n, credits.Taken())
	}
	credits.Close()
	if _, some := <-credits.C; some {
		t.Error("a credit was spent by its end")
	}
}

// What is not in memory is not passed over.
func TestNothingIsFormedInlineWhereTheLogWouldHaveToBeRead(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	publish(t, s, "p", "content_updated", "content_updated")
	s.tail.limit = 0
	publish(t, s, "p", "content_created") // the tail forgets all
	credits := offer(s, l)
	publish(t, s, "p", "content_updated")
	if n := len(credits.C); n != 0 || l.Seen != 0 {
		t.Errorf("%d were formed, and the log was seen up to %d; want none and 0", n, l.Seen)
	}
	if c := form(t, s, queue(t, s, l.SubscriptionID), 100); c == nil || len(c.Events) != 3 {
		t.Errorf("got the claim %+v, want one on all three events", c)
	}
}

// The publishers are not to blame when a delivery cannot be stored with their
// events, and nothing of it is stored.
func TestEventsAreStoredWithoutADeliveryThatCannotBe(t *testing.T) {
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
				t.Errorf("the event has seq %d, want 1", e[0].Seq)
			}
			if claim, err := offered(t, credits); claim != nil || !errors.Is(err, test.want) {
				t.Errorf("got %+v, %v; want %v", claim, err, test.want)
			}
			var events, deliveries int
			err := s.db.Scan(t.Context(), "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM deliveries WHERE ping IS NULL)", nil, &events, &deliveries)
			if err != nil || events != 1 || deliveries != 0 {
				t.Errorf("%d events and %d deliveries are stored (%v), want 1 and none", events, deliveries, err)
			}
		})
	}
}

// What a commit that fails had formed is told so.
func TestAFailedCommitFailsWhatItHadFormed(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	credits := offer(s, l)
	err := s.WriteAgain(context.Background(), func(w Write) error {
		// A deferred foreign key is checked by COMMIT.
		if err := w.t.Exec("PRAGMA defer_foreign_keys = ON"); err != nil {
			return err
		}
		if err := w.t.Exec("INSERT INTO cursors (subscription_id, seq) VALUES ('nobody', 1)"); err != nil {
			return err
		}
		_, err := w.Publish("p", []webhook.Event{event("content_updated")})
		return err
	})
	if !s.writer.Failed() {
		t.Error("the failure was not recorded")
	}
	if claim, failed := offered(t, credits); err == nil || claim != nil || !errors.Is(failed, ErrUnavailable) {
		t.Errorf("the write got %v, and the delivery %+v, %v; want both to fail", err, claim, failed)
	}
	if c := form(t, s, queue(t, s, l.SubscriptionID), 100); c != nil {
		t.Errorf("%+v is stored, want nothing", c)
	}
}

// A panic after the commit is not reported as ErrUnavailable to an inline
// delivery: the delivery is stored.
func TestAPanicAfterTheCommitIsNoOutage(t *testing.T) {
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
		t.Errorf("%d deliveries are stored (%v), want 1", stored, err)
	}
}

// A delivery that was offered is handed out before its commit, so that its request can
// be prepared, and its claim is not.
func TestOfferedDeliveriesAreHandedOutBeforeTheirCommit(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	credits := offer(s, queue(t, s, subscribe(t, s, "p", "content_updated").ID))
	waited := make(chan struct{})
	err := s.WriteAgain(t.Context(), func(w Write) error {
		w.t.AfterCommit(func() { // before the end of the commit
			if len(credits.C) != 1 {
				t.Errorf("%d deliveries were handed out, want 1", len(credits.C))
				close(waited)
				return
			}
			f := <-credits.C
			if c := f.Peek(); c == nil || len(c.Events) != 1 {
				t.Errorf("got the coming claim %+v, want one of one event", c)
			}
			go func() {
				defer close(waited)
				if claim, err := f.Wait(); claim == nil || err != nil {
					t.Errorf("got the claim %+v, %v", claim, err)
				}
			}()
			select {
			case <-waited:
				t.Error("the wait ended before the commit")
			case <-time.After(20 * time.Millisecond):
			}
		})
		_, err := w.Publish("p", []webhook.Event{event("content_updated")})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	<-waited
}

// The end of the offers waits for a credit that is being spent.
func TestCreditsEndWhenTheLastIsSpent(t *testing.T) {
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
		t.Errorf("got the claim %+v, %v", claim, err)
	}
	if _, some := <-credits.C; some {
		t.Error("more than one credit was spent")
	}
}

// What a commit does for credits is bounded, however many are offered: the rest stays
// on offer.
func TestACommitSpendsNoMoreCreditsThanItMay(t *testing.T) {
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
		t.Errorf("%d credits were left, want 6", left)
	}

	// The log is looked through for some of them.
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
		t.Errorf("%d credits were spent that were %d events behind, want 2", n, len(names))
	}
}

// A panic in the spending of one credit loses no other, nor the event.
func TestAPanicLosesNoCredit(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	credits := NewCredits(16)
	credits.Pause(false)
	s.Queues().SetCredits(credits)
	bad := creditFor(&Queue{ProgramID: "p"}, 16)
	bad.Queue = nil
	credits.Offer(bad)
	credits.Offer(creditFor(queue(t, s, subscribe(t, s, "p", "content_updated").ID), 16)) // the last is the first
	publish(t, s, "p", "content_updated")
	if claim, err := offered(t, credits); claim != nil || !errors.Is(err, ErrStale) {
		t.Errorf("got %+v, %v; want %v", claim, err, ErrStale)
	}
	credits.Return()
	credits.Close()
	if _, some := <-credits.C; some || credits.Taken() != 0 {
		t.Errorf("%d slots are taken after the end, want none", credits.Taken())
	}
}

func commits(t *testing.T, s *Store) uint64 {
	t.Helper()
	y, err := s.System(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return y.Commits
}

package store

import (
	"context"
	"errors"
	"slices"
	"testing"

	"service/webhook"
)

// inlineClaim is what came of a delivery that was to be formed inline.
type inlineClaim struct {
	claim *Claim
	err   error
}

// formInline has deliveries formed for a queue inline, and returns what comes of each.
func formInline(s *Store, l *Queue) <-chan inlineClaim {
	c := make(chan inlineClaim, 16)
	s.Queues().SetInlineFormer(func(a *Accepted) {
		a.FormInline(l, 100, webhook.MaxDeliveryBytes, func(claim *Claim, err error) { c <- inlineClaim{claim, err} })
	})
	return c
}

// What waits for a queue and what is being published are stored together, and
// those who wait for the commit are told after it.
func TestADeliveryIsStoredWithItsEvents(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	waiting := publish(t, s, "p", "content_updated", "content_created")
	claims := formInline(s, l)
	before := commits(t, s)
	published := publish(t, s, "p", "content_created", "content_updated")
	if n := commits(t, s) - before; n != 1 {
		t.Errorf("it took %d commits, want 1", n)
	}
	got := <-claims
	if got.err != nil || len(got.claim.Events) != 2 || string(got.claim.Events[0]) != string(waiting[0].JSON) || string(got.claim.Events[1]) != string(published[1].JSON) {
		t.Fatalf("got the claim %+v, %v; want one on the two events that the subscription wants", got.claim, got.err)
	}
	var cursor, made int64
	err := s.db.Scan(t.Context(), "SELECT c.seq, d.attempts_made FROM cursors c JOIN deliveries d USING (subscription_id) WHERE d.id = ? AND d.claimed_at IS NOT NULL", []any{got.claim.ID}, &cursor, &made)
	if err != nil || cursor != 4 || made != 1 || l.Cursor != 4 || l.Seen != 4 {
		t.Errorf("the cursor is %d (%v), %d in the queue, after %d attempts; want 4, 4, 1", cursor, err, l.Cursor, made)
	}

	// Nothing is formed when nothing is wanted, nor when it is published by many.
	publish(t, s, "p", "content_created")
	names := make([]string, maxInline+1)
	for i := range names {
		names[i] = "content_updated"
	}
	publish(t, s, "p", names...)
	s.Queues().SetInlineFormer(nil)
	publish(t, s, "p", "content_updated")
	if n := len(claims); n != 0 {
		t.Errorf("%d more were formed, want none", n)
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
	claims := formInline(s, l)
	publish(t, s, "p", "content_updated")
	if n := len(claims); n != 0 || l.Seen != 0 {
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
			claims := formInline(s, l)
			if e := publish(t, s, "p", "content_updated"); e[0].Seq != 1 {
				t.Errorf("the event has seq %d, want 1", e[0].Seq)
			}
			if got := <-claims; got.claim != nil || !errors.Is(got.err, test.want) {
				t.Errorf("got %+v, %v; want %v", got.claim, got.err, test.want)
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
	claims := make(chan inlineClaim, 2)
	s.Queues().SetInlineFormer(func(a *Accepted) {
		a.FormInline(l, 100, webhook.MaxDeliveryBytes, func(claim *Claim, err error) {
			if !s.writer.Failed() {
				t.Error("done was called before the failure was recorded")
			}
			claims <- inlineClaim{claim, err}
		})
	})
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
	if got := <-claims; err == nil || got.claim != nil || !errors.Is(got.err, ErrUnavailable) {
		t.Errorf("the write got %v, and the delivery %+v, %v; want both to fail", err, got.claim, got.err)
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
	claims := formInline(s, queue(t, s, subscribe(t, s, "p", "content_updated").ID))
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
	if n := len(claims); n != 1 {
		t.Fatalf("done was called %d times, want once", n)
	}
	if got := <-claims; got.claim != nil || got.err == nil || Unavailable(got.err) {
		t.Errorf("got %+v, %v; want an error other than %v", got.claim, got.err, ErrUnavailable)
	}
	var stored int
	err := s.db.Scan(t.Context(), "SELECT count(*) FROM deliveries WHERE ping IS NULL", nil, &stored)
	if err != nil || stored != 1 {
		t.Errorf("%d deliveries are stored (%v), want 1", stored, err)
	}
}

// Each done is called once with its claim, also when those before it panic.
func TestAPanicInDoneReleasesTheOthers(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	queues := make([]*Queue, 4)
	for i := range queues {
		queues[i] = queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	}
	calls := make([]int, len(queues))
	s.Queues().SetInlineFormer(func(a *Accepted) {
		for i, q := range queues {
			a.FormInline(q, 100, webhook.MaxDeliveryBytes, func(claim *Claim, err error) {
				calls[i]++
				if claim == nil || err != nil {
					t.Errorf("delivery %d: got %+v, %v; want a claim", i, claim, err)
				}
				if i < 2 {
					panic("done")
				}
			})
		}
	})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		s.Events().Publish(t.Context(), "p", []webhook.Event{event("content_updated")})
	}()
	if want := []int{1, 1, 1, 1}; !slices.Equal(calls, want) {
		t.Errorf("done was called %v times, want %v", calls, want)
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

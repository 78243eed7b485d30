package store

import (
	"context"
	"slices"
	"testing"
	"time"

	"service/webhook"
)

// What is published while a lane that has fallen behind is read from disk may
// be seen by the seek for one name and not by that for another. It must not be
// taken then, or the cursor would pass over what was not seen.
func TestCatchingUpLooksNoFurtherThanNewest(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "channel_created", "content_updated")
	for _, name := range []string{"channel_created", "content_updated", "channel_created", "content_updated"} {
		publish(t, s, "p", name)
	}
	s.tail = newTail(0)
	for newest := range int64(5) {
		w, err := s.Waiting(context.Background(), lane(t, s, sub.ID), newest, 10, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if want := []int64{1, 2, 3, 4}[:newest]; !slices.Equal(w.Seqs, want) || w.To != newest {
			t.Errorf("newest %d: got events %v up to %d, want %v up to %[1]d", newest, w.Seqs, w.To, want)
		}
	}
}

// A delivery whose events cannot be read, since the disk fails, is not sent
// without them, and no attempt is counted.
func TestUnreadableEventsAreNotClaimed(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	publish(t, s, "p", "content_updated")
	l := lane(t, s, sub.ID)
	w, err := s.Waiting(context.Background(), l, l.Wanted, 10, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Form(l, &w).Wait()
	if err != nil {
		t.Fatal(err)
	}
	a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultRetryable, ResponseStatus: 500}
	if _, err := s.Record(c, &a, webhook.Step{Status: webhook.StatusRetryable, NextAttemptAt: time.Now().Add(-time.Second)}, webhook.HealthPolicy{}); err != nil {
		t.Fatal(err)
	}
	s.tail = newTail(0)
	hide := func(from, to string) {
		if err := s.writer.do(func(t *tx) error {
			return t.exec("UPDATE events SET program_id = '" + to + "' WHERE program_id = '" + from + "'")
		}); err != nil {
			t.Fatal(err)
		}
	}
	program(t, s, "elsewhere")
	hide("p", "elsewhere")
	if c, _, err := s.ClaimDue(context.Background(), sub.ID, false); err == nil || c != nil {
		t.Errorf("while its event cannot be read: got claim %+v, %v; want none and an error", c, err)
	}
	hide("elsewhere", "p")
	c, _, err = s.ClaimDue(context.Background(), sub.ID, false)
	if err != nil || c == nil {
		t.Fatalf("when it can be read again: got claim %+v, %v", c, err)
	}
	if c.Number != 2 || len(c.Events) != 1 {
		t.Errorf("when it can be read again: got attempt %d with %d events, want attempt 2 with 1", c.Number, len(c.Events))
	}
}

package store

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store/tail"
	"service/webhook"
)

// The lookup for one name may see an event that is published while a queue's backlog is read
// from disk, and the lookup for another name may miss one. Such an event must not be taken, or
// the cursor would skip the missed one.
func TestCatchUpBoundedByNewest(t *testing.T) {
	s := openProgram(t)
	sub := subscribe(t, s, "p", "channel_created", "content_updated")
	for _, name := range []string{"channel_created", "content_updated", "channel_created", "content_updated"} {
		publish(t, s, "p", name)
	}
	s.tail = tail.New(0)
	for newest := range int64(5) {
		w, err := s.Queues().waiting(context.Background(), queue(t, s, sub.ID), newest, 10, 1<<20)
		must(t, err)
		if want := []int64{1, 2, 3, 4}[:newest]; !slices.Equal(w.Seqs, want) || w.To != newest {
			t.Errorf("newest %d: got events %v up to %d, want %v up to %[1]d", newest, w.Seqs, w.To, want)
		}
	}
}

// If the events of a delivery cannot be read because the disk fails, no attempt is counted or
// sent.
func TestUnreadableEventsAreNotClaimed(t *testing.T) {
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated")
	c := form(t, s, queue(t, s, sub.ID), 10)
	a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultRetryable, ResponseStatus: 500}
	step := webhook.Step{Status: webhook.StatusRetryable, NextAttemptAt: time.Now().Add(-time.Second)}
	recordResult(t, s, c, &a, step, webhook.HealthPolicy{})
	s.tail = tail.New(0)
	hide := func(from, to string) {
		execute(t, s, "UPDATE events SET program_id = '"+to+"' WHERE program_id = '"+from+"'")
	}
	program(t, s, "elsewhere")
	hide("p", "elsewhere")
	if c, _, err := s.Queues().claimDue(context.Background(), due(s, sub.ID)); err == nil || c != nil {
		t.Errorf("unreadable event: got claim %+v, %v; want none and an error", c, err)
	}
	hide("elsewhere", "p")
	c = mustClaim(t, s, due(s, sub.ID))
	if c.Number != 2 || len(c.Events) != 1 {
		t.Errorf("readable again: got attempt %d with %d events, want attempt 2 with 1", c.Number, len(c.Events))
	}
}

// Reading from disk returns the same events as reading from memory, for all positions and bounds.
func TestCatchUpMatchesTail(t *testing.T) {
	s := openProgram(t)
	program(t, s, "q")
	sub := subscribe(t, s, "p", "content_updated", "channel_created")
	traced := event("content_updated")
	traced.Trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	publishAll(t, s, "p", event("content_updated"), traced)
	for _, others := range []int{0, 0, 1, 0, 2, 5, 0, 1, 1, 0} {
		for range others {
			publish(t, s, "p", "content_deleted")
		}
		publish(t, s, "p", "content_updated")
		publish(t, s, "p", "channel_created")
		publish(t, s, "q", "channel_created")
	}
	l := queue(t, s, sub.ID)
	memory := s.tail
	for seen := range l.Wanted + 1 {
		for _, count := range []int{1, 3, 100} {
			for _, size := range []int{1, 400, 1 << 20} {
				l.Seen = seen
				s.tail = memory
				want, err := s.Queues().waiting(context.Background(), l, l.Wanted, count, size)
				must(t, err)
				s.tail = tail.New(0)
				got, err := s.Queues().waiting(context.Background(), l, l.Wanted, count, size)
				if d := cmp.Diff(want, got); err != nil || d != "" {
					t.Errorf("after %d, %d events, %d bytes: %v %s", seen, count, size, err, d)
				}
			}
		}
	}
}

// Reading fails if retention removes an event of the run.
func TestCatchUpAfterRetention(t *testing.T) {
	s := openProgram(t)
	for range 5 {
		publish(t, s, "p", "content_updated")
	}
	gone := func(seq int64) error {
		return s.writer.do(func(t *tx) error { return t.Exec("DELETE FROM events WHERE seq = ?", seq) })
	}
	for _, test := range []struct {
		gone int64
		seqs []int64
		want error
	}{{5, []int64{2, 3, 4}, nil}, {5, []int64{3, 4, 5}, ErrStale}, {1, []int64{1, 2, 3}, ErrStale}, {3, []int64{2, 3, 4}, ErrStale},
		{3, []int64{2, 4}, nil}} {
		must(t, gone(test.gone))
		var got []int64
		err := s.Queues().eventsAt(context.Background(), "p", test.seqs, func(seq, _ int64, _ string, _ []byte, _ webhook.Trace) bool {
			got = append(got, seq)
			return true
		})
		if err != test.want || err == nil && !slices.Equal(got, test.seqs) {
			t.Errorf("%d of %v was removed: got %v, %v; want %v", test.gone, test.seqs, got, err, test.want)
		}
	}
}

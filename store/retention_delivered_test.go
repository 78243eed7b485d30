package store

import (
	"slices"
	"testing"
	"time"

	"service/test/seed"
	"service/webhook"
)

// sweepEarly sweeps with a retention of 30 days, and of one hour for successful deliveries.
func sweepEarly(t *testing.T, s *Store) Swept {
	t.Helper()
	w, err := s.sweep(t.Context(), olderThan(t, s, time.Now().Add(-30*24*time.Hour)), olderThan(t, s, time.Now().Add(-time.Hour)))
	must(t, err)
	return w.swept
}

// replayable returns how many events a replay of each kind of the whole log would send.
func replayable(t *testing.T, s *Store, sub string) (missed, failed, all int64) {
	t.Helper()
	for only, n := range map[webhook.ReplayOnly]*int64{webhook.ReplayMissed: &missed, webhook.ReplayFailed: &failed, webhook.ReplayAll: &all} {
		count, err := s.Replays().Count(t.Context(), "p", sub, &webhook.ReplayFields{From: time.UnixMilli(0), Only: only}, 100)
		must(t, err)
		*n = count.Events
	}
	return missed, failed, all
}

// Successful deliveries are removed sooner. Their events stay, are known by ID and can be
// replayed, and accepted events are neither missed nor failed.
func TestRetentionOfDelivered(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		publish(t, s, "p", "content_updated") // before any subscription
		sub := subscribe(t, s, "p", "content_updated")
		other := subscribe(t, s, "p", "content_updated") // its queue is not processed
		old := publish(t, s, "p", "content_updated", "channel_created", "content_updated")
		send(t, s, queue(t, s, sub.ID), 200)
		publish(t, s, "p", "content_updated")
		rejected := send(t, s, queue(t, s, sub.ID), 400)
		publish(t, s, "p", "content_updated")
		send(t, s, queue(t, s, sub.ID), 200)
		publish(t, s, "p", "content_updated")
		send(t, s, queue(t, s, sub.ID), 503)
		time.Sleep(2 * time.Hour)
		publish(t, s, "p", "content_updated")
		send(t, s, queue(t, s, sub.ID), 200)

		if got, want := sweepEarly(t, s), (Swept{Deliveries: 2}); got != want {
			t.Errorf("swept %+v, want %+v", got, want)
		}
		for query, want := range map[string]int64{
			"SELECT count(*) FROM events": 8,
			"SELECT count(*) FROM deliveries WHERE ping IS NULL AND status = 'success'": 1,
			"SELECT count(*) FROM deliveries WHERE status = 'failed'":                   1,
			"SELECT count(*) FROM deliveries WHERE status = 'retryable'":                1,
			"SELECT count(*) FROM attempts":                                             2,
			"SELECT count(*) FROM delivery_events":                                      3,
			"SELECT count(*) FROM delivered":                                            2,
			"SELECT count(*) FROM losses":                                               0,
		} {
			wantNumber(t, "from "+query, count(t, s, query), want)
		}
		if missed, failed, all := replayable(t, s, sub.ID); missed != 1 || failed != 1 || all != 7 {
			t.Errorf("replays would send %d missed, %d failed, %d events in total; want 1, 1 and 7", missed, failed, all)
		}
		if missed, _, _ := replayable(t, s, other.ID); missed != 1 { // its cursor has yet to reach the others
			t.Errorf("%d events were missed by the other subscription, want 1", missed)
		}
		if e, err := s.Events().View(t.Context(), "p", old[0].ID, ""); err != nil || e.Removed != 1 || len(e.Deliveries) != 0 ||
			len(e.Waiting) != 1 {
			t.Errorf("got %d removed, %d deliveries, %d waiting (%v)", e.Removed, len(e.Deliveries), len(e.Waiting), err)
		}
		publishAgain(t, s, old[0])
		if swept := sweepEarly(t, s); swept != (Swept{}) {
			t.Errorf("a second sweep removed %+v", swept)
		}

		sweepReplayed(t, s, sub.ID, rejected.ID)

		// When the events are removed, so is the record of their delivery. The newest event and the
		// event of the newest delivery stay.
		for range 2 { // pending deliveries expire first
			time.Sleep(31 * 24 * time.Hour)
			publish(t, s, "p", "channel_created")
			sweepEarly(t, s)
		}
		for _, query := range []string{"SELECT count(*) FROM delivered", "SELECT count(*) - 2 FROM events"} {
			wantNumber(t, "from "+query, count(t, s, query), 0)
		}
	})
}

// publishAgain checks that an event is still known by its ID.
func publishAgain(t *testing.T, s *Store, e webhook.Event) {
	t.Helper()
	again := []webhook.Event{e}
	again[0].Seq, again[0].ReceivedAt = 0, time.Now()
	must(t, s.Write(t.Context(), func(w Write) error {
		added, err := w.Publish("p", again)
		if added != 0 || again[0].Seq != e.Seq {
			t.Errorf("a delivered event was added again with seq %d", again[0].Seq)
		}
		return err
	}))
}

// sweepReplayed replays a rejected event and removes the successful delivery: the event must
// still count as accepted.
func sweepReplayed(t *testing.T, s *Store, sub, rejected string) {
	t.Helper()
	_, err := s.Replays().Create(t.Context(), "p", sub, &webhook.ReplayFields{From: time.UnixMilli(0), Only: webhook.ReplayFailed})
	must(t, err)
	c := mustStep(t, s, sub)
	if len(c.Events) != 1 {
		t.Fatalf("the replay sends %+v", c)
	}
	end(t, s, c, webhook.StatusSuccess)
	time.Sleep(2 * time.Hour)
	publish(t, s, "p", "content_updated")
	send(t, s, queue(t, s, sub), 200)
	if got, want := sweepEarly(t, s), (Swept{Deliveries: 2}); got != want {
		t.Errorf("swept %+v, want %+v", got, want)
	}
	if missed, failed, _ := replayable(t, s, sub); missed != 1 || failed != 0 {
		t.Errorf("replays would send %d missed and %d failed events, want 1 and 0", missed, failed)
	}
	if _, err := s.Deliveries().Get(t.Context(), "p", sub, rejected); err != nil {
		t.Errorf("the rejected delivery was removed: %v", err)
	}
}

// A redelivery stays as long as the original delivery, so that an admin sees that it was
// resent.
func TestRetentionKeepsRedelivery(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "content_updated")
		first := send(t, s, queue(t, s, sub.ID), 400)
		again, err := s.Deliveries().Redeliver(t.Context(), "p", sub.ID, first.ID)
		must(t, err)
		c := mustClaim(t, s, due(s, sub.ID))
		if c.ID != again.ID {
			t.Fatalf("claimed %+v, want the redelivery", c)
		}
		end(t, s, c, webhook.StatusSuccess)
		time.Sleep(2 * time.Hour)
		publish(t, s, "p", "content_updated")
		send(t, s, queue(t, s, sub.ID), 200)
		if swept := sweepEarly(t, s); swept.Deliveries != 0 {
			t.Errorf("%d deliveries were removed, want 0", swept.Deliveries)
		}
		time.Sleep(31 * 24 * time.Hour)
		sweepEarly(t, s)
		wantNumber(t, "deliveries that are left", // the newest
			count(t, s, "SELECT count(*) FROM deliveries WHERE ping IS NULL"), 1)
	})
}

// In whatever order deliveries are removed, exactly their events count as delivered, in as few
// rows as possible.
func TestDeliveredRanges(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		random := seed.Rand(t)
		subs := [2]string{subscribe(t, s, "p", "content_updated", "channel_created").ID, subscribe(t, s, "p", "content_updated").ID}
		const events = 120
		names := make([]string, events)
		for i := range names {
			names[i] = [...]string{"content_updated", "channel_created"}[random.IntN(2)]
		}
		publish(t, s, "p", names...)
		have := make(map[accepted]bool)
		w := newSweep(t.Context(), s)
		for range 60 {
			var some []accepted
			for n := 1 + random.IntN(4); n > 0; n-- {
				seq := 1 + random.IntN(events)
				a := accepted{"p", subs[0], names[seq-1], int64(seq)}
				if !slices.Contains(some, a) {
					some = append(some, a)
				}
			}
			some = slices.DeleteFunc(some, func(a accepted) bool { return a.name != some[0].name })
			slices.SortFunc(some, func(a, b accepted) int { return int(a.seq - b.seq) })
			ranges, err := w.joinAccepted(some)
			must(t, err)
			must(t, s.writer.do(func(t *tx) error {
				for i := range ranges {
					if err := t.addDelivered(&ranges[i]); err != nil {
						return err
					}
				}
				return nil
			}))
			for _, a := range some {
				have[a] = true
			}
			checkDelivered(t, s, subs[0], names, have)
		}
		wantNumber(t, "rows for a subscription without deliveries",
			count(t, s, "SELECT count(*) FROM delivered WHERE subscription_id = ?", subs[1]), 0)
	})
}

// checkDelivered compares the events that count as delivered with the delivered events, and
// the number of rows with the number of ranges.
func checkDelivered(t *testing.T, s *Store, sub string, names []string, have map[accepted]bool) {
	t.Helper()
	gaps, before := int64(0), make(map[string]bool)
	for i, name := range names {
		a := accepted{"p", sub, name, int64(i) + 1}
		if got := count(t, s, "SELECT "+wasDelivered+" FROM events e WHERE program_id = ?1 AND seq = ?3 AND ?2 = ?2", "p", sub,
			a.seq) == 1; got != have[a] {
			t.Fatalf("whether event %d was delivered: %v, want %v", a.seq, got, have[a])
		}
		if have[a] && !before[name] {
			gaps++
		}
		before[name] = have[a]
	}
	if rows := count(t, s, "SELECT count(*) FROM delivered"); rows != gaps {
		t.Fatalf("%d rows, want %d", rows, gaps)
	}
}

// A sweep resumes at the first delivery that may still be removed. It reads failures once, but
// does not skip deliveries that were open in the last sweep.
func TestRetentionOfDeliveredResumes(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		other := subscribe(t, s, "p", "content_updated")
		nums := make(map[int]int64)
		for i, status := range []int{400, 200, 400, 503, 200, 400} {
			publish(t, s, "p", "content_updated")
			c := send(t, s, queue(t, s, sub.ID), status)
			nums[i] = c.num
		}
		execute(t, s, "DELETE FROM deliveries WHERE ping IS NOT NULL")
		time.Sleep(2 * time.Hour)
		send(t, s, queue(t, s, other.ID), 200)
		if swept := sweepEarly(t, s); swept.Deliveries != 2 {
			t.Errorf("%d deliveries were removed, want 2", swept.Deliveries)
		}
		if s.deliveredFrom.Load() != nums[2] {
			t.Errorf("the next sweep begins after %d, want %d, before the open delivery", s.deliveredFrom.Load(), nums[2])
		}
		must(t, s.writer.do(func(t *tx) error {
			return t.Exec("UPDATE deliveries SET status = 'success', next_attempt_at = NULL, completed_at = ?, counted_at = ? "+
				"WHERE status = 'retryable'", time.Now().UnixMilli(), t.counted())
		}))
		time.Sleep(2 * time.Hour)
		if swept := sweepEarly(t, s); swept.Deliveries != 1 {
			t.Errorf("%d deliveries were removed, want 1, the open one", swept.Deliveries)
		}
		if s.deliveredFrom.Load() < nums[5] {
			t.Errorf("the next sweep begins after %d, want after %d", s.deliveredFrom.Load(), nums[5])
		}
	})
}

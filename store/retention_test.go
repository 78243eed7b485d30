package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"service/store/record"
	"service/webhook"
)

// count returns the number that a query selects.
func count(t *testing.T, s *Store, query string, args ...any) (n int64) {
	t.Helper()
	if err := s.db.Scan(context.Background(), query, args, &n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// send records the next attempt of a queue with a status, and returns its claim.
func send(t *testing.T, s *Store, l *Queue, status int) *Claim {
	t.Helper()
	c := form(t, s, l, 100)
	if c == nil {
		t.Fatal("nothing waits")
	}
	attempted(t, s, c, status, webhook.HealthPolicy{})
	return c
}

// inBubble runs a test in fake time, with an open store and a program p.
func inBubble(t *testing.T, test func(*testing.T, *Store)) {
	t.Helper()
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDir(t, dir)
		program(t, s, "p")
		test(t, s)
	})
}

// olderThan returns a cutoff for records older than a time, in a store whose clock has not jumped, as
// if there were marks at every moment.
func olderThan(t testing.TB, s *Store, at time.Time) cutoff {
	t.Helper()
	const newest = "SELECT coalesce(max(%[2]s), 0) FROM %[1]s WHERE %[3]s < ? AND NOT EXISTS (SELECT 1 FROM imported_ranges r " +
		"WHERE r.of_table = '%[1]s' AND %[2]s BETWEEN r.first AND r.last)"
	c := cutoff{counted: s.clock.Counted() - s.clock.Now().Sub(at), before: at}
	for query, n := range map[string]*int64{
		fmt.Sprintf(newest, "deliveries", "num", "created_at"): &c.mark.delivery,
		fmt.Sprintf(newest, "events", "rowid", "received_at"):  &c.mark.event,
	} {
		must(t, s.db.Scan(t.Context(), query, []any{at.UnixMilli()}, n))
	}
	return c
}

// newSweep returns a run of retention that removes nothing by age.
func newSweep(ctx context.Context, s *Store) *sweep {
	return &sweep{steps: s.newSteps(ctx, sweepPace)}
}

// sweepAt removes the records older than a time.
func sweepAt(t testing.TB, s *Store, edge time.Time) Swept {
	t.Helper()
	old := olderThan(t, s, edge)
	w, err := s.sweep(t.Context(), old, old)
	must(t, err)
	return w.swept
}

// Old completed records are removed with everything that belongs to them. Newer records, the
// end of the log and the newest delivery stay.
func TestRetention(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		old := publish(t, s, "p", "content_updated", "content_updated", "channel_created")
		send(t, s, queue(t, s, sub.ID), 200)
		time.Sleep(10 * time.Hour)
		young := publish(t, s, "p", "content_updated")
		send(t, s, queue(t, s, sub.ID), 200)
		time.Sleep(time.Hour)

		if swept := sweepAt(t, s, time.Now().Add(-20*time.Hour)); swept != (Swept{}) {
			t.Errorf("nothing is 20 hours old, but swept %+v", swept)
		}
		// The ping of the creation was never sent, so it expires first.
		if got, want := sweepAt(t, s, time.Now().Add(-2*time.Hour)), (Swept{Events: 3, Deliveries: 1, Expired: 1}); got != want {
			t.Errorf("swept %+v, want %+v", got, want)
		}
		for query, want := range map[string]int64{
			"SELECT count(*) FROM events":                                        1,
			"SELECT seq FROM events":                                             4,
			"SELECT count(*) FROM deliveries WHERE ping IS NULL":                 1,
			"SELECT count(*) FROM deliveries WHERE failure_reason = 'expired'":   1,
			"SELECT count(*) FROM deliveries WHERE duration_ms IS NOT NULL":      1,
			"SELECT count(*) FROM attempts":                                      0,
			"SELECT count(*) FROM delivery_events":                               1,
			"SELECT count(*) FROM delivery_events WHERE seq = 4":                 1,
			"SELECT count(*) FROM losses":                                        0,
			"SELECT count(*) FROM deliveries WHERE next_attempt_at IS NOT NULL ": 0,
		} {
			wantNumber(t, "from "+query, count(t, s, query), want)
		}
		if _, err := s.Events().Get(t.Context(), "p", old[0].ID); err == nil {
			t.Error("the old event still exists")
		}
		if _, err := s.Events().Get(t.Context(), "p", young[0].ID); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Hour)
		if got, want := sweepAt(t, s, time.Now().Add(-2*time.Hour)), (Swept{Deliveries: 1}); got != want {
			t.Errorf("swept %+v, want %+v: the newest event and delivery stay", got, want)
		}
		if e := publish(t, s, "p", "content_updated"); e[0].Seq != 5 {
			t.Errorf("next seq: got %d, want 5", e[0].Seq)
		}
	})
}

// A subscription loses events that retention removes: the cursor skips them, the loss is
// counted, and the operator is alerted.
func TestRetentionCountsLosses(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		waits := subscribe(t, s, "p", "content_updated")
		paused := subscribe(t, s, "p", "content_updated", "content_deleted")
		keeps := subscribe(t, s, "p", "content_updated")
		other := subscribe(t, s, "p", "channel_created")
		publish(t, s, "p", slices.Repeat([]string{"content_updated", "content_deleted"}, 1000)...)
		pause(t, s, paused.ID)
		for range 10 {
			send(t, s, queue(t, s, keeps.ID), 200)
		}
		stale := queue(t, s, waits.ID) // read before the sweep, used after it
		before, err := s.Queues().waiting(t.Context(), stale, stale.Wanted, 100, webhook.MaxDeliveryBytes)
		must(t, err)
		time.Sleep(10 * time.Hour)
		publish(t, s, "p", "content_updated")

		// The newest delivery stays with its events.
		if got, want := sweepAt(t, s, time.Now().Add(-time.Hour)), (Swept{Events: 1900, Deliveries: 9, Expired: 4,
			Lost: 1000 + 2000}); got != want {
			t.Errorf("swept %+v, want %+v", got, want)
		}
		for id, want := range map[string]int64{waits.ID: 1000, paused.ID: 2000, keeps.ID: 0, other.ID: 0} {
			wantNumber(t, "lost events", count(t, s, "SELECT coalesce(sum(events), 0) FROM losses WHERE subscription_id = ?", id), want)
			alerts := min(want, 1)
			wantNumber(t, "alerts",
				count(t, s, "SELECT count(*) FROM alerts WHERE name = 'events_lost' AND subscription_id = ?", id), alerts)
		}
		if _, err := s.Queues().form(&Credit{Queue: stale}, &before).Wait(); err != ErrStale {
			t.Errorf("formed a delivery of removed events: %v", err)
		}
		for _, id := range []string{waits.ID, keeps.ID} {
			if c := send(t, s, queue(t, s, id), 200); len(c.Events) != 1 {
				t.Errorf("%d events wait, want the new one", len(c.Events))
			}
		}
	})
}

// A subscription loses nothing if its cursor passes old events after retention has read the
// cursors and before it moves them.
func TestRetentionKeepsMovedCursors(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub, slow := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "content_updated", "content_updated", "content_updated")
		w := newSweep(t.Context(), s)
		losers, err := w.pendingLosses("p", 0, 2)
		if err != nil || len(losers) != 2 {
			t.Fatalf("got %d pending losses (%v), want 2", len(losers), err)
		}
		if c := form(t, s, queue(t, s, sub.ID), 100); len(c.Events) != 3 {
			t.Fatalf("the delivery has %d events, want 3", len(c.Events))
		}
		var passed []pendingLoss
		must(t, w.write(func(t *tx) (err error) {
			passed, err = w.skip(t, losers, 2)
			return err
		}))
		if len(passed) != 1 || passed[0].id != slow.ID {
			t.Errorf("moved %d cursors, want that of the other subscription", len(passed))
		}
		if q := queue(t, s, sub.ID); q.Cursor != 3 {
			t.Errorf("got cursor %d, want 3: retention must not move it back", q.Cursor)
		}
		wantNumber(t, "lost events", lostEvents(t, s, sub.ID), 0)
	})
}

// A cancelled sweep alerts about the losses so far.
func TestRetentionCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", slices.Repeat([]string{"content_updated"}, 1000)...)
		time.Sleep(10 * time.Hour)
		publish(t, s, "p", "content_updated")
		ctx, cancel := context.WithCancel(t.Context())
		watcher := s.Watch()
		defer watcher.Close()
		ended := make(chan error)
		go func() {
			old := olderThan(t, s, time.Now().Add(-time.Hour))
			_, err := s.sweep(ctx, old, old)
			ended <- err
		}()
		<-watcher.C // the cursor was moved
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want context.Canceled", err)
		}
		lost := lostEvents(t, s, sub.ID)
		if lost == 0 || lost == 1000 {
			t.Fatalf("lost %d events, want some but not all", lost)
		}
		wantNumber(t, "alerts about the lost events", count(t, s, "SELECT count(*) FROM alerts WHERE name = 'events_lost'"), 1)
	})
}

// Alerts that are never sent are removed as well.
func TestRetentionOfUnsentAlerts(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		s.sendAlerts = true
		err := s.writer.do(func(t *tx) error { return s.alert(t, &webhook.Alert{Name: webhook.AlertFailing, Subscription: sub}, 0) })
		must(t, err)
		time.Sleep(10 * time.Hour)
		sweepAt(t, s, time.Now().Add(-time.Hour))
		wantNumber(t, "alerts that are left", count(t, s, "SELECT count(*) FROM alerts"), 0)
	})
}

// A delivery keeps its events although the rest of the log is removed, and times are found in a
// log with gaps.
func TestRetentionKeepsCarriedEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "channel_created", "channel_created")
		publish(t, s, "p", "content_updated")
		first := send(t, s, queue(t, s, sub.ID), 200)
		publish(t, s, "p", "channel_created", "channel_created")
		time.Sleep(10 * time.Hour)
		young := time.Now()
		again, err := s.Deliveries().Redeliver(t.Context(), "p", sub.ID, first.ID)
		must(t, err)
		publish(t, s, "p", "channel_created")
		if got, want := sweepAt(t, s, young.Add(-time.Hour)), (Swept{Events: 4, Deliveries: 1, Expired: 1}); got != want {
			t.Errorf("swept %+v, want %+v", got, want)
		}
		if c := mustClaim(t, s, due(s, sub.ID)); c.ID != again.ID || len(c.Events) != 1 {
			t.Fatalf("claimed %+v, want the redelivery", c)
		}
		for at, want := range map[time.Time]int64{young.Add(-11 * time.Hour): 2, young.Add(-time.Hour): 5, young: 5, young.Add(time.Hour): 6} {
			if got, err := s.records.SeqBefore(t.Context(), "p", at); err != nil || got != want && !(want == 5 && (got == 3 || got == 4)) {
				t.Errorf("newest seq before %s: got %d, %v, want %d", at, got, err, want)
			}
		}
	})
}

// A deleted subscription is removed with the last of its deliveries.
func TestRetentionOfDeletedSubscriptions(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		for range 100 {
			sub := subscribe(t, s, "p", "content_updated")
			unsubscribe(t, s, "p", sub.ID)
		}
		last := subscribe(t, s, "p", "content_updated")
		time.Sleep(time.Hour)
		sweepAt(t, s, time.Now().Add(-time.Minute))
		wantNumber(t, "subscriptions that are left", count(t, s, "SELECT count(*) FROM subscriptions"), 1)
		if _, err := s.Subscriptions().Get(t.Context(), "p", last.ID); err != nil {
			t.Error(err)
		}
	})
}

// The database does not grow while as many records are removed as are added.
func TestRetentionBoundsTheFile(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		var sizes []int64
		for range 12 {
			for range 5 {
				publish(t, s, "p", slices.Repeat([]string{"content_updated"}, 200)...)
			}
			l := queue(t, s, sub.ID)
			for range 10 {
				send(t, s, l, 200)
			}
			time.Sleep(time.Hour)
			sweepAt(t, s, time.Now().Add(-2*time.Hour-time.Minute))
			sizes = append(sizes, count(t, s, "SELECT page_count FROM pragma_page_count()"))
		}
		if last := len(sizes) - 1; sizes[last] > sizes[4]*11/10 {
			t.Errorf("the database grew from %d to %d pages with constant content: %v", sizes[4], sizes[last], sizes)
		}
	})
}

// BenchmarkSweep measures the steps of a sweep, which should occupy the writer for a few
// milliseconds each.
func BenchmarkSweep(b *testing.B) {
	s := openProgram(b)
	url := "https://partner.example/hook"
	names := []string{"content_updated"}
	sub, _, err := s.Subscriptions().Create(context.Background(), "p", "u", &webhook.SubscriptionFields{URL: &url, Events: &names}, 0)
	must(b, err)
	var longest, waited time.Duration
	for b.Loop() {
		b.StopTimer()
		for range 20 {
			publish(b, s, "p", slices.Repeat(names, 500)...)
		}
		l := queue(b, s, sub.ID)
		for range 100 {
			end(b, s, form(b, s, l, 100), webhook.StatusSuccess)
		}
		time.Sleep(2 * time.Millisecond)
		// A concurrent publisher measures how long the writer is occupied.
		stop, done := make(chan struct{}), make(chan time.Duration)
		go func() {
			var worst time.Duration
			for {
				select {
				case <-stop:
					done <- worst
					return
				default:
				}
				began := time.Now()
				if err := s.writer.do(func(*tx) error { return nil }); err != nil {
					panic(fmt.Sprint(err))
				}
				worst = max(worst, time.Since(began))
			}
		}()
		b.StartTimer()
		old := olderThan(b, s, time.Now())
		old.counted += time.Second // counted_at is rounded up
		w, err := s.sweep(context.Background(), old, old)
		must(b, err)
		b.StopTimer()
		close(stop)
		longest, waited = max(longest, w.steps.longest), max(waited, <-done)
		b.StartTimer()
	}
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest-step")
	b.ReportMetric(float64(waited.Microseconds())/1000, "ms-longest-wait")
	b.ReportMetric(10_000*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// The operator is alerted once per day and subscription that keeps losing events, with the
// total.
func TestLossAlertsOnceADay(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		for range 80 {
			publish(t, s, "p", "content_updated", "content_updated")
			time.Sleep(time.Hour)
			sweepAt(t, s, time.Now().Add(-25*time.Hour))
		}
		if n := s.Alerts().Count(webhook.AlertLost); n != 3 {
			t.Errorf("%d alerts in 55 hours of losses, want 3", n)
		}
		lost := lostEvents(t, s, sub.ID)
		alerted := count(t, s, "SELECT json ->> 'lost_events' FROM alerts ORDER BY num DESC LIMIT 1")
		if alerted < 80 || alerted > lost {
			t.Errorf("the last alert has %d lost events, want %d", alerted, lost)
		}
	})
}

// lostEvents returns the number of events that a subscription has lost to retention.
func lostEvents(t *testing.T, s *Store, subscriptionID string) int64 {
	t.Helper()
	losses, _, err := s.Subscriptions().Losses(t.Context(), record.CountLimit)
	must(t, err)
	for _, l := range losses {
		if l.SubscriptionID == subscriptionID {
			return l.Events
		}
	}
	return 0
}

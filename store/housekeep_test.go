package store

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/store/sqlite/sqlitetest"
	"service/webhook"
)

// insertWaiting stores n pending deliveries of a subscription, one in ten a ping, and returns
// when they are due.
func insertWaiting(t *testing.T, s *Store, sub *webhook.Subscription, n int) time.Time {
	t.Helper()
	due := s.clock.Now().UTC().Truncate(time.Millisecond).Add(time.Hour)
	publish(t, s, sub.ProgramID, sub.Events[0])
	err := s.writer.do(func(tx *tx) error {
		tx.w.last = 0
		return tx.Exec(`WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < ?1)
			INSERT INTO deliveries (id, subscription_id, subscription, program_id, status, attempts_made, next_attempt_at, seqs, ping, created_at, counted_at)
			SELECT ?2 || printf('%08d', n), ?2, (SELECT num FROM subscriptions WHERE id = ?2), ?3, 'retryable', 1, ?4, iif(n % 10 = 0, NULL, '[1]'),
			iif(n % 10 = 0, CAST('{"id":"a","name":"ping"}' AS BLOB), NULL), ?5, ?6 FROM i`,
			n, sub.ID, sub.ProgramID, s.clock.Wait(due), s.clock.Now().UnixMilli(), tx.counted())
	})
	must(t, err)
	return due
}

// changes returns how many rows the writer has changed so far.
func changes(t *testing.T, s *Store) (n int64) {
	t.Helper()
	must(t, s.writer.do(func(tx *tx) error { return tx.Scan("SELECT total_changes()", nil, &n) }))
	return n
}

const stillWaiting = "SELECT count(*) FROM deliveries WHERE subscription_id = ? AND next_attempt_at IS NOT NULL"

// Deleting a subscription changes few rows, however much is pending. The other deliveries are
// ended in steps, with other writes in between, and are never sent or shown as pending.
// Another process can continue.
func TestDeletionInSteps(t *testing.T) {
	const waiting = 2000
	dir := memoryDir(t)
	s := openDir(t, dir)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	insertWaiting(t, s, &sub, waiting)
	before := changes(t, s)
	unsubscribe(t, s, "p", sub.ID)
	if rows := changes(t, s) - before; rows > 2*deletedAtOnce {
		t.Errorf("the deletion changed %d rows, want at most %d", rows, 2*deletedAtOnce)
	}
	if left := count(t, s, stillWaiting, sub.ID); left < waiting-deletedAtOnce {
		t.Fatalf("%d deliveries are pending, want %d", left, waiting-deletedAtOnce)
	}
	wantEnded(t, s, sub.ID)

	// Cancel in the middle.
	if err := s.endAllDeleted(interruptedAt(t, s, 3)); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	wantEnded(t, s, sub.ID)
	must(t, s.Close())

	s = openDir(t, dir)
	left := count(t, s, stillWaiting, sub.ID)
	if left == 0 || left >= waiting-deletedAtOnce {
		t.Fatalf("%d deliveries are pending after three steps", left)
	}
	for last := left; left > 0; last = left {
		if err := s.endAllDeleted(interruptedAt(t, s, 1)); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		publish(t, s, "p", "content_updated") // between two steps
		if left = count(t, s, stillWaiting, sub.ID); left >= last || last-left > int64(sweepPace.most) {
			t.Fatalf("one step ended %d of %d deliveries", last-left, last)
		}
		wantEnded(t, s, sub.ID)
	}
	if n := count(t, s, "SELECT count(*) FROM deliveries WHERE subscription_id = ? AND failure_reason = 'subscription_deleted'",
		sub.ID); n != waiting+1 { // including the ping of the creation
		t.Errorf("%d deliveries ended, want %d", n, waiting+1)
	}
}

// wantEnded checks that nothing of a deleted subscription is sent or shown as pending.
func wantEnded(t *testing.T, s *Store, subscriptionID string) {
	t.Helper()
	execute(t, s, "UPDATE deliveries SET next_attempt_at = 1 WHERE next_attempt_at IS NOT NULL")
	for _, credit := range []*Credit{duePing(s, subscriptionID), due(s, subscriptionID)} {
		if c, _, err := s.Queues().claimDue(t.Context(), credit); err != nil || c != nil {
			t.Fatalf("claimed for a deleted subscription: %v, %v", c, err)
		}
	}
	if queues, err := s.Queues().All(t.Context()); err != nil || len(queues) != 0 {
		t.Fatalf("%d queues, %v, want none", len(queues), err)
	}
	for _, q := range []string{"filter[status]=retryable", "filter[status]=pending", "filter[next_attempt_at.from]=1960-01-01",
		"filter[subscription_id]=" + subscriptionID + "&filter[status]=retryable"} {
		for cursor, pages := "", 0; pages < 50; pages++ {
			list := query(t, webhook.AllDeliveryList, q)
			list.Cursor = cursor
			page, next, err := s.Deliveries().PageAll(t.Context(), list)
			if err != nil || len(page) > 0 {
				t.Fatalf("%s: got %d deliveries, %v, want none", q, len(page), err)
			}
			if cursor = next; next == "" {
				break
			}
		}
	}
	all, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList, "page[size]=100"))
	must(t, err)
	for _, d := range all {
		if d.Status != webhook.StatusFailed || d.FailureReason != webhook.FailureSubscriptionDeleted || d.CompletedAt.IsZero() ||
			!d.NextAttemptAt.IsZero() {
			t.Fatalf("listed as %+v", d)
		}
	}
	view, err := s.Deliveries().View(t.Context(), all[len(all)-1].ID)
	if err != nil || view.Status != webhook.StatusFailed {
		t.Fatalf("shown as %s, %v", view.Status, err)
	}
}

// A deletion wakes housekeeping, which ends all pending deliveries.
func TestHousekeepUntilDone(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		insertWaiting(t, s, &sub, 1000)
		stop := background(t, s.Housekeep)
		synctest.Wait()
		unsubscribe(t, s, "p", sub.ID)
		time.Sleep(time.Minute)
		wantNumber(t, "pending deliveries", count(t, s, stillWaiting, sub.ID), 0)
		stop()
	})
}

// A clock jump changes few rows, and shifts all pending deadlines at once: in the commit that
// records it, and for the next process.
func TestClockJumpWritesFewRows(t *testing.T) {
	for _, jump := range []time.Duration{26 * time.Hour, -26 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			var skew atomic.Int64
			dir := memoryDir(t)
			config := Config{Dir: dir, Now: func() time.Time { return time.Now().Round(0).Add(time.Duration(skew.Load())) }}
			s, err := Open(t.Context(), config)
			must(t, err)
			defer func() { must(t, s.Close()) }()
			program(t, s, "p")
			sub := subscribe(t, s, "p", "content_updated")
			due := insertWaiting(t, s, &sub, 2000)
			before := changes(t, s)

			skew.Store(int64(jump))
			must(t, s.writer.do(func(*tx) error { return nil }))
			if rows := changes(t, s) - before; rows > 20 {
				t.Errorf("the jump changed %d rows", rows)
			}
			check := func() {
				t.Helper()
				if c, next, err := s.Queues().claimDue(t.Context(), dueKind(s, sub.ID, CreditDue)); err != nil ||
					c != nil || time.Until(next).Round(time.Minute) != time.Hour {
					t.Errorf("claimed %v, next in %v, %v; want none, in an hour", c, time.Until(next), err)
				}
				page, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList, "filter[status]=retryable&page[size]=1"))
				if err != nil || len(page) != 1 || page[0].NextAttemptAt.Sub(due.Add(jump)).Abs() > time.Second {
					t.Errorf("listed: %+v, %v, want next_attempt_at %v", page, err, due.Add(jump))
				}
				for filter, want := range map[string]int{
					"from]=" + webhook.FormatTime(due.Add(jump-time.Minute)): 1,
					"from]=" + webhook.FormatTime(due.Add(jump+time.Minute)): 0,
				} {
					page, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList,
						"page[size]=1&filter[subscription_id]="+sub.ID+"&filter[next_attempt_at."+filter))
					if err != nil || len(page) != want {
						t.Errorf("%s: got %d, %v, want %d", filter, len(page), err, want)
					}
				}
			}
			check()
			must(t, s.Close())
			s = opened(t, config)
			check()

			// The clock is set back while no process runs. A forward jump cannot be detected then.
			must(t, s.Close())
			skew.Add(-int64(2 * time.Hour))
			s = opened(t, config)
			jump -= 2 * time.Hour
			check()
		})
	}
}

// The queries of the steps use an index.
func TestHousekeepingPlans(t *testing.T) {
	s := open(t)
	for _, c := range []struct {
		query string
		args  int
		want  string // part of the plan
	}{
		{selectMark, 1, "PRIMARY KEY (subscription_id=?)"},
		{selectKeptFrom, 3, "deliveries_completed (subscription=? AND completed_at>?)"},
		{selectNextTrim, 4, "deliveries_completed (subscription=? AND completed_at>? AND completed_at<?)"},
		{removeSuccesses, 3, "SEARCH attempts USING INDEX sqlite_autoindex_attempts_1 (delivery=?"},
		{removeFirst, 3, "SEARCH responses USING INTEGER PRIMARY KEY (rowid=?)"},
		{removeResponses, 1, "SEARCH attempts USING INDEX sqlite_autoindex_attempts_1 (delivery=?"},
		{removeStored, 2, "SEARCH stored_responses USING PRIMARY KEY (program_id=? AND delivery=?"},
		{removalByAge.parts[1], 3, "SEARCH stored_responses USING PRIMARY KEY (program_id=? AND delivery=?"},
		{removalByNum.parts[0], 1, "SEARCH delivery_events USING PRIMARY KEY (program_id=? AND seq=? AND delivery=?"},
		{removalByNum.parts[1], 1, "SEARCH stored_responses USING PRIMARY KEY (program_id=? AND delivery=?"},
		{removalByNum.parts[2], 1, "SEARCH attempts USING COVERING INDEX sqlite_autoindex_attempts_1 (delivery=?"},
		{selectDelivered, 3, "SEARCH d USING INTEGER PRIMARY KEY (rowid>? AND rowid<?"},
		{selectAccepted, 1, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?"},
		{hasName, 4, "events_by_name (program_id=? AND name=? AND seq>? AND seq<?"},
		{selectRangeBefore, 3, "SEARCH delivered USING PRIMARY KEY (subscription_id=? AND name=? AND first_seq<?"},
		{selectAgedRanges, 2, "SEARCH r USING PRIMARY KEY (subscription_id=?"},
		{removeRanges, 1, "SEARCH delivered USING PRIMARY KEY (subscription_id=? AND name=? AND first_seq=?"},
		{selectOldest, 2, "SEARCH stored_responses USING PRIMARY KEY (program_id=?)"},
		{countOpenRedeliveries, 2, "deliveries_open_redeliveries (subscription_id=?"},
		{selectDeletedWaiting, 0, "deliveries_due (subscription_id=?"},
		{endDeletedPings, 4, "deliveries_due_pings (subscription_id=?"},
		{endDeletedRest, 4, "deliveries_due (subscription_id=?"},
	} {
		sqlitetest.CheckPlan(t, s.db, c.query, c.args, c.want)
	}
}

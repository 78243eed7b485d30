package store

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// A delivery whose attempt ends after the deletion of its subscription has failed
// permanently, whatever the attempt's result: nothing waits for a retry that will never be
// made.
func TestRecordAfterDeletion(t *testing.T) {
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated")
	c := form(t, s, queue(t, s, sub.ID), 1)
	unsubscribe(t, s, "p", sub.ID)
	r := attempted(t, s, c, 503, webhook.HealthPolicy{})
	if r.Status != webhook.StatusFailed || r.FailureReason != webhook.FailureSubscriptionDeleted || !r.NextAttemptAt.IsZero() || r.Split {
		t.Errorf("got %+v", r)
	}
	// The views show it as failed in any case.
	if n := count(t, s, "SELECT count(*) FROM deliveries WHERE id = ? AND status = 'failed' AND failure_reason = 'subscription_deleted' "+
		"AND next_attempt_at IS NULL AND claimed_at IS NULL AND completed_at IS NOT NULL", record.ShortID(c.ID)); n != 1 {
		t.Error("the delivery is still open")
	}
}

// A client that sees a subscription with an ETag sees each change of its health.
func TestHealthChangesRevision(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		revision := func() int64 {
			t.Helper()
			is, err := s.Subscriptions().Get(t.Context(), "p", sub.ID)
			must(t, err)
			return is.Revision
		}
		policy := webhook.HealthPolicy{RejectingAfter: 2, DisableAfter: time.Hour}
		attempt := func(status int) Recorded {
			t.Helper()
			publish(t, s, "p", "content_updated")
			return attempted(t, s, form(t, s, queue(t, s, sub.ID), 1), status, policy)
		}
		before := revision()
		attempt(404)
		if got := revision(); got != before {
			t.Errorf("after one rejection: got revision %d, want %d", got, before)
		}
		for _, change := range []struct {
			name   string
			status int
			after  time.Duration
		}{{"failing", 404, 0}, {"recovered", 200, 0}, {"failing", 404, 0}, {"disabled", 404, 2 * time.Hour}} {
			time.Sleep(change.after)
			before := revision()
			if change.status == 404 && change.after == 0 {
				attempt(404)
			}
			if r := attempt(change.status); !r.HealthChanged {
				t.Errorf("%s: the health did not change", change.name)
			}
			if got := revision(); got <= before {
				t.Errorf("%s: got revision %d, want more than %d", change.name, got, before)
			}
		}
	})
}

// The erasure of a program waits only for the attempts in flight.
func TestLastAttemptWakesErasure(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		program(t, s, "gone")
		sub := subscribe(t, s, "gone", "content_updated")
		publish(t, s, "gone", "content_updated")
		c := form(t, s, queue(t, s, sub.ID), 1)
		housekeep(t, s)
		erase(t, s, "gone")
		time.Sleep(time.Minute)
		if s.programStates.of("gone").phase == phaseActive {
			t.Fatal("erased with an attempt in flight")
		}
		end(t, s, c, webhook.StatusSuccess)
		time.Sleep(time.Second) // rests between the steps
		synctest.Wait()
		if s.programStates.of("gone").phase != phaseActive {
			t.Error("not erased after the last attempt")
		}
	})
}

// housekeep runs Housekeep until the end of the test.
func housekeep(t *testing.T, s *Store) {
	ended := make(chan error, 1)
	go func() { ended <- s.Housekeep(t.Context()) }()
	t.Cleanup(func() { must(t, <-ended) })
}

// A bulk run counts each delivery once, even if a step runs twice because its commit failed, or
// sets a subscription aside.
func TestBulkRunCountsOnce(t *testing.T) {
	failing := 0
	s, err := Open(t.Context(), Config{Dir: memoryDir(t), Dictionary: commonText(), Fault: func(query string, _ bool) sqlite.Fault {
		if query == moveBulkRun && failing > 0 {
			failing--
			return sqlite.FaultStatement
		}
		return sqlite.NoFault
	}})
	must(t, err)
	defer s.Close()
	program(t, s, "p")
	full, other := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated")
	for i := range 4 {
		publish(t, s, "p", "content_updated")
		c := deliver(t, s, full.ID, webhook.StatusFailed)
		deliver(t, s, other.ID, webhook.StatusSuccess)
		if i == 2 { // skipped, after the run has set the subscription aside
			_, err := s.Deliveries().Redeliver(t.Context(), "p", full.ID, c.ID)
			must(t, err)
			deliverAll(t, s, full.ID)
		}
	}
	s.quotas.redeliveries = 1
	want := planBulk(t, s, webhook.BulkRedeliver, "")
	if skipped := want.Matched - want.Done; skipped < 3 || len(want.Skipped) < 2 {
		t.Fatalf("plan: got %+v", want)
	}
	failing = 1
	id := webhook.NewID()
	_, err = createBulk(t, s, webhook.BulkRedeliver, id, "", want.Newest)
	must(t, err)
	for turn := 0; bulkRun(t, s, id).Status == webhook.BulkRunning; turn++ {
		if turn > 20 {
			t.Fatalf("it does not end: %+v", bulkRun(t, s, id))
		}
		runs, err := s.runningBulkRuns(t.Context())
		must(t, err)
		steps := s.newSteps(t.Context(), sweepPace)
		_, err = (&bulkWork{steps: &steps, run: &runs[0]}).turn()
		must(t, err)
		deliverAll(t, s, full.ID)
		deliverAll(t, s, other.ID)
	}
	if got := bulkRun(t, s, id); got.Done != want.Done || !maps.Equal(got.Skipped, want.Skipped) || got.Processed() != want.Matched {
		t.Errorf("got %d done, skipped %v; want %d and %v", got.Done, got.Skipped, want.Done, want.Skipped)
	}
	if failing != 0 {
		t.Error("no step failed")
	}
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"service/store/sqlite/sqlitetest"
	"service/test/harness"
	"service/webhook"
)

func anAdmin() webhook.AuditEntry {
	return webhook.AuditEntry{Admin: "ada@example.com", Address: "192.0.2.1"}
}

// createBulk creates a bulk run.
func createBulk(t *testing.T, s *Store, a webhook.BulkAction, id, raw string, newest int64) (r webhook.BulkRun, err error) {
	t.Helper()
	n := &NewBulkRun{ID: id, Action: a, Query: query(t, webhook.AllDeliveryList, raw), Newest: newest, Audit: anAdmin()}
	err = s.Write(t.Context(), func(w Write) error {
		r, err = w.BulkRuns().Create(n)
		return err
	})
	return r, err
}

// runBulk creates a bulk run, and works until it has ended.
func runBulk(t *testing.T, s *Store, a webhook.BulkAction, id, raw string, newest int64) webhook.BulkRun {
	t.Helper()
	_, err := createBulk(t, s, a, id, raw, newest)
	must(t, err)
	must(t, s.workBulkRuns(t.Context()))
	return bulkRun(t, s, id)
}

func bulkRun(t *testing.T, s *Store, id string) webhook.BulkRun {
	t.Helper()
	r, err := s.BulkRuns().Get(t.Context(), "", id)
	must(t, err)
	return r
}

func planBulk(t *testing.T, s *Store, a webhook.BulkAction, raw string) BulkPlan {
	t.Helper()
	p, err := s.BulkRuns().Plan(t.Context(), a, query(t, webhook.AllDeliveryList, raw), 0, 0, nil)
	must(t, err)
	return p
}

// A bulk redelivery redelivers exactly the deliveries of its plan, once, in the original order,
// and is in the audit log.
func TestBulkRedelivery(t *testing.T) {
	s := openProgram(t)
	good, paused, gone := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated"),
		subscribe(t, s, "p", "content_updated")
	const each = 5
	var first *Claim
	for range each {
		publish(t, s, "p", "content_updated")
		c := deliver(t, s, good.ID, webhook.StatusFailed)
		if first == nil {
			first = c
		}
		deliver(t, s, paused.ID, webhook.StatusFailed)
		deliver(t, s, gone.ID, webhook.StatusFailed)
	}
	publish(t, s, "p", "content_updated")
	form(t, s, queue(t, s, good.ID), 1) // in flight
	pause(t, s, paused.ID)
	unsubscribe(t, s, "p", gone.ID)
	_, err := s.Deliveries().Redeliver(t.Context(), "p", good.ID, first.ID)
	must(t, err)

	want := map[webhook.BulkSkip]int{
		webhook.SkipPing: 3, webhook.SkipNotEnded: 2, webhook.SkipRedelivered: 1,
		webhook.SkipSubscriptionPaused: each, webhook.SkipSubscriptionDeleted: each,
	}
	plan := planBulk(t, s, webhook.BulkRedeliver, "page[size]=1&sort=created_at")
	if plan.Done != each-1 || plan.Matched != 3*each+5 || !plan.Complete || plan.From.IsZero() || plan.To.Before(plan.From) ||
		!maps.Equal(plan.Skipped, want) {
		t.Fatalf("plan: got %+v, want %d and %v", plan, each-1, want)
	}

	watcher := s.Watch()
	defer watcher.Close()
	id := webhook.NewID()
	before := count(t, s, "SELECT max(num) FROM deliveries")
	got := runBulk(t, s, webhook.BulkRedeliver, id, "", plan.Newest)
	if got.Status != webhook.BulkDone || got.Done != each-1 || got.Total != plan.Matched || !maps.Equal(got.Skipped, want) ||
		got.Results[webhook.StatusPending] != each-1 {
		t.Fatalf("run: got %+v", got)
	}
	if _, ok := watcher.Take().Queued[good.ID]; !ok {
		t.Error("the dispatcher was not notified")
	}
	checkRedeliveries(t, s, before, each-1)
	page, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList, "filter[bulk_run_id]="+id))
	if err != nil || len(page) != each-1 {
		t.Errorf("got %d deliveries of the run (%v), want %d", len(page), err, each-1)
	}

	// The same run again, then another run with the same filters.
	if _, err := createBulk(t, s, webhook.BulkRedeliver, id, "", 0); !errors.Is(err, ErrBegun) {
		t.Errorf("same run again: got %v", err)
	}
	again := runBulk(t, s, webhook.BulkRedeliver, webhook.NewID(), "", 0)
	if again.Done != 0 || again.Skipped[webhook.SkipRedelivered] != each {
		t.Errorf("another run: got %+v", again)
	}
	entries, _, err := s.Audit().Page(t.Context(), query(t, webhook.AuditList, "filter[subject_id]="+webhook.BulkRunSubject(id)))
	if err != nil || len(entries) != 2 || entries[0].Detail != "Completed: 4 deliveries done, 16 deliveries skipped" ||
		entries[1].Admin != "ada@example.com" {
		t.Errorf("audit: got %+v (%v)", entries, err)
	}
}

// checkRedeliveries compares the redeliveries after a num with the original deliveries, in
// order.
func checkRedeliveries(t *testing.T, s *Store, after int64, want int) {
	t.Helper()
	var last int64
	links := 0
	err := s.db.Each(t.Context(), `SELECT o.num, r.seqs = o.seqs AND r.status = 'pending'
		AND r.next_attempt_at IS NOT NULL, (SELECT count(*) FROM delivery_events x WHERE x.delivery = r.num)
		FROM deliveries r JOIN deliveries o ON o.id = r.redelivery_of WHERE r.num > ?
		ORDER BY r.num`, []any{after}, func(scan func(...any) error) error {
		var num int64
		var right bool
		var linked int
		if err := scan(&num, &right, &linked); err != nil {
			return err
		}
		if num <= last || !right || linked != 1 {
			t.Errorf("redelivery of %d after that of %d: correct %v, %d events", num, last, right, linked)
		}
		last = num
		links++
		return nil
	})
	if err != nil || links != want {
		t.Errorf("%d redeliveries (%v)", links, err)
	}
}

// Pending deliveries are cancelled; completed ones and those in flight are not. Requests that
// wait for a ping and the dispatcher are notified.
func TestBulkCancel(t *testing.T) {
	s, registry := openMeasured(t)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	end(t, s, mustClaim(t, s, duePing(s, sub.ID)), webhook.StatusSuccess)
	publish(t, s, "p", "content_updated")
	retried := form(t, s, queue(t, s, sub.ID), 1)
	a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultRetryable, ResponseStatus: 500}
	step := webhook.Step{Status: webhook.StatusRetryable, NextAttemptAt: time.Now().Add(time.Hour)}
	recordResult(t, s, retried, &a, step, webhook.HealthPolicy{})
	publish(t, s, "p", "content_updated")
	flying := form(t, s, queue(t, s, sub.ID), 1)

	deliveries := s.WatchDeliveries()
	defer deliveries.Close()
	pinged := make(chan error, 1)
	go func() {
		_, _, err := s.Subscriptions().Ping(t.Context(), "p", sub.ID)
		pinged <- err
	}()
	<-deliveries.C // queued
	deliveries.Take()
	watcher := s.Watch()
	defer watcher.Close()

	got := runBulk(t, s, webhook.BulkCancel, webhook.NewID(), "", 0)
	want := map[webhook.BulkSkip]int{webhook.SkipEnded: 1, webhook.SkipInFlight: 1}
	if got.Done != 2 || got.Results != nil || !maps.Equal(got.Skipped, want) {
		t.Fatalf("got %+v, want 2 done and %v", got, want)
	}
	wantCode(t, <-pinged, webhook.CodeConflict)
	if _, ok := watcher.Take().Queued[sub.ID]; !ok {
		t.Error("the dispatcher was not notified")
	}
	if _, ok := deliveries.Take().Deliveries[retried.num]; !ok {
		t.Error("the watchers of deliveries were not notified")
	}
	d, err := s.Deliveries().Get(t.Context(), "p", sub.ID, retried.ID)
	if err != nil || d.Status != webhook.StatusFailed || d.FailureReason != webhook.FailureCancelled || !d.NextAttemptAt.IsZero() ||
		d.CompletedAt.IsZero() {
		t.Errorf("got %+v (%v)", d, err)
	}
	if l := queue(t, s, sub.ID); !l.NextDue.IsZero() || !l.NextPing.IsZero() {
		t.Errorf("got NextDue %v, NextPing %v; want none", l.NextDue, l.NextPing)
	}
	wantMetrics(t, registry, `webhooks_deliveries_ended_total{failure_reason="cancelled",status="failed"} 2`)

	for id, code := range map[string]webhook.Code{flying.ID: webhook.CodeConflict, retried.ID: webhook.CodeConflict,
		webhook.NewID(): webhook.CodeNotFound} {
		wantCode(t, s.Write(t.Context(), func(w Write) error { return w.Deliveries().Cancel("p", sub.ID, id, webhook.AuditEntry{}) }), code)
	}
}

// A run interrupted after any step continues in the next process, and does nothing twice.
func TestBulkRunGoesOn(t *testing.T) {
	const all = 3 * firstStep
	for steps := 1; steps <= 4; steps++ {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			dir := t.TempDir()
			s := openDir(t, dir)
			program(t, s, "p")
			sub := subscribe(t, s, "p", "content_updated")
			for range all {
				publish(t, s, "p", "content_updated")
				deliver(t, s, sub.ID, webhook.StatusFailed)
			}
			before := count(t, s, "SELECT max(num) FROM deliveries")
			id := webhook.NewID()
			_, err := createBulk(t, s, webhook.BulkRedeliver, id, "filter[status]=failed", 0)
			must(t, err)
			if err := s.workBulkRuns(interruptedAt(t, s, steps)); !errors.Is(err, context.Canceled) && steps < 3 {
				t.Errorf("interrupted with %v", err)
			}
			must(t, s.Close())

			s = openDir(t, dir)
			must(t, s.workBulkRuns(t.Context()))
			if r := bulkRun(t, s, id); r.Status != webhook.BulkDone || r.Done != all || len(r.Skipped) != 0 || r.Total != all {
				t.Errorf("completed: got %+v, want %d done", r, all)
			}
			checkRedeliveries(t, s, before, all)
		})
	}
}

// A plan and its run cover the same deliveries, even if others are stored in between.
func TestBulkIsOfOneMoment(t *testing.T) {
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated")
	deliver(t, s, sub.ID, webhook.StatusFailed)
	plan := planBulk(t, s, webhook.BulkRedeliver, "filter[status]=failed")
	if plan.Done != 1 || plan.From.IsZero() || !plan.From.Equal(plan.To) {
		t.Fatalf("plan: got %+v", plan)
	}
	publish(t, s, "p", "content_updated")
	deliver(t, s, sub.ID, webhook.StatusFailed)
	if got := runBulk(t, s, webhook.BulkRedeliver, webhook.NewID(), "filter[status]=failed", plan.Newest); got.Total != 1 || got.Done != 1 {
		t.Errorf("got %+v, want that of the plan", got)
	}
}

// A subscription at its limit of open redeliveries is set aside. The run continues with the
// others, and with that subscription once it has room.
func TestBulkRunWaitsForRoom(t *testing.T) {
	s := open(t)
	s.quotas.redeliveries = 3
	program(t, s, "p")
	full, free := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated")
	const each = 5
	for range each {
		publish(t, s, "p", "content_updated")
		deliver(t, s, full.ID, webhook.StatusFailed)
		c := deliver(t, s, free.ID, webhook.StatusFailed)
		_, err := s.Deliveries().Redeliver(t.Context(), "p", free.ID, c.ID)
		must(t, err)
		deliverAll(t, s, free.ID)
	}
	id := webhook.NewID()
	_, err := createBulk(t, s, webhook.BulkRedeliver, id, "filter[event]=content_updated&filter[status]=failed", 0)
	must(t, err)
	stop := background(t, s.BulkRuns().Run)
	harness.WaitFor(t, "the run to leave the full subscription behind", func() bool {
		r := bulkRun(t, s, id)
		return r.Waiting == 1 && r.Done == 3 && r.Skipped[webhook.SkipRecovered] == each && r.Status == webhook.BulkRunning
	})
	if p := planBulk(t, s, webhook.BulkRedeliver, "filter[status]=failed&filter[subscription_id]="+full.ID); p.Done != each-3 {
		t.Errorf("%d left to process, want %d", p.Done, each-3)
	}
	deliverAll(t, s, full.ID)
	harness.WaitFor(t, "the end of the run", func() bool { return bulkRun(t, s, id).Status == webhook.BulkDone })
	if r := bulkRun(t, s, id); r.Done != each || r.Waiting != 0 || r.Total != 2*each || r.Processed() != 2*each {
		t.Errorf("completed: got %+v", r)
	}
	stop()
}

// A waiting run does not poll: it checks again when a delivery has changed.
func TestBulkRunIsWoken(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		s.quotas.redeliveries = 1
		sub := subscribe(t, s, "p", "content_updated")
		const each = 3
		for range each {
			publish(t, s, "p", "content_updated")
			deliver(t, s, sub.ID, webhook.StatusFailed)
		}
		stop := background(t, s.BulkRuns().Run)
		id := webhook.NewID()
		_, err := createBulk(t, s, webhook.BulkRedeliver, id, "filter[status]=failed", 0)
		must(t, err)
		for done := 1; done <= each; done++ {
			time.Sleep(time.Second)
			synctest.Wait()
			if r := bulkRun(t, s, id); r.Done != done || (done < each) != (r.Waiting == 1) {
				t.Fatalf("with room for %d: got %+v", done, r)
			}
			turns := s.housekeeping.bulkTurns.Load()
			time.Sleep(time.Hour)
			synctest.Wait()
			if more := s.housekeeping.bulkTurns.Load() - turns; more != 0 {
				t.Errorf("the run checked %d times without a change", more)
			}
			deliverAll(t, s, sub.ID)
		}
		if r := bulkRun(t, s, id); r.Status != webhook.BulkDone {
			t.Errorf("completed: got %+v", r)
		}
		stop()
	})
}

// A list of bulk runs contains those of one program, newest first, page by page.
func TestBulkRunPages(t *testing.T) {
	s := openProgram(t)
	program(t, s, "q")
	var want []string
	for i := range 5 {
		id, action := webhook.NewID(), webhook.BulkCancel
		if i == 2 {
			action = webhook.BulkRedeliver
		}
		err := s.Write(t.Context(), func(w Write) error {
			_, err := w.BulkRuns().Create(&NewBulkRun{ID: id, ProgramID: []string{"p", "q"}[i%2], Action: action,
				Query: query(t, webhook.AllDeliveryList, "")})
			return err
		})
		must(t, err)
		if i%2 == 0 {
			want = append([]string{id}, want...)
		}
	}
	list := func(raw string) (ids []string, next string) {
		t.Helper()
		all, next, err := s.BulkRuns().Page(t.Context(), "p", query(t, webhook.BulkRunList, raw))
		must(t, err)
		for _, r := range all {
			ids = append(ids, r.ID)
		}
		return ids, next
	}
	first, next := list("page[size]=2")
	second, end := list("page[size]=2&page[cursor]=" + next)
	if got := append(first, second...); !slices.Equal(got, want) || len(first) != 2 || end != "" {
		t.Errorf("got %v and %v, want %v", first, second, want)
	}
	if got, _ := list("sort=created_at&filter[status]=running"); !slices.Equal(got, []string{want[2], want[1], want[0]}) {
		t.Errorf("oldest first: got %v", got)
	}
	if got, _ := list("filter[action]=redeliver"); !slices.Equal(got, want[1:2]) {
		t.Errorf("redeliveries: got %v", got)
	}
	if got, _ := list("filter[status]=done"); got != nil {
		t.Errorf("completed: got %v", got)
	}
}

// deliverAll completes the redeliveries of a subscription successfully.
func deliverAll(t *testing.T, s *Store, id string) {
	t.Helper()
	for {
		c, _, err := s.Queues().claimDue(t.Context(), due(s, id))
		must(t, err)
		if c == nil {
			return
		}
		end(t, s, c, webhook.StatusSuccess)
	}
}

// A cancelled run stops and reports its progress. The number of running runs is bounded.
func TestBulkRunCancelled(t *testing.T) {
	s, sub := openSubscribed(t)
	for range 2 * firstStep {
		publish(t, s, "p", "content_updated")
		deliver(t, s, sub.ID, webhook.StatusFailed)
	}
	id := webhook.NewID()
	_, err := createBulk(t, s, webhook.BulkRedeliver, id, "filter[status]=failed", 0)
	must(t, err)
	cancel := func(program string) error {
		return s.Write(t.Context(), func(w Write) error {
			_, err := w.BulkRuns().Cancel(program, id, webhook.AuditEntry{Admin: "bob@example.com"})
			return err
		})
	}
	wantCode(t, cancel("p"), webhook.CodeNotFound) // the run is for all programs
	steps := 0
	s.afterStep = func() {
		if steps++; steps == 1 {
			must(t, cancel(""))
		}
	}
	must(t, s.workBulkRuns(t.Context()))
	if r := bulkRun(t, s, id); r.Status != webhook.BulkCancelled || r.Done != firstStep || r.Total != 2*firstStep || r.CompletedAt.IsZero() {
		t.Errorf("got %+v, want %d done", r, firstStep)
	}
	if n := count(t, s, "SELECT count(*) FROM deliveries WHERE redelivery_of IS NOT NULL"); n != firstStep {
		t.Errorf("%d were redelivered, want %d done", n, firstStep)
	}
	wantCode(t, cancel(""), webhook.CodeConflict)
	if n := count(t, s,
		"SELECT count(*) FROM audit WHERE subject_id = ? AND admin = 'bob@example.com' AND detail LIKE 'Cancelled: 8 deliveries done%'",
		webhook.BulkRunSubject(id)); n != 1 {
		t.Error("the cancellation is not in the audit")
	}
	for i := range maxBulkRuns + 1 {
		_, err := createBulk(t, s, webhook.BulkRedeliver, webhook.NewID(), "", 0)
		if i < maxBulkRuns {
			must(t, err)
		} else {
			wantCode(t, err, webhook.CodeConflict)
		}
	}
	if runs, err := s.BulkRuns().Recent(t.Context(), "", 3); err != nil || len(runs) != 3 || runs[0].Status != webhook.BulkRunning {
		t.Errorf("Recent: got %+v (%v)", runs, err)
	}
}

// A bulk run sends an event once: it skips a failed delivery whose events are in newer deliveries,
// as after a split, and redelivers those. If the split was cancelled, the run redelivers the
// delivery itself. The list and the count of events left to resend agree with the run.
func TestBulkRunSkipsSentAgain(t *testing.T) {
	s, sub := openSubscribed(t)
	statuses := []webhook.Status{webhook.StatusSuccess, webhook.StatusFailed, webhook.StatusSuccess}
	plan := func(want int, skips map[webhook.BulkSkip]int) {
		t.Helper()
		p := planBulk(t, s, webhook.BulkRedeliver, "filter[status]=failed")
		if p.Done != want || !maps.Equal(p.Skipped, skips) {
			t.Errorf("got %d redeliveries, skipped %v; want %d and %v", p.Done, p.Skipped, want, skips)
		}
		left, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList, "filter[recovered]=false"))
		must(t, err)
		u, err := s.Subscriptions().View(t.Context(), sub.ID, 1)
		must(t, err)
		if len(left) != want || u.Left.Deliveries != want {
			t.Errorf("%d deliveries are listed and %d counted as left, want %d", len(left), u.Left.Deliveries, want)
		}
	}
	events := func(c *Claim, undelivered, left int) {
		t.Helper()
		d, err := s.Deliveries().View(t.Context(), c.ID)
		must(t, err)
		if d.Undelivered != undelivered || d.Left != left {
			t.Errorf("got %d undelivered events of which %d are left, want %d and %d", d.Undelivered, d.Left, undelivered, left)
		}
	}
	refuse := func() (parent *Claim) {
		t.Helper()
		for range statuses {
			publish(t, s, "p", "content_updated")
		}
		parent = form(t, s, queue(t, s, sub.ID), len(statuses))
		end(t, s, parent, webhook.StatusFailed)
		return parent
	}
	split := func(statuses []webhook.Status) {
		t.Helper()
		for _, status := range statuses {
			end(t, s, formSplitOf(t, s, sub.ID), status)
		}
	}
	parent := refuse()
	plan(0, map[webhook.BulkSkip]int{webhook.SkipSplitting: 1})
	events(parent, 3, 3)
	split(statuses)
	plan(1, map[webhook.BulkSkip]int{webhook.SkipSentAgain: 1})
	events(parent, 1, 0)

	_, err := s.Replays().Create(t.Context(), "p", sub.ID, &webhook.ReplayFields{From: time.UnixMilli(0), Only: webhook.ReplayFailed})
	must(t, err)
	c := mustStep(t, s, sub.ID)
	end(t, s, c, webhook.StatusFailed)
	plan(1, map[webhook.BulkSkip]int{webhook.SkipSentAgain: 2})

	cancelled := refuse()
	split(statuses[:1])
	must(t, s.Write(t.Context(), func(w Write) error { return w.Deliveries().Cancel("p", sub.ID, cancelled.ID, webhook.AuditEntry{}) }))
	plan(2, map[webhook.BulkSkip]int{webhook.SkipSentAgain: 2})
	events(cancelled, 2, 2)
}

// A subscription whose events have all been delivered, and whose splits have ended, costs its
// deliveries nothing any more, even after a write that was rolled back.
func TestRecoveredCostsNothing(t *testing.T) {
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated", "content_updated")
	end(t, s, form(t, s, queue(t, s, sub.ID), 2), webhook.StatusFailed)
	in := func(want bool) {
		t.Helper()
		must(t, s.writer.do(func(t *tx) error {
			_, err := t.mayBeIn(&t.w.undelivered, selectWithUndelivered, sub.ID)
			if err == nil {
				_, err = t.mayBeIn(&t.w.splits, selectWithSplits, sub.ID)
			}
			return err
		}))
		_, undelivered := s.writer.undelivered[sub.ID]
		_, splits := s.writer.splits[sub.ID]
		if undelivered != want || splits != want {
			t.Errorf("it has undelivered events: %t, splits: %t; want %t", undelivered, splits, want)
		}
	}
	in(true)
	end(t, s, formSplitOf(t, s, sub.ID), webhook.StatusSuccess)
	in(true)
	last := formSplitOf(t, s, sub.ID)
	if err := s.writer.do(func(t *tx) error {
		if err := t.noteDelivered(last.num, sub.ID); err != nil {
			return err
		}
		return sql.ErrNoRows
	}); !errors.Is(err, sql.ErrNoRows) {
		t.Fatalf("got %v, want the write to be undone", err)
	}
	in(true)
	end(t, s, last, webhook.StatusSuccess)
	in(false)
}

// Queries of bulk runs use indexes.
func TestBulkPlans(t *testing.T) {
	s := open(t)
	for _, c := range []struct {
		query string
		args  int
		want  string
	}{
		{countRedeliver, 1, "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"},
		{selectRedeliver, 1, "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"},
		{cancelWaiting, 3, "SEARCH deliveries USING INTEGER PRIMARY KEY (rowid=?)"},
		{linkRedeliveries, 1, "SEARCH d USING INTEGER PRIMARY KEY (rowid>?)"},
		{insertRedeliveries, 4, "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"},
		{selectBulkRun, 1, "SEARCH bulk_runs USING INDEX sqlite_autoindex_bulk_runs_1 (id=?)"},
		{selectBulkResults, 1, "SEARCH x USING PRIMARY KEY (run=?)"},
	} {
		sqlitetest.CheckPlan(t, s.db, c.query, c.args, c.want)
	}
}

package store

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"service/webhook"
)

func anAdmin() webhook.AuditEntry {
	return webhook.AuditEntry{Admin: "ada@example.com", Address: "192.0.2.1"}
}

func runBulk(t *testing.T, s *Store, a webhook.Action, id, raw string) (BulkResult, error) {
	t.Helper()
	return s.BulkRuns().Run(t.Context(), &Bulk{ID: id, Action: a, Query: query(t, webhook.AllDeliveryList, raw), Audit: anAdmin()}, func(BulkResult) {})
}

// A bulk redelivery does what its plan says, once, to what can be redelivered,
// in the order of what it was, and is in the audit.
func TestBulkRedelivery(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	good, paused, gone := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated")
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
	form(t, s, queue(t, s, good.ID), 1) // is in flight
	off := false
	if _, err := s.Subscriptions().Update(t.Context(), "p", paused.ID, &webhook.SubscriptionFields{Active: &off}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Subscriptions().Delete(t.Context(), "p", gone.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliveries().Redeliver(t.Context(), "p", good.ID, first.ID); err != nil {
		t.Fatal(err)
	}

	want := map[webhook.BulkSkip]int{
		webhook.SkipPing: 3, webhook.SkipNotEnded: 2, webhook.SkipRedelivered: 1,
		webhook.SkipSubscriptionPaused: each, webhook.SkipSubscriptionDeleted: each,
	}
	plan, err := s.BulkRuns().Plan(t.Context(), webhook.ActionDeliveryRedeliver, query(t, webhook.AllDeliveryList, "page[size]=1&sort=created_at"), 0)
	if err != nil || plan.Done != each-1 || plan.Picked != 3*each+5 || plan.Rest != 0 || !maps.Equal(plan.Skipped, want) {
		t.Fatalf("plan: %+v (%v), want %d and %v", plan, err, each-1, want)
	}

	watcher := s.Watch()
	defer watcher.Close()
	id := webhook.NewID()
	before := count(t, s, "SELECT max(num) FROM deliveries")
	got, err := runBulk(t, s, webhook.ActionDeliveryRedeliver, id, "")
	if err != nil || got.Done != each-1 || got.Left != 0 || !maps.Equal(got.Skipped, want) {
		t.Fatalf("run: %+v (%v)", got, err)
	}
	if _, ok := watcher.Take().Queued[good.ID]; !ok {
		t.Error("the dispatcher was not told")
	}
	checkRedeliveries(t, s, before, each-1)

	// The same form again, and another one for the same.
	if _, err := runBulk(t, s, webhook.ActionDeliveryRedeliver, id, ""); !errors.Is(err, ErrBegun) {
		t.Errorf("the same run again: %v", err)
	}
	again, err := runBulk(t, s, webhook.ActionDeliveryRedeliver, webhook.NewID(), "")
	if err != nil || again.Done != 0 || again.Skipped[webhook.SkipRedelivered] != each {
		t.Errorf("another run: %+v (%v)", again, err)
	}
	entries, _, err := s.Audit().Page(t.Context(), query(t, webhook.AuditList, "filter[subject_id]="+id))
	if err != nil || len(entries) != 2 || entries[0].Detail != "Ended: 4 done, 16 skipped, 0 left" || entries[1].Admin != "ada@example.com" {
		t.Errorf("audit: %+v (%v)", entries, err)
	}
}

// checkRedeliveries compares the redeliveries after a num with what they redeliver,
// in order.
func checkRedeliveries(t *testing.T, s *Store, after int64, want int) {
	t.Helper()
	var last int64
	links := 0
	err := s.db.Each(t.Context(), `SELECT o.num, r.seqs = o.seqs AND r.status = 'pending' AND r.next_attempt_at IS NOT NULL, (SELECT count(*) FROM delivery_events x WHERE x.delivery = r.num)
		FROM deliveries r JOIN deliveries o ON o.id = r.redelivery_of WHERE r.num > ? ORDER BY r.num`, []any{after}, func(scan func(...any) error) error {
		var num int64
		var right bool
		var linked int
		if err := scan(&num, &right, &linked); err != nil {
			return err
		}
		if num <= last || !right || linked != 1 {
			t.Errorf("redelivery of %d after that of %d: right %v, %d events", num, last, right, linked)
		}
		last = num
		links++
		return nil
	})
	if err != nil || links != want {
		t.Errorf("%d redeliveries (%v)", links, err)
	}
}

// What waits is cancelled, what is being sent or at its end is not; whoever
// waits for a ping hears of it, and the dispatcher too.
func TestBulkCancel(t *testing.T) {
	s, registry := openMeasured(t)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	if c, _, err := s.Queues().claimDue(t.Context(), duePing(sub.ID)); c == nil || err != nil {
		t.Fatal(err)
	} else {
		end(t, s, c, webhook.StatusSuccess)
	}
	publish(t, s, "p", "content_updated")
	retried := form(t, s, queue(t, s, sub.ID), 1)
	a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultRetryable, ResponseStatus: 500}
	if _, err := s.Queues().Record(retried, &a, webhook.Step{Status: webhook.StatusRetryable, NextAttemptAt: time.Now().Add(time.Hour)}, webhook.HealthPolicy{}); err != nil {
		t.Fatal(err)
	}
	publish(t, s, "p", "content_updated")
	flying := form(t, s, queue(t, s, sub.ID), 1)

	deliveries := s.WatchDeliveries()
	defer deliveries.Close()
	pinged := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, _, err := s.Subscriptions().Ping(ctx, "p", sub.ID)
		pinged <- err
	}()
	<-deliveries.C // it is queued
	deliveries.Take()
	watcher := s.Watch()
	defer watcher.Close()

	got, err := runBulk(t, s, webhook.ActionDeliveryCancel, webhook.NewID(), "")
	want := map[webhook.BulkSkip]int{webhook.SkipEnded: 1, webhook.SkipInFlight: 1}
	if err != nil || got.Done != 2 || !maps.Equal(got.Skipped, want) {
		t.Fatalf("got %+v (%v), want 2 done and %v", got, err, want)
	}
	wantCode(t, <-pinged, webhook.CodeConflict)
	if _, ok := watcher.Take().Queued[sub.ID]; !ok {
		t.Error("the dispatcher was not told")
	}
	if _, ok := deliveries.Take().Deliveries[retried.num]; !ok {
		t.Error("those who watch deliveries were not told")
	}
	d, err := s.Deliveries().Get(t.Context(), "p", sub.ID, retried.ID)
	if err != nil || d.Status != webhook.StatusFailed || d.FailureReason != webhook.FailureCancelled || !d.NextAttemptAt.IsZero() || d.CompletedAt.IsZero() {
		t.Errorf("got %+v (%v)", d, err)
	}
	if l := queue(t, s, sub.ID); !l.NextDue.IsZero() || !l.NextPing.IsZero() {
		t.Errorf("something is due: %v, %v", l.NextDue, l.NextPing)
	}
	wantMetrics(t, registry, `service_deliveries_ended_total{failure_reason="cancelled",status="failed"} 2`)

	for id, code := range map[string]webhook.Code{flying.ID: webhook.CodeConflict, retried.ID: webhook.CodeConflict, webhook.NewID(): webhook.CodeNotFound} {
		wantCode(t, s.Write(t.Context(), func(w Write) error { return w.Cancel("p", sub.ID, id) }), code)
	}
}

// A run that is cut off leaves what it did not come to, and says so.
func TestBulkCutOff(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	const all = 3 * firstSweep
	for range all {
		publish(t, s, "p", "content_updated")
		deliver(t, s, sub.ID, webhook.StatusFailed)
	}
	ctx, stop := context.WithCancel(t.Context())
	steps := 0
	b := Bulk{ID: webhook.NewID(), Action: webhook.ActionDeliveryRedeliver, Query: query(t, webhook.AllDeliveryList, "filter[status]=failed"), Audit: anAdmin()}
	got, err := s.BulkRuns().Run(ctx, &b, func(BulkResult) {
		if steps++; steps == 2 { // the first is before the first step
			stop()
		}
	})
	if !errors.Is(err, context.Canceled) || got.Done != firstSweep || got.Left != all-firstSweep {
		t.Errorf("got %+v (%v), want %d done and %d left", got, err, firstSweep, all-firstSweep)
	}
	if n := count(t, s, "SELECT count(*) FROM deliveries WHERE redelivery_of IS NOT NULL"); n != firstSweep {
		t.Errorf("%d redeliveries are stored, want %d", n, firstSweep)
	}
	if n := count(t, s, "SELECT count(*) FROM audit WHERE subject_id = ? AND detail LIKE 'Ended%16 left'", b.ID); n != 1 {
		t.Error("the end is not in the audit")
	}
}

// A plan and its run look at the same deliveries, whatever comes in between.
func TestBulkIsOfOneMoment(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	publish(t, s, "p", "content_updated")
	deliver(t, s, sub.ID, webhook.StatusFailed)
	q := query(t, webhook.AllDeliveryList, "filter[status]=failed")
	plan, err := s.BulkRuns().Plan(t.Context(), webhook.ActionDeliveryRedeliver, q, 0)
	if err != nil || plan.Done != 1 {
		t.Fatalf("plan: %+v (%v)", plan, err)
	}
	publish(t, s, "p", "content_updated")
	deliver(t, s, sub.ID, webhook.StatusFailed)
	got, err := s.BulkRuns().Run(t.Context(), &Bulk{ID: webhook.NewID(), Action: webhook.ActionDeliveryRedeliver, Query: q, Newest: plan.Newest, Audit: anAdmin()}, func(BulkResult) {})
	if err != nil || got.Picked != 1 || got.Done != 1 {
		t.Errorf("got %+v (%v), want the one of the plan", got, err)
	}
}

package store

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

func TestPublishIsIdempotentById(t *testing.T) {
	ctx := context.Background()
	s := openProgram(t)
	program(t, s, "q")
	first := publish(t, s, "p", "content_updated")[0]

	again := first
	again.Seq, again.ReceivedAt = 0, time.Now().Add(time.Hour)
	both := []webhook.Event{again, event("content_deleted")}
	added, err := s.Events().Publish(ctx, "p", both)
	if err != nil || added != 1 || both[0].Seq != 1 || both[1].Seq != 2 {
		t.Errorf("added %d (%v), seqs %d and %d; want 1 added, seqs 1 and 2", added, err, both[0].Seq, both[1].Seq)
	}
	if !both[0].ReceivedAt.Equal(first.ReceivedAt.Truncate(time.Millisecond)) {
		t.Error("the repeated event was not replaced by the stored one")
	}

	other := first
	other.JSON = slices.Concat(first.JSON[:len(first.JSON)-2], []byte("8}"))
	_, err = s.Events().Publish(ctx, "p", []webhook.Event{event("content_updated"), other})
	wantCode(t, err, webhook.CodeConflict)
	events, _, err := s.Events().Page(ctx, "p", query(t, webhook.EventList, ""))
	if err != nil || len(events) != 2 {
		t.Errorf("the log contains %d events (%v), want none of the refused request", len(events), err)
	}

	same := first // IDs are unique per program
	if added, err := s.Events().Publish(ctx, "q", []webhook.Event{same}); added != 1 || err != nil {
		t.Errorf("in another program: added %d (%v), want 1", added, err)
	}
	if next := publish(t, s, "p", "content_updated"); next[0].Seq != 3 {
		t.Errorf("next seq: got %d, want 3", next[0].Seq)
	}
}

// No record of a program is visible to another.
func TestProgramIsolation(t *testing.T) {
	ctx := context.Background()
	s := openProgram(t)
	program(t, s, "q")
	sub := subscribe(t, s, "p", "content_updated")
	sibling := subscribe(t, s, "p", "content_updated")
	e := publish(t, s, "p", "content_updated")[0]
	d := form(t, s, queue(t, s, sub.ID), 1)

	_, err := s.Subscriptions().Get(ctx, "q", sub.ID)
	wantCode(t, err, webhook.CodeNotFound)
	_, err = s.Subscriptions().Update(ctx, "q", sub.ID, &webhook.SubscriptionFields{})
	wantCode(t, err, webhook.CodeNotFound)
	_, err = s.Subscriptions().Delete(ctx, "q", sub.ID)
	wantCode(t, err, webhook.CodeNotFound)
	_, _, err = s.Subscriptions().Ping(ctx, "q", sub.ID)
	wantCode(t, err, webhook.CodeNotFound)
	_, err = s.Events().Get(ctx, "q", e.ID)
	wantCode(t, err, webhook.CodeNotFound)
	_, _, err = s.Deliveries().Page(ctx, "q", sub.ID, query(t, webhook.DeliveryList, ""))
	wantCode(t, err, webhook.CodeNotFound)
	_, err = s.Deliveries().Get(ctx, "q", sub.ID, d.ID)
	wantCode(t, err, webhook.CodeNotFound)
	_, err = s.Deliveries().Get(ctx, "p", sibling.ID, d.ID) // of another subscription
	wantCode(t, err, webhook.CodeNotFound)
	if subs, total, err := s.Subscriptions().Page(ctx, "q", query(t, webhook.SubscriptionList, "")); len(subs) != 0 || total != 0 ||
		err != nil {
		t.Errorf("got %d of %d subscriptions (%v)", len(subs), total, err)
	}
	if c := form(t, s, queue(t, s, subscribe(t, s, "q", "content_updated").ID), 1); c != nil {
		t.Errorf("an event of another program was delivered: %s", c.Events)
	}
}

func TestSubscriptionLimit(t *testing.T) {
	s := openProgram(t)
	for range 5 {
		subscribe(t, s, "p", "content_updated")
	}
	url, names := "https://partner.example", []string{"ping"}
	_, _, err := s.Subscriptions().Create(context.Background(), "p", "u", &webhook.SubscriptionFields{URL: &url, Events: &names}, 5)
	wantCode(t, err, webhook.CodeInvalid)
}

// A deletion ends pending deliveries; attempts in flight are the last.
func TestDeletionEndsDeliveries(t *testing.T) {
	ctx := context.Background()
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated", "content_updated", "content_updated")
	var claims []*Claim
	for range 3 {
		claims = append(claims, form(t, s, queue(t, s, sub.ID), 1))
	}
	attempt := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultRetryable, Error: webhook.ErrorTimeout}
	again := webhook.Step{Status: webhook.StatusRetryable, NextAttemptAt: time.Now().Add(time.Hour)}
	recordResult(t, s, claims[0], &attempt, again, webhook.HealthPolicy{})
	unsubscribe(t, s, "p", sub.ID)
	step := recordResult(t, s, claims[1], &attempt, again, webhook.HealthPolicy{})
	if step.FailureReason != webhook.FailureSubscriptionDeleted {
		t.Errorf("got %+v, want subscription_deleted", step)
	}
	end(t, s, claims[2], webhook.StatusSuccess)
	recent, _, err := s.Deliveries().PageAll(ctx, query(t, webhook.AllDeliveryList, ""))
	if err != nil || len(recent) != 4 {
		t.Fatalf("got %d deliveries (%v), want 4", len(recent), err)
	}
	want := []webhook.FailureReason{webhook.FailureNone, webhook.FailureSubscriptionDeleted, webhook.FailureSubscriptionDeleted,
		webhook.FailureSubscriptionDeleted}
	for i, d := range recent {
		if !d.Status.Final() || d.FailureReason != want[i] {
			t.Errorf("delivery %d is %s %s, want %s", i, d.Status, d.FailureReason, want[i])
		}
	}
	_, err = s.Subscriptions().Get(ctx, "p", sub.ID)
	wantCode(t, err, webhook.CodeNotFound)
}

func TestTokens(t *testing.T) {
	ctx := context.Background()
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, Config{Dir: memoryDir(t)})
		defer s.Close()
		ask := webhook.NewToken{ProgramID: "p", UserID: "u", Name: "n", Scopes: []webhook.Scope{webhook.ScopeEventsRead},
			ExpiresAt: time.Now().Add(time.Hour)}
		made, secret, err := s.Tokens().Create(ctx, ask)
		must(t, err)
		got, err := s.Tokens().Authenticate(ctx, secret)
		if err != nil || got.ID != made.ID || got.ProgramID != "p" || got.UserID != "u" || !got.Allows(webhook.ScopeEventsRead) ||
			got.Allows(webhook.ScopeEventsWrite) {
			t.Errorf("got %+v (%v)", got, err)
		}
		_, err = s.Tokens().Authenticate(ctx, webhook.NewTokenSecret(webhook.TokenPrefix))
		wantCode(t, err, webhook.CodeUnauthenticated)
		_, err = s.Tokens().Authenticate(ctx, "")
		wantCode(t, err, webhook.CodeUnauthenticated)

		time.Sleep(time.Hour)
		_, err = s.Tokens().Authenticate(ctx, secret) // cached, but expired
		wantCode(t, err, webhook.CodeUnauthenticated)

		ask.ExpiresAt = time.Time{}
		made, secret, err = s.Tokens().Create(ctx, ask)
		must(t, err)
		time.Sleep(10 * 365 * 24 * time.Hour)
		if _, err := s.Tokens().Authenticate(ctx, secret); err != nil {
			t.Errorf("token without expiry: got %v", err)
		}
		_, err = s.Tokens().Revoke(ctx, made.ID)
		must(t, err)
		_, err = s.Tokens().Authenticate(ctx, secret)
		wantCode(t, err, webhook.CodeUnauthenticated)
		_, err = s.Tokens().Revoke(ctx, "unknown")
		wantCode(t, err, webhook.CodeNotFound)
		if all, err := s.Tokens().List(ctx); err != nil || len(all) != 2 || all[0].RevokedAt.IsZero() || !all[1].RevokedAt.IsZero() {
			t.Errorf("got %+v (%v), want the revoked one first", all, err)
		}
		_, _, err = s.Tokens().Create(ctx, webhook.NewToken{ProgramID: "a b", Scopes: []webhook.Scope{"all"}})
		wantCode(t, err, webhook.CodeInvalid)
	})
}

func TestPingReturnsItsFirstAttempt(t *testing.T) {
	ctx := context.Background()
	s, sub := openSubscribed(t)
	mustClaim(t, s, duePing(s, sub.ID)) // the ping of the creation
	watcher := s.Watch()
	defer watcher.Close()
	done := make(chan error)
	go func() { // acts as the dispatcher
		<-watcher.C
		if _, ok := watcher.Take().Queued[sub.ID]; !ok {
			t.Error("the watcher did not report the ping")
		}
		c, _, err := s.Queues().claimDue(ctx, duePing(s, sub.ID))
		if err == nil {
			_, err = s.Queues().Record(c, &webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultFailed, ResponseStatus: 404},
				webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureRejected}, webhook.HealthPolicy{})
		}
		done <- err
	}()
	_, d, err := s.Subscriptions().Ping(ctx, "p", sub.ID)
	if err != nil || len(d.Attempts) != 1 || d.Attempts[0].ResponseStatus != 404 {
		t.Errorf("got %+v (%v)", d, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := s.Subscriptions().Ping(ended, "p", sub.ID); err != context.Canceled {
		t.Errorf("got %v, want the context's error", err)
	}
}

// An update without changes keeps the record's revision, so that ETags stay valid.
func TestUpdateWithoutChanges(t *testing.T) {
	ctx := context.Background()
	s := openProgram(t)
	before := subscribe(t, s, "p", "content_updated")
	on := true
	for _, f := range []webhook.SubscriptionFields{{}, {Active: &on}, {Events: &before.Events, URL: &before.URL}} {
		got, err := s.Subscriptions().Update(ctx, "p", before.ID, &f)
		if err != nil || !got.UpdatedAt.Equal(before.UpdatedAt) || got.Revision != before.Revision {
			t.Errorf("%+v: got %+v (%v), want the record unchanged", f, got, err)
		}
	}
	names := []string{"content_deleted"}
	if got, err := s.Subscriptions().Update(ctx, "p", before.ID, &webhook.SubscriptionFields{Events: &names}); err != nil ||
		got.Revision == before.Revision {
		t.Errorf("got %+v (%v), want another revision", got, err)
	}
}

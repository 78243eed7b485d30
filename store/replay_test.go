package store

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// deliver forms the next delivery of a subscription and records its result.
func deliver(t *testing.T, s *Store, id string, status webhook.Status) *Claim {
	t.Helper()
	c := form(t, s, queue(t, s, id), 1)
	if c == nil {
		t.Fatal("nothing to deliver")
	}
	end(t, s, c, status)
	return c
}

func end(t testing.TB, s *Store, c *Claim, status webhook.Status) {
	t.Helper()
	a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), Result: webhook.ResultSuccess, ResponseStatus: 200}
	step := webhook.Step{Status: status}
	if status == webhook.StatusFailed {
		a.Result, a.ResponseStatus, step.FailureReason = webhook.ResultFailed, 404, webhook.FailureRejected
	}
	recordResult(t, s, c, &a, step, webhook.HealthPolicy{})
}

// A dry run counts the deliveries by the batch size of the operator or the max_events of the
// subscription, whichever is less.
func TestReplayCountsDeliveries(t *testing.T) {
	s, sub := openSubscribed(t)
	for range 10 {
		publish(t, s, "p", "content_updated")
	}
	f := &webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayAll}
	form(t, s, queue(t, s, sub.ID), 10)
	for limit, want := range map[int]int64{0: 3, 1: 10, 3: 4, 4: 3, 1000: 3} {
		_, err := s.Subscriptions().Update(t.Context(), "p", sub.ID, &webhook.SubscriptionFields{MaxEvents: &limit})
		must(t, err)
		n, err := s.Replays().Count(t.Context(), "p", sub.ID, f, 4)
		if want := (ReplayCount{10, want, true}); err != nil || n != want {
			t.Errorf("max_events %d: got %+v, %v; want %+v", limit, n, err, want)
		}
	}
}

// A replay of each kind sends exactly its events.
func TestReplays(t *testing.T) {
	ctx := context.Background()
	s := openProgram(t)
	before := publish(t, s, "p", "content_updated")[0]
	sub := subscribe(t, s, "p", "content_updated", "content_deleted")
	neighbour := subscribe(t, s, "p", "content_updated")
	on, off := true, false

	delivered := publish(t, s, "p", "content_updated")[0]
	deliver(t, s, sub.ID, webhook.StatusSuccess)
	failed := publish(t, s, "p", "content_updated")[0]
	deliver(t, s, sub.ID, webhook.StatusFailed)
	mended := publish(t, s, "p", "content_updated")[0]
	bad := deliver(t, s, sub.ID, webhook.StatusFailed)
	again, err := s.Deliveries().Redeliver(ctx, "p", sub.ID, bad.ID)
	if err != nil || again.RedeliveryOf != bad.ID || len(again.Events) != 1 || again.Events[0].ID != mended.ID {
		t.Fatalf("got %+v (%v), want a redelivery", again, err)
	}
	c := mustClaim(t, s, due(s, sub.ID))
	if c.ID != again.ID {
		t.Fatalf("claimed %+v, want the redelivery", c)
	}
	end(t, s, c, webhook.StatusSuccess)

	update := func(active *bool) {
		_, err := s.Subscriptions().Update(ctx, "p", sub.ID, &webhook.SubscriptionFields{Active: active})
		must(t, err)
	}
	update(&off)
	paused := publish(t, s, "p", "content_updated", "channel_created")[0]
	_, err = s.Deliveries().Redeliver(ctx, "p", sub.ID, bad.ID)
	wantCode(t, err, webhook.CodeConflict)
	_, err = s.Replays().Create(ctx, "p", sub.ID, &webhook.ReplayFields{Only: webhook.ReplayAll})
	wantCode(t, err, webhook.CodeConflict)
	update(&on)
	waiting := publish(t, s, "p", "content_deleted")[0] // the cursor has yet to reach it
	deliver(t, s, neighbour.ID, webhook.StatusSuccess)  // deliveries of other subscriptions do not count

	for _, c := range []struct {
		fields webhook.ReplayFields
		want   []webhook.Event
	}{
		{webhook.ReplayFields{Only: webhook.ReplayMissed}, []webhook.Event{before, paused}},
		{webhook.ReplayFields{Only: webhook.ReplayFailed}, []webhook.Event{failed}},
		{webhook.ReplayFields{Only: webhook.ReplayAll}, []webhook.Event{before, delivered, failed, mended, paused}},
		{webhook.ReplayFields{Only: webhook.ReplayAll, Events: []string{"content_deleted"}}, nil},
		{webhook.ReplayFields{Only: webhook.ReplayAll, To: time.Now().Add(-time.Hour)}, nil},
		{webhook.ReplayFields{Only: webhook.ReplayAll, From: time.Now().Add(time.Hour), To: time.Now().Add(2 * time.Hour)}, nil},
	} {
		if c.fields.From.IsZero() {
			c.fields.From = time.Now().Add(-2 * time.Hour)
		}
		checkReplay(t, s, sub.ID, &c.fields, c.want)
	}
	if c := form(t, s, queue(t, s, sub.ID), 100); c == nil || len(c.Events) != 1 || string(c.Events[0]) != string(waiting.JSON) {
		t.Errorf("got %+v, want the waiting event", c)
	}
}

// checkReplay runs a replay, compares its events, and removes its deliveries.
func checkReplay(t *testing.T, s *Store, subscriptionID string, f *webhook.ReplayFields, events []webhook.Event) {
	t.Helper()
	count, err := s.Replays().Count(t.Context(), "p", subscriptionID, f, 100)
	if err != nil || count.Events != int64(len(events)) || !count.Complete {
		t.Errorf("%s: a dry run counts %+v (%v), want %d", f.Only, count, err, len(events))
	}
	r, err := s.Replays().Create(t.Context(), "p", subscriptionID, f)
	must(t, err)
	var bodies, want []string
	var nums []int64
	for more := true; more; {
		var claim *Claim
		claim, more, err = s.Queues().stepReplay(t.Context(), queue(t, s, subscriptionID), 2, webhook.MaxDeliveryBytes)
		must(t, err)
		if claim == nil {
			continue
		}
		nums = append(nums, claim.num)
		for _, e := range claim.Events {
			bodies = append(bodies, string(e))
		}
	}
	for _, e := range events {
		want = append(want, string(e.JSON))
	}
	if !slices.Equal(bodies, want) {
		t.Errorf("%s: sent %v, want %v", f.Only, bodies, want)
	}
	r, err = s.Replays().Get(t.Context(), "p", subscriptionID, r.ID)
	if err != nil || r.Status != webhook.ReplayDone || r.EventsSent != int64(len(want)) || r.Deliveries != int64(len(nums)) ||
		r.Scanned != r.Total {
		t.Errorf("%s: completed: got %+v (%v)", f.Only, r, err)
	}
	// The next kind must find the same state.
	must(t, s.writer.do(func(tx *tx) error {
		for _, num := range nums {
			if err := tx.Exec("DELETE FROM delivery_events WHERE delivery = ?", num); err != nil {
				return err
			}
			if err := tx.Exec("DELETE FROM deliveries WHERE num = ?", num); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestReplayLimitsAndCancel(t *testing.T) {
	ctx := context.Background()
	s := openProgram(t)
	program(t, s, "q")
	sub := subscribe(t, s, "p", "content_updated")
	fields := &webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayAll}
	var first webhook.Replay
	for i := range maxReplays {
		r, err := s.Replays().Create(ctx, "p", sub.ID, fields)
		must(t, err)
		if i == 0 {
			first = r
		}
	}
	_, err := s.Replays().Create(ctx, "p", sub.ID, fields)
	wantCode(t, err, webhook.CodeConflict)
	if !queue(t, s, sub.ID).Replaying {
		t.Error("Replaying is false, want true")
	}
	for _, c := range []struct{ program, sub, id string }{{"q", sub.ID, first.ID}, {"p", subscribe(t, s, "p", "ping").ID, first.ID},
		{"p", sub.ID, "nothing"}} {
		_, err = s.Replays().Get(ctx, c.program, c.sub, c.id)
		wantCode(t, err, webhook.CodeNotFound)
		_, err = s.Replays().Cancel(ctx, c.program, c.sub, c.id)
		wantCode(t, err, webhook.CodeNotFound)
	}
	r, err := s.Replays().Cancel(ctx, "p", sub.ID, first.ID)
	if err != nil || r.Status != webhook.ReplayCancelled || r.CompletedAt.IsZero() {
		t.Errorf("got %+v (%v), want a cancelled replay", r, err)
	}
	unsubscribe(t, s, "p", sub.ID)
	var running int
	if err := s.db.Readers().QueryRow("SELECT count(*) FROM replays WHERE status = 'running'").Scan(&running); err != nil || running != 0 {
		t.Errorf("%d replays of the deleted subscription are running (%v)", running, err)
	}
}

// Two concurrent steps of a replay at the same position form one delivery.
func TestReplayStepsOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		for range 4 {
			publish(t, s, "p", "content_updated")
			deliver(t, s, sub.ID, webhook.StatusFailed)
		}
		if _, err := s.Replays().Create(t.Context(), "p", sub.ID, &webhook.ReplayFields{From: time.Now().Add(-time.Hour),
			Only: webhook.ReplayAll}); err != nil {
			t.Fatal(err)
		}
		q := queue(t, s, sub.ID)
		before := count(t, s, "SELECT count(*) FROM deliveries")
		release := lead(s)
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				_, _, err := s.Queues().stepReplay(t.Context(), q, 2, webhook.MaxDeliveryBytes)
				errs <- err
			}()
		}
		synctest.Wait() // both have read and wait to write
		release()
		first, second := <-errs, <-errs
		if !errors.Is(errors.Join(first, second), ErrStale) || first != nil && second != nil {
			t.Errorf("got %v and %v, want one ErrStale", first, second)
		}
		wantNumber(t, "deliveries", count(t, s, "SELECT count(*) FROM deliveries")-before, 1)
	})
}

// A step that was read before the replay was cancelled, and stored after that, forms no
// delivery.
func TestReplayStepAfterCancel(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "content_updated")
		deliver(t, s, sub.ID, webhook.StatusFailed)
		r, err := s.Replays().Create(t.Context(), "p", sub.ID, &webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayAll})
		must(t, err)
		q := queue(t, s, sub.ID)
		before := count(t, s, "SELECT count(*) FROM deliveries")
		release := lead(s)
		cancelled, stepped := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := s.Replays().Cancel(t.Context(), "p", sub.ID, r.ID)
			cancelled <- err
		}()
		synctest.Wait()
		go func() {
			_, _, err := s.Queues().stepReplay(t.Context(), q, 2, webhook.MaxDeliveryBytes)
			stepped <- err
		}()
		synctest.Wait() // it has read and waits to write
		release()
		must(t, <-cancelled)
		if err := <-stepped; !errors.Is(err, ErrStale) {
			t.Errorf("got %v, want ErrStale", err)
		}
		wantNumber(t, "deliveries", count(t, s, "SELECT count(*) FROM deliveries")-before, 0)
	})
}

func TestRotatedSecretsSignForADay(t *testing.T) {
	ctx := context.Background()
	s, sub := openSubscribed(t)
	first := queue(t, s, sub.ID).Secrets[0]
	var second webhook.SigningSecret
	var until time.Time
	err := s.Write(ctx, func(w Write) (err error) {
		_, second, until, err = w.Subscriptions().RotateSecret("p", sub.ID, webhook.Rotation{}, webhook.AuditEntry{})
		return err
	})
	must(t, err)
	l := queue(t, s, sub.ID)
	now := time.Now()
	if !slices.EqualFunc(l.Expiry, []time.Time{until}, time.Time.Equal) || until.Sub(now) > SecretOverlap ||
		until.Sub(now) < SecretOverlap-time.Minute {
		t.Errorf("the old secret expires at %v, want %v", l.Expiry, until)
	}
	for _, c := range []struct {
		at   time.Time
		want []webhook.SigningSecret
	}{
		{now, []webhook.SigningSecret{second, first}},
		{now.Add(SecretOverlap - time.Minute), []webhook.SigningSecret{second, first}},
		{now.Add(SecretOverlap), []webhook.SigningSecret{second}},
	} {
		got := l.SigningSecrets(c.at)
		if !slices.EqualFunc(got, c.want, func(a, b webhook.SigningSecret) bool { return string(a) == string(b) }) {
			t.Errorf("%s after the rotation %d secrets sign, want %d", c.at.Sub(now), len(got), len(c.want))
		}
	}
	for range maxOldSecrets - 1 {
		_, _, err = s.Subscriptions().RotateSecret(ctx, "p", sub.ID)
		must(t, err)
	}
	_, _, err = s.Subscriptions().RotateSecret(ctx, "p", sub.ID)
	wantCode(t, err, webhook.CodeConflict)
	if got := queue(t, s, sub.ID).SigningSecrets(now); len(got) != 1+maxOldSecrets || string(got[maxOldSecrets]) != string(first) {
		t.Errorf("%d secrets sign, want all of the last day", len(got))
	}
	_, _, err = s.Subscriptions().RotateSecret(ctx, "q", sub.ID)
	wantCode(t, err, webhook.CodeNotFound)

	own := webhook.NewSigningSecret()
	must(t, s.Write(ctx, func(w Write) error {
		_, got, until, err := w.Subscriptions().RotateSecret("p", sub.ID, webhook.Rotation{Secret: own, EndOld: true}, webhook.AuditEntry{})
		if string(got) != string(own) || !until.IsZero() {
			t.Error("got another secret, or a time at which the old one ends")
		}
		return err
	}))
	if got := queue(t, s, sub.ID).SigningSecrets(now); len(got) != 1 || string(got[0]) != string(own) {
		t.Errorf("%d secrets sign, want only the partner's own", len(got))
	}
	wantCode(t, s.Write(ctx, func(w Write) error {
		_, _, _, err := w.Subscriptions().RotateSecret("p", sub.ID, webhook.Rotation{Secret: own}, webhook.AuditEntry{})
		return err
	}), webhook.CodeInvalid)
}

// A subscription's replays are listed in pages, in both orders and by status.
func TestReplayPages(t *testing.T) {
	s := openProgram(t)
	sub, other := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated")
	publish(t, s, "p", "content_updated")
	var ids []string
	for i := range 7 {
		f := &webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayAll}
		r, err := s.Replays().Create(t.Context(), "p", sub.ID, f)
		must(t, err)
		if i < 5 {
			_, err = s.Replays().Cancel(t.Context(), "p", sub.ID, r.ID)
			must(t, err)
		}
		ids = append(ids, r.ID)
	}
	_, err := s.Replays().Create(t.Context(), "p", other.ID, &webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayAll})
	must(t, err)
	newest := slices.Clone(ids)
	slices.Reverse(newest)
	for raw, want := range map[string][]string{
		"page[size]=3":                                  newest,
		"page[size]=3&sort=created_at":                  ids,
		"page[size]=2&filter[status]=running":           newest[:2],
		"page[size]=2&filter[status]=cancelled":         newest[2:],
		"page[size]=2&filter[created_at.to]=2020-01-01": nil,
	} {
		page := func(ctx context.Context, q *webhook.ListQuery) ([]webhook.Replay, string, error) {
			return s.Replays().Page(ctx, "p", sub.ID, q)
		}
		got := readPages(t, raw, query(t, webhook.ReplayList, raw), 4, page, func(r webhook.Replay) string { return r.ID })
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", raw, got, want)
		}
	}
}

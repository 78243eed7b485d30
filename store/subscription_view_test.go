package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store/sqlite"
	"service/test/seed"
	"service/webhook"
)

// anySubscription is a row of the list over all programs in a simple model.
type anySubscription struct {
	id, program, url, status, event string
	active, deleted, lost           bool
}

// addSubscription stores a random subscription of one of the programs.
func addSubscription(t *testing.T, s *Store, random *rand.Rand, url string, programs []string) anySubscription {
	t.Helper()
	m := anySubscription{
		program: programs[random.IntN(2)], url: url, status: []string{"healthy", "healthy", "failing", "disabled"}[random.IntN(4)],
		event: []string{"content_published", "channel_updated"}[random.IntN(2)], active: random.IntN(2) == 0,
		deleted: random.IntN(5) == 0, lost: random.IntN(4) == 0,
	}
	events := []string{m.event}
	fields := &webhook.SubscriptionFields{URL: &m.url, Events: &events, Active: &m.active}
	sub, _, err := s.Subscriptions().Create(t.Context(), m.program, "u", fields, 0)
	if err != nil {
		t.Fatal(err)
	}
	m.id = sub.ID
	err = s.writer.do(func(tx *tx) error {
		reason := ""
		if m.status == "disabled" {
			reason = "x"
		}
		if m.lost {
			if err := tx.Exec("INSERT INTO losses VALUES (?, 3, 1, 2)", m.id); err != nil {
				return err
			}
		}
		return tx.setHealth(m.id, webhook.Health(m.status), reason, webhook.Failures{}, incident{})
	})
	if err == nil && m.deleted {
		_, err = s.Subscriptions().Delete(t.Context(), m.program, m.id)
		m.active = false
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The pages of the list match a simple model, for each filter and however few subscriptions a page may
// examine.
func TestAllSubscriptions(t *testing.T) {
	s := open(t)
	random := seed.Rand(t)
	programs := []string{"p", "q"}
	for _, p := range programs {
		program(t, s, p)
	}
	var all []anySubscription
	for i := range 120 {
		all = append(all, addSubscription(t, s, random, fmt.Sprintf("https://Host%d.example/in", i%7), programs))
	}
	for _, tt := range []struct {
		program, query string
		matches        func(m anySubscription) bool
	}{
		{"", "", func(m anySubscription) bool { return !m.deleted }},
		{"p", "", func(m anySubscription) bool { return !m.deleted && m.program == "p" }},
		{"missing", "", func(m anySubscription) bool { return false }},
		{"", "filter[deleted]=true", func(m anySubscription) bool { return m.deleted }},
		{"q", "filter[deleted]=true,false", func(m anySubscription) bool { return m.program == "q" }},
		{"", "filter[status]=failing,disabled", func(m anySubscription) bool { return !m.deleted && m.status != "healthy" }},
		{"", "filter[status]=failing,disabled&filter[losses]=true", func(m anySubscription) bool {
			return !m.deleted && m.status != "healthy" && m.lost
		}},
		{"p", "filter[status]=failing", func(m anySubscription) bool { return !m.deleted && m.status == "failing" && m.program == "p" }},
		{"", "filter[status]=failing&filter[deleted]=true", func(m anySubscription) bool { return m.deleted && m.status == "failing" }},
		{"", "filter[status]=healthy&filter[active]=false", func(m anySubscription) bool {
			return !m.deleted && m.status == "healthy" && !m.active
		}},
		{"", "filter[losses]=true", func(m anySubscription) bool { return !m.deleted && m.lost }},
		{"", "filter[losses]=false&filter[event]=channel_updated", func(m anySubscription) bool {
			return !m.deleted && !m.lost && m.event == "channel_updated"
		}},
		{"", "filter[url]=hOST3.,host5.", func(m anySubscription) bool {
			return !m.deleted && (strings.Contains(m.url, "Host3.") || strings.Contains(m.url, "Host5."))
		}},
		{"", "filter[url]=%25", func(m anySubscription) bool { return false }},
	} {
		var want []string
		for _, m := range all {
			if tt.matches(m) {
				want = append(want, m.id)
			}
		}
		checkAllSubscriptions(t, s, tt.program, tt.query+"&sort=created_at", want)
		slices.Reverse(want)
		checkAllSubscriptions(t, s, tt.program, tt.query, want)
	}
}

// checkAllSubscriptions compares a list with the wanted ids, with few and with many examined subscriptions
// per page.
func checkAllSubscriptions(t *testing.T, s *Store, programID, raw string, want []string) {
	t.Helper()
	for _, limit := range []int{7, 10_000} {
		s.lists.Limits.Scan = limit
		page := func(ctx context.Context, q *webhook.ListQuery) ([]SubscriptionSummary, string, error) {
			return s.Subscriptions().PageAll(ctx, programID, q)
		}
		got := readPages(t, raw, query(t, webhook.AllSubscriptionList, raw+"&page[size]=4"), 300, page,
			func(u SubscriptionSummary) string { return u.ID })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %s, examining %d per page (-want +got):\n%s", programID, raw, limit, diff)
		}
	}
}

func TestAllSubscriptionsCursorOfAnotherList(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	for range 5 {
		subscribe(t, s, "p", "content_updated")
	}
	q := query(t, webhook.AllSubscriptionList, "page[size]=4")
	_, next, err := s.Subscriptions().PageAll(t.Context(), "", q)
	if err != nil || next == "" {
		t.Fatalf("first of two pages: got next %q, %v", next, err)
	}
	q.Cursor = next
	_, _, err = s.Subscriptions().PageAll(t.Context(), "p", q)
	wantCode(t, err, webhook.CodeInvalid)
}

// readView returns the view of a subscription with its two newest deliveries.
func readView(t *testing.T, s *Store, id string) SubscriptionView {
	t.Helper()
	u, err := s.Subscriptions().View(t.Context(), id, 2)
	must(t, err)
	return u
}

// respondTo records a response to an attempt, and then sleeps for a second.
func respondTo(t *testing.T, s *Store, c *Claim, status int) {
	t.Helper()
	a := webhook.Attempt{
		Number: c.Number, StartedAt: time.Now().UTC(), Duration: 7 * time.Millisecond,
		ResponseStatus: status, Result: webhook.Classify(status, webhook.ErrorNone),
	}
	_, err := s.Queues().Record(c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), webhook.HealthPolicy{FailingAfter: 9})
	must(t, err)
	time.Sleep(time.Second)
}

// An example is signed as an attempt is: with each secret that signs.
func TestSign(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	sub, first, err := s.Subscriptions().Create(t.Context(), "p", "u",
		&webhook.SubscriptionFields{URL: new("https://hooks.example"), Events: &[]string{"content_updated"}}, 0)
	must(t, err)
	_, second, err := s.Subscriptions().RotateSecret(t.Context(), "p", sub.ID)
	must(t, err)
	at := time.Now()
	got, err := s.Subscriptions().Sign(t.Context(), "p", sub.ID, "id", at, []byte("{}"))
	must(t, err)
	if want := second.Sign("id", at, []byte("{}")) + " " + first.Sign("id", at, []byte("{}")); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_, err = s.Subscriptions().Sign(t.Context(), "other", sub.ID, "id", at, nil)
	wantCode(t, err, webhook.CodeNotFound)
}

// A view shows the state of a subscription after each step.
func TestSubscriptionView(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		if u := readView(t, s, sub.ID); !u.LastSuccess.IsZero() || u.Success.DeliveryID+u.Failure.DeliveryID != "" ||
			u.WaitingDeliveries != 1 || u.WaitingEvents != 0 || u.CreatedBy != "u" {
			t.Errorf("new: got %+v", u)
		}
		ping, _, err := s.Queues().claimDue(t.Context(), duePing(s, sub.ID))
		must(t, err)
		respondTo(t, s, ping, 200)
		if u := readView(t, s, sub.ID); u.Success.DeliveryID != ping.ID || !u.Success.Ping ||
			u.Success.Attempt.ResponseStatus != 200 || u.LastSuccess.IsZero() {
			t.Errorf("after a ping: got %+v", u)
		}
		example := event("channel_updated")
		must(t, s.writer.do(func(t *tx) error {
			_, err := s.queueOwn(t, &sub, webhook.NewID(), &example)
			return err
		}))
		test, _, err := s.Queues().claimDue(t.Context(), duePing(s, sub.ID))
		must(t, err)
		respondTo(t, s, test, 200)
		if u := readView(t, s, sub.ID); u.Success.DeliveryID != test.ID || u.Success.Ping || !u.Success.Test {
			t.Errorf("after a test event: got %+v", u)
		}
		publish(t, s, "p", "content_updated")
		bad := form(t, s, queue(t, s, sub.ID), 1)
		respondTo(t, s, bad, 503)
		publish(t, s, "p", "content_updated", "content_updated", "channel_updated")
		u := readView(t, s, sub.ID)
		if u.Failure.DeliveryID != bad.ID || u.Failure.Ping || u.Failures.Count != 1 || u.WaitingEvents != 2 ||
			u.WaitingDeliveries != 1 || u.OldestEvent.IsZero() {
			t.Errorf("after a failure: got %+v", u)
		}
		good := form(t, s, queue(t, s, sub.ID), 10)
		respondTo(t, s, good, 204)
		if u = readView(t, s, sub.ID); u.Success.DeliveryID != good.ID || u.Success.Ping || u.Failure.DeliveryID != bad.ID ||
			u.WaitingEvents != 0 || len(u.Recent) != 2 || u.Recent[0].ID != good.ID {
			t.Errorf("after a success: got %+v", u)
		}
		now := time.Now()
		subs := []webhook.Subscription{u.Subscription}
		stats, err := s.Subscriptions().Stats(t.Context(), subs, StatHour, now.Add(-25*time.Hour), now.Add(time.Hour))
		must(t, err)
		var sum webhook.Stat
		for _, one := range stats[sub.ID] {
			sum.Add(&one)
		}
		if sum.Success != 1 || sum.Retryable != 1 || sum.Failed != 0 { // pings are not counted
			t.Errorf("got statistics %+v", stats)
		}
		_, err = s.Subscriptions().Delete(t.Context(), "p", sub.ID)
		must(t, err)
		if u = readView(t, s, sub.ID); u.DeletedAt.IsZero() || len(u.Recent) != 2 || u.WaitingDeliveries != 0 {
			t.Errorf("deleted: got %+v", u)
		}
		_, err = s.Subscriptions().View(t.Context(), "none", 2)
		wantCode(t, err, webhook.CodeNotFound)
	})
}

// A healthy subscription is degraded for an hour after a failed attempt, before and
// after its statistics are written.
func TestDegradedSubscriptions(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		failed := subscribe(t, s, "p", "content_updated")
		fine := subscribe(t, s, "p", "content_updated")
		paused := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "content_updated")
		for _, of := range []struct {
			sub    webhook.Subscription
			status int
		}{{failed, 503}, {fine, 204}, {paused, 503}} {
			respondTo(t, s, form(t, s, queue(t, s, of.sub.ID), 1), of.status)
		}
		_, err := s.Subscriptions().Update(t.Context(), "p", paused.ID, &webhook.SubscriptionFields{Active: new(bool)})
		must(t, err)
		check := func(when string, degraded ...string) {
			t.Helper()
			checkAllSubscriptions(t, s, "p", "filter[status]=degraded", degraded)
			n, more, err := s.Subscriptions().CountHealth(t.Context(), "", webhook.HealthDegraded)
			if err != nil || n != len(degraded) || more {
				t.Errorf("%s: got %d degraded, more %t, %v, want %d", when, n, more, err, len(degraded))
			}
			var healthy []string
			for _, id := range []string{paused.ID, fine.ID, failed.ID} {
				if !slices.Contains(degraded, id) {
					healthy = append(healthy, id)
				}
			}
			checkAllSubscriptions(t, s, "p", "filter[status]=healthy", healthy)
		}
		check("while they are in memory", failed.ID)
		time.Sleep(time.Minute)
		publish(t, s, "p", "channel_updated") // its commit writes statistics
		time.Sleep(time.Minute)
		publish(t, s, "p", "channel_updated")
		check("once they are written", failed.ID)
		time.Sleep(time.Hour)
		check("after an hour")
	})
}

// If the last success is not among the newest deliveries, it is taken from the statistics.
func TestSubscriptionViewAfterManyFailures(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		now := time.Now()
		for i := range 121 {
			publish(t, s, "p", "content_updated")
			respondTo(t, s, form(t, s, queue(t, s, sub.ID), 1), map[bool]int{true: 204, false: 404}[i == 0])
		}
		if u := readView(t, s, sub.ID); u.Success.DeliveryID != "" || !u.LastSuccess.Equal(now.UTC().Truncate(time.Hour)) {
			t.Errorf("after many failures: got %+v, %s", u.Success, u.LastSuccess)
		}
	})
}

func TestSubscriptionViewOfOldSecrets(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		for range 2 {
			_, _, err := s.Subscriptions().RotateSecret(t.Context(), "p", sub.ID)
			must(t, err)
			time.Sleep(time.Second)
		}
		if u := readView(t, s, sub.ID); len(u.OldSecrets) != 2 || !u.OldSecrets[0].Before(u.OldSecrets[1]) {
			t.Errorf("got expiries %v, want 2 in order", u.OldSecrets)
		}
		time.Sleep(SecretOverlap + time.Second)
		if u := readView(t, s, sub.ID); u.OldSecrets != nil {
			t.Errorf("after their expiry: got %v, want none", u.OldSecrets)
		}
	})
}

// Everything that is read for a subscription of a page is found by an index, or its scan is bounded.
func TestSubscriptionPlans(t *testing.T) {
	s := open(t)
	for query, c := range map[string]struct {
		args int
		want []string
	}{
		selectSummaries: {2, []string{
			"deliveries_completed (subscription=?", "deliveries_due (subscription_id=?",
			"events_by_name (program_id=? AND name=? AND seq>? AND seq<?)",
			"SEARCH t USING PRIMARY KEY (program_id=? AND subscription_id=? AND span=?)",
			"SEARCH l USING PRIMARY KEY", "SEARCH f USING PRIMARY KEY", "SEARCH c USING PRIMARY KEY",
		}},
		selectLastSuccess: {1, []string{"deliveries_completed (subscription=?", "SEARCH a USING PRIMARY KEY (delivery=?)"}},
		selectLastFailure: {1, []string{
			"deliveries_of_subscription (subscription=?)", "deliveries_by_status (status=? AND subscription_id=?)",
			"SEARCH a USING PRIMARY KEY (delivery=?)",
		}},
	} {
		rows, err := s.db.Readers().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, make([]any, c.args)...)
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		err = sqlite.Drain(rows, func(scan func(...any) error) error {
			var id, parent, unused int
			var detail string
			err := scan(&id, &parent, &unused, &detail)
			if plan = append(plan, detail); strings.HasPrefix(detail, "SCAN ") && !strings.Contains(detail, "VIRTUAL TABLE") &&
				!strings.Contains(detail, "subquery") && detail != "SCAN d" && detail != "SCAN n" {
				t.Errorf("%s\n\t%s", query, detail)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range c.want {
			if text := strings.Join(plan, "\n\t"); !strings.Contains(text, part) {
				t.Errorf("%s\n\t%s\nwant %s", query, text, part)
			}
		}
	}
}

// If the function passed to Ping fails, the ping is not stored either.
func TestPingWithFailingWrite(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	refused := webhook.NewError(webhook.CodeConflict, "no")
	if _, _, err := s.Subscriptions().Ping(t.Context(), "p", sub.ID, func(Write) error { return refused }); err != refused {
		t.Fatalf("got %v, want %v", err, refused)
	}
	u, err := s.Subscriptions().View(t.Context(), sub.ID, 10)
	if err != nil || len(u.Recent) != 1 {
		t.Errorf("got %d pings, %v, want only the first", len(u.Recent), err)
	}
}

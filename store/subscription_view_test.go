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
	"github.com/google/go-cmp/cmp/cmpopts"

	"service/store/record"
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
	must(t, err)
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
	must(t, err)
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
		{"", "filter[search][]=hOST3.&filter[search][]=host5.", func(m anySubscription) bool {
			return !m.deleted && (strings.Contains(m.url, "Host3.") || strings.Contains(m.url, "Host5."))
		}},
		{"", "filter[search]=%25", func(m anySubscription) bool { return false }},
	} {
		var want []string
		for _, m := range all {
			if tt.matches(m) {
				want = append(want, m.id)
			}
		}
		checkAllSubscriptions(t, s, tt.program, tt.query+"&sort=created_at", want)
		slices.Reverse(want)
		checkAllSubscriptions(t, s, tt.program, tt.query+"&sort=-created_at", want)
		want = slices.Clone(want)
		slices.Sort(want)
		checkOrders(t, s, tt.program, tt.query, want)
	}
}

// checkOrders checks that the pages of each order contain each of the wanted IDs once.
func checkOrders(t *testing.T, s *Store, programID, raw string, want []string) {
	t.Helper()
	for _, name := range webhook.AllSubscriptionList.Sort {
		for _, sort := range []string{name, "-" + name} {
			raw := raw + "&sort=" + sort
			got := pagesOf(t, s, programID, raw, name != "created_at")
			slices.Sort(got)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", programID, raw, diff)
			}
		}
	}
}

// pagesOf returns the IDs on the pages of a list. With back it checks that each page leads to the
// previous one; the positions of created_at have more than one cursor.
func pagesOf(t *testing.T, s *Store, programID, raw string, back bool) (ids []string) {
	t.Helper()
	q := query(t, webhook.AllSubscriptionList, raw+"&page[size]=7")
	for cursors := []string{""}; ; cursors = append(cursors, q.Cursor) {
		rows, next, err := s.Subscriptions().PageAll(t.Context(), programID, q)
		must(t, err)
		for _, u := range rows {
			ids = append(ids, u.ID)
		}
		if n := len(cursors); n > 1 && back {
			newer, err := s.Subscriptions().Newer(t.Context(), programID, q)
			must(t, err)
			if newer != cursors[n-2] {
				t.Errorf("%s: the page before page %d is another", raw, n)
			}
		}
		if next == "" {
			return ids
		}
		q.Cursor = next
	}
}

// The default order starts with the most urgent subscriptions, and within each state with the largest
// backlog. Search finds a subscription by a part of its name or URL, except the query, and by the
// beginning of its ID.
func TestSubscriptionOrder(t *testing.T) {
	s := openProgram(t)
	ids := make(map[string]string)
	add := func(name, url string, active bool) webhook.Subscription {
		events := []string{"content_updated"}
		u, _, err := s.Subscriptions().Create(t.Context(), "p", "u",
			&webhook.SubscriptionFields{URL: &url, Events: &events, Description: &name, Active: &active}, 0)
		must(t, err)
		if name == "" {
			name = url
		}
		ids[u.ID] = strings.TrimSuffix(strings.TrimSpace(name), "\nsecond line")
		return u
	}
	health := func(u webhook.Subscription, h webhook.Health, reason string) {
		must(t, s.writer.do(func(tx *tx) error { return tx.setHealth(u.ID, h, reason, webhook.Failures{}, incident{}) }))
	}
	add("\n zebra\nsecond line", "https://z.example/", true)
	add("", "https://Hooks.example/T0/secret?key=canary", true)
	paused := add("Paused", "https://paused.example/", false)
	degraded := add("Degraded", "https://degraded.example/", true)
	failing := add("Failing", "https://failing.example/", true)
	behind := add("Failing, behind", "https://behind.example/", true)
	disabled := add("Disabled", "https://disabled.example/", true)
	health(failing, webhook.HealthFailing, "")
	health(behind, webhook.HealthFailing, "")
	health(disabled, webhook.HealthDisabled, "gone")
	s.stats.Count("p", degraded.ID, &webhook.Attempt{Result: webhook.ResultRetryable}, time.Now())
	s.stats.Count("p", paused.ID, &webhook.Attempt{Result: webhook.ResultRetryable}, time.Now())
	publish(t, s, "p", "content_updated")
	execute(t, s, "UPDATE cursors SET seq = 1 WHERE subscription_id <> ?", behind.ID)
	for raw, want := range map[string]string{
		"":                           "Failing, behind; Failing; Disabled; Degraded; Paused; https://Hooks.example/T0/secret?key=canary; zebra",
		"sort=-status":               "https://Hooks.example/T0/secret?key=canary; zebra; Paused; Degraded; Disabled; Failing, behind; Failing",
		"sort=name":                  "Degraded; Disabled; Failing; Failing, behind; https://Hooks.example/T0/secret?key=canary; Paused; zebra",
		"sort=-waiting&page[size]=1": "Failing, behind",
		"filter[search]=zeb":         "zebra",
		"filter[search]=g, b":        "Failing, behind",
		"filter[search]=/t0/SECRET":  "https://Hooks.example/T0/secret?key=canary",
		"filter[search]=canary":      "",
		"filter[search]=" + strings.ToUpper(failing.ID[:35]) + "&sort=created_at": "",
	} {
		rows, _, err := s.Subscriptions().PageAll(t.Context(), "p", query(t, webhook.AllSubscriptionList, raw))
		must(t, err)
		var got []string
		for _, u := range rows {
			got = append(got, ids[u.ID])
		}
		if got := strings.Join(got, "; "); got != want && !strings.Contains(raw, "created_at") {
			t.Errorf("%s: got %s, want %s", raw, got, want)
		}
		if strings.Contains(raw, "created_at") && !slices.Contains(got, "Failing") {
			t.Errorf("%s: not found by its ID: %v", raw, got)
		}
	}
}

// BenchmarkSubscriptionOrders reads the first page of each order of 10,000 subscriptions, of which 100 are
// failing, all with statistics of a day:
//
//	go test ./store -run '^$' -bench SubscriptionOrders
func BenchmarkSubscriptionOrders(b *testing.B) {
	s := openProgram(b)
	subscribe(b, s, "p", "content_updated")
	must(b, s.writer.do(func(tx *tx) error {
		for _, query := range []string{
			`INSERT INTO subscriptions (id, num, program_id, url, active, description, events, ordered, max_in_flight, signing_secret, status,
				created_by, revision, created_at, updated_at)
			SELECT printf('0198f6a3-7c1e-7d4b-9a41-%012x', value), 10 + value, 'p', printf('https://host-%d.example/in', value), 1,
				printf('Partner %d', value * 7919 % 10000), events, 0, 0, signing_secret, iif(value % 100 = 0, 'failing', 'healthy'),
				'u', 1, created_at, updated_at
			FROM generate_series(1, 9999) CROSS JOIN subscriptions x WHERE x.num < 10`,
			`INSERT INTO cursors SELECT id, 0 FROM subscriptions WHERE num >= 10`,
			`INSERT INTO interests (subscription_id, name, after_seq) SELECT id, 'content_updated', 0 FROM subscriptions WHERE num >= 10`,
		} {
			query = strings.Replace(query, "generate_series(1, 9999)",
				"(WITH RECURSIVE n (value) AS (VALUES (1) UNION ALL SELECT value + 1 FROM n WHERE value < 9999) SELECT value FROM n)", 1)
			if err := tx.Exec(query); err != nil {
				return err
			}
		}
		hour := time.Now().Truncate(time.Hour).UnixMilli()
		for n := range int64(24) {
			if err := tx.Exec(`INSERT INTO stats SELECT program_id, id, 3600000, ?1, 100, id % 50 = 0, 0, '{"200":100}', '{"20":100}', ?1
				FROM subscriptions`, hour-n*3600000); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, raw := range []string{"", "sort=name", "sort=success_rate", "sort=-waiting", "sort=last_success_at", "sort=-created_at",
		"filter[search]=host-77", "filter[status]=degraded"} {
		b.Run(raw, func(b *testing.B) {
			q := query(b, webhook.AllSubscriptionList, raw)
			for b.Loop() {
				_, _, err := s.Subscriptions().PageAll(b.Context(), "", q)
				must(b, err)
			}
		})
	}
}

// checkAllSubscriptions compares a list with the wanted IDs, with few and with many examined subscriptions
// per page.
func checkAllSubscriptions(t *testing.T, s *Store, programID, raw string, want []string) {
	t.Helper()
	for _, limit := range []int{7, 10_000} {
		s.lists.Limits.Scan = limit
		page := func(ctx context.Context, q *webhook.ListQuery) ([]record.SubscriptionSummary, string, error) {
			return s.Subscriptions().PageAll(ctx, programID, q)
		}
		got := readPages(t, raw, query(t, webhook.AllSubscriptionList, raw+"&page[size]=4"), 300, page,
			func(u record.SubscriptionSummary) string { return u.ID })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %s, examining %d per page (-want +got):\n%s", programID, raw, limit, diff)
		}
	}
}

func TestAllSubscriptionsCursorOfAnotherList(t *testing.T) {
	s := openProgram(t)
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
func readView(t *testing.T, s *Store, id string) record.SubscriptionView {
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
	recordResult(t, s, c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), webhook.HealthPolicy{FailingAfter: 9})
	time.Sleep(time.Second)
}

// An example is signed like an attempt: with each secret that signs.
func TestSign(t *testing.T) {
	s := openProgram(t)
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
		ping := mustClaim(t, s, duePing(s, sub.ID))
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
		test := mustClaim(t, s, duePing(s, sub.ID))
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
		stats, err := s.Subscriptions().Stats(t.Context(), subs, record.StatHour, now.Add(-25*time.Hour), now.Add(time.Hour))
		must(t, err)
		var sum webhook.Stat
		for _, one := range stats[sub.ID] {
			sum.Add(&one)
		}
		if sum.Success != 1 || sum.Retryable != 1 || sum.Failed != 0 { // pings are not counted
			t.Errorf("got statistics %+v", stats)
		}
		unsubscribe(t, s, "p", sub.ID)
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
		pause(t, s, paused.ID)
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
			checkAllSubscriptions(t, s, "p", "filter[status]=healthy&sort=-created_at", healthy)
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

// If the function passed to Ping fails, the ping is not stored either.
func TestPingWithFailingWrite(t *testing.T) {
	s, sub := openSubscribed(t)
	refused := webhook.NewError(webhook.CodeConflict, "no")
	if _, _, err := s.Subscriptions().Ping(t.Context(), "p", sub.ID, func(Write) error { return refused }); err != refused {
		t.Fatalf("got %v, want %v", err, refused)
	}
	u, err := s.Subscriptions().View(t.Context(), sub.ID, 10)
	if err != nil || len(u.Recent) != 1 {
		t.Errorf("got %d pings, %v, want only the first", len(u.Recent), err)
	}
}

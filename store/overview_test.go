package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store/record"
	"service/webhook"
)

// overviewStore returns an open store, and a function that publishes an event.
func overviewStore(t *testing.T) (*Store, func(programID, name string)) {
	t.Helper()
	s := opened(t, Config{Dir: memoryDir(t)})
	t.Cleanup(func() { s.Close() })
	return s, func(programID, name string) {
		t.Helper()
		id := webhook.NewID()
		_, err := s.Events().Publish(t.Context(), programID, []webhook.Event{{
			ID: id, Name: name, ReceivedAt: time.UnixMilli(1_700_000_000_000),
			JSON: fmt.Appendf(nil, `{"id":%q,"name":%q}`, id, name),
		}})
		must(t, err)
	}
}

func overviewToken(t *testing.T, s *Store, programID string) {
	t.Helper()
	_, _, err := s.Tokens().Create(t.Context(), webhook.NewToken{ProgramID: programID, UserID: "u",
		Scopes: []webhook.Scope{webhook.ScopeEventsWrite}})
	must(t, err)
}

func overviewSubscription(t *testing.T, s *Store, programID, url string, active bool) webhook.Subscription {
	t.Helper()
	names := []string{"user_created"}
	sub, _, err := s.Subscriptions().Create(t.Context(), programID, "u",
		&webhook.SubscriptionFields{URL: &url, Events: &names, Active: &active}, 0)
	must(t, err)
	return sub
}

func TestTotals(t *testing.T) {
	s, publish := overviewStore(t)
	totals := func() record.Totals {
		t.Helper()
		got, err := s.Figures().Totals(t.Context())
		must(t, err)
		return got
	}
	if diff := cmp.Diff(record.Totals{}, totals()); diff != "" {
		t.Errorf("empty store (-want +got):\n%s", diff)
	}

	overviewToken(t, s, "a")
	overviewToken(t, s, "b")
	kept := overviewSubscription(t, s, "a", "https://a.example/", true)
	overviewSubscription(t, s, "b", "https://paused.example/", false)
	gone := overviewSubscription(t, s, "b", "https://gone.example/", true)
	unsubscribe(t, s, "b", gone.ID)
	publish("a", "user_created")
	publish("b", "user_created")
	publish("a", "user_updated")
	mustClaim(t, s, duePing(s, kept.ID))
	want := record.Totals{
		Subscriptions: 2,
		Waiting:       1, // the ping of the paused subscription; that of the deleted one has failed
	}
	if diff := cmp.Diff(want, totals()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTotalsStopCounting(t *testing.T) {
	s, _ := overviewStore(t)
	overviewToken(t, s, "a")
	for range record.CountLimit + 5 {
		overviewSubscription(t, s, "a", "https://a.example/", false)
	}
	got, err := s.Figures().Totals(t.Context())
	must(t, err)
	if got.Subscriptions != record.CountLimit {
		t.Errorf("subscriptions: got %d, want %d", got.Subscriptions, record.CountLimit)
	}
}

// Events are counted from a time on, without reading older ones.
func TestArrived(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		program(t, s, "p")
		arrived := func(since time.Time, want int64) {
			t.Helper()
			got, err := s.Figures().Arrived(t.Context(), since)
			must(t, err)
			if got != want {
				t.Errorf("since %s: got %d, want %d", since, got, want)
			}
		}
		arrived(time.Now(), 0)
		for range 5 {
			publish(t, s, "p", "content_updated")
			time.Sleep(time.Second)
		}
		arrived(time.Now().Add(-time.Hour), 5)
		arrived(time.Now().Add(-2*time.Second), 2)
		arrived(time.Now(), 0)
	})
}

func TestSubscriptionLabels(t *testing.T) {
	s, _ := overviewStore(t)
	overviewToken(t, s, "a")
	overviewToken(t, s, "b")
	one := overviewSubscription(t, s, "a", "https://one.example/", true)
	two := overviewSubscription(t, s, "b", `https://two.example/?q="><script>`, true)
	overviewSubscription(t, s, "b", "https://not-asked-for.example/", true)
	unsubscribe(t, s, "a", one.ID)
	got, err := s.Subscriptions().Labels(t.Context(), []string{one.ID, two.ID, two.ID, "unknown", `"]`})
	must(t, err)
	want := map[string]record.SubscriptionLabel{one.ID: {ProgramID: "a", URL: one.URL, Description: one.Description},
		two.ID: {ProgramID: "b", URL: two.URL, Description: two.Description}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := s.Subscriptions().Labels(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("no ids: got %v, %v", got, err)
	}
}

func TestLastAttempts(t *testing.T) {
	s, _ := overviewStore(t)
	overviewToken(t, s, "a")
	sub := overviewSubscription(t, s, "a", "https://a.example/", true)
	policy := webhook.RetryPolicy{} // no delays: retries are due immediately
	record := func(a webhook.Attempt) (id string) {
		t.Helper()
		c := mustClaim(t, s, duePing(s, sub.ID))
		a.Number, a.Result = c.Number, webhook.Classify(a.ResponseStatus, a.Error)
		recordResult(t, s, c, &a, policy.After(&a, time.Now(), 0), webhook.HealthPolicy{})
		return c.ID
	}
	started := time.UnixMilli(1_700_000_000_000).UTC()
	first := record(webhook.Attempt{StartedAt: started, Error: webhook.ErrorTimeout, Duration: 10 * time.Second})
	last := webhook.Attempt{StartedAt: started.Add(time.Minute), ResponseStatus: 204, Duration: 12 * time.Millisecond,
		ResponseHeader: "A: b\n", ResponseBody: []byte("secret")}
	if again := record(last); again != first {
		t.Fatalf("claimed %s, want %s again", again, first)
	}
	waits := overviewSubscription(t, s, "a", "https://b.example/", true)
	all, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList, ""))
	must(t, err)
	ids := []string{"unknown"}
	for _, d := range all {
		ids = append(ids, d.ID)
	}
	if len(ids) != 3 || all[0].SubscriptionID != waits.ID {
		t.Fatalf("deliveries: %v", all)
	}
	got, err := s.Deliveries().LastAttempts(t.Context(), ids)
	must(t, err)
	want := map[string]webhook.Attempt{first: {
		Number: 2, StartedAt: last.StartedAt, Duration: last.Duration, Result: webhook.ResultSuccess, ResponseStatus: 204,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

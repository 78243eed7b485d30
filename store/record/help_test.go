package record_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/store/list"
	"service/store/record"
	"service/store/sqlite"
	"service/store/storetest"
	"service/webhook"
)

// open opens an empty store in a new directory, in memory (/dev/shm) if possible.
func open(t testing.TB) *store.Store {
	t.Helper()
	return openDir(t, memoryDir(t))
}

func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "store")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func openDir(t testing.TB, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), store.Config{Dir: dir})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// inBubble runs a test with fake time, and a store with the program p.
func inBubble(t *testing.T, test func(*testing.T, *store.Store)) {
	t.Helper()
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDir(t, dir)
		program(t, s, "p")
		test(t, s)
	})
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, code webhook.Code) {
	t.Helper()
	var e *webhook.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("got error %v, want one with code %s", err, code)
	}
}

func db(s *store.Store) *sqlite.DB { return record.DB(s.Deliveries().Reads) }

func limitsOf(s *store.Store) *list.Limits { return record.Limits(s.Deliveries().Reads) }

func write(s *store.Store, fn func(*sqlite.Tx) error) error { return db(s).Writer().Do(fn) }

// program creates a program with a token.
func program(t testing.TB, s *store.Store, id string) {
	t.Helper()
	_, _, err := storetest.CreateToken(t.Context(), s, webhook.NewToken{ProgramID: id, UserID: "u", Scopes: webhook.Scopes()})
	must(t, err)
}

func subscribe(t testing.TB, s *store.Store, programID string, names ...string) webhook.Subscription {
	t.Helper()
	url := "https://partner.example/hook"
	sub, _, err := storetest.CreateSubscription(t.Context(), s, programID, "u", &webhook.SubscriptionFields{URL: &url, Events: &names})
	must(t, err)
	return sub
}

// event returns an event with a new ID.
func event(name string) webhook.Event {
	id := webhook.NewID()
	return webhook.Event{
		ID: id, Name: name, Version: "1", ReceivedAt: time.Now(), TimestampGiven: true,
		JSON: fmt.Appendf(nil, `{"id":%q,"timestamp":"2026-01-02T03:04:05.000Z","name":%q,"version":"1","content_id":7}`, id, name),
	}
}

// publish publishes one event of each name, and returns them with their seqs.
func publish(t testing.TB, s *store.Store, programID string, names ...string) []webhook.Event {
	t.Helper()
	events := make([]webhook.Event, len(names))
	for i, name := range names {
		events[i] = event(name)
	}
	_, err := s.Events().Publish(t.Context(), programID, events)
	must(t, err)
	return events
}

// queuePing queues a ping to a subscription.
func queuePing(t *testing.T, s *store.Store, sub webhook.Subscription) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err := s.Subscriptions().Ping(ctx, sub.ProgramID, sub.ID, func(store.Write) error {
		cancel() // waits for no attempt
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// form counts an attempt of the next delivery of a subscription, with at most count events.
func form(t *testing.T, s *store.Store, subscriptionID string, count int) *store.Claim {
	t.Helper()
	q, err := s.Queues().Get(t.Context(), subscriptionID)
	must(t, err)
	c, err := s.Queues().Spend(t.Context(), &store.Credit{Queue: q, Newest: q.Wanted, Count: count, Size: webhook.MaxDeliveryBytes}).Wait()
	if err != nil || c == nil {
		t.Fatalf("got %v, %v, want a delivery", c, err)
	}
	return c
}

// send delivers the waiting events of a subscription, which responds with a status.
func send(t *testing.T, s *store.Store, subscriptionID string, status int) *store.Claim {
	t.Helper()
	c := form(t, s, subscriptionID, 100)
	a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), ResponseStatus: status, Result: webhook.Classify(status, webhook.ErrorNone)}
	_, err := s.Queues().Record(c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), webhook.HealthPolicy{})
	must(t, err)
	return c
}

// deliver delivers the next event to a subscription with an outcome: success or failed.
func deliver(t *testing.T, s *store.Store, subscriptionID string, status webhook.Status) *store.Claim {
	t.Helper()
	c := form(t, s, subscriptionID, 1)
	a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), Result: webhook.ResultSuccess, ResponseStatus: 200}
	step := webhook.Step{Status: status}
	if status == webhook.StatusFailed {
		a.Result, a.ResponseStatus, step.FailureReason = webhook.ResultFailed, 404, webhook.FailureRejected
	}
	_, err := s.Queues().Record(c, &a, step, webhook.HealthPolicy{})
	must(t, err)
	return c
}

// link records which events a delivery contains.
func link(t *sqlite.Tx, programID string, delivery int64, seqs string) error {
	return t.Exec("INSERT INTO delivery_events (program_id, seq, delivery) SELECT ?, value, ? FROM json_each(?)", programID, delivery, seqs)
}

// query parses the parameters of a list.
func query(t testing.TB, l *webhook.List, raw string) *webhook.ListQuery {
	t.Helper()
	values, err := url.ParseQuery(raw)
	must(t, err)
	q, problem := l.Parse(values)
	if problem != nil {
		t.Fatalf("%s: %v", raw, problem)
	}
	return &q
}

// readPages reads a list to its end, at most limit pages, and returns the ID of each row.
// Afterwards the query's cursor is "".
func readPages[T any](t *testing.T, name string, q *webhook.ListQuery, most int,
	page func(context.Context, *webhook.ListQuery) ([]T, string, error), id func(T) string) (ids []string) {
	t.Helper()
	for pages := 0; ; pages++ {
		rows, next, err := page(t.Context(), q)
		if err != nil || len(rows) > q.Size || pages > most {
			t.Fatalf("%s: page %d has %d rows (%v)", name, pages, len(rows), err)
		}
		for _, row := range rows {
			ids = append(ids, id(row))
		}
		if q.Cursor = next; next == "" {
			return ids
		}
	}
}

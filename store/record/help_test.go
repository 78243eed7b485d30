package record_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/store/list"
	"service/store/record"
	"service/store/sqlite"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

// inBubble runs a test with fake time, and a store with the program p.
func inBubble(t *testing.T, test func(*testing.T, *store.Store)) {
	t.Helper()
	dir := harness.MemoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.OpenDir(t, dir)
		storetest.Program(t, s, "p")
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

func db(s *store.Store) *sqlite.DB { return record.DB(s.Deliveries().Reads) }

func limitsOf(s *store.Store) *list.Limits { return record.Limits(s.Deliveries().Reads) }

func write(s *store.Store, fn func(*sqlite.Tx) error) error { return db(s).Writer().Do(fn) }

// publish publishes one event of each name, and returns them with their seqs.
func publish(t testing.TB, s *store.Store, programID string, names ...string) []webhook.Event {
	t.Helper()
	events := make([]webhook.Event, len(names))
	for i, name := range names {
		events[i] = storetest.Event(name)
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

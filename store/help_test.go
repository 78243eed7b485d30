package store

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"service/webhook"
)

// mustWrite runs do in one write, which must succeed.
func mustWrite(t *testing.T, s *Store, do func(w Write) error) {
	t.Helper()
	must(t, s.Write(t.Context(), do))
}

// wantNumber checks that got is want; what names the things that were counted.
func wantNumber[N int | int64](t testing.TB, what string, got, want N) {
	t.Helper()
	if got != want {
		t.Errorf("got %d %s, want %d", got, what, want)
	}
}

// wantError checks that err is want, nil for no error.
func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// openProgram opens an empty store with a program p.
func openProgram(t testing.TB) *Store {
	t.Helper()
	s := open(t)
	program(t, s, "p")
	return s
}

// openSubscribed is openProgram with a subscription of p to content_updated.
func openSubscribed(t testing.TB) (*Store, webhook.Subscription) {
	t.Helper()
	s := openProgram(t)
	return s, subscribe(t, s, "p", "content_updated")
}

// unsubscribe deletes a subscription.
func unsubscribe(t testing.TB, s *Store, programID, id string) {
	t.Helper()
	_, err := s.Subscriptions().Delete(t.Context(), programID, id)
	must(t, err)
}

// pause deactivates a subscription of p.
func pause(t testing.TB, s *Store, id string) {
	t.Helper()
	_, err := s.Subscriptions().Update(t.Context(), "p", id, &webhook.SubscriptionFields{Active: new(bool)})
	must(t, err)
}

// newEvents returns n events of the type content_updated.
func newEvents(n int) []webhook.Event {
	events := make([]webhook.Event, n)
	for i := range events {
		events[i] = event("content_updated")
	}
	return events
}

// publishAll publishes events.
func publishAll(t testing.TB, s *Store, programID string, events ...webhook.Event) {
	t.Helper()
	_, err := s.Events().Publish(t.Context(), programID, events)
	must(t, err)
}

// mustClaim claims the delivery of a credit, which must be due.
func mustClaim(t testing.TB, s *Store, credit *Credit) *Claim {
	t.Helper()
	c, _, err := s.Queues().claimDue(t.Context(), credit)
	if err != nil || c == nil {
		t.Fatalf("got %+v, %v, want a claim of what is due", c, err)
	}
	return c
}

// mustStep forms the next delivery of a subscription's replays, which must have one.
func mustStep(t testing.TB, s *Store, id string) *Claim {
	t.Helper()
	c, _, err := s.Queues().stepReplay(t.Context(), queue(t, s, id), 100, webhook.MaxDeliveryBytes)
	if err != nil || c == nil {
		t.Fatalf("got %+v, %v, want a delivery of a replay", c, err)
	}
	return c
}

// recordResult records the attempt of a claim and the step that follows it.
func recordResult(t testing.TB, s *Store, c *Claim, a *webhook.Attempt, step webhook.Step, policy webhook.HealthPolicy) Recorded {
	t.Helper()
	r, err := s.Queues().Record(c, a, step, policy)
	must(t, err)
	return r
}

// attempted records an attempt with a response status, and the step of the default retry policy.
func attempted(t testing.TB, s *Store, c *Claim, status int, policy webhook.HealthPolicy) Recorded {
	t.Helper()
	a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), ResponseStatus: status, Result: webhook.Classify(status, webhook.ErrorNone)}
	return recordResult(t, s, c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), policy)
}

// execute runs a statement in a write, as a fault or another program would.
func execute(t testing.TB, s *Store, query string, args ...any) {
	t.Helper()
	must(t, s.writer.do(func(t *tx) error { return t.Exec(query, args...) }))
}

// background runs a loop of the store. stop ends the loop, waits for it, and fails the test if it
// returned an error. Call stop once.
func background(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		must(t, <-done)
	}
}

// interruptedAt returns a context that ends after so many steps of an operation of the store, such as an
// erasure or an import. It replaces s.afterStep.
func interruptedAt(t testing.TB, s *Store, steps int) context.Context {
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	s.afterStep = func() {
		if steps--; steps == 0 {
			stop()
		}
	}
	return ctx
}

// openError opens and closes a store, and returns the first error.
func openError(t testing.TB, cfg Config) error {
	t.Helper()
	s, err := Open(t.Context(), cfg)
	if err == nil {
		err = s.Close()
	}
	return err
}

// openAt is open with a clock that the test sets.
func openAt(t *testing.T) (*Store, *time.Time) {
	t.Helper()
	now := time.Now()
	s, err := Open(t.Context(), Config{Dir: memoryDir(t), Now: func() time.Time { return now }})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s, &now
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

func date(s string) int64 {
	at, err := time.Parse(time.DateOnly, s)
	if err != nil {
		panic(err)
	}
	return at.UnixMilli()
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

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

// wantMistake checks that err is a *webhook.Error with a code.
func wantMistake(t *testing.T, err error, want webhook.Code) {
	t.Helper()
	var got *webhook.Error
	if !errors.As(err, &got) || got.Code != want {
		t.Errorf("got %v, want an error with code %s", err, want)
	}
}

// wantNumber compares a number of things.
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

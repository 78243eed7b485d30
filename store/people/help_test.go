package people_test

import (
	"context"
	"net/url"
	"os"
	"service/store"
	"service/store/people"
	"service/webhook"
	"testing"
)

// open opens an empty store in a new directory, see [memoryDir].
func open(t testing.TB) *store.Store {
	t.Helper()
	return openDir(t, memoryDir(t))
}

// memoryDir returns a temporary directory, in memory (/dev/shm) if possible, since most tests
// need no durability. For benchmarks it is on disk, whose speed they measure.
func memoryDir(t testing.TB) string {
	t.Helper()
	if _, ok := t.(*testing.B); ok {
		return t.TempDir()
	}
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
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantNumber compares a number of things.
func wantNumber[N int | int64](t testing.TB, what string, got, want N) {
	t.Helper()
	if got != want {
		t.Errorf("got %d %s, want %d", got, what, want)
	}
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

// count returns the number that a query selects.
func count(t *testing.T, s *store.Store, query string, args ...any) (n int64) {
	t.Helper()
	must(t, people.DB(s.Admins()).Scan(t.Context(), query, args, &n))
	return n
}

package people_test

import (
	"testing"

	"service/store"
	"service/store/people"
)

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantNumber checks that got is want; what names the things that were counted.
func wantNumber[N int | int64](t testing.TB, what string, got, want N) {
	t.Helper()
	if got != want {
		t.Errorf("got %d %s, want %d", got, what, want)
	}
}

// count returns the number that a query selects.
func count(t *testing.T, s *store.Store, query string, args ...any) (n int64) {
	t.Helper()
	must(t, people.DB(s.Admins()).Scan(t.Context(), query, args, &n))
	return n
}

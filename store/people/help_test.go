package people_test

import (
	"service/store"
	"service/store/people"
	"testing"
)

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

// count returns the number that a query selects.
func count(t *testing.T, s *store.Store, query string, args ...any) (n int64) {
	t.Helper()
	must(t, people.DB(s.Admins()).Scan(t.Context(), query, args, &n))
	return n
}

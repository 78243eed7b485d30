package store

import (
	"errors"
	"testing"
	"time"

	"service/webhook"
)

// mustWrite runs do in one write, which must succeed.
func mustWrite(t *testing.T, s *Store, do func(w Write) error) {
	t.Helper()
	if err := s.Write(t.Context(), do); err != nil {
		t.Fatal(err)
	}
}

// wantMistake checks that err is a *webhook.Error with a code.
func wantMistake(t *testing.T, err error, want webhook.Code) {
	t.Helper()
	var got *webhook.Error
	if !errors.As(err, &got) || got.Code != want {
		t.Errorf("got %v, want an error with code %s", err, want)
	}
}

// openAt is open with a clock that the test sets.
func openAt(t *testing.T) (*Store, *time.Time) {
	t.Helper()
	now := time.Now()
	s, err := Open(t.Context(), Config{Dir: memoryDir(t), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, &now
}

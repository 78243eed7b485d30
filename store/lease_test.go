package store

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"service/webhook"
)

// Without its lease a store refuses writes, sends nothing and does not touch its replica. With
// the lease it continues.
func TestFence(t *testing.T) {
	dir := t.TempDir()
	cfg := fileReplica(t, dir, t.TempDir())
	s := openReplicated(t, dir, cfg)
	if known, err := s.Replica().Generation(t.Context()); err != nil || known != 0 {
		t.Errorf("generation of new data: got %d, %v", known, err)
	}
	if !s.Queues().MaySend() {
		t.Error("MaySend is false without a lease requirement")
	}
	var valid atomic.Bool
	valid.Store(true)
	must(t, s.Replica().Fence(1, Lease{Valid: valid.Load, Context: t.Context}))
	if known, err := s.Replica().Generation(t.Context()); err != nil || known != 1 {
		t.Errorf("generation: got %d, %v, want 1", known, err)
	}
	publish := func() error {
		_, err := s.Events().Publish(t.Context(), "p", []webhook.Event{event("content_updated")})
		return err
	}
	_, _, err := s.Tokens().Create(t.Context(), webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()})
	must(t, err)
	if err := publish(); err != nil || !s.Queues().MaySend() {
		t.Errorf("with the lease: %v", err)
	}
	s.await("up to date", upToDate)
	if err := s.Replica().Acknowledge(t.Context()); err != nil || !s.Replica().Acknowledged(s.LastCommit()) {
		t.Errorf("acknowledge with the lease: %v", err)
	}
	valid.Store(false)
	// A commit from before must no longer be acknowledged.
	wantCode(t, s.Replica().Acknowledge(t.Context()), webhook.CodeUnavailable)
	if s.Replica().Acknowledged(s.LastCommit()) {
		t.Error("a commit is acknowledged without the lease")
	}
	if err := publish(); !errors.Is(err, ErrUnavailable) || s.Queues().MaySend() {
		t.Errorf("without the lease: got %v, want %v", err, ErrUnavailable)
	}
	wantCode(t, s.Check(t.Context()), webhook.CodeUnavailable)
	valid.Store(true)
	if err := publish(); err != nil || !s.Queues().MaySend() {
		t.Errorf("with the lease again: %v", err)
	}
	wantError(t, "ready with the lease again", s.Check(t.Context()), nil)
	valid.Store(false)
	wantError(t, "close without the lease", s.close(), nil)
	restoredStore, _ := restored(t, cfg, dir, time.Time{})
	if n := events(t, restoredStore); n > 2 {
		t.Errorf("the replica has %d events", n)
	}
}

package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"service/store/keyring"
	"service/store/replica"
	"service/test/harness"
	"service/webhook"
)

// follow runs a standby until stop is called.
func follow(t *testing.T, s *Standby) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Follow(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func awaitStandby(t *testing.T, s *Standby, what string, ok func(replica.FollowerState) bool) {
	t.Helper()
	harness.WaitFor(t, "the standby to be "+what, func() bool { return ok(s.State()) })
}

// takeAway makes a replica in a directory fail until back is called.
func takeAway(t *testing.T, target string) (back func()) {
	t.Helper()
	if err := errors.Join(os.Rename(target, target+".away"), os.WriteFile(target, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := errors.Join(os.Remove(target), os.Rename(target+".away", target)); err != nil {
			t.Fatal(err)
		}
	}
}

// A promoted standby has everything that the replica has, even if it was stopped in between,
// and continues from there.
func TestStandby(t *testing.T) {
	began := time.Now().Truncate(time.Second)
	dir, warm := t.TempDir(), t.TempDir()
	target := filepath.Join(t.TempDir(), "replica")
	primary := openReplicated(t, dir, fileReplica(t, dir, target))
	program(t, primary.Store, "p")
	sub := subscribe(t, primary.Store, "p", "content_updated")
	publish := func(n int) {
		t.Helper()
		for range n {
			if _, err := primary.Events().Publish(t.Context(), "p", []webhook.Event{event("content_updated")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	keys, err := ReadKeys(dir, "")
	must(t, err)
	open := func() *Standby {
		t.Helper()
		s, err := OpenStandby(warm, fileReplica(t, warm, target), keys, false, testLogger(t))
		must(t, err)
		return s
	}
	publish(10)
	primary.await("up to date", upToDate)
	standby := open()
	if _, err := OpenStandby(warm, fileReplica(t, warm, target), keys, false, testLogger(t)); !errors.Is(err, ErrLocked) {
		t.Errorf("second standby on the data directory: got %v, want %v", err, ErrLocked)
	}
	stop := follow(t, standby)
	awaitStandby(t, standby, "following", func(y replica.FollowerState) bool { return y.Following })
	added := standby.State().Added
	publish(10)
	awaitStandby(t, standby, "brought up to date", func(y replica.FollowerState) bool { return y.Added.After(added) })
	back := takeAway(t, target)
	awaitStandby(t, standby, "failing", func(y replica.FollowerState) bool { return y.Err != "" })
	back()
	publish(1)
	awaitStandby(t, standby, "following again", func(y replica.FollowerState) bool { return y.Following })
	stop()
	must(t, standby.Close())
	publish(10)
	standby = open() // continues with the existing copy
	stop = follow(t, standby)
	awaitStandby(t, standby, "following", func(y replica.FollowerState) bool { return y.Following })
	publish(10)
	must(t, primary.close())
	stop()
	must(t, os.WriteFile(filepath.Join(warm, keyring.FileName), keys, 0o600))
	y, aside, err := standby.Promote(t.Context())
	if err != nil || aside != "" || y.State.Before(began) {
		t.Fatalf("promote: %+v, %q, %v", y, aside, err)
	}
	s := openReplicated(t, warm, fileReplica(t, warm, target))
	if n := events(t, s.Store); n != 41 {
		t.Errorf("the promoted standby has %d events, want 41", n)
	}
	if l := queue(t, s.Store, sub.ID); l.Wanted == 0 {
		t.Error("the subscription has no waiting events")
	}
	if known, err := s.Replica().Generation(t.Context()); err != nil || known < 1<<60 {
		t.Errorf("generation after promotion: got %d, %v, want math.MaxInt64", known, err)
	}
	if _, err := s.Events().Publish(t.Context(), "p", []webhook.Event{event("content_updated")}); err != nil {
		t.Error(err)
	}
	s.await("up to date", upToDate)
	must(t, s.close())
	again, _ := restored(t, fileReplica(t, dir, target), dir, time.Time{})
	if n := events(t, again); n != 42 {
		t.Errorf("its replica has %d events, want 42", n)
	}
}

func TestStandbyRefuses(t *testing.T) {
	dir, warm := t.TempDir(), t.TempDir()
	target := filepath.Join(t.TempDir(), "replica")
	primary := openReplicated(t, dir, fileReplica(t, dir, target))
	program(t, primary.Store, "p")
	primary.await("up to date", upToDate)
	if err := primary.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStandby(dir, fileReplica(t, dir, target), nil, false, testLogger(t)); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("existing database: got %v, want %v", err, ErrNotEmpty)
	}
	other := []byte(strings.Repeat("5f", 32) + "\n")
	s, err := OpenStandby(warm, fileReplica(t, warm, target), other, false, testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Follow(t.Context()); !errors.Is(err, ErrUnusable) {
		t.Errorf("wrong key: got %v, want %v", err, ErrUnusable)
	}
}

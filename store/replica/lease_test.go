package replica

import (
	"errors"
	"math"
	"path/filepath"
	"testing"
	"time"
)

func newLease(t testing.TB, b *bucket, dir string, ttl time.Duration) *Lease {
	t.Helper()
	l, err := NewLease(t.Context(), LeaseConfig{Replica: b.config(t, dir), Dir: dir, TTL: ttl, Reserve: ttl / 10, Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLease(t *testing.T) {
	b := newBucket(t)
	one, other := t.TempDir(), t.TempDir()
	const long = time.Hour
	first := newLease(t, b, one, long)
	if y, err := first.State(t.Context()); err != nil || y != (LeaseState{}) {
		t.Errorf("a lease that nobody has held: %+v, %v", y, err)
	}
	if first.Valid() {
		t.Error("a lease that was not taken is good")
	}
	if err := first.Acquire(t.Context(), 0); err != nil || !first.Valid() || first.Generation() != 1 {
		t.Fatalf("take: %v, generation %d", err, first.Generation())
	}
	second := newLease(t, b, other, long)
	if err := second.Acquire(t.Context(), 0); !errors.Is(err, ErrLeaseHeld) || second.Valid() {
		t.Errorf("a lease that another holds: %v, want %v", err, ErrLeaseHeld)
	}
	// Whoever held it before a crash goes on with it.
	again := newLease(t, b, one, long)
	if err := again.Acquire(t.Context(), 1); err != nil || again.Generation() != 1 {
		t.Errorf("after a crash: %v, generation %d", err, again.Generation())
	}
	if err := again.Release(t.Context()); err != nil || again.Valid() {
		t.Errorf("release: %v", err)
	}
	// Data that knows of an older lease alone is older.
	if err := second.Acquire(t.Context(), 0); !errors.Is(err, ErrLeaseStale) {
		t.Errorf("with data that is older than the last holder's: %v, want %v", err, ErrLeaseStale)
	}
	if err := second.Acquire(t.Context(), 1); err != nil || second.Generation() != 2 || !second.Valid() {
		t.Errorf("once it was released: %v, generation %d", err, second.Generation())
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := newLease(t, b, one, long).Acquire(t.Context(), 1); !errors.Is(err, ErrLeaseStale) {
		t.Errorf("the first again: %v, want %v", err, ErrLeaseStale)
	}
	restored := newLease(t, b, one, long)
	if err := restored.Acquire(t.Context(), math.MaxInt64); err != nil || restored.Generation() != 3 {
		t.Errorf("the first, restored: %v, generation %d", err, restored.Generation())
	}
	if y, err := second.State(t.Context()); err != nil || y.Generation != 3 || y.Ours || time.Until(y.Expires) < 50*time.Minute {
		t.Errorf("look: %+v, %v", y, err)
	}
	if _, err := NewLease(t.Context(), LeaseConfig{Replica: fileConfig(t, one, filepath.Join(other, "copy")), Dir: one}); err == nil {
		t.Error("a lease in a folder was not refused")
	}
}

// A lease is kept for as long as the bucket can be reached, and is good for no
// longer than that and its time; KeepAlive reports its loss.
func TestLeaseKept(t *testing.T) {
	b := newBucket(t)
	one, other := t.TempDir(), t.TempDir()
	l := newLease(t, b, one, time.Second)
	if err := l.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	kept := make(chan error, 1)
	go func() { kept <- l.KeepAlive(t.Context()) }()
	await := func(what string, ok func() bool) {
		t.Helper()
		for deadline, tick := time.After(20*time.Second), time.Tick(2*time.Millisecond); !ok(); {
			select {
			case <-tick:
			case err := <-kept:
				t.Fatalf("keeping ended: %v", err)
			case <-deadline:
				t.Fatal(what)
			}
		}
	}
	began := time.Now()
	await("it is not kept", func() bool { return !l.Valid() || time.Since(began) > 3*time.Second })
	if !l.Valid() {
		t.Fatalf("it was lost after %s", time.Since(began))
	}
	b.down.Store(true)
	await("it is good for ever", func() bool { return !l.Valid() })
	b.down.Store(false)
	await("it is not good again", l.Valid)
	b.down.Store(true)
	await("it is good for ever", func() bool { return !l.Valid() })
	next := newLease(t, b, other, time.Hour)
	await("it cannot be taken over", func() bool {
		b.down.Store(false)
		err := next.Acquire(t.Context(), 1)
		b.down.Store(err != nil) // so that it is not renewed first
		return err == nil
	})
	if err := <-kept; !errors.Is(err, ErrLeaseHeld) || l.Valid() {
		t.Errorf("keeping one that another has: %v, want %v", err, ErrLeaseHeld)
	}
}

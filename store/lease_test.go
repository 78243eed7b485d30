package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"service/webhook"
)

// bucket is an S3 server with the bucket b.
type bucket struct {
	url   string
	down  atomic.Bool                         // it answers 503
	delay atomic.Pointer[func(*http.Request)] // is called before each answer, unless nil
}

func newBucket(t testing.TB) *bucket {
	t.Helper()
	t.Setenv("AWS_CA_BUNDLE", "") // the client of S3 cannot do with it
	backend := s3mem.New()
	if err := backend.CreateBucket("b"); err != nil {
		t.Fatal(err)
	}
	b := &bucket{}
	s3 := gofakes3.New(backend).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if delay := b.delay.Load(); delay != nil {
			(*delay)(r)
		}
		s3.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

// replica configures a replica in the bucket for the database of a data
// directory.
func (b *bucket) replica(t testing.TB, dir string) *ReplicaConfig {
	t.Helper()
	return readReplica(t, fmt.Sprintf(`dbs:
  - path: %s/service.db
    monitor-interval: 20ms
    replica:
      type: s3
      bucket: b
      path: copy
      endpoint: %s
      access-key-id: id
      secret-access-key: secret
      sync-interval: 20ms
shutdown-sync-timeout: 5s
`, dir, b.url))
}

func newLease(t testing.TB, b *bucket, dir string, ttl time.Duration) *Lease {
	t.Helper()
	l, err := NewLease(t.Context(), LeaseConfig{Replica: b.replica(t, dir), Dir: dir, TTL: ttl, Reserve: ttl / 10, Logger: testLogger(t)})
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
	if y, err := first.Look(t.Context()); err != nil || y != (LeaseState{}) {
		t.Errorf("a lease that nobody has held: %+v, %v", y, err)
	}
	if first.Good() {
		t.Error("a lease that was not taken is good")
	}
	if err := first.Take(t.Context(), 0); err != nil || !first.Good() || first.Generation() != 1 {
		t.Fatalf("take: %v, generation %d", err, first.Generation())
	}
	second := newLease(t, b, other, long)
	if err := second.Take(t.Context(), 0); !errors.Is(err, ErrLeaseHeld) || second.Good() {
		t.Errorf("a lease that another holds: %v, want %v", err, ErrLeaseHeld)
	}
	// Whoever held it before a crash goes on with it.
	again := newLease(t, b, one, long)
	if err := again.Take(t.Context(), 1); err != nil || again.Generation() != 1 {
		t.Errorf("after a crash: %v, generation %d", err, again.Generation())
	}
	if err := again.Release(t.Context()); err != nil || again.Good() {
		t.Errorf("release: %v", err)
	}
	// Data that knows of an older lease alone is older.
	if err := second.Take(t.Context(), 0); !errors.Is(err, ErrLeaseStale) {
		t.Errorf("with data that is older than the last holder's: %v, want %v", err, ErrLeaseStale)
	}
	if err := second.Take(t.Context(), 1); err != nil || second.Generation() != 2 || !second.Good() {
		t.Errorf("once it was released: %v, generation %d", err, second.Generation())
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := newLease(t, b, one, long).Take(t.Context(), 1); !errors.Is(err, ErrLeaseStale) {
		t.Errorf("the first again: %v, want %v", err, ErrLeaseStale)
	}
	restored := newLease(t, b, one, long)
	if err := restored.Take(t.Context(), math.MaxInt64); err != nil || restored.Generation() != 3 {
		t.Errorf("the first, restored: %v, generation %d", err, restored.Generation())
	}
	if y, err := second.Look(t.Context()); err != nil || y.Generation != 3 || y.Ours || time.Until(y.Expires) < 50*time.Minute {
		t.Errorf("look: %+v, %v", y, err)
	}
	if _, err := NewLease(t.Context(), LeaseConfig{Replica: fileReplica(t, one, filepath.Join(other, "copy")), Dir: one}); err == nil {
		t.Error("a lease in a folder was not refused")
	}
}

// A lease is kept for as long as the bucket can be reached, and is good for no
// longer than that and its time; whoever has lost it hears of it.
func TestLeaseKept(t *testing.T) {
	b := newBucket(t)
	one, other := t.TempDir(), t.TempDir()
	l := newLease(t, b, one, time.Second)
	if err := l.Take(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	kept := make(chan error, 1)
	go func() { kept <- l.Keep(t.Context()) }()
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
	await("it is not kept", func() bool { return !l.Good() || time.Since(began) > 3*time.Second })
	if !l.Good() {
		t.Fatalf("it was lost after %s", time.Since(began))
	}
	b.down.Store(true)
	await("it is good for ever", func() bool { return !l.Good() })
	b.down.Store(false)
	await("it is not good again", l.Good)
	b.down.Store(true)
	await("it is good for ever", func() bool { return !l.Good() })
	next := newLease(t, b, other, time.Hour)
	await("it cannot be taken over", func() bool {
		b.down.Store(false)
		err := next.Take(t.Context(), 1)
		b.down.Store(err != nil) // so that it is not renewed first
		return err == nil
	})
	if err := <-kept; !errors.Is(err, ErrLeaseHeld) || l.Good() {
		t.Errorf("keeping one that another has: %v, want %v", err, ErrLeaseHeld)
	}
}

// Without its lease a store takes nothing and sends nothing, and its replica is
// left alone; with it, it goes on.
func TestFence(t *testing.T) {
	b := newBucket(t)
	dir := t.TempDir()
	s := openReplicated(t, dir, b.replica(t, dir))
	if known, err := s.LeaseGeneration(t.Context()); err != nil || known != 0 {
		t.Errorf("the generation of new data: %d, %v", known, err)
	}
	l := newLease(t, b, dir, time.Hour)
	if err := l.Take(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if !s.MaySend() {
		t.Error("a store that needs no lease may not send")
	}
	if err := s.Fence(l); err != nil {
		t.Fatal(err)
	}
	if known, err := s.LeaseGeneration(t.Context()); err != nil || known != 1 {
		t.Errorf("the generation of the data: %d, %v, want 1", known, err)
	}
	publish := func() error {
		_, err := s.Publish(t.Context(), "p", []webhook.Event{event("content_updated")})
		return err
	}
	if _, _, err := s.CreateToken(t.Context(), webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()}); err != nil {
		t.Fatal(err)
	}
	if err := publish(); err != nil || !s.MaySend() {
		t.Errorf("with the lease: %v", err)
	}
	s.await("up to date", upToDate)
	until := l.until.Swap(0)
	if err := publish(); !errors.Is(err, ErrUnavailable) || s.MaySend() {
		t.Errorf("without the lease: %v, want %v", err, ErrUnavailable)
	}
	wantCode(t, s.Check(t.Context()), webhook.CodeUnavailable)
	l.until.Store(until)
	if err := publish(); err != nil || !s.MaySend() {
		t.Errorf("with the lease again: %v", err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("ready with the lease again: %v", err)
	}
	l.until.Store(0)
	if err := s.close(); err != nil {
		t.Errorf("close without the lease: %v", err)
	}
	var n int
	if err := restoredFrom(t, b, dir).scan(context.Background(), "SELECT count(*) FROM events", nil, &n); err != nil || n > 2 {
		t.Errorf("the replica has %d events, %v", n, err)
	}
}

func restoredFrom(t *testing.T, b *bucket, keyOf string) *Store {
	t.Helper()
	s, _ := restored(t, b.replica(t, keyOf), keyOf, time.Time{})
	return s
}

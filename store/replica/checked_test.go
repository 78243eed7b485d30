package replica

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"service/test/harness"
)

// TestFollowerDamaged damages an object before a standby adds it to its copy. The standby
// uses other objects with the same changes. If there are none, it reports the damage, keeps
// its copy and cannot take over until the primary's next snapshot.
func TestFollowerDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := stillConfig(t, dir)
	r := openReplicated(t, dir, cfg)
	r.insert(1)
	r.await("up to date", upToDate)
	s := r.current()
	path := filepath.Join(t.TempDir(), "copy.db")
	f := NewFollower(FollowerConfig{Replica: cfg, Path: path, Logger: testLogger(t)})
	f.damagedCheck = 100 * time.Millisecond
	follow := func(what string, ok func(FollowerState) bool, while func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Follow(ctx) }()
		while()
		harness.WaitFor(t, what, func() bool { return ok(f.State()) })
		cancel()
		must(t, <-done)
	}
	damage := func() string { return damageNext(t, r, cfg) }
	caughtUp := func(FollowerState) bool { pos, err := s.db.Pos(); return err == nil && f.has(s.own.term, pos.TXID) }
	follow("following", func(s FollowerState) bool { return s.Following }, func() {})

	damage()
	s.compact(t)
	follow("continued from the merged object", caughtUp, func() {})
	wantNumber(t, "rows", countRows(t, path), 3)

	name := damage()
	follow("failing", func(s FollowerState) bool {
		return strings.Contains(s.Err, name) && strings.Contains(s.Err, "service restore --at ")
	}, func() {})
	wantNumber(t, "rows in the damaged copy", countRows(t, path), 3)
	if _, _, err := f.CatchUp(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("CatchUp: got %v, want an error with %s", err, name)
	}
	follow("made again", caughtUp, func() {
		if _, err := s.db.Snapshot(t.Context()); err != nil {
			t.Error(err)
		}
	})
	wantNumber(t, "rows", countRows(t, path), 5)
	if _, at, err := f.CatchUp(t.Context()); err != nil || at.IsZero() {
		t.Errorf("CatchUp: got %s, %v, want no error", at, err)
	}
}

// damageNext commits two rows, damages the object of the first and returns its name.
func damageNext(t *testing.T, r *replicated, cfg *Config) string {
	t.Helper()
	s := r.current()
	before, err := s.db.Pos()
	must(t, err)
	for range 2 {
		r.insert(10_000)
		r.awaitSent(s)
	}
	client := s.own.client.ReplicaClient
	files, err := (&intactClient{ReplicaClient: client}).list(t.Context(), 0, before.TXID+1, false)
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	path := objectPath(client, files[0])
	content, err := os.ReadFile(path)
	must(t, err)
	replaceContent(t, path, damages[0].do(content))
	return objectName(files[0])
}

// TestMergeDamaged truncates an object at each length at which Litestream's decoder could
// panic. The compaction fails with an error that names the object.
func TestMergeDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := stillConfig(t, dir)
	r := openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	s := r.current()
	for range 2 {
		r.insert(100)
		r.awaitSent(s)
		s.compact(t)
	}
	name, path := planned(t, cfg, 1)
	content, err := os.ReadFile(path)
	must(t, err)
	for n := range len(content) {
		replaceContent(t, path, content[:n])
		if _, err := s.db.Compact(t.Context(), 2); err == nil || !strings.Contains(err.Error(), name) {
			t.Fatalf("%d of %d bytes: got %v, want an error with %s", n, len(content), err, name)
		}
	}
	replaceContent(t, path, content)
	if _, err := s.db.Compact(t.Context(), 2); err != nil {
		t.Error(err)
	}
}

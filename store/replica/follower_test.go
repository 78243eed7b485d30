package replica

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/test/harness"
)

// TestFollower follows a replica through an outage and catches up after its service has
// ended.
func TestFollower(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	dir := t.TempDir()
	began := time.Now().Truncate(time.Second)
	r := openReplicated(t, dir, b.config(t, dir))
	r.insert(1)
	r.await("up to date", upToDate)
	path := filepath.Join(t.TempDir(), "copy.db")
	f := NewFollower(FollowerConfig{Replica: b.config(t, dir), Path: path, Logger: testLogger(t)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Follow(ctx) }()
	await := func(what string, ok func(FollowerState) bool) {
		t.Helper()
		harness.WaitFor(t, what, func() bool { return ok(f.State()) })
	}
	await("following", func(s FollowerState) bool { return s.Following })
	b.down.Store(true)
	await("failing", func(s FollowerState) bool { return s.Err != "" })
	b.down.Store(false)
	r.insert(1)
	await("following again", func(s FollowerState) bool { return s.Following })
	cancel()
	must(t, <-done)
	r.insert(1)
	r.mustClose()
	_, at, err := f.CatchUp(t.Context())
	if err != nil || at.Before(began) {
		t.Fatalf("CatchUp: got %s, %v, want no error", at, err)
	}
	wantNumber(t, "rows", countRows(t, path), 3)
}

// TestCatchUpToSnapshot ends a primary between a snapshot and the upload of the changes
// before it. The copy gets the content of the snapshot.
func TestCatchUpToSnapshot(t *testing.T) {
	b := newBucket(t)
	dir := t.TempDir()
	cfg := b.config(t, dir)
	r := openReplicated(t, dir, cfg)
	r.insert(1)
	r.await("up to date", upToDate)
	s := r.current()
	f := newFollowed(t, cfg)
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	must(t, err)
	r.insert(1)
	r.awaitSent(s)
	_, err = s.db.Snapshot(t.Context())
	must(t, err)
	for level := 0; level < litestream.SnapshotLevel; level++ {
		files, err := s.replica.Client.LTXFiles(t.Context(), level, at+1, false)
		must(t, err)
		all, err := ltx.SliceFileIterator(files)
		if err == nil {
			err = s.replica.Client.DeleteLTXFiles(t.Context(), all)
		}
		must(t, err)
	}
	if _, _, err := f.CatchUp(t.Context()); err != nil {
		t.Fatalf("CatchUp: got %v, want no error", err)
	}
	wantNumber(t, "rows", countRows(t, f.cfg.Path), 2)
}

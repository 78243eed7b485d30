package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
	"service/test/harness"
)

// newCopied returns a replica, a stopped follower with a copy of it, and the position of the
// copy.
func newCopied(t *testing.T) (r *replicated, cfg *Config, f *Follower, at ltx.TXID) {
	t.Helper()
	dir := t.TempDir()
	cfg = stillConfig(t, dir)
	r = openReplicated(t, dir, cfg)
	r.random(3)
	r.settle()
	f = newFollowed(t, cfg)
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	must(t, err)
	return r, cfg, f, at
}

// newFollowed returns a stopped follower whose copy is up to date.
func newFollowed(t testing.TB, cfg *Config) *Follower {
	t.Helper()
	f := NewFollower(FollowerConfig{Replica: cfg, Path: filepath.Join(t.TempDir(), "copy.db"), Logger: testLogger(t)})
	followUntil(t, f, "the replica to be followed", func() bool { return f.State().Following })
	return f
}

// followUntil runs a follower until a condition holds.
func followUntil(t testing.TB, f *Follower, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Follow(ctx) }()
	harness.WaitFor(t, what, condition)
	cancel()
	must(t, <-done)
}

// backlog uploads n transactions with one row each, as separate objects.
func backlog(r *replicated, n, size int) {
	r.t.Helper()
	for range n {
		r.write("INSERT INTO data (value) VALUES (randomblob(?))", size)
		r.awaitSent(r.current())
	}
}

// TestFollowerMerges gives a follower a backlog of small objects with a large one in
// between. It merges the small ones, and after an interruption it continues where it was.
func TestFollowerMerges(t *testing.T) {
	t.Parallel()
	r, _, f, at := newCopied(t)
	backlog(r, 10, 10_000)
	backlog(r, 1, 2*readAheadSize)
	backlog(r, 10, 10_000)

	source, err := f.open(t.Context())
	must(t, err)
	lists := func() (lists []string) {
		t.Helper()
		_, checked := f.replica(source.client)
		files, err := newMergingClient(checked, f.noteApplying, func() {}, func(time.Time, bool) {}).LTXFiles(t.Context(), 0, at+1, false)
		must(t, err)
		all, err := ltx.SliceFileIterator(files)
		must(t, err)
		for _, i := range all {
			lists = append(lists, fmt.Sprintf("%d-%d", i.MinTXID-at, i.MaxTXID-at))
		}
		return lists
	}
	if got, want := lists(), []string{"1-10", "11-11", "12-21"}; !slices.Equal(got, want) {
		t.Fatalf("got list %s, want %s", got, want)
	}

	_, checked := f.replica(source.client)
	cut := errors.New("cut off")
	ctx, cancel := context.WithCancel(t.Context())
	client := newMergingClient(checked, func(first, last ltx.TXID) error {
		err := f.noteApplying(first, last)
		if first == at+11 {
			cancel()
			return errors.Join(err, cut)
		}
		return err
	}, func() {}, func(time.Time, bool) {})
	o := litestream.NewRestoreOptions()
	o.OutputPath, o.Follow, o.FollowInterval = f.cfg.Path, true, followInterval
	must(t, litestream.NewReplicaWithClient(litestream.NewDB(f.cfg.Path), client).Restore(ctx, o))
	if got, err := litestream.ReadTXIDFile(f.cfg.Path); err != nil || got != at+10 {
		t.Errorf("interrupted after %d changes, %v, want 10", got-at, err)
	}
	if f.has(source.term, at+10) {
		t.Error("has: got true for a copy that may have a part of the next change")
	}

	r.mustClose()
	_, _, err = f.CatchUp(t.Context())
	must(t, err)
	if !bytes.Equal(pages(t, f.cfg.Path), pages(t, r.path)) {
		t.Error("the copy differs from the database")
	}
}

// TestMergedDamaged damages an object among small ones. The objects before it are added.
func TestMergedDamaged(t *testing.T) {
	t.Parallel()
	r, cfg, f, at := newCopied(t)
	backlog(r, 3, 10_000)
	damageNext(t, r, cfg)
	backlog(r, 3, 10_000)
	source, err := f.open(t.Context())
	must(t, err)
	_, checked := f.replica(source.client)
	client := newMergingClient(checked, func(_, _ ltx.TXID) error { return nil }, func() {}, func(time.Time, bool) {})
	open := func() (*ltx.FileInfo, io.ReadCloser, error) {
		t.Helper()
		files, err := client.LTXFiles(t.Context(), 0, at+1, false)
		must(t, err)
		all, err := ltx.SliceFileIterator(files)
		must(t, err)
		content, err := client.OpenLTXFile(t.Context(), 0, all[0].MinTXID, all[0].MaxTXID, 0, 0)
		return all[0], content, err
	}
	if _, _, err := open(); !errors.As(err, new(*damagedError)) {
		t.Fatalf("got %v, want a damaged object", err)
	}
	first, content, err := open()
	must(t, err)
	defer content.Close()
	if first.MaxTXID != at+3 {
		t.Errorf("got %d changes, want the 3 before the damaged object", first.MaxTXID-at)
	}
	text, err := io.ReadAll(content)
	must(t, err)
	merged := *first
	merged.Size = int64(len(text))
	if err := decodeObject(&merged, bytes.NewReader(text), noSink); err != nil {
		t.Error(err)
	}
}

// BenchmarkCatchUp updates a copy that lacks 500 small objects, which a primary that
// acknowledges after uploads creates in about 12 s.
func BenchmarkCatchUp(b *testing.B) {
	for range b.N {
		b.StopTimer()
		dir := b.TempDir()
		cfg := fileConfig(b, dir, b.TempDir())
		r := openReplicated(b, dir, cfg)
		r.insert(1)
		r.settle()
		f := newFollowed(b, cfg)
		backlog(r, 500, 1000)
		must(b, r.close())
		b.StartTimer()
		_, _, err := f.CatchUp(b.Context())
		must(b, err)
	}
}

package replica

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/benbjohnson/litestream/file"
)

// age sets the times of the files of the session's term that are newer than since to at.
func age(t *testing.T, s *session, since, at time.Time) {
	t.Helper()
	client := s.own.client.ReplicaClient.(*file.ReplicaClient)
	for level := 0; level <= litestream.SnapshotLevel; level++ {
		files, err := ownFiles(t.Context(), s, level)
		must(t, err)
		for _, f := range files {
			if f.CreatedAt.Before(since) {
				continue
			}
			must(t, os.Chtimes(client.LTXFilePath(level, f.MinTXID, f.MaxTXID), at, at))
		}
	}
}

// TestSnapshotRetention takes snapshots as often as the retention is long. The oldest state
// within the retention can still be restored, from a snapshot that is older.
func TestSnapshotRetention(t *testing.T) {
	const retention = 24 * time.Hour
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileConfig(t, dir, target)
	r := openReplicated(t, dir, cfg)
	defer r.close()
	r.settle()
	now := time.Now()
	began := r.current().own.term
	began.Began = now.Add(-4 * retention)
	must(t, writeTerm(t.Context(), r.current().own.at, began))
	for i, ago := range []time.Duration{3 * retention, 2 * retention, retention + time.Minute, 2 * time.Hour} {
		r.random(i + 1)
		r.settle()
		_, err := r.current().db.Snapshot(t.Context())
		must(t, err)
		age(t, r.current(), now.Add(-time.Hour), now.Add(-ago))
	}
	r.random(1)
	r.settle()
	s := r.current()
	must(t, r.enforceSnapshotRetention(t.Context(), s, retention))
	left, err := ownFiles(t.Context(), s, litestream.SnapshotLevel)
	must(t, err)
	if times := len(left); times != 2 || !left[0].CreatedAt.Before(now.Add(-retention)) {
		t.Errorf("got %d snapshots, want the newest before the retention and the one after it", times)
	}
	path := filepath.Join(t.TempDir(), "restored.db")
	if _, err := Restore(t.Context(), cfg, path, now.Add(-retention+time.Minute)); err != nil {
		t.Fatalf("the oldest state within the retention: %v", err)
	}
	wantNumber(t, "rows of the oldest state within the retention", countRows(t, path), 6)
}

// TestTermRetention keeps the term that was current when the retention began, even if nothing
// was written to it since.
func TestTermRetention(t *testing.T) {
	one, two, target := t.TempDir(), t.TempDir(), t.TempDir()
	r := openReplicated(t, one, fileConfig(t, one, target))
	r.random(1)
	r.settle()
	age(t, r.current(), time.Time{}, time.Now().Add(-3*time.Hour))
	r.mustClose()
	cfg := fileConfig(t, two, target)
	restoreTo(t, cfg, two)
	r = openReplicated(t, two, cfg)
	defer r.close()
	r.random(1)
	r.settle()
	s := r.current()
	must(t, r.completeTerm(t.Context(), s))
	for _, test := range []struct {
		oldest time.Time
		want   []int64
	}{
		{s.own.term.Began.Add(-time.Hour), []int64{1, 2}},
		{s.own.term.Began.Add(time.Hour), []int64{2}},
	} {
		must(t, r.removeTerms(t.Context(), s, test.oldest))
		if got, err := s.own.at.terms(t.Context()); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("retention from %s: got terms %d, %v, want %d", test.oldest, got, err, test.want)
		}
	}
}

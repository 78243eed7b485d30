package replica

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/superfly/ltx"

	"service/test/harness"
)

// TestEmptiedReplica empties the replica during replication, as when a bucket is created
// again. Later uploads are useless alone, so the loss is detected and reported, and the whole
// database is uploaded.
func TestEmptiedReplica(t *testing.T) {
	t.Parallel()
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileConfig(t, dir, target)
	cfg.CompactionIntervals = []time.Duration{time.Hour} // so that no change is in two files
	l := defaultLimits
	l.verifyInterval = 0
	lose := func(folder string) { // atomically, while Litestream writes to it
		t.Helper()
		must(t, os.Rename(filepath.Join(target, folder), filepath.Join(t.TempDir(), "lost")))
	}
	r := openReplicated(t, dir, cfg, l)
	r.insert(1)
	r.await("up to date", upToDate)
	r.awaitSent(r.current()) // Litestream starts again by itself when an upload fails
	r.await("given the first snapshot", func(Status) bool {
		snapshots, err := os.ReadDir(filepath.Join(target, "terms", "0001", "ltx", "9"))
		return err == nil && len(snapshots) > 0 && !strings.HasSuffix(snapshots[0].Name(), ".tmp")
	})
	lose("terms/0001/ltx")
	r.insert(1)
	r.await("known to be incomplete", func(s Status) bool {
		return s.State == StateFailing && strings.Contains(s.Err, "cannot be restored from")
	})
	r.insert(1)
	r.await("up to date", upToDate)
	wantNumber(t, "rows", restoredRows(t, cfg), 3)
	r.mustClose()

	// Close reports a loss since the last verification, and the next start repairs it.
	r = openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	r.insert(1)
	r.awaitSent(r.current())
	lose("terms/0002/ltx/0")
	r.insert(1)
	wantError(t, "Close", r.close(), errReplicaIncomplete)
	r = openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	wantNumber(t, "rows after the next start", restoredRows(t, cfg), 5)
}

// TestTermGone empties the whole bucket, terms included: a replica without its term is empty to every
// reader, whatever is uploaded later. The next check of the terms detects that and begins a new one; a
// service that stops before reports the loss.
func TestTermGone(t *testing.T) {
	t.Parallel()
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileConfig(t, dir, target)
	var interval time.Duration
	open := func() *replicated {
		return openWriter(t, dir, cfg, func(r *Replication) { r.limits.termInterval, r.limits.writerPeriod = interval, 0 })
	}
	empty := func() {
		t.Helper()
		must(t, os.Rename(filepath.Join(target, "terms"), filepath.Join(t.TempDir(), "lost")))
	}
	interval = 20 * time.Millisecond
	r := open()
	r.insert(1)
	r.await("up to date", upToDate)
	empty()
	r.await("known to be incomplete", func(s Status) bool {
		return s.State == StateFailing && strings.Contains(s.Err, "cannot be restored from")
	})
	r.await("up to date", upToDate)
	wantNumber(t, "rows", restoredRows(t, cfg), 1)
	r.mustClose()

	interval = time.Hour
	r = open()
	r.await("up to date", upToDate)
	empty()
	r.insert(1)
	switch err := r.close(); {
	case err == nil: // the check with which the session began came after the bucket was emptied
		if n := restoredRows(t, cfg); n != 2 {
			t.Errorf("Close: got nil and %d rows, want 2 or %v", n, errReplicaIncomplete)
		}
	case !errors.Is(err, errReplicaIncomplete):
		t.Errorf("Close: got %v, want %v", err, errReplicaIncomplete)
	}
}

// TestUploadContinues uploads a backlog to a bucket that rejects every third file. Each retry
// begins with the file that failed, not with the first.
func TestUploadContinues(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	r := openReplicated(t, t.TempDir(), b.config(t, t.TempDir()))
	r.insert(1)
	r.await("up to date", upToDate)
	s := r.current()
	const files = 5
	var mu sync.Mutex
	open, requests, taken := false, 0, make(map[string]int)
	refuses := func(req *http.Request) bool {
		if req.Method != http.MethodPut || !strings.Contains(req.URL.Path, "/0000/") {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if open {
			requests++
		}
		if !open || requests%3 == 0 {
			return true
		}
		taken[req.URL.Path]++
		return false
	}
	b.refuses.Store(&refuses)
	for range files {
		r.insert(1)
		must(t, s.db.Sync(t.Context()))
	}
	mu.Lock()
	open = true
	mu.Unlock()
	r.awaitSent(s)
	mu.Lock()
	defer mu.Unlock()
	if len(taken) != files {
		t.Errorf("got %d files uploaded, want %d: %v", len(taken), files, taken)
	}
	for name, times := range taken {
		if times != 1 {
			t.Errorf("%s: got %d uploads, want 1", name, times)
		}
	}
}

// metaSize returns the size in bytes of Litestream's files next to the database.
func metaSize(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(metaPath(filepath.Join(dir, "service.db")), func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	must(t, err)
	return bytes
}

// While a replica accepts nothing, the backlog grows to its limit and is deleted. When the
// replica is reachable again, it gets everything.
func TestBacklog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "replica")
	cfg := fileConfig(t, dir, target)
	l := defaultLimits
	l.backlog, l.backlogInterval = 1<<20, 10*time.Millisecond
	r := openReplicated(t, dir, cfg, l)
	big := func() { // grows the local files, but not the database
		t.Helper()
		value := make([]byte, 100_000)
		rand.Read(value)
		r.write("INSERT INTO data VALUES (1, ?1) ON CONFLICT DO UPDATE SET value = ?1", value)
	}
	size := func() int64 { return metaSize(t, dir) }

	// Uploaded files are still on the disk and do not count.
	r.await("running", running)
	for size() < 3*l.backlog {
		big()
		s := r.current()
		if s == nil {
			t.Fatalf("abandoned with %d uploaded bytes on the disk, want them not counted", size())
		}
		r.awaitSent(s)
	}
	sent := size()

	must(t, errors.Join(os.Rename(target, target+".away"), os.WriteFile(target, nil, 0o600)))
	big()
	r.await("failing", func(s Status) bool { return s.State == StateFailing })
	var waiting int64
	r.await("abandoned", func(s Status) bool {
		big()
		waiting = max(waiting, size()-sent)
		return strings.Contains(s.Err, "too much data is waiting")
	})
	if waiting < l.backlog/2 {
		t.Errorf("abandoned with at most %d bytes waiting and %d uploaded, want about %d", waiting, sent, l.backlog)
	}
	r.insert(1)
	r.await("without the backlog", func(Status) bool { return size() <= l.backlog/2 })
	must(t, errors.Join(os.Remove(target), os.Rename(target+".away", target)))
	r.await("up to date", upToDate)
	wantNumber(t, "rows", restoredRows(t, cfg), 2)
}

// While a slow bucket takes an upload, commits are not copied to more files: the next upload
// copies them into one.
func TestSlowUploads(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	dir := t.TempDir()
	r := openReplicated(t, dir, b.config(t, dir))
	r.insert(10)
	r.settle()
	release := make(chan struct{})
	started := make(chan struct{}, 100)
	slow := func(q *http.Request) {
		if q.Method == http.MethodPut && strings.Contains(q.URL.Path, "/0000/") {
			started <- struct{}{}
			<-release
		}
	}
	b.delay.Store(&slow)
	r.insert(10)
	harness.Receive(t, "an upload", started)
	s := r.current()
	for range 20 {
		before := r.frames.Load()
		r.insert(10)
		harness.WaitFor(t, "the next look at the WAL", func() bool { return r.frames.Load() > before })
	}
	files, err := os.ReadDir(s.db.LTXLevelDir(0))
	must(t, err)
	waiting := 0
	for _, f := range files {
		if _, tx, err := ltx.ParseFilename(f.Name()); err == nil && tx > r.sentTX() {
			waiting++
		}
	}
	if waiting > 2 {
		t.Errorf("got %d files that wait for an upload after 20 looks at the WAL, want at most 2", waiting)
	}
	b.delay.Store(nil)
	close(release)
	r.settle()
	r.mustClose()
	compare(t, "after a slow upload", b.config(t, dir), dir)
}

package replica

import (
	"database/sql"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"
	"service/store/sqlite"
	"service/test/harness"
)

const walFrame = 24 + 4096 // size of a frame in bytes

// copyDir copies a data directory that is open but not written to.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.CopyFS(to, os.DirFS(from)))
}

// execute runs statements as another program would. If before is not nil, it is called
// before the database is closed.
func execute(t *testing.T, dir string, before func(), statements ...string) {
	t.Helper()
	db, err := sqlite.OpenWritable(filepath.Join(dir, "service.db"))
	must(t, err)
	db.SetMaxOpenConns(1)
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Error(err)
		}
	}
	if before != nil {
		before()
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// changeWAL changes the WAL of the database in dir.
func changeWAL(t *testing.T, dir string, change func(log *os.File, size int64) error) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "service.db-wal"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = change(f, info.Size())
	}
	must(t, err)
}

// restart is a way in which replication restarts.
type restart struct {
	name  string
	whole bool  // the whole database is uploaded
	term  int64 // term to which the replication then writes
	// stop ends r, which has one row to upload, and returns the data directory of the
	// next start.
	stop func(t *testing.T, r *replicated, dir string) (next string)
}

var restarts = []restart{
	{"orderly", false, 1, func(_ *testing.T, r *replicated, dir string) string { r.close(); return dir }},
	{"a copy of the directory", false, 2, func(t *testing.T, r *replicated, dir string) string {
		// The copy is another directory, so it begins its own term.
		to := t.TempDir()
		r.settle()
		copyDir(t, dir, to)
		r.close()
		return to
	}},
	{"a copy of the disk", false, 2, func(t *testing.T, r *replicated, dir string) string {
		r.close()
		path := filepath.Join(dir, "service.db")
		last, err := readRecord(path)
		last.Boot = "of another machine"
		err = errors.Join(err, writeRecord(path, last))
		must(t, err)
		return dir
	}},
	{"an older state of the directory", false, 2, func(t *testing.T, r *replicated, dir string) string {
		older := t.TempDir()
		r.settle()
		copyDir(t, dir, older)
		r.random(5)
		r.settle()
		r.close()
		must(t, os.RemoveAll(metaPath(filepath.Join(dir, "service.db"))))
		for _, name := range []string{"service.db", "service.db-wal", "service.db-shm"} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
		copyDir(t, older, dir)
		return dir
	}},
	{"a write by another program", true, 2, func(t *testing.T, r *replicated, dir string) string {
		r.close()
		execute(t, dir, nil, "INSERT INTO data (value) VALUES (randomblob(5000))")
		return dir
	}},
	{"a vacuum by another program", true, 2, func(t *testing.T, r *replicated, dir string) string {
		r.close()
		execute(t, dir, nil, "VACUUM")
		return dir
	}},
	{"a removed log", true, 2, func(t *testing.T, r *replicated, dir string) string {
		r.close()
		must(t, os.Remove(filepath.Join(dir, "service.db-wal")))
		return dir
	}},
	{"a log without its end", true, 2, func(t *testing.T, r *replicated, dir string) string {
		r.close()
		changeWAL(t, dir, func(log *os.File, size int64) error { return log.Truncate(size - 2*walFrame) })
		return dir
	}},
	{"a log with a hole", true, 2, func(t *testing.T, r *replicated, dir string) string {
		// A power cut may remove any part that was not fsynced.
		r.close()
		changeWAL(t, dir, func(log *os.File, size int64) error {
			_, err := log.WriteAt(make([]byte, walFrame), size-2*walFrame)
			return err
		})
		return dir
	}},
	{"a log that was begun again", false, 2, func(t *testing.T, r *replicated, dir string) string {
		// Litestream's checkpoints do this: the process may be killed before it copies
		// the first change after one.
		r.close()
		to := t.TempDir()
		execute(t, dir, func() { copyDir(t, dir, to) },
			"PRAGMA wal_autocheckpoint = 0", "PRAGMA wal_checkpoint(PASSIVE)", "INSERT INTO data (value) VALUES (randomblob(5000))")
		return to
	}},
	{"a log that was begun again after unknown changes", true, 2, func(t *testing.T, r *replicated, dir string) string {
		r.close()
		to := t.TempDir()
		execute(t, dir, func() { copyDir(t, dir, to) }, "PRAGMA wal_autocheckpoint = 0", "INSERT INTO data (value) VALUES (randomblob(50000))",
			"PRAGMA wal_checkpoint(PASSIVE)", "INSERT INTO data (value) VALUES (randomblob(5000))")
		return to
	}},
	{"no files of Litestream", true, 2, func(t *testing.T, r *replicated, dir string) string {
		r.close()
		must(t, os.RemoveAll(metaPath(filepath.Join(dir, "service.db"))))
		return dir
	}},
}

// TestContinue restarts replication in every possible way. If the WAL proves that no change
// is missing, only changes are uploaded. Each time the replica equals the database.
func TestContinue(t *testing.T) {
	t.Parallel()
	for _, c := range restarts {
		t.Run(c.name, func(t *testing.T) {
			dir, target := t.TempDir(), t.TempDir()
			cfg := fileConfig(t, dir, target)
			cfg.CompactionIntervals = nil
			r := openReplicated(t, dir, cfg)
			r.random(100)
			r.settle()
			r.random(1)
			next := c.stop(t, r, dir)
			before := uploads(t, target)
			cfg = fileConfig(t, next, target)
			cfg.CompactionIntervals = nil
			r = openReplicated(t, next, cfg)
			r.settle()
			r.random(1)
			r.settle()
			began := r.current().own.term
			r.mustClose()
			if began.Number != c.term || began.Number > 1 && began.Snapshot != c.whole {
				t.Errorf("got term %+v, want term %d, with a snapshot: %v", began, c.term, c.whole)
			}
			if uploaded := uploads(t, target) - before; !c.whole && uploaded > 100_000 {
				t.Errorf("got %d bytes uploaded, want only changes", uploaded)
			}
			compare(t, c.name, cfg, next)
		})
	}
}

// restoreTo restores the newest state to a data directory, as a takeover does.
func restoreTo(t *testing.T, cfg *Config, dir string) Origin {
	t.Helper()
	path := filepath.Join(dir, "service.db")
	found, err := Restore(t.Context(), cfg, path, time.Time{})
	if err == nil {
		err = sqlite.WriteToWAL(t.Context(), path, func(c *sql.Conn) error {
			_, err := c.ExecContext(t.Context(), "INSERT INTO data (value) VALUES (x'00')")
			return err
		})
	}
	if err == nil {
		err = found.Origin.Continue(path)
	}
	must(t, err)
	return found.Origin
}

// The baseline of a restored database has only one page. No compaction may treat it as a
// complete transaction, even if a process was killed before it removed the baseline.
func TestBaselineIsNotCompacted(t *testing.T) {
	one, two, target := t.TempDir(), t.TempDir(), t.TempDir()
	cfg := fileConfig(t, one, target)
	cfg.CompactionIntervals = nil
	first := openReplicated(t, one, cfg)
	first.random(20)
	first.settle()
	first.random(1)
	first.mustClose()
	cfg = fileConfig(t, two, target)
	cfg.CompactionIntervals = nil
	origin := restoreTo(t, cfg, two)
	baseline, err := os.ReadFile(localFile(two, origin))
	must(t, err)
	second := openReplicated(t, two, cfg)
	second.settle()
	second.mustClose()
	must(t, os.WriteFile(localFile(two, origin), baseline, 0o600))
	cfg = fileConfig(t, two, target)
	cfg.CompactionIntervals = []time.Duration{20 * time.Millisecond}
	second = openReplicated(t, two, cfg)
	second.settle()
	second.await("compacted", func(Status) bool {
		files, err := ownFiles(t.Context(), second.current(), 1)
		return err == nil && len(files) > 0
	})
	second.mustClose()
	compare(t, "compacted", cfg, two)
}

// localFile returns the path of the baseline of a restored database.
func localFile(dir string, o Origin) string {
	return litestream.NewDB(filepath.Join(dir, "service.db")).LTXPath(0, o.at, o.at)
}

// TestLostOrigin restores a database, and then deletes the restored transaction from the
// replica.
func TestLostOrigin(t *testing.T) {
	one, two, target := t.TempDir(), t.TempDir(), t.TempDir()
	cfg := fileConfig(t, one, target)
	cfg.CompactionIntervals = nil
	first := openReplicated(t, one, cfg)
	first.random(5)
	first.settle()
	first.random(1)
	first.mustClose()
	cfg = fileConfig(t, two, target)
	cfg.CompactionIntervals = nil
	origin := restoreTo(t, cfg, two)
	name := filepath.Join(target, "terms", "0001", "ltx", "0", filepath.Base(localFile(two, origin)))
	must(t, os.Remove(name))
	second := openReplicated(t, two, cfg)
	second.settle()
	if began := second.current().own.term; !began.Snapshot {
		t.Errorf("got term %+v, want one with a snapshot", began)
	}
	second.mustClose()
	compare(t, "without the origin", cfg, two)
}

// TestWALChanged lets another program write to the database and restart the WAL, after
// readWALState and before Litestream reads it.
func TestWALChanged(t *testing.T) {
	t.Parallel()
	b, dir := newBucket(t), t.TempDir()
	cfg := b.config(t, dir)
	cfg.CompactionIntervals = nil
	r := openReplicated(t, dir, cfg)
	r.random(50)
	r.settle()
	r.mustClose()
	var once sync.Once
	change := func(q *http.Request) {
		if strings.Contains(q.URL.RawQuery, "0001%2F0000") { // listed after the proof
			once.Do(func() {
				execute(t, dir, nil, "PRAGMA wal_autocheckpoint = 0", "INSERT INTO data (value) VALUES (randomblob(50000))",
					"PRAGMA wal_checkpoint(PASSIVE)", "INSERT INTO data (value) VALUES (randomblob(5000))")
			})
		}
	}
	b.delay.Store(&change)
	r = openReplicated(t, dir, cfg)
	r.settle()
	r.random(1)
	r.settle()
	if began := r.current().own.term; !began.Snapshot {
		t.Errorf("got term %+v, want one with a snapshot", began)
	}
	r.mustClose()
	compare(t, "after the write", cfg, dir)
}

// TestAbandonedClaims begins a term after processes have claimed numbers and died before
// they wrote a record, for example on a full disk.
func TestAbandonedClaims(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	for number := range int64(30) {
		must(t, os.MkdirAll((&folderLocation{target}).dir(number+1), 0o700))
	}
	cfg := fileConfig(t, dir, target)
	r := openReplicated(t, dir, cfg)
	r.random(1)
	r.settle()
	if began := r.current().own.term; began.Number != 31 {
		t.Errorf("got term %+v, want term 31", began)
	}
	r.mustClose()
	compare(t, "after all", cfg, dir)
}

// TestClaimWithoutRecord begins a term and fails to write the local record. The next attempt
// does not treat the term as that of another service.
func TestClaimWithoutRecord(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileConfig(t, dir, target)
	r := openReplicated(t, dir, cfg)
	r.settle()
	r.stop()
	<-r.done
	r.abandon(r.current(), errBacklog)
	meta := metaPath(filepath.Join(dir, "service.db"))
	must(t, os.Symlink("nowhere", meta))
	if _, err := r.acquireTerm(t.Context()); err == nil {
		t.Fatal("term without a record: got no error")
	}
	must(t, os.Remove(meta))
	if _, err := r.acquireTerm(t.Context()); err != nil {
		t.Errorf("next attempt: got %v, want no error", err)
	}
	if err := r.db.Close(nil); err != nil {
		t.Error(err)
	}
}

// TestMissingParent begins a term after a term whose parent is missing.
func TestMissingParent(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	must(t, claim(t.Context(), &folderLocation{target}, term{Number: 2, Parent: 1, ParentTXID: 9}))
	cfg := fileConfig(t, dir, target)
	r := openReplicated(t, dir, cfg)
	r.random(1)
	r.settle()
	r.mustClose()
	compare(t, "after all", cfg, dir)
	if _, err := openSource(t.Context(), cfg, noTime, true); err != nil {
		t.Errorf("older states: got %v, want no error", err)
	}
}

// TestSnapshotOnce uploads the first snapshot and fails to mark the term as complete. The
// snapshot is not uploaded again.
func TestSnapshotOnce(t *testing.T) {
	t.Parallel()
	b, dir := newBucket(t), t.TempDir()
	cfg := b.config(t, dir)
	cfg.CompactionIntervals = nil
	var snapshots atomic.Int64
	fail := func(q *http.Request) {
		if q.Method == http.MethodPut && strings.Contains(q.URL.Path, "/0009/") && snapshots.Add(1) == 1 {
			b.down.Store(true) // for the next request
		}
	}
	b.delay.Store(&fail)
	r := openReplicated(t, dir, cfg)
	r.random(5)
	r.await("failing", func(s Status) bool { return s.State == StateFailing })
	b.down.Store(false)
	r.settle()
	own := r.current().own
	r.mustClose()
	if err := writeTerm(t.Context(), own.at, own.term); err != nil { // as it was before
		t.Fatal(err)
	}
	r = openReplicated(t, dir, cfg)
	r.random(1)
	r.settle()
	r.mustClose()
	if found, err := newestTerm(t.Context(), own.at); err != nil || found.Number != 1 || !found.Complete {
		t.Errorf("got term %+v, %v, want term 1, complete", found, err)
	}
	wantNumber(t, "snapshots uploaded", snapshots.Load(), 1)
	compare(t, "with one snapshot", cfg, dir)
}

// TestRestoreReplaced sets a database back to an older state. The newer changes in the
// replica can still be restored, with a time before the database was set back.
func TestRestoreReplaced(t *testing.T) {
	dir, older, target := t.TempDir(), t.TempDir(), t.TempDir()
	cfg := fileConfig(t, dir, target)
	r := openReplicated(t, dir, cfg)
	r.random(5)
	r.settle()
	copyDir(t, dir, older)
	r.random(5)
	r.settle()
	r.mustClose()
	before := time.Now()
	harness.WaitForFileTime(t, before)
	cfg = fileConfig(t, older, target)
	r = openReplicated(t, older, cfg)
	r.random(1)
	r.settle()
	r.mustClose()
	wantNumber(t, "rows of the newest state", restoredRows(t, cfg), 6)
	path := filepath.Join(t.TempDir(), "before.db")
	_, err := Restore(t.Context(), cfg, path, before)
	must(t, err)
	wantNumber(t, "rows of the state before", countRows(t, path), 10)
}

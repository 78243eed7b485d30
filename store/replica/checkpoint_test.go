package replica

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"service/store/sqlite"
)

const (
	framesOfRow = 5 // of a row of rowBytes
	rowBytes    = 20_000
)

// TestThrottle writes without rest: the writer lets Litestream checkpoint, and the
// log stays short.
func TestThrottle(t *testing.T) {
	dir := t.TempDir()
	cfg := fileConfig(t, dir, t.TempDir())
	cfg.MonitorInterval = time.Minute // only the writer syncs
	l := defaultLimits
	l.throttle = 1_100
	r := openReplicated(t, dir, cfg, l)
	r.await("running", running)
	const each = 400
	var writing sync.WaitGroup
	for range 4 {
		writing.Go(func() {
			for range each {
				r.insert(rowBytes)
			}
		})
	}
	writing.Wait()
	// The file never shrinks: its size is that of the longest log.
	info, err := os.Stat(filepath.Join(dir, "service.db-wal"))
	if err != nil {
		t.Fatal(err)
	}
	longest := info.Size() / (4096 + 24)
	t.Logf("at least %d frames were written; the log had at most %d", 4*each*framesOfRow, longest)
	if longest > 4*each*framesOfRow/2 {
		t.Errorf("the log had %d frames of %d", longest, 4*each*framesOfRow)
	}
}

// Under little load the log is checkpointed long before the writer is throttled,
// as it would be without a replica.
func TestCheckpointIdle(t *testing.T) {
	dir := t.TempDir()
	cfg := fileConfig(t, dir, t.TempDir())
	cfg.MonitorInterval = 50 * time.Millisecond
	r := openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	for range 300 {
		r.insert(rowBytes)
	}
	r.await("of a short log", func(Status) bool {
		var frames int64
		if err := r.db.Writer().Do(func(tx *sqlite.Tx) error { frames = r.walFrames(tx); return nil }); err != nil {
			t.Error(err)
		}
		return frames < sqlite.AutoCheckpointFrames
	})
	r.await("up to date again", upToDate)
}

// Shortly before the writer is throttled most of the log is copied.
func TestSyncBeforeThrottle(t *testing.T) {
	dir := t.TempDir()
	cfg := fileConfig(t, dir, t.TempDir())
	cfg.MonitorInterval, cfg.settings.syncInterval = time.Hour, time.Hour
	l := defaultLimits
	l.throttle = 1_000
	r := openReplicated(t, dir, cfg, l)
	r.await("up to date", upToDate)
	started := r.copied.Load() // by the first upload
	s := r.current()
	before, err := s.db.Pos()
	if err != nil {
		t.Fatal(err)
	}
	for r.frames.Load() <= l.throttle/8*7 { // measured now and then, before a commit
		for range 10 {
			r.insert(rowBytes)
		}
		time.Sleep(throttleInterval)
	}
	r.await("copied", func(Status) bool {
		now, err := s.db.Pos()
		return err == nil && now.TXID > before.TXID
	})
	if r.copied.Load() != started {
		t.Error("the writer was throttled, and the log not only copied")
	}
}

// TestWALTooLong has a reader that does not end prevent checkpoints: replication
// is interrupted, the log is reported as too long, and replication continues when
// the reader has ended.
func TestWALTooLong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := fileConfig(t, dir, t.TempDir())
	l := defaultLimits
	l.throttle, l.abandon, l.abandonAfter, l.reject = 200, 400, 50*time.Millisecond, 1_000
	r := openReplicated(t, dir, cfg, l)
	r.await("up to date", upToDate)
	read, err := r.db.Readers().BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Rollback()
	var n int
	if err := read.QueryRow("SELECT count(*) FROM data").Scan(&n); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for ; !r.WALTooLong(); rows++ {
		if rows > 5_000 {
			t.Fatal("the log is never too long")
		}
		r.insert(rowBytes)
	}
	r.await("abandoned", func(s Status) bool { return s.State == StateFailing && strings.Contains(s.Err, "too long") })
	if err := read.Rollback(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for tick := time.NewTicker(25 * time.Millisecond); r.WALTooLong(); <-tick.C {
		r.insert(1)
		rows++
		select {
		case <-deadline:
			t.Fatalf("the log stays too long: %d frames", r.frames.Load())
		default:
		}
	}
	r.await("up to date", upToDate)
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if n := restoredRows(t, cfg); n != rows {
		t.Errorf("got %d rows, want %d", n, rows)
	}
}

// TestRestartedWAL has SQLite checkpoint and restart the log while Litestream is
// closed, after a crash for example. The frames that Litestream had not copied
// must reach the replica all the same.
func TestRestartedWAL(t *testing.T) {
	dir := t.TempDir()
	cfg := fileConfig(t, dir, t.TempDir())
	cfg.MonitorInterval = time.Minute
	r := openReplicated(t, dir, cfg)
	r.await("running", running)
	for range 20 {
		r.insert(rowBytes)
	}
	if err := r.current().db.SyncAndWait(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.insert(1) // not copied
	r.abandon(r.current(), nil)
	var busy, frames, moved int64
	if err := r.db.Writer().Conn().QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(RESTART)").Scan(&busy, &frames, &moved); err != nil || busy != 0 || frames != moved {
		t.Fatalf("got %d of %d frames moved, busy %d, %v", moved, frames, busy, err)
	}
	r.insert(1) // restarts the log
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if n := restoredRows(t, cfg); n != 22 {
		t.Errorf("got %d rows, want 22", n)
	}
}

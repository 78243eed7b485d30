package replica

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/store/sqlite"
)

const rowBytes = 20_000

// Under permanent load, the writer waits for checkpoints, so the WAL becomes short again and again.
func TestThrottle(t *testing.T) {
	dir := t.TempDir()
	cfg := fileConfig(t, dir, t.TempDir())
	cfg.MonitorInterval = time.Minute // only the writer syncs
	l := defaultLimits
	l.throttle, l.throttleTimeout = 1_100, time.Minute // on a busy machine a sync takes longer than two seconds
	r := openReplicated(t, dir, cfg, l)
	r.await("running", running)
	const (
		rows = 10_000 // without a checkpoint this would be a WAL of 200 MB
		want = 12     // each writer may see the same checkpoint
	)
	var shortened atomic.Int64
	var written atomic.Int64
	var writing sync.WaitGroup
	for range 4 {
		writing.Go(func() {
			for written.Add(1) <= rows && shortened.Load() < want {
				before := r.copied.Load()
				r.insert(rowBytes)
				if r.copied.Load() != before && r.frames.Load() < l.throttle {
					shortened.Add(1)
				}
			}
		})
	}
	writing.Wait()
	if shortened.Load() < want {
		t.Errorf("the WAL became shorter %d times in %d rows, want at least %d times", shortened.Load(), rows, want)
	}
}

// Under low load, the WAL is checkpointed long before the writer is throttled, as without a
// replica.
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

// Shortly before the writer is throttled, most of the WAL is copied.
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
	must(t, err)
	for r.frames.Load() <= l.throttle/8*7 {
		for range 10 {
			r.insert(rowBytes)
		}
		// The next batch measures the WAL, whatever time has passed.
		must(t, r.db.Writer().Do(func(*sqlite.Tx) error { r.measured = time.Time{}; return nil }))
	}
	r.await("copied", func(Status) bool {
		now, err := s.db.Pos()
		return err == nil && now.TXID > before.TXID
	})
	if r.copied.Load() != started {
		t.Error("the writer was throttled, want the WAL only copied")
	}
}

// A long read prevents checkpoints: replication is interrupted, the WAL is reported as too
// long, and replication continues after the read.
func TestWALTooLong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := fileConfig(t, dir, t.TempDir())
	l := defaultLimits
	l.throttle, l.abandon, l.abandonAfter, l.reject = 200, 400, 50*time.Millisecond, 1_000
	r := openReplicated(t, dir, cfg, l)
	r.await("up to date", upToDate)
	read, err := r.db.Readers().BeginTx(context.Background(), nil)
	must(t, err)
	defer read.Rollback()
	var n int
	must(t, read.QueryRow("SELECT count(*) FROM data").Scan(&n))
	rows := 0
	for ; !r.WALTooLong(); rows++ {
		if rows > 5_000 {
			t.Fatal("WALTooLong never returned true")
		}
		r.insert(rowBytes)
	}
	r.await("abandoned", func(s Status) bool { return s.State == StateFailing && strings.Contains(s.Err, "too long") })
	must(t, read.Rollback())
	r.await("of a shorter log", func(Status) bool {
		r.insert(1)
		rows++
		return !r.WALTooLong()
	})
	r.await("up to date", upToDate)
	r.mustClose()
	wantNumber(t, "rows", restoredRows(t, cfg), rows)
}

// TestRestartedWAL checkpoints and restarts the WAL while Litestream is closed, as after a
// crash. The frames that Litestream had not copied must still reach the replica.
func TestRestartedWAL(t *testing.T) {
	dir := t.TempDir()
	cfg := fileConfig(t, dir, t.TempDir())
	cfg.MonitorInterval = time.Minute
	r := openReplicated(t, dir, cfg)
	r.await("running", running)
	for range 20 {
		r.insert(rowBytes)
	}
	must(t, r.current().db.SyncAndWait(context.Background()))
	r.insert(1) // not copied
	r.abandon(r.current(), nil)
	var busy, frames, done int64
	row := r.db.Writer().Conn().QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(RESTART)")
	if err := row.Scan(&busy, &frames, &done); err != nil || busy != 0 || frames != done {
		t.Fatalf("got %d of %d frames checkpointed, busy %d, %v, want all", done, frames, busy, err)
	}
	r.insert(1) // restarts the WAL
	r.mustClose()
	wantNumber(t, "rows", restoredRows(t, cfg), 22)
}

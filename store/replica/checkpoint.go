package replica

import (
	"context"
	"errors"
	"time"

	"github.com/benbjohnson/litestream"

	"service/store/sqlite"
)

const (
	// busyFrames is the growth of the WAL, in frames per second, that counts as load.
	busyFrames = 2000
	// throttleInterval is the minimum time between two measurements of the WAL.
	throttleInterval = 20 * time.Millisecond
	// throttleRetry replaces throttleInterval after a sync that did not shorten the
	// WAL, for example because of a reader.
	throttleRetry = 250 * time.Millisecond
)

// BeforeBatch keeps the WAL short. It must be the writer's hook of that name, see
// [sqlite.Hooks]. Litestream can checkpoint only while nothing writes: if the WAL is too
// long, BeforeBatch blocks the writer for a checkpoint.
func (r *Replication) BeforeBatch(t *sqlite.Tx) {
	if r.truncate.Load() {
		r.truncate.Store(!t.TruncateWAL())
	}
	now := time.Now()
	if now.Sub(r.measured) < max(r.pause, throttleInterval) {
		return
	}
	r.measured, r.pause = now, 0
	r.throttle(t, now)
}

// TruncateWAL truncates the WAL on the writer's goroutine, between two commits, once Litestream has
// copied it. It waits up to limits.throttleTimeout for the reads that use the WAL, and reports whether
// it succeeded.
func (r *Replication) TruncateWAL(t *sqlite.Tx) bool {
	db := r.running.Load()
	if db == nil {
		return r.autoCheckpoint.Load() && t.TruncateWAL() // else the replica may continue with the WAL
	}
	before := r.walFrames(t)
	ctx, cancel := context.WithTimeout(context.Background(), r.limits.throttleTimeout)
	defer cancel()
	err := db.Checkpoint(ctx, litestream.CheckpointModeTruncate)
	return err == nil && r.walFrames(t) < before // Litestream does not say whether a read was in the way
}

// throttle syncs on the writer's goroutine if the WAL is too long. Shortly before that
// length it requests a sync in the background, so that less is left to do.
func (r *Replication) throttle(t *sqlite.Tx, now time.Time) {
	frames := r.walFrames(t)
	db := r.running.Load()
	nearly := frames > r.limits.throttle/8*7
	if nearly && !r.syncRequested && db != nil {
		wake(r.syncNow)
	}
	r.syncRequested = nearly
	if frames < r.limits.throttle {
		return
	}
	if db == nil {
		// While Litestream is closed, SQLite must checkpoint. Litestream then copies
		// the whole database when it opens again.
		held := r.autoCheckpointOff.Load() && frames < r.limits.abandon
		if !held && !r.autoCheckpoint.Load() && t.Exec("PRAGMA wal_autocheckpoint = 1000") == nil { // sqlite.AutoCheckpointFrames
			r.autoCheckpoint.Store(true)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.limits.throttleTimeout)
	defer cancel()
	// syncWAL reports the error.
	if err := db.Sync(ctx); err == nil {
		r.copied.Store(&now)
	}
	if r.walFrames(t) >= r.limits.throttle {
		r.pause = throttleRetry
	}
	r.measured = time.Now()
}

// walFrames measures the length of the WAL on the writer's connection.
func (r *Replication) walFrames(t *sqlite.Tx) int64 {
	frames, err := t.WALFrames()
	if err != nil {
		return r.frames.Load()
	}
	r.frames.Store(frames)
	return frames
}

// idleWALFrames measures the length of the WAL on Litestream's connection, because the
// writer may be idle.
func (r *Replication) idleWALFrames(ctx context.Context, s *session) (int64, error) {
	var busy, frames, checkpointed int64
	err := s.db.SQLDB().QueryRowContext(ctx, sqlite.MeasureWAL).Scan(&busy, &frames, &checkpointed)
	if err == nil {
		r.frames.Store(frames)
	}
	return frames, err
}

// WALTooLong reports whether the WAL is so long that no events may be accepted, because
// replication cannot keep up.
func (r *Replication) WALTooLong() bool { return r.frames.Load() > r.limits.reject }

// checkpointIdle checkpoints the WAL under low load, when the writer need not block for
// it. Under high load, throttle does it instead. before is the length of the WAL one
// monitor-interval ago; checkpointIdle returns the current length.
func (r *Replication) checkpointIdle(ctx context.Context, s *session, before int64) (int64, error) {
	frames, err := r.idleWALFrames(ctx, s)
	grown := frames - before
	if grown < 0 {
		grown = frames // SQLite has restarted the WAL
	}
	if err != nil || frames < sqlite.AutoCheckpointFrames || float64(grown) > busyFrames*r.cfg.MonitorInterval.Seconds() {
		return frames, err
	}
	// The next sync reports the error, unless a reader or writer caused it.
	_ = s.db.Checkpoint(ctx, litestream.CheckpointModePassive)
	return r.idleWALFrames(ctx, s)
}

// disableAutoCheckpoint leaves checkpoints to Litestream. It also creates Litestream's
// two tables, because Litestream would have to wait for the write lock under load. That
// write restarts the WAL if an earlier checkpoint allows it, so no later write does so
// before Litestream is open.
func (r *Replication) disableAutoCheckpoint() error {
	r.autoCheckpointOff.Store(true)
	r.autoCheckpoint.Store(false)
	return r.exec("PRAGMA wal_autocheckpoint = 0", seqTable, lockTable, seqStatement)
}

// Statements that create Litestream's tables.
const (
	seqTable  = "CREATE TABLE IF NOT EXISTS _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)"
	lockTable = "CREATE TABLE IF NOT EXISTS _litestream_lock (id INTEGER)"
)

// seqStatement makes a small write.
const seqStatement = "INSERT INTO _litestream_seq (id, seq) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET seq = seq + 1"

// exec executes statements in a write of the writer. It does nothing if the writer is
// closed.
func (r *Replication) exec(statements ...string) error {
	err := r.writer.Do(func(t *sqlite.Tx) error {
		for _, s := range statements {
			if err := t.Exec(s); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, sqlite.ErrClosed) {
		return nil
	}
	return err
}

// resetClosedWAL is resetWAL for a closed writer.
func (r *Replication) resetClosedWAL() error {
	db, err := sqlite.OpenWritable(r.path)
	if err != nil {
		return err
	}
	var busy, frames, checkpointed int64
	if err = db.QueryRow(sqlite.TruncateWAL).Scan(&busy, &frames, &checkpointed); err == nil && busy == 0 {
		_, err = db.Exec(seqTable + ";" + seqStatement)
	}
	r.truncate.Store(err != nil || busy != 0)
	return errors.Join(err, db.Close())
}

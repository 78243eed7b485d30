package replica

import (
	"context"
	"errors"
	"time"

	"github.com/benbjohnson/litestream"

	"service/store/sqlite"
)

const (
	// busyFrames is how fast the log grows under load, in frames a second.
	busyFrames = 2000
	// throttleInterval is the least time between two measurements of the log.
	throttleInterval = 20 * time.Millisecond
	// throttleRetry is the same after a sync that did not shorten the log, for
	// example because of a reader.
	throttleRetry = 250 * time.Millisecond
	// throttleTimeout is the longest time that a sync may block the writer.
	throttleTimeout = 2 * time.Second
)

const (
	// measureWAL returns the length of the log. It changes nothing.
	measureWAL = "PRAGMA wal_checkpoint(NOOP)"
	// truncateWAL checkpoints the log and truncates its file. It waits for
	// readers, and cannot run in a transaction.
	truncateWAL = "PRAGMA wal_checkpoint(TRUNCATE)"

	// shortBusyTimeout bounds how long the writer waits for readers of the log.
	shortBusyTimeout = "PRAGMA busy_timeout = 500"
	busyTimeout      = "PRAGMA busy_timeout = 10000"
)

// BeforeBatch keeps the write-ahead log short. It must be the writer's hook of
// that name, see [sqlite.Hooks]. Litestream needs a moment without writes for a
// checkpoint: when the log is too long BeforeBatch blocks the writer for one.
func (r *Replication) BeforeBatch(t *sqlite.Tx) {
	if r.truncate.Load() {
		var busy, frames, moved int64
		err := errors.Join(t.Exec(shortBusyTimeout), t.Scan(truncateWAL, nil, &busy, &frames, &moved), t.Exec(busyTimeout))
		r.truncate.Store(err != nil || busy != 0)
	}
	now := time.Now()
	if now.Sub(r.measured) < max(r.pause, throttleInterval) {
		return
	}
	r.measured, r.pause = now, 0
	r.throttle(t, now)
}

// throttle syncs on the writer's goroutine when the log is too long, and has it
// synced in the background shortly before that, so that less is left to do.
func (r *Replication) throttle(t *sqlite.Tx, now time.Time) {
	frames := r.walFrames(t)
	db := r.running.Load()
	nearly := frames > r.limits.throttle/8*7
	if nearly && !r.syncRequested && db != nil {
		select {
		case r.syncNow <- struct{}{}:
		default:
		}
	}
	r.syncRequested = nearly
	if frames < r.limits.throttle {
		return
	}
	if db == nil {
		// Without Litestream nobody else shortens the log. When it is open again it
		// copies the whole database.
		held := r.logHeld.Load() && frames < r.limits.abandon
		if !held && !r.autoCheckpoint.Load() && t.Exec("PRAGMA wal_autocheckpoint = 1000") == nil { // sqlite.AutoCheckpointFrames
			r.autoCheckpoint.Store(true)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), throttleTimeout)
	defer cancel()
	// syncWAL meets the same error, and reports it.
	if err := db.Sync(ctx); err == nil {
		r.copied.Store(&now)
	}
	if r.walFrames(t) >= r.limits.throttle {
		r.pause = throttleRetry
	}
	r.measured = time.Now()
}

// walFrames measures the length of the log on the writer's connection.
func (r *Replication) walFrames(t *sqlite.Tx) int64 {
	var busy, frames, moved int64
	if err := t.Scan(measureWAL, nil, &busy, &frames, &moved); err != nil {
		return r.frames.Load()
	}
	r.frames.Store(frames)
	return frames
}

// idleWALFrames measures the length of the log on Litestream's connection: the
// writer may be idle.
func (r *Replication) idleWALFrames(ctx context.Context, s *session) (int64, error) {
	var busy, frames, moved int64
	err := s.db.SQLDB().QueryRowContext(ctx, measureWAL).Scan(&busy, &frames, &moved)
	if err == nil {
		r.frames.Store(frames)
	}
	return frames, err
}

// WALTooLong reports whether the write-ahead log is so long that no event may be
// accepted: replication cannot keep up.
func (r *Replication) WALTooLong() bool { return r.frames.Load() > r.limits.reject }

// checkpointIdle checkpoints the log while there is little load, when a
// checkpoint needs no help by the writer. Under load Litestream would compete
// with the writer, and throttle has its turn. before is the length of the log a
// monitor-interval ago; the result is its length now.
func (r *Replication) checkpointIdle(ctx context.Context, s *session, before int64) (int64, error) {
	frames, err := r.idleWALFrames(ctx, s)
	grown := frames - before
	if grown < 0 {
		grown = frames // SQLite has restarted the log
	}
	if err != nil || frames < sqlite.AutoCheckpointFrames || float64(grown) > busyFrames*r.cfg.MonitorInterval.Seconds() {
		return frames, err
	}
	// The next sync meets the same error, unless it was a reader or a writer.
	_ = s.db.Checkpoint(ctx, litestream.CheckpointModePassive)
	return r.idleWALFrames(ctx, s)
}

// holdLog leaves checkpoints to Litestream, and creates its two tables:
// Litestream itself would have to wait for the write lock under load. After it
// this process does not begin the log again before Litestream is open: an earlier
// checkpoint may have allowed that to the next write, and that is its own.
func (r *Replication) holdLog() error {
	r.logHeld.Store(true)
	r.autoCheckpoint.Store(false)
	return r.exec("PRAGMA wal_autocheckpoint = 0", seqTable, lockTable, seqStatement)
}

// The statements that make Litestream's tables.
const (
	seqTable  = "CREATE TABLE IF NOT EXISTS _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)"
	lockTable = "CREATE TABLE IF NOT EXISTS _litestream_lock (id INTEGER)"
)

// seqStatement writes to the write-ahead log.
const seqStatement = "INSERT INTO _litestream_seq (id, seq) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET seq = seq + 1"

// exec executes statements in a transaction of the writer. It does nothing when
// the writer is closed.
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

// emptyClosedLog does what emptyLog does when the writer is closed.
func (r *Replication) emptyClosedLog() error {
	db, err := sqlite.OpenWritable(r.path)
	if err != nil {
		return err
	}
	var busy, frames, moved int64
	if err = db.QueryRow(truncateWAL).Scan(&busy, &frames, &moved); err == nil && busy == 0 {
		_, err = db.Exec(seqTable + ";" + seqStatement)
	}
	r.truncate.Store(err != nil || busy != 0)
	return errors.Join(err, db.Close())
}

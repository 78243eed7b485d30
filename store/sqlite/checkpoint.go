package sqlite

import (
	"errors"
	"time"
)

const (
	// MeasureWAL returns the length of the WAL. It changes nothing.
	MeasureWAL = "PRAGMA wal_checkpoint(NOOP)"
	// TruncateWAL checkpoints the WAL and truncates its file. It waits for readers
	// and cannot run in a transaction.
	TruncateWAL = "PRAGMA wal_checkpoint(TRUNCATE)"

	// shortBusyTimeout limits how long the writer waits for readers of the WAL.
	shortBusyTimeout = "PRAGMA busy_timeout = 500"
	busyTimeout      = "PRAGMA busy_timeout = 10000"
)

// WALFrames returns the length of the WAL in frames.
func (t *Tx) WALFrames() (frames int64, err error) {
	var busy, checkpointed int64
	err = t.Scan(MeasureWAL, nil, &busy, &frames, &checkpointed)
	return frames, err
}

// TruncateWAL truncates the WAL, outside of a transaction. It waits up to half a second for the
// reads that use the WAL, and reports whether it succeeded.
func (t *Tx) TruncateWAL() bool {
	var busy, frames, checkpointed int64
	err := errors.Join(t.Exec(shortBusyTimeout), t.Scan(TruncateWAL, nil, &busy, &frames, &checkpointed), t.Exec(busyTimeout))
	return err == nil && busy == 0
}

const (
	// maxWALFrames is the length of the WAL above which a WALLimit truncates it. It is above
	// AutoCheckpointFrames, at which SQLite restarts a WAL that no read uses.
	maxWALFrames = 16 << 10
	// walInterval is the time between two measurements of the WAL.
	walInterval = 20 * time.Millisecond
	// Pauses after the first read that did not end, and at most.
	minWALRetry, maxWALRetry = time.Second, time.Minute
)

// WALLimit bounds the WAL of a database that SQLite checkpoints. The automatic checkpoint waits for
// no read: while reads overlap, one of them always uses the WAL, which is never restarted. Above
// maxWALFrames the writer waits for those reads, while new ones use what was checkpointed.
type WALLimit struct {
	frames int64 // 0 for maxWALFrames
	next   time.Time
	pause  time.Duration // after the last failure, 0 after a success
}

// BeforeBatch is a hook of that name, see [Hooks].
func (l *WALLimit) BeforeBatch(t *Tx) {
	now := time.Now()
	if now.Before(l.next) {
		return
	}
	l.next = now.Add(walInterval)
	limit := l.frames
	if limit == 0 {
		limit = maxWALFrames
	}
	frames, err := t.WALFrames()
	switch {
	case err != nil || frames <= limit:
	case t.TruncateWAL():
		l.pause = 0
	default: // a long read, such as that of a backup
		l.pause = min(max(2*l.pause, minWALRetry), maxWALRetry)
		l.next = time.Now().Add(l.pause)
	}
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"service/internal/durable"
	"service/store/commits"
	"service/store/replica"
	"service/store/sqlite"
	"service/webhook"
)

// ReplicaState is the state of the replica.
type ReplicaState = replica.State

// The states of the replica.
const (
	ReplicaOff     ReplicaState = "off" // no replica is configured
	ReplicaOpening              = replica.StateOpening
	ReplicaRunning              = replica.StateRunning
	ReplicaFailing              = replica.StateFailing
)

// ReplicaStatus is the status of the replica.
type ReplicaStatus = replica.Status

// Status returns the status of the replica. It does no I/O.
func (s Replica) Status() ReplicaStatus {
	if s.replication == nil {
		return ReplicaStatus{State: ReplicaOff}
	}
	return s.replication.Status()
}

// Run keeps the replica up to date until ctx ends, and retries after failures. It always
// returns nil. [Store.Close] uploads the last changes.
func (s Replica) Run(ctx context.Context) error {
	if s.replication != nil {
		s.replication.Run(ctx)
	}
	return nil
}

// beforeBatch is the hook [sqlite.Hooks].BeforeBatch.
func (s *core) beforeBatch(t *sqlite.Tx) {
	truncate := s.truncate.Load()
	if s.replication != nil {
		s.replication.BeforeBatch(t)
		s.truncate.Store(truncate && !s.replication.TruncateWAL(t))
	} else {
		s.walLimit.BeforeBatch(t)
		s.truncate.Store(truncate && !t.TruncateWAL())
	}
}

// truncateWAL removes from the WAL what was overwritten in the database, and reports whether it
// could: not while a long read uses the WAL.
func (s *core) truncateWAL() bool {
	for range 2 {
		s.truncate.Store(true)
		err := s.writer.do(func(*tx) error { return nil })
		if !s.truncate.Swap(false) && err == nil {
			return true
		}
	}
	return false
}

// rejectLongWAL returns an error for publishers while the WAL is too long.
func (s *core) rejectLongWAL() error {
	if s.replication != nil && s.replication.WALTooLong() {
		return webhook.NewError(webhook.CodeUnavailable,
			"The write-ahead log of the service is too long, because replication cannot keep up. Events are rejected until it is shorter. Try "+
				"again later.")
	}
	return nil
}

// Restored is the result of a restore from a replica.
type Restored struct {
	From    string    // location of the replica without secrets
	State   time.Time // when the newest restored change was copied
	Bytes   int64     // size of the database
	Damaged []string  // damaged objects of the replica whose changes were restored from others
}

// FromReplica adds the database of a replica to the files to restore: its newest state, or
// unless at is zero the newest before at. It checks the database, and marks it so that
// deliveries can be held. The error wraps [replica.ErrEmpty] if the replica has no such state.
func (r *Restoration) FromReplica(ctx context.Context, from *replica.Config, at time.Time) (Restored, error) {
	return restoreReplica(ctx, from, at, filepath.Join(r.Dir(), databaseFile), r.pause())
}

// restoreReplica writes a state of a replica to a file at path, checks it and marks it. After an
// error there is no file.
func restoreReplica(ctx context.Context, from *replica.Config, at time.Time, path string, pause pauseMark) (y Restored, err error) {
	y.From = from.Target()
	found, err := replica.Restore(ctx, from, path, at)
	y.State, y.Damaged = found.State, found.Damaged
	if err == nil {
		err = markRestored(ctx, path, found.Origin, newMark(y.From, y.State), markOptions{pause: pause})
	}
	var info fs.FileInfo
	if err == nil {
		info, err = os.Stat(path)
	}
	if err != nil {
		return y, errors.Join(fmt.Errorf("restore from %s: %w", y.From, err), replica.RemoveDatabase(path))
	}
	y.Bytes = info.Size()
	return y, nil
}

// restoredMark is stored in a database that service restore restored, until its deliveries are
// released.
type restoredMark struct {
	At    time.Time `json:"at"`
	State time.Time `json:"state"`
	From  string    `json:"from"`
}

func newMark(from string, state time.Time) restoredMark {
	return restoredMark{At: time.Now().UTC(), State: state, From: from}
}

const (
	restoredSetting = "restored"
	// newestSetting marks data that was restored as the newest, whatever lease it was written
	// under. The first write under a new lease removes it, see fence.
	newestSetting = "restored_newest"

	setSetting = "INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value"
)

// markOptions are options of markRestored.
type markOptions struct {
	takeover bool // neither check every page nor mark the data as the newest: the lease says so
	pause    pauseMark
}

// pauseMark says what becomes of the pause of deliveries.
type pauseMark int

const (
	pauseStays  pauseMark = iota // that of the data, if it has one
	pauseBegins                  // until the operator releases it
	pauseEnds
)

// pause returns what a restore does.
func (r *Restoration) pause() pauseMark {
	if r.SendAtOnce {
		return pauseEnds
	}
	return pauseBegins
}

// setMarks stores the marks of a restored database.
func setMarks(ctx context.Context, mark restoredMark, newest bool, pause pauseMark,
	exec func(ctx context.Context, query string, args ...any) (sql.Result, error),
) error {
	text, err := json.Marshal(mark)
	if err != nil {
		return err
	}
	values := map[string][]byte{continuedSetting: []byte(mark.From)}
	if newest {
		values[newestSetting] = text
	}
	switch pause {
	case pauseBegins:
		values[restoredSetting] = text
	case pauseEnds:
		if _, err := exec(ctx, "DELETE FROM settings WHERE name = '"+restoredSetting+"'"); err != nil {
			return err
		}
	}
	for name, value := range values {
		if _, err := exec(ctx, setSetting, name, value); err != nil {
			return err
		}
	}
	return nil
}

// markRestored checks the schema of a restored database, and stores mark in it. No process may
// have the database open. Afterwards its WAL and Litestream's directory next to it belong to it,
// see [replica.Origin.Continue].
func markRestored(ctx context.Context, path string, origin replica.Origin, mark restoredMark, o markOptions) error {
	err := sqlite.WriteToWAL(ctx, path, func(conn *sql.Conn) error {
		if !o.takeover {
			var found string
			if err := conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found); err != nil {
				return fmt.Errorf("%w: the restored database: %w", ErrDamaged, err)
			} else if found != "ok" {
				return fmt.Errorf("%w: the restored database: %s", ErrDamaged, found)
			}
		}
		var have int
		if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
			return err
		}
		if err := schema.Check("the restored database", have); err != nil {
			return err
		}
		return setMarks(ctx, mark, !o.takeover, o.pause, conn.ExecContext)
	})
	if err != nil {
		return err
	}
	return origin.Continue(path)
}

// restoreMissing restores a missing database from the replica if the replica has one. It fails
// if the replica is not reachable, since otherwise an empty database would be uploaded as a
// newer state.
func restoreMissing(ctx context.Context, cfg *Config) error {
	path := filepath.Join(cfg.Dir, databaseFile)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := commits.CheckOrphaned(filepath.Join(cfg.Dir, databaseFile)); err != nil {
		return err
	}
	if err := replica.RemoveDatabase(path); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(cfg.Dir, commitsFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if cfg.Replica == nil {
		return nil
	}
	if cfg.Logger != nil {
		cfg.Logger.Info("no local database; looking for a copy in the replica", "replica", cfg.Replica.Target())
	}
	fresh := path + durable.TempSuffix + "restored"
	y, err := restoreReplica(ctx, cfg.Replica, time.Time{}, fresh, pauseStays)
	switch {
	case errors.Is(err, replica.ErrEmpty):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the restore from %s was interrupted; the next start begins it again: %w", cfg.Replica.Target(), context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("there is no database in %s, and it cannot be restored from the replica: %w (to begin with an empty one, start "+
			"once without the replica)",
			cfg.Dir, err)
	}
	if _, err := durable.SyncFile(fresh); err != nil {
		return err
	}
	if err := replica.MoveDatabase(fresh, path); err != nil {
		return err
	}
	if cfg.Logger != nil {
		for _, d := range y.Damaged {
			cfg.Logger.Warn("damaged object in the replica; restored its changes from other objects", "replica", y.From, "error", d)
		}
		cfg.Logger.Warn("restored the missing database from the replica", "from", y.From, "state", webhook.FormatTime(y.State), "bytes", y.Bytes)
	}
	return nil
}

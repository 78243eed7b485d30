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
	"service/store/replica"
	"service/store/sqlite"
	"service/webhook"
)

// ReplicaState is the state of the replica.
type ReplicaState string

// The states of the replica.
const (
	ReplicaOff     ReplicaState = "off" // no replica is configured
	ReplicaOpening              = ReplicaState(replica.StateOpening)
	ReplicaRunning              = ReplicaState(replica.StateRunning)
	ReplicaFailing              = ReplicaState(replica.StateFailing)
)

// ReplicaStatus says how well the replica follows the database, see
// [replica.Status].
type ReplicaStatus struct {
	State       ReplicaState
	Target      string        // location of the replica without secrets; "" when it is off
	Lag         time.Duration // largest possible age of the oldest change that is not in the replica
	LastSuccess time.Time     // when the replica was last known to have every noticed change; zero for never
	Err         string        // why it fails; for admins
	// Term, TermPath and TermComplete are those of [replica.Status].
	Term         int64
	TermPath     string
	TermComplete bool
	// AcknowledgeTimeout is how long a write waits to be in the replica before it is
	// acknowledged; 0: it is acknowledged once it is on the local disk.
	AcknowledgeTimeout time.Duration
	// VerifyInterval is the time between two comparisons with the database, by
	// content; 0: there are none. Verified is the result of the last.
	VerifyInterval time.Duration
	Verified       ReplicaVerification
}

// Replica returns the status of the replica. It does no I/O.
func (s *Store) Replica() ReplicaStatus {
	if s.replication == nil {
		return ReplicaStatus{State: ReplicaOff}
	}
	y := s.replication.Status()
	return ReplicaStatus{ReplicaState(y.State), y.Target, y.Lag, y.LastSuccess, y.Err, y.Term, y.TermPath, y.TermComplete, y.AcknowledgeTimeout, y.VerifyInterval, y.Verified}
}

// Replicate keeps the replica up to date until ctx ends. It returns nil: a
// replica that fails is retried, and blocks nothing else. [Store.Close] brings it
// up to date a last time.
func (s *Store) Replicate(ctx context.Context) error {
	if s.replication != nil {
		s.replication.Run(ctx)
	}
	return nil
}

// beforeBatch is the hook [sqlite.Hooks].BeforeBatch.
func (s *core) beforeBatch(t *sqlite.Tx) {
	if s.replication != nil {
		s.replication.BeforeBatch(t)
	}
}

// rejectLongWAL returns an error for publishers while the write-ahead log is too
// long.
func (s *core) rejectLongWAL() error {
	if s.replication != nil && s.replication.WALTooLong() {
		return webhook.NewError(webhook.CodeUnavailable, "The write-ahead log of the service is too long, since its copying cannot keep up: no event is accepted until it is shorter. Try again later.")
	}
	return nil
}

// Restored is the result of a restore from a replica.
type Restored struct {
	From    string    // the replica, without secrets
	State   time.Time // when the newest change of it was copied
	Bytes   int64     // size of the database
	Damaged []string  // objects of the replica that are damaged; others hold the same changes
}

// FromReplica puts the database of a replica among the files to be restored: its
// newest state, or unless at is zero the newest before at. It is checked, and
// marked so that deliveries can be held. The error wraps [replica.ErrEmpty] when
// there is none.
func (r *Restoration) FromReplica(ctx context.Context, from *replica.Config, at time.Time) (Restored, error) {
	return restoreReplica(ctx, from, at, filepath.Join(r.Dir(), databaseFile))
}

// restoreReplica writes a state of a replica to a file at path, checks and marks
// it. After an error there is no file.
func restoreReplica(ctx context.Context, from *replica.Config, at time.Time, path string) (y Restored, err error) {
	y.From = from.Target()
	found, err := replica.Restore(ctx, from, path, at)
	y.State, y.Damaged = found.State, found.Damaged
	if err == nil {
		err = markRestored(ctx, path, found.Origin, restoredMark{At: time.Now().UTC(), State: y.State, From: y.From}, true)
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

// restoredMark is kept in a restored database until its deliveries are sent.
type restoredMark struct {
	At    time.Time `json:"at"`
	State time.Time `json:"state"`
	From  string    `json:"from"`
}

const restoredSetting = "restored"

// markRestored stores mark in a database that was restored to a position of a
// replica, after it has checked the schema, and with check every page. No process
// may have the database open. When markRestored returns it is closed; its
// write-ahead log and Litestream's directory beside it belong to it, see
// [replica.Origin.Continue].
func markRestored(ctx context.Context, path string, origin replica.Origin, mark restoredMark, check bool) error {
	text, err := json.Marshal(mark)
	if err != nil {
		return err
	}
	newest, err := sqlite.NewestSchema(migrations)
	if err != nil {
		return err
	}
	err = sqlite.WriteToWAL(ctx, path, func(conn *sql.Conn) error {
		if check {
			var found string
			if err := conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found); err != nil {
				return fmt.Errorf("%w: what was restored: %w", ErrDamaged, err)
			} else if found != "ok" {
				return fmt.Errorf("%w: what was restored: %s", ErrDamaged, found)
			}
		}
		var have int
		if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
			return err
		}
		switch {
		case have > newest:
			return fmt.Errorf("what was restored has schema %d, and this binary knows schemas up to %d: use a newer binary", have, newest)
		case have == 0:
			return errors.New("what was restored is not a database of the service")
		}
		_, err := conn.ExecContext(ctx, "INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2", restoredSetting, text)
		return err
	})
	if err != nil {
		return err
	}
	return origin.Continue(path)
}

// restoreMissing restores a missing database from the replica, when there is one
// that has it. A replica that cannot be reached is an error: an empty database
// would be uploaded as a newer state than the one that it may have.
func restoreMissing(ctx context.Context, cfg *Config) error {
	path := filepath.Join(cfg.Dir, databaseFile)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
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
	if cfg.BeforeRestore != nil {
		if err := cfg.BeforeRestore(ctx); err != nil {
			return err
		}
	}
	if cfg.Logger != nil {
		cfg.Logger.Info("there is no database: it is restored if the replica has one, which takes as long as the copying of it", "replica", cfg.Replica.Target())
	}
	fresh := path + durable.TempSuffix + "restored"
	y, err := restoreReplica(ctx, cfg.Replica, time.Time{}, fresh)
	switch {
	case errors.Is(err, replica.ErrEmpty):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the restoration from %s was cut off; the next start begins it anew: %w", cfg.Replica.Target(), context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("there is no database in %s, and the one that the replica may have cannot be fetched: %w (to begin with an empty one all the same, start once without the replica)", cfg.Dir, err)
	}
	if _, err := durable.SyncFile(fresh); err != nil {
		return err
	}
	if err := replica.MoveDatabase(fresh, path); err != nil {
		return err
	}
	if cfg.Logger != nil {
		for _, d := range y.Damaged {
			cfg.Logger.Warn("an object of the replica is damaged; its changes were restored from others", "replica", y.From, "error", d)
		}
		cfg.Logger.Warn("there was no database: it is restored", "from", y.From, "state", webhook.FormatTime(y.State), "bytes", y.Bytes)
	}
	return nil
}

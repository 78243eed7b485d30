package datadir

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"service/internal/durable"
	"service/store/commits"
	"service/store/replica"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

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
	return restoreReplica(ctx, from, at, filepath.Join(r.Dir(), Database), r.pause())
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

// RestoreMark is stored in a database that service restore restored, until its deliveries are
// released.
type RestoreMark struct {
	At    time.Time `json:"at"`
	State time.Time `json:"state"`
	From  string    `json:"from"`
}

func newMark(from string, state time.Time) RestoreMark {
	return RestoreMark{At: time.Now().UTC(), State: state, From: from}
}

// markOptions are options of markRestored.
type markOptions struct {
	takeover bool // neither check every page nor mark the data as the newest: the lease proves that
	pause    pauseMark
}

// pauseMark is the effect of a restore on the pause of deliveries.
type pauseMark int

const (
	pauseStays  pauseMark = iota // any pause in the data stays
	pauseBegins                  // until the operator releases it
	pauseEnds
)

// pause returns the effect of this restore on the pause.
func (r *Restoration) pause() pauseMark {
	if r.SendAtOnce {
		return pauseEnds
	}
	return pauseBegins
}

// setMarks stores the marks of a restored database, and begins an epoch of its logs.
func setMarks(ctx context.Context, mark RestoreMark, newest bool, pause pauseMark,
	exec func(ctx context.Context, query string, args ...any) (sql.Result, error),
) error {
	text, err := json.Marshal(mark)
	if err != nil {
		return err
	}
	values := map[string][]byte{schema.Continued: []byte(mark.From)}
	if newest {
		values[schema.RestoredNewest] = text
	}
	switch pause {
	case pauseBegins:
		values[schema.Restored] = text
	case pauseEnds:
		if _, err := exec(ctx, "DELETE FROM settings WHERE name = '"+schema.Restored+"'"); err != nil {
			return err
		}
	}
	for name, value := range values {
		if _, err := exec(ctx, schema.Set, name, value); err != nil {
			return err
		}
	}
	for _, query := range [...]string{schema.BeginEpochs, schema.DropEpochs} {
		if _, err := exec(ctx, query, nil); err != nil {
			return err
		}
	}
	return nil
}

// markRestored checks the schema of a restored database, and stores mark in it. No process may
// have the database open. Afterwards its WAL and Litestream's directory next to it belong to it,
// see [replica.Origin.Continue].
func markRestored(ctx context.Context, path string, origin replica.Origin, mark RestoreMark, o markOptions) error {
	err := sqlite.WriteToWAL(ctx, path, func(conn *sql.Conn) error {
		if !o.takeover {
			var found string
			if err := conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found); err != nil {
				return fmt.Errorf("%w: the restored database: %w", sqlite.ErrDamaged, err)
			} else if found != "ok" {
				return fmt.Errorf("%w: the restored database: %s", sqlite.ErrDamaged, found)
			}
		}
		var have int
		if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
			return err
		}
		if err := schema.Current.Check("the restored database", have); err != nil {
			return err
		}
		return setMarks(ctx, mark, !o.takeover, o.pause, conn.ExecContext)
	})
	if err != nil {
		return err
	}
	return origin.Continue(path)
}

// RestoreMissing restores a missing database from the replica if the replica contains one. It
// fails if the replica is unreachable, since an empty database would otherwise be uploaded as a
// newer state.
func RestoreMissing(ctx context.Context, dir string, cfg *replica.Config, logger *slog.Logger) error {
	path := filepath.Join(dir, Database)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := commits.CheckOrphaned(path); err != nil {
		return err
	}
	if err := replica.RemoveDatabase(path); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, Commits)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if cfg == nil {
		return nil
	}
	logger.Info("no local database; looking for a copy in the replica", "replica", cfg.Target())
	fresh := path + durable.TempSuffix + "restored"
	y, err := restoreReplica(ctx, cfg, time.Time{}, fresh, pauseStays)
	switch {
	case errors.Is(err, replica.ErrEmpty):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the restore from %s was interrupted; the next start begins it again: %w", cfg.Target(), context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("there is no database in %s, and it cannot be restored from the replica: %w (to begin with an empty one, start "+
			"once without the replica)",
			dir, err)
	}
	if _, err := durable.SyncFile(fresh); err != nil {
		return err
	}
	if err := replica.MoveDatabase(fresh, path); err != nil {
		return err
	}
	for _, d := range y.Damaged {
		logger.Warn("damaged object in the replica; restored its changes from other objects", "replica", y.From, "error", d)
	}
	logger.Warn("restored the missing database from the replica", "from", y.From, "state", webhook.FormatTime(y.State), "bytes", y.Bytes)
	return nil
}

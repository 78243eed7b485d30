package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/internal/durable"
	"service/webhook"
)

// ErrNoReplica says that there is nothing to restore from: the replica is empty,
// or has nothing from before the time that was asked for.
var ErrNoReplica = errors.New("nothing to restore")

// Restored says what was restored from a replica.
type Restored struct {
	From  string    // the replica, without secrets
	State time.Time // when the newest change of it was copied
	Bytes int64     // size of the database
}

// FromReplica puts the database of a replica among the files to be restored: its
// newest state, or unless at is zero the newest before at. It is checked, and
// marked so that deliveries can be held. The error wraps [ErrNoReplica] when
// there is none.
func (r *Restoration) FromReplica(ctx context.Context, from *ReplicaConfig, at time.Time) (Restored, error) {
	return restoreReplica(ctx, from, at, filepath.Join(r.Dir(), databaseFile))
}

// restoreReplica makes a file of a replica's state. When it fails nothing is left
// of it.
func restoreReplica(ctx context.Context, from *ReplicaConfig, at time.Time, path string) (y Restored, err error) {
	y.From = from.Target()
	if y.State, _, err = fetch(ctx, from, path, at); err == nil {
		err = prepare(ctx, path, restoredMark{At: time.Now().UTC(), State: y.State, From: y.From}, true)
	}
	var info fs.FileInfo
	if err == nil {
		info, err = os.Stat(path)
	}
	if err != nil {
		return y, errors.Join(fmt.Errorf("restore from %s: %w", y.From, err), removeDatabase(path))
	}
	y.Bytes = info.Size()
	return y, nil
}

// removeDatabase removes a database's file and what SQLite and Litestream keep
// beside it.
func removeDatabase(path string) error {
	var errs []error
	for _, end := range []string{"-wal", "-shm", "-journal", ""} {
		if err := os.Remove(path + end); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(metaPath(path)))
	return errors.Join(errs...)
}

// metaPath is the folder that Litestream keeps beside a database.
func metaPath(path string) string { return litestream.NewDB(path).MetaPath() }

// fetch writes the replica's newest state before at to a new file, and returns
// when that state was copied, and its number.
func fetch(ctx context.Context, from *ReplicaConfig, path string, at time.Time) (time.Time, ltx.TXID, error) {
	client, err := from.replica.client(nil)
	if err != nil {
		return time.Time{}, 0, err
	}
	replica := litestream.NewReplicaWithClient(nil, client)
	quiet := slog.New(slog.DiscardHandler)
	client.SetLogger(quiet)
	asking, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if err := client.Init(asking); err != nil {
		return time.Time{}, 0, err
	}
	// The times of all changes are asked for when one is looked for.
	plan, err := litestream.CalcRestorePlan(ctx, client, 0, at, quiet)
	switch {
	case errors.Is(err, litestream.ErrTxNotAvailable) && at.IsZero():
		return time.Time{}, 0, fmt.Errorf("%w: the replica is empty", ErrNoReplica)
	case errors.Is(err, litestream.ErrTxNotAvailable):
		return time.Time{}, 0, fmt.Errorf("%w: the replica has nothing from before %s", ErrNoReplica, webhook.FormatTime(at))
	case err != nil:
		return time.Time{}, 0, err
	}
	newest := plan[len(plan)-1]
	o := litestream.NewRestoreOptions()
	o.OutputPath = path
	// What comes into the replica meanwhile is left for the next time, so that
	// the state is the one that is told of.
	o.TXID = newest.MaxTXID
	if err := replica.Restore(ctx, o); err != nil {
		return time.Time{}, 0, err
	}
	return newest.CreatedAt, newest.MaxTXID, os.Chmod(path, 0o600)
}

// restoredMark is kept in a restored database until its deliveries are sent.
type restoredMark struct {
	At    time.Time `json:"at"`
	State time.Time `json:"state"`
	From  string    `json:"from"`
}

const restoredSetting = "restored"

// prepare marks a database that was restored as such, and unless it is known to
// be whole checks it first. It must not
// be open anywhere, and is closed when prepare returns, without a log.
func prepare(ctx context.Context, path string, mark restoredMark, check bool) (err error) {
	text, err := json.Marshal(mark)
	if err != nil {
		return err
	}
	db, err := openDB(path, false, writerPragmas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	if check {
		var found string
		if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found); err != nil {
			return fmt.Errorf("%w: what was restored: %w", ErrDamaged, err)
		} else if found != "ok" {
			return fmt.Errorf("%w: what was restored: %s", ErrDamaged, found)
		}
	}
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	var have int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return err
	}
	switch {
	case have > len(files):
		return fmt.Errorf("what was restored has schema %d, and this binary knows schemas up to %d: use a newer binary", have, len(files))
	case have == 0:
		return errors.New("what was restored is not a database of the service")
	}
	_, err = db.ExecContext(ctx, "INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2", restoredSetting, text)
	return err
}

// restoreMissing restores a database that is not there, when there is a replica
// that has one. A replica that cannot be asked is an error: to begin with an
// empty database, and to copy that, would put it before the one that may be there.
func restoreMissing(ctx context.Context, cfg *Config) error {
	path := filepath.Join(cfg.Dir, databaseFile)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := removeDatabase(path); err != nil {
		return err
	}
	if cfg.Replica == nil {
		return nil
	}
	if cfg.Logger != nil {
		cfg.Logger.Info("there is no database: it is restored if the replica has one, which takes as long as the copying of it", "replica", cfg.Replica.Target())
	}
	fresh := path + durable.TempSuffix + "restored"
	y, err := restoreReplica(ctx, cfg.Replica, time.Time{}, fresh)
	switch {
	case errors.Is(err, ErrNoReplica):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the restoration from %s was cut off; the next start begins it anew: %w", cfg.Replica.Target(), context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("there is no database in %s, and the one that the replica may have cannot be fetched: %w (to begin with an empty one all the same, start once without the replica)", cfg.Dir, err)
	}
	if _, err := durable.SyncFile(fresh); err != nil {
		return err
	}
	if err := durable.Rename(fresh, path); err != nil {
		return err
	}
	if cfg.Logger != nil {
		cfg.Logger.Warn("there was no database: it is restored", "from", y.From, "state", webhook.FormatTime(y.State), "bytes", y.Bytes)
	}
	return nil
}

package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/benbjohnson/litestream"

	"service/internal/durable"
	"service/webhook"
)

// requestTimeout bounds one request to a replica.
const requestTimeout = 15 * time.Second

// ErrEmpty says that there is nothing to restore from: the replica is empty, or
// has nothing from before the time that was asked for.
var ErrEmpty = errors.New("nothing to restore")

// Result is what a restore has found.
type Result struct {
	Origin  Origin
	State   time.Time // of the newest change
	Damaged []string  // objects that are damaged; the state was restored from others
}

// Restore writes the replica's newest state, or unless at is zero the newest
// before at, to a new file at path. Objects of the replica that are damaged are
// left out when others hold the same changes; otherwise the error names them, and
// what can be restored instead. The error wraps [ErrEmpty] when there is no such
// state. After an error the caller removes what is at path, see [RemoveDatabase].
func Restore(ctx context.Context, from *Config, path string, at time.Time) (Result, error) {
	source, err := openSourceAt(ctx, from, at)
	if err != nil {
		return Result{}, err
	}
	newest, damaged, err := restoreFrom(ctx, source.client, path, at)
	if errors.As(err, new(*unreachableError)) && at.IsZero() && source.term.Complete && source.term.Number > 0 {
		// What was copied into the term may be intact in the one that it continues.
		if older, openErr := openSource(ctx, from, true); openErr == nil {
			newest, damaged, err = restoreFrom(ctx, older.client, path, at)
		}
	}
	switch {
	case errors.Is(err, litestream.ErrTxNotAvailable) && at.IsZero():
		return Result{}, fmt.Errorf("%w: the replica is empty", ErrEmpty)
	case errors.Is(err, litestream.ErrTxNotAvailable):
		return Result{}, fmt.Errorf("%w: the replica has nothing from before %s", ErrEmpty, webhook.FormatTime(at))
	case err != nil:
		return Result{}, err
	}
	return Result{Origin{from.Target(), source.term, newest.MaxTXID}, newest.CreatedAt, damaged}, nil
}

// termSource is the files of a term to restore from.
type termSource struct {
	at     location
	term   term
	client *termClient
}

// openSource opens the current term of a replica. With history it also has what
// only older states need.
func openSource(ctx context.Context, cfg *Config, history bool) (termSource, error) {
	return openTermOf(ctx, cfg, history, newestTerm)
}

// openSourceAt opens the term that was the current one at a time, with its history:
// a later term may continue an older position than that term had then. The zero
// time stands for now.
func openSourceAt(ctx context.Context, cfg *Config, when time.Time) (termSource, error) {
	if when.IsZero() {
		return openSource(ctx, cfg, false)
	}
	return openTermOf(ctx, cfg, true, func(ctx context.Context, at location) (term, error) { return termAt(ctx, at, when) })
}

// openTermOf opens the term of a replica that find returns.
func openTermOf(ctx context.Context, cfg *Config, history bool, find func(context.Context, location) (term, error)) (s termSource, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if s.at, err = cfg.location(ctx); err != nil {
		return s, err
	}
	if s.term, err = find(ctx, s.at); err != nil {
		return s, err
	}
	if s.client, err = openTerm(ctx, s.at, s.term, history); err != nil {
		return s, err
	}
	return s, s.client.Init(ctx)
}

// Newest returns the time of the newest change in a replica. The error wraps
// [ErrEmpty] when there is none.
func Newest(ctx context.Context, cfg *Config) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	source, err := openSource(ctx, cfg, false)
	if err != nil {
		return time.Time{}, err
	}
	plan, err := litestream.CalcRestorePlan(ctx, source.client, 0, noTime, quiet)
	if errors.Is(err, litestream.ErrTxNotAvailable) {
		return time.Time{}, ErrEmpty
	} else if err != nil {
		return time.Time{}, err
	}
	return plan[len(plan)-1].CreatedAt, nil
}

// RemoveDatabase removes the database at path, if there is one, with the files that
// SQLite and Litestream keep beside it. No process may have it open.
func RemoveDatabase(path string) error {
	var errs []error
	for _, suffix := range []string{"-wal", "-shm", "-journal", ""} {
		if err := os.Remove(path + suffix); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(metaPath(path)))
	return errors.Join(errs...)
}

// MoveDatabase renames a database that no process has open, with its write-ahead
// log and Litestream's directory beside it, to a name in the same directory at
// which there is none. A crash may leave parts, but no database without its log.
func MoveDatabase(from, to string) error {
	for _, names := range [][2]string{{from + "-wal", to + "-wal"}, {metaPath(from), metaPath(to)}} {
		if err := os.Rename(names[0], names[1]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := durable.SyncDir(filepath.Dir(to)); err != nil {
		return err
	}
	return durable.Rename(from, to)
}

// metaPath returns the directory that Litestream keeps beside a database.
func metaPath(path string) string { return litestream.NewDB(path).MetaPath() }

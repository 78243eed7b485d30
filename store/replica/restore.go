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

// requestTimeout is the timeout of a request to a replica.
const requestTimeout = 15 * time.Second

// ErrEmpty means that the replica is empty, or has no state before the requested time.
var ErrEmpty = errors.New("nothing to restore")

// Result is the result of a restore.
type Result struct {
	Origin  Origin
	State   time.Time // time of the newest change
	Damaged []string  // damaged objects that were replaced by others
}

// Restore writes the newest state of the replica to a new file at path, or the newest state
// before at unless at is zero. It replaces damaged objects by others with the same changes;
// if there are none, the error names the damaged objects and what can be restored instead.
// The error wraps [ErrEmpty] if there is no such state. After an error the caller must
// delete the file, see [RemoveDatabase].
func Restore(ctx context.Context, from *Config, path string, at time.Time) (Result, error) {
	source, err := openSource(ctx, from, at, false)
	if err != nil {
		return Result{}, err
	}
	newest, damaged, err := restoreFrom(ctx, source.client, path, at)
	if errors.As(err, new(*unreachableError)) && at.IsZero() && source.term.Complete {
		// Objects that were copied into the term may be intact in the earlier term.
		if older, openErr := openSource(ctx, from, noTime, true); openErr == nil {
			newest, damaged, err = restoreFrom(ctx, older.client, path, at)
		}
	}
	if errors.Is(err, litestream.ErrTxNotAvailable) {
		return Result{}, emptyError(at)
	} else if err != nil {
		return Result{}, err
	}
	return Result{Origin{from.Target(), source.term, newest.MaxTXID}, newest.CreatedAt, damaged}, nil
}

// emptyError returns the error for a replica without a state before a time, or without any state
// if the time is zero.
func emptyError(at time.Time) error {
	if at.IsZero() {
		return fmt.Errorf("%w: the replica is empty", ErrEmpty)
	}
	return fmt.Errorf("%w: the replica has no state before %s", ErrEmpty, webhook.FormatTime(at))
}

// termSource is a term to restore from.
type termSource struct {
	at     location
	term   term
	client *termClient
}

// openSource opens the term of a replica that was current at a time, or the term at whose own path
// the replica is. The state at that time may not be part of a later term, which may continue an older
// position. A zero time means now. With history, which a time implies, the client includes the files
// that only older states need. The error wraps [ErrEmpty] if there is no term.
func openSource(ctx context.Context, cfg *Config, when time.Time, history bool) (s termSource, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if s.at, err = cfg.location(ctx); err != nil {
		return s, err
	}
	switch s.term, err = termAt(ctx, s.at, when); {
	case errors.Is(err, errTermPath):
		var plain litestream.ReplicaClient
		if plain, err = s.at.client(0); err == nil {
			s.client = &termClient{ReplicaClient: plain}
		}
	case err == nil && s.term.none():
		err = emptyError(when)
	case err == nil:
		s.client, err = openTerm(ctx, s.at, s.term, history || !when.IsZero())
	}
	if err != nil {
		return s, err
	}
	return s, s.client.Init(ctx)
}

// Newest returns the time of the newest change in a replica. The error wraps [ErrEmpty] if
// the replica is empty.
func Newest(ctx context.Context, cfg *Config) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	source, err := openSource(ctx, cfg, noTime, false)
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

// RemoveDatabase deletes the database at path, if it exists, and the files of SQLite and
// Litestream next to it. No process may have it open.
func RemoveDatabase(path string) error {
	var errs []error
	for _, suffix := range []string{"-wal", "-shm", "-journal", ""} {
		errs = append(errs, ignoreNoFile(os.Remove(path+suffix)))
	}
	errs = append(errs, os.RemoveAll(metaPath(path)))
	return errors.Join(errs...)
}

// MoveDatabase renames a database, its WAL and Litestream's directory to a new name in the
// same directory. No process may have the database open, and the new name must be unused. A
// crash may leave some of the files under the new name, but never a database without its
// WAL.
func MoveDatabase(from, to string) error {
	for _, names := range [][2]string{{from + "-wal", to + "-wal"}, {metaPath(from), metaPath(to)}} {
		if err := ignoreNoFile(os.Rename(names[0], names[1])); err != nil {
			return err
		}
	}
	if err := durable.SyncDir(filepath.Dir(to)); err != nil {
		return err
	}
	return durable.Rename(from, to)
}

// metaPath returns Litestream's directory for a database, which is next to it.
func metaPath(path string) string { return litestream.NewDB(path).MetaPath() }

package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/webhook"
)

// requestTimeout bounds one request to a replica.
const requestTimeout = 15 * time.Second

// ErrEmpty says that there is nothing to restore from: the replica is empty, or
// has nothing from before the time that was asked for.
var ErrEmpty = errors.New("nothing to restore")

// Result is what a restore has found.
type Result struct {
	State   time.Time // of the newest change
	Damaged []string  // objects that are damaged; the state was restored from others
}

// Restore writes the replica's newest state, or unless at is zero the newest
// before at, to a new file at path. Objects of the replica that are damaged are
// left out when others hold the same changes; otherwise the error names them, and
// what can be restored instead. The error wraps [ErrEmpty] when there is no such
// state. After an error the caller removes what is at path, see [RemoveDatabase].
func Restore(ctx context.Context, from *Config, path string, at time.Time) (Result, error) {
	newest, damaged, err := restore(ctx, from, path, at)
	if err != nil {
		return Result{}, err
	}
	return Result{newest.CreatedAt, damaged}, nil
}

// restore is [Restore]; it returns the newest change.
func restore(ctx context.Context, from *Config, path string, at time.Time) (*ltx.FileInfo, []string, error) {
	client, err := restoreClient(ctx, from)
	if err != nil {
		return nil, nil, err
	}
	newest, damaged, err := restoreFrom(ctx, client, path, at)
	switch {
	case errors.Is(err, litestream.ErrTxNotAvailable) && at.IsZero():
		return nil, nil, fmt.Errorf("%w: the replica is empty", ErrEmpty)
	case errors.Is(err, litestream.ErrTxNotAvailable):
		return nil, nil, fmt.Errorf("%w: the replica has nothing from before %s", ErrEmpty, webhook.FormatTime(at))
	}
	return newest, damaged, err
}

// restoreClient returns a client of the replica that is connected.
func restoreClient(ctx context.Context, from *Config) (litestream.ReplicaClient, error) {
	client, err := from.settings.newClient(nil)
	if err != nil {
		return nil, err
	}
	client.SetLogger(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return client, client.Init(ctx)
}

// Newest returns the time of the newest change in a replica. The error wraps
// [ErrEmpty] when there is none.
func Newest(ctx context.Context, cfg *Config) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client, err := restoreClient(ctx, cfg)
	if err != nil {
		return time.Time{}, err
	}
	plan, err := litestream.CalcRestorePlan(ctx, client, 0, time.Time{}, slog.New(slog.DiscardHandler))
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

// metaPath returns the directory that Litestream keeps beside a database.
func metaPath(path string) string { return litestream.NewDB(path).MetaPath() }

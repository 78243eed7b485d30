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

// Restore writes the replica's newest state, or unless at is zero the newest
// before at, to a new file at path, and returns the time of its newest change.
// The error wraps [ErrEmpty] when there is no such state. After an error the
// caller removes what is at path, see [RemoveDatabase].
func Restore(ctx context.Context, from *Config, path string, at time.Time) (time.Time, error) {
	newest, err := restore(ctx, from, path, at)
	if err != nil {
		return time.Time{}, err
	}
	return newest.CreatedAt, nil
}

// restore is [Restore]; it returns the newest change.
func restore(ctx context.Context, from *Config, path string, at time.Time) (*ltx.FileInfo, error) {
	client, plan, err := restorePlan(ctx, from, at)
	switch {
	case errors.Is(err, litestream.ErrTxNotAvailable) && at.IsZero():
		return nil, fmt.Errorf("%w: the replica is empty", ErrEmpty)
	case errors.Is(err, litestream.ErrTxNotAvailable):
		return nil, fmt.Errorf("%w: the replica has nothing from before %s", ErrEmpty, webhook.FormatTime(at))
	case err != nil:
		return nil, err
	}
	newest := plan[len(plan)-1]
	o := litestream.NewRestoreOptions()
	o.OutputPath = path
	// Without this the restored state may be newer than the returned one.
	o.TXID = newest.MaxTXID
	if err := litestream.NewReplicaWithClient(nil, client).Restore(ctx, o); err != nil {
		return nil, err
	}
	return newest, os.Chmod(path, 0o600)
}

// restorePlan returns a client of the replica and the files that make the
// newest state before at, oldest first; at zero is now. The error wraps
// [litestream.ErrTxNotAvailable] when there is none.
func restorePlan(ctx context.Context, from *Config, at time.Time) (litestream.ReplicaClient, []*ltx.FileInfo, error) {
	client, err := from.settings.newClient(nil)
	if err != nil {
		return nil, nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	client.SetLogger(quiet)
	connecting, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := client.Init(connecting); err != nil {
		return nil, nil, err
	}
	// With at this may take long: it reads the metadata of every file.
	plan, err := litestream.CalcRestorePlan(ctx, client, 0, at, quiet)
	return client, plan, err
}

// Newest returns the time of the newest change in a replica. The error wraps
// [ErrEmpty] when there is none.
func Newest(ctx context.Context, cfg *Config) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, plan, err := restorePlan(ctx, cfg, time.Time{})
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

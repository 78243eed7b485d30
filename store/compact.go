package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"service/internal/durable"
	"service/store/sqlite"
)

// Compaction is a database that is to be written anew, without its free pages and
// with incremental vacuum, by one process, which holds the lock of its data
// directory. Until Run has renamed the new file nothing has changed.
type Compaction struct {
	Bytes       int64 // size of the database, with its write-ahead log
	Free        int64 // bytes of it that hold nothing
	Incremental bool  // it gives free pages back by itself already
	Needs       int64 // bytes that the new file may take, beside the old one
	Room        int64 // free bytes on the disk; -1 when the file system does not say

	dir  string
	lock *sqlite.DirLock
}

// OpenCompaction takes a data directory whose database is to be compacted. The error
// wraps [ErrLocked] when a process has it. The caller must call Close.
func OpenCompaction(ctx context.Context, dir string) (_ *Compaction, err error) {
	path := filepath.Join(dir, databaseFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && !isRestoring(dir) {
		return nil, fmt.Errorf("there is no data in %s: %s is not there", dir, path)
	}
	c := &Compaction{dir: dir, Room: -1}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.lock, err = sqlite.LockDir(dir); err != nil {
		return nil, err
	}
	if err := errors.Join(tidy(dir), finishRestore(dir, slog.New(slog.DiscardHandler)), checkFiles(dir)); err != nil {
		return nil, err
	}
	if err := c.measure(ctx, path); err != nil {
		return nil, err
	}
	if room, err := FreeDisk(dir); err == nil {
		c.Room = room
	}
	return c, nil
}

// measure reads how large the database is and will be, and whether it is whole.
func (c *Compaction) measure(ctx context.Context, path string) (err error) {
	db, err := sqlite.OpenUnchanged(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := checkCommits(ctx, path, db.DB); err != nil {
		return err
	}
	p, err := scanPages(func(query string, args []any, dest ...any) error {
		return db.QueryRowContext(ctx, query, args...).Scan(dest...)
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	c.Bytes, c.Free, c.Incremental = p.all*p.size, p.free*p.size, p.vacuum == incrementalVacuum
	// A page in 800 says what the others belong to. Before, the log is moved into the
	// old file, which may grow by that.
	used := c.Bytes - c.Free
	c.Needs = used + used/800 + compactReserve
	info, err := os.Stat(path)
	if err == nil {
		c.Needs += max(c.Bytes-info.Size(), 0)
	}
	return err
}

// compactReserve is room for what a file system needs for a file beside its content.
const compactReserve = 1 << 20

// Run compacts the database, and returns how large it is afterwards. Progress is
// called now and then with the bytes written so far. After an error, and when the
// process is killed, the database is as it was.
//
// A replica is begun anew by the next start, with a copy of the whole database:
// every page is another one.
func (c *Compaction) Run(ctx context.Context, progress func(written int64)) (after int64, err error) {
	if c.Room >= 0 && c.Room < c.Needs {
		return 0, fmt.Errorf("there is not enough room on the disk of %s: %d bytes are needed beside the database, and %d are free; nothing was changed", c.dir, c.Needs, c.Room)
	}
	path := filepath.Join(c.dir, databaseFile)
	f, err := durable.CreateTemp(path)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w; the database is as it was", err), ignoreNotExist(os.Remove(f.Name())))
		}
	}()
	if err := f.Close(); err != nil {
		return 0, err
	}
	if err := c.copy(ctx, path, f.Name(), progress); err != nil {
		return 0, err
	}
	if after, err = durable.SyncFile(f.Name()); err != nil {
		return 0, err
	}
	// A log that is left would be taken for one of the new file.
	if info, err := os.Stat(path + "-wal"); err == nil && info.Size() > 0 {
		return 0, fmt.Errorf("another program has %s open: close it, and call this again", path)
	}
	if err := sameState(ctx, path, f.Name()); err != nil {
		return 0, err
	}
	if err := durable.Rename(f.Name(), path); err != nil {
		return 0, err
	}
	return after, nil
}

// copy writes the compacted database to a file, while it says how far it is.
func (c *Compaction) copy(ctx context.Context, from, to string, progress func(written int64)) error {
	done := make(chan error, 1)
	go func() { done <- sqlite.Compact(ctx, from, to) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			if info, err := os.Stat(to); err == nil {
				progress(info.Size())
			}
		}
	}
}

// sameState checks that a compacted database is one of the same state.
func sameState(ctx context.Context, old, compacted string) error {
	was, err := readState(ctx, old)
	if err != nil {
		return err
	}
	is, err := readState(ctx, compacted)
	if err != nil {
		return err
	}
	if is.vacuum != incrementalVacuum || was.schema != is.schema || was.commits != is.commits || was.deliveries != is.deliveries {
		return fmt.Errorf("%s is not a copy of %s: %+v, want %+v", compacted, old, is, was)
	}
	return nil
}

// databaseState tells two states of a database apart.
type databaseState struct {
	schema, vacuum      int
	commits, deliveries int64
}

func readState(ctx context.Context, path string) (y databaseState, err error) {
	db, err := sqlite.OpenUnchanged(path)
	if err != nil {
		return y, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	scan := func(query string, dest ...any) error { return db.QueryRowContext(ctx, query).Scan(dest...) }
	if err := scan("SELECT user_version, auto_vacuum FROM pragma_user_version, pragma_auto_vacuum", &y.schema, &y.vacuum); err != nil {
		return y, err
	}
	if y.commits, err = storedCommits(scan); err != nil {
		return y, err
	}
	var newest sql.NullInt64
	err = scan("SELECT max(num) FROM deliveries", &newest)
	y.deliveries = newest.Int64
	return y, err
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Close gives the data directory up.
func (c *Compaction) Close() error {
	if c.lock == nil {
		return nil
	}
	return c.lock.Close()
}

package datadir

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
	"service/store/commits"
	"service/store/sqlite"
)

// Compaction rewrites a database without its free pages and with incremental vacuum, while it
// locks the data directory. Nothing changes until Run has renamed the new file.
type Compaction struct {
	Bytes       int64 // size of the database, including its WAL
	Free        int64 // bytes of free pages in it
	Incremental bool  // it already uses incremental vacuum
	Needs       int64 // free bytes required for the new file
	Room        int64 // free bytes on the disk; -1 if unknown

	dir  string
	lock *sqlite.DirLock
}

// OpenCompaction locks a data directory to compact its database. The error wraps [sqlite.ErrLocked] if
// a process has it open. The caller must call Close.
func OpenCompaction(ctx context.Context, dir string) (_ *Compaction, err error) {
	if err := CheckData(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, Database)
	c := &Compaction{dir: dir, Room: -1}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.lock, err = sqlite.LockDir(dir); err != nil {
		return nil, err
	}
	if err := errors.Join(Tidy(dir), FinishLocked(dir, slog.New(slog.DiscardHandler)), CheckFiles(dir)); err != nil {
		return nil, err
	}
	if err := c.measure(ctx, path); err != nil {
		return nil, err
	}
	if room, _, err := durable.FreeSpace(dir); err == nil {
		c.Room = room
	}
	return c, nil
}

// measure reads the current and future size of the database, and checks that it contains all
// its commits.
func (c *Compaction) measure(ctx context.Context, path string) (err error) {
	db, err := sqlite.OpenOffline(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := commits.Check(ctx, path, db.DB); err != nil {
		return err
	}
	scan, _ := sqlite.ReadsOf(ctx, db.DB)
	p, err := sqlite.ScanPages(scan)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	c.Bytes, c.Free, c.Incremental = p.All*p.Size, p.Free*p.Size, p.Vacuum == sqlite.IncrementalVacuum
	// One page in 800 is a pointer map page. The checkpoint before the copy may also
	// make the old file larger.
	used := c.Bytes - c.Free
	c.Needs = used + used/800 + compactReserve
	info, err := os.Stat(path)
	if err == nil {
		c.Needs += max(c.Bytes-info.Size(), 0)
	}
	return err
}

// compactReserve is space for the file system's own metadata of the new file.
const compactReserve = 1 << 20

// Run compacts the database and returns its new size. It calls progress repeatedly with the
// bytes written so far. After an error, or if the process is killed, the database is unchanged.
//
// All pages change, so the next start begins a new snapshot in the replica.
func (c *Compaction) Run(ctx context.Context, progress func(written int64)) (after int64, err error) {
	if c.Room >= 0 && c.Room < c.Needs {
		return 0, fmt.Errorf("not enough room on the disk of %s: %d bytes are needed in addition to the database, %d are free; nothing was "+
			"changed",
			c.dir, c.Needs, c.Room)
	}
	path := filepath.Join(c.dir, Database)
	f, err := durable.CreateTemp(path)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w; the database is unchanged", err), ignoreNotExist(os.Remove(f.Name())))
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
	// SQLite would apply a remaining WAL to the new file.
	if info, err := os.Stat(path + "-wal"); err == nil && info.Size() > 0 {
		return 0, fmt.Errorf("another program has %s open: close it and try again", path)
	}
	if err := sameState(ctx, path, f.Name()); err != nil {
		return 0, err
	}
	if err := durable.Rename(f.Name(), path); err != nil {
		return 0, err
	}
	return after, nil
}

// copy writes the compacted database to a file and reports progress.
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

// sameState checks that the compacted database has the state of the old one.
func sameState(ctx context.Context, old, compacted string) error {
	was, err := readState(ctx, old)
	if err != nil {
		return err
	}
	is, err := readState(ctx, compacted)
	if err != nil {
		return err
	}
	if is.vacuum != sqlite.IncrementalVacuum || was.schema != is.schema || was.commits != is.commits || was.deliveries != is.deliveries {
		return fmt.Errorf("%s is not a copy of %s: %+v, want %+v", compacted, old, is, was)
	}
	return nil
}

// databaseState identifies a state of a database.
type databaseState struct {
	schema, vacuum      int
	commits, deliveries int64
}

func readState(ctx context.Context, path string) (y databaseState, err error) {
	db, err := sqlite.OpenOffline(path)
	if err != nil {
		return y, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	scan := func(query string, dest ...any) error { return db.QueryRowContext(ctx, query).Scan(dest...) }
	if err := scan("SELECT user_version, auto_vacuum FROM pragma_user_version, pragma_auto_vacuum", &y.schema, &y.vacuum); err != nil {
		return y, err
	}
	if y.commits, err = commits.Stored(scan); err != nil {
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

// Close releases the data directory.
func (c *Compaction) Close() error {
	if c.lock == nil {
		return nil
	}
	return c.lock.Close()
}

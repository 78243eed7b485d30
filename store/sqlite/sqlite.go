// Package sqlite is the store's database engine: one connection that writes, with
// group commit, and a pool of connections that read. It knows nothing about
// webhooks.
//
// A write is a function that a caller passes to the [Writer]. A commit runs its batch,
// the writes that wait when it begins, in one transaction, or in a second one if the
// first is rolled back. The owner of a [DB], package store, adds work to commits with
// [Hooks].
//
// Guarantees:
//   - A write that returned nil is fsynced and survives a power cut.
//   - A write is stored completely or not at all.
//   - Reads never wait for writes.
//   - Once the database is found damaged, nothing more is written to it.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"service/internal/durable"
)

// Config is the configuration of a [DB].
type Config struct {
	Path   string // database file; the caller locks its directory with [LockDir]
	Schema *Schema
	// Readers are the maximum numbers of concurrent reads of each [Class], at least 1.
	Readers [classes]int
	// NoAutoCheckpoint turns SQLite's automatic checkpoints off: the caller
	// checkpoints the WAL (write-ahead log).
	NoAutoCheckpoint bool
	// Overwrite are the tables whose replaced and deleted content is overwritten with zeros in the
	// database file. That of other tables may remain in pages that become free until these are used again.
	Overwrite []string
	// Functions can be used in the statements of the DB.
	Functions []Function
	// Check examines the database before SQLite writes to it, and must accept a new
	// one without tables. Open returns its error. May be nil.
	Check  func(ctx context.Context, db *sql.DB) error
	Hooks  Hooks
	Logger *slog.Logger // must not be nil
	// Fault makes statements fail in tests, including those of Hooks, [DB.Scan] and
	// [DB.Each]. write reports whether the Writer runs the statement. May be nil.
	Fault func(query string, write bool) Fault
}

// Function is an SQL function of two texts and a blob, which are valid only during the call. It must
// return the same for the same arguments, and is called by several goroutines.
type Function struct {
	Name string
	Call func(a, b string, c []byte) (bool, error)
}

// DB is an open database. It is safe for concurrent use until Close.
type DB struct {
	path       string
	logger     *slog.Logger
	corruption *corruption
	fault      func(query string, write bool) Fault // Config.Fault
	writer     *Writer
	readers    *sql.DB
	turns      [classes]*turns // for the connections of readers
	stmts      sync.Map        // query → *sql.Stmt on readers
	guard      *guard          // keeps other processes from deleting the WAL
}

// Open checks a database, opens it and migrates its schema. It creates the file if
// it does not exist. If the database is damaged, the error wraps [ErrDamaged]. If the
// first check finds the damage, Open changes no file.
func Open(ctx context.Context, cfg Config) (_ *DB, err error) {
	// SQLite would create a file that other users can read, and would give the WAL
	// the same mode.
	if _, err := os.Stat(cfg.Path); errors.Is(err, fs.ErrNotExist) {
		if err := durable.WriteFile(cfg.Path, nil, 0o600); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	// From here until newGuard, only SQLite may open and close the file: closing it
	// elsewhere in this process would drop SQLite's locks.
	if err := check(ctx, cfg.Path, cfg.Check); err != nil {
		return nil, err
	}
	db := &DB{path: cfg.Path, logger: cfg.Logger, corruption: newCorruption(), fault: cfg.Fault}
	defer func() {
		if err == nil {
			return
		}
		if found := db.Damaged(); found != nil {
			db.Abandon()
			err = found
			return
		}
		db.Close(nil)
	}()
	if db.writer, err = openWriter(&cfg, db.corruption); err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Path, err)
	}
	if err := db.migrate(ctx, cfg.Schema); err != nil {
		return nil, err
	}
	// The WAL exists now, but its directory entry may not be on disk. SQLite fsyncs the
	// directory after its first write to the WAL, but the driver without cgo, up to version
	// 0.36, fsyncs the WAL a second time instead of the directory.
	if err := durable.SyncDir(filepath.Dir(cfg.Path)); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if db.guard, err = newGuard(cfg.Path); err != nil {
		return nil, err
	}
	db.writer.pages = pages{file: db.guard.file, wal: cfg.Path + "-wal"}
	if db.readers, err = openPool(cfg.Path, modeReadOnly, readerPragmas, nil, cfg.Functions...); err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Path, err)
	}
	connections := 0
	for class, n := range cfg.Readers {
		share := n
		if Class(class) != Service {
			share = min(n, max(1, runtime.GOMAXPROCS(0)/2)) // reads use processors too: leave half to others
		}
		db.turns[class] = newTurns(n, share)
		connections += n
	}
	db.readers.SetMaxOpenConns(connections + 1) // one more for the callers of Readers
	db.readers.SetMaxIdleConns(connections)     // closing a connection discards its page cache
	return db, nil
}

// Writer returns the database's only writer.
func (db *DB) Writer() *Writer { return db.writer }

// Readers returns the read-only connection pool, which the DB owns. Only rare reads may use it
// directly, since they take no turns.
func (db *DB) Readers() *sql.DB { return db.readers }

// Close waits for writes in flight and closes the connections. There must be no
// reads in flight.
//
// If last is nil, SQLite checkpoints the WAL and deletes it. Otherwise the WAL stays,
// and last is called once all connections are closed: it may open and close the
// database's files. The guard's lock is held until last returns, so other processes see
// the database as open.
func (db *DB) Close(last func() error) error {
	var errs []error
	if db.readers != nil {
		db.stmts.Range(func(_, stmt any) bool { stmt.(*sql.Stmt).Close(); return true })
		errs = append(errs, db.readers.Close())
	}
	if db.writer != nil {
		db.writer.stop()
		if db.guard != nil && last == nil {
			errs = append(errs, db.guard.release())
		}
		errs = append(errs, db.writer.close())
	}
	if last != nil {
		errs = append(errs, last())
	}
	if db.guard != nil {
		errs = append(errs, db.guard.close())
	}
	return errors.Join(errs...)
}

// Abandon waits for writes in flight and rejects later ones. It closes nothing,
// because closing would make SQLite checkpoint the WAL of a damaged database and
// delete it. The connections end with the process.
func (db *DB) Abandon() {
	if db.writer != nil {
		db.writer.stop()
	}
}

// NoteError returns err. If err reports corruption, the database counts as damaged from then
// on and writes are rejected. Callers pass it the errors of connections that they opened
// themselves; the DB notes the errors of its own.
func (db *DB) NoteError(err error) error { return db.corruption.record(err) }

// Damaged returns an error that wraps [ErrDamaged] if the database was found
// damaged, and nil otherwise.
func (db *DB) Damaged() error {
	if found := db.corruption.recorded(); found != nil {
		return damagedError(db.path, found.Error())
	}
	return nil
}

// WaitDamaged blocks until the database is found damaged, and then returns the error
// of Damaged. It returns nil if ctx ends first.
func (db *DB) WaitDamaged(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-db.corruption.found:
		return db.Damaged()
	}
}

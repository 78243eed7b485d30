// Package sqlite is the database engine of the store: one connection that
// writes, with group commit, and several that read. It knows nothing of what is
// stored.
//
// It guarantees that a write that has returned nil is on disk (fsynced), also
// after a power cut; that a write is stored whole or not at all; that reads never
// wait for writes; and that nothing more is written to a database once it is
// found damaged.
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
	"sync"

	"service/internal/durable"
)

// Config says how to open a database.
type Config struct {
	Path string // of the database; its directory is locked by the caller, see [LockDir]
	// Migrations holds the files migrations/*.sql, in the order of their names:
	// the nth brings the schema from version n-1 to n.
	Migrations fs.FS
	Readers    int // how many reads can be under way at once
	// KeepLog leaves the write-ahead log alone: the caller moves it into the
	// database.
	KeepLog bool
	// Check, unless it is nil, examines a database that exists before anything is
	// written to it. Open returns its error.
	Check  func(ctx context.Context, db *sql.DB) error
	Hooks  Hooks
	Logger *slog.Logger
	// Fault makes statements fail in a test, those of Hooks and of [DB.Scan] and
	// [DB.Each] included; nil for none.
	Fault func(query string, write bool) Fault
}

// DB is an open database. Its methods may be called from any goroutine until
// Close.
type DB struct {
	path    string
	logger  *slog.Logger
	damage  *damage
	fault   func(query string, write bool) Fault // Config.Fault
	writer  *Writer
	readers *sql.DB
	stmts   sync.Map // query → *sql.Stmt on readers
	guard   *guard
}

// Open checks a database, opens it and brings its schema up to date. The file
// is created when it does not exist. The error wraps [ErrDamaged] when it is
// damaged; its files are then left as they are.
func Open(ctx context.Context, cfg Config) (_ *DB, err error) {
	// SQLite would make it readable for others, and its WAL after its likeness.
	// Once it exists it is never opened or closed by anything but SQLite, whose
	// locks any other close would drop.
	if _, err := os.Stat(cfg.Path); errors.Is(err, fs.ErrNotExist) {
		if err := durable.WriteFile(cfg.Path, nil, 0o600); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	if err := check(ctx, cfg.Path, cfg.Check); err != nil {
		return nil, err
	}
	db := &DB{path: cfg.Path, logger: cfg.Logger, damage: newDamage(), fault: cfg.Fault}
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
	if db.writer, err = openWriter(&cfg, db.damage); err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Path, err)
	}
	if err := db.migrate(ctx, cfg.Migrations); err != nil {
		return nil, err
	}
	// The write-ahead log exists now. SQLite syncs the directory after the log's first
	// write, but up to version 0.36 the driver without cgo syncs the log again instead.
	if err := durable.SyncDir(filepath.Dir(cfg.Path)); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if db.guard, err = newGuard(cfg.Path); err != nil {
		return nil, err
	}
	if db.readers, err = OpenReadOnly(cfg.Path); err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Path, err)
	}
	db.readers.SetMaxOpenConns(cfg.Readers)
	db.readers.SetMaxIdleConns(cfg.Readers) // a closed connection would take its page cache with it
	return db, nil
}

// Writer returns the database's only writer.
func (db *DB) Writer() *Writer { return db.writer }

// Readers returns the connections that read. Their owner is the DB.
func (db *DB) Readers() *sql.DB { return db.readers }

// Close waits for writes under way and closes the connections. No read may be
// under way. Unless it is nil, last runs when all connections are closed and
// other processes still take the database for open; it may open and close the
// database's files. Without it SQLite moves the write-ahead log into the
// database and removes it.
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

// Abandon waits for writes under way and refuses further ones, and closes
// nothing: SQLite would move the log of a damaged database into it and remove
// the log. The connections end with the process.
func (db *DB) Abandon() {
	if db.writer != nil {
		db.writer.stop()
	}
}

// Observe returns err, and remembers it when it says that the database is
// damaged: nothing is written from then on. It is for errors of connections
// that the caller has opened itself.
func (db *DB) Observe(err error) error { return db.damage.observe(err) }

// Damaged returns nil, or once the database was found damaged an error that
// wraps [ErrDamaged].
func (db *DB) Damaged() error {
	if found := db.damage.observed(); found != nil {
		return damaged(db.path, found.Error())
	}
	return nil
}

// WaitDamaged waits until ctx ends, and returns nil, or until the database is
// found damaged, and returns what Damaged does.
func (db *DB) WaitDamaged(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-db.damage.found:
		return db.Damaged()
	}
}

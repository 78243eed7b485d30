package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
)

// AutoCheckpointFrames is the length of the WAL, in frames of one page each, at
// which SQLite checkpoints it after a commit of the [Writer].
const AutoCheckpointFrames = 1000

// busy_timeout is in milliseconds. A negative cache_size is in KiB.
var (
	// Both drivers are compiled with synchronous=NORMAL for WAL mode, which can lose
	// commits in a power cut. FULL does not.
	writerPragmas = []string{
		"PRAGMA busy_timeout = 10000",
		"PRAGMA journal_mode = WAL",
		"PRAGMA synchronous = FULL",
		"PRAGMA foreign_keys = ON",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cache_size = -16000",
		"PRAGMA wal_autocheckpoint = 1000", // AutoCheckpointFrames
		overwriteCells,
	}
	// noCheckpointPragmas configure a writer without automatic checkpoints.
	noCheckpointPragmas = append(slices.Clip(writerPragmas), "PRAGMA wal_autocheckpoint = 0")
	readerPragmas       = []string{
		"PRAGMA busy_timeout = 10000",
		"PRAGMA query_only = ON",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cache_size = -4000",
	}
	// copyPragmas configure a connection that copies the database. It is not
	// query_only, since VACUUM INTO writes the copy.
	copyPragmas = []string{"PRAGMA busy_timeout = 10000", "PRAGMA trusted_schema = OFF", "PRAGMA cache_size = -4000"}
	// privatePragmas configure the only connection to a file that a crash may leave useless.
	privatePragmas = []string{
		"PRAGMA journal_mode = OFF",
		"PRAGMA synchronous = OFF",
		"PRAGMA foreign_keys = OFF",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cache_size = -16000",
	}
	// exclusivePragmas configure a connection that excludes all others.
	exclusivePragmas = []string{
		"PRAGMA busy_timeout = 1000",
		"PRAGMA locking_mode = EXCLUSIVE",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cache_size = -16000",
	}
)

// Whether deleted content is overwritten with zeros. Within a page that stays in use it always is, which
// costs no I/O: no copy of a row stays where it was before SQLite moved it. In pages that become free it
// is on demand, since a transaction would not write all of those otherwise.
const (
	overwritePages = "PRAGMA secure_delete = ON"
	overwriteCells = "PRAGMA secure_delete = FAST"
)

// incrementalVacuum makes PRAGMA incremental_vacuum able to release free pages. It
// takes effect in a new database and in the copy that VACUUM INTO makes.
const incrementalVacuum = "PRAGMA auto_vacuum = INCREMENTAL"

// Values of the mode parameter of a database URI.
const (
	modeCreate    = "rwc"
	modeWritable  = "rw"
	modeReadOnly  = "ro"
	modeImmutable = "ro&immutable=1" // requires that no process writes to the database and that it has no WAL
)

func dsn(path, mode string) string {
	return (&url.URL{Scheme: "file", OmitHost: true, Path: path}).String() + "?mode=" + mode
}

// OpenWritable opens a database that no process has open, with the settings of
// a [Writer]. It creates the file if it does not exist. The caller closes it.
func OpenWritable(path string) (*sql.DB, error) {
	return openPool(path, modeCreate, writerPragmas, nil)
}

// OpenPrivate opens a database that no other process uses, and migrates it to the newest schema.
// It creates the file if it does not exist. Nothing is fsynced, and a statement that fails may
// leave the file damaged: it is for copies. The pool has one connection. The caller closes it.
func OpenPrivate(ctx context.Context, path string, schema *Schema) (_ *sql.DB, err error) {
	db, err := openPool(path, modeCreate, privatePragmas, nil)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var have int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return nil, err
	}
	if have != 0 {
		if err := schema.Check(path, have); err != nil {
			return nil, err
		}
	}
	if err := schema.run(ctx, conn, have); err != nil {
		return nil, err
	}
	return db, nil
}

// OpenReadOnly opens a database for reading. The caller closes it.
func OpenReadOnly(path string) (*sql.DB, error) {
	return openPool(path, modeReadOnly, readerPragmas, nil)
}

// Checkpoint writes the whole WAL of a database that no process has open to its file, and
// removes the WAL. It changes nothing else.
func Checkpoint(ctx context.Context, path string) (err error) {
	db, err := openPool(path, modeWritable, writerPragmas, nil)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	defer func() { err = errors.Join(err, db.Close()) }()
	var busy, frames, done int
	if err := db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &done); err != nil {
		return err
	}
	if busy != 0 {
		return fmt.Errorf("the WAL of %s is in use", path)
	}
	return nil
}

// Copy writes a consistent snapshot of a database to a file that is empty or does
// not exist. The database may be open and written to while Copy runs; its WAL then
// grows until Copy returns. The copy is not fsynced.
func Copy(ctx context.Context, from, to string) error {
	db, err := openPool(from, modeReadOnly, copyPragmas, nil)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	return errors.Join(err, db.Close())
}

// Compact copies a database that no process has open to a file that is empty or does
// not exist. The copy has no free pages and has incremental vacuum turned on; it is
// not fsynced. Compact first checkpoints and truncates the WAL of the original. No
// other process can open the database while Compact runs.
func Compact(ctx context.Context, from, to string) error {
	db, err := openPool(from, modeWritable, exclusivePragmas, nil)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	err = func() error {
		var busy, frames, checkpointed int
		if err := conn.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &checkpointed); err != nil {
			return err
		}
		if _, err := conn.ExecContext(ctx, incrementalVacuum); err != nil {
			return err
		}
		_, err := conn.ExecContext(ctx, "VACUUM INTO ?", to)
		return err
	}()
	return errors.Join(err, conn.Close(), db.Close())
}

// Version returns the version of the SQLite library in use.
func Version() (string, error) {
	db, err := openPool(":memory:", modeCreate, nil, nil)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var v string
	return v, db.QueryRow("SELECT sqlite_version()").Scan(&v)
}

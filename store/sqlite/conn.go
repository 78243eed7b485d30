package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"slices"
)

// AutoCheckpointFrames is the length of the write-ahead log, in frames of a page
// each, at which SQLite checkpoints it after a commit of the [Writer].
const AutoCheckpointFrames = 1000

var (
	// synchronous is set in so many words: both drivers are compiled to NORMAL
	// in WAL mode, which a power cut can tell from FULL.
	writerPragmas = []string{
		"PRAGMA busy_timeout = 10000",
		"PRAGMA journal_mode = WAL",
		"PRAGMA synchronous = FULL",
		"PRAGMA foreign_keys = ON",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cache_size = -16000",
		"PRAGMA wal_autocheckpoint = 1000", // AutoCheckpointFrames
	}
	// keepingPragmas are those of a writer that leaves its write-ahead log alone.
	keepingPragmas = append(slices.Clip(writerPragmas), "PRAGMA wal_autocheckpoint = 0")
	readerPragmas  = []string{
		"PRAGMA busy_timeout = 10000",
		"PRAGMA query_only = ON",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cache_size = -4000",
	}
	// copyPragmas are those of a connection that copies the database: one of
	// its own, which writes the copy and does not hold the writer up.
	copyPragmas = []string{"PRAGMA busy_timeout = 10000", "PRAGMA trusted_schema = OFF", "PRAGMA cache_size = -4000"}
	// exclusivePragmas are those of a connection that no other may be beside.
	exclusivePragmas = []string{"PRAGMA busy_timeout = 1000", "PRAGMA locking_mode = EXCLUSIVE", "PRAGMA trusted_schema = OFF", "PRAGMA cache_size = -16000"}
)

// incrementalVacuum has a database keep track of which page belongs to what, so that
// PRAGMA incremental_vacuum can give free pages back. It holds for a new database,
// and for a copy that VACUUM makes.
const incrementalVacuum = "PRAGMA auto_vacuum = INCREMENTAL"

// The modes of opening a database, as its URI names them.
const (
	modeCreate    = "rwc"
	modeWritable  = "rw"
	modeReadOnly  = "ro"
	modeImmutable = "ro&immutable=1" // no process writes it, and there is no log
)

func dsn(path, mode string) string {
	return (&url.URL{Scheme: "file", OmitHost: true, Path: path}).String() + "?mode=" + mode
}

// OpenWritable opens a database that no process has open, with the settings of
// a [Writer], and creates it when it does not exist. The caller closes it.
func OpenWritable(path string) (*sql.DB, error) { return openPool(path, modeCreate, writerPragmas) }

// OpenReadOnly opens a database for reading. The caller closes it.
func OpenReadOnly(path string) (*sql.DB, error) { return openPool(path, modeReadOnly, readerPragmas) }

// Copy writes a database, as it is at one moment, to a file that is empty or
// does not exist. The database may be open, and written to while Copy runs: its
// write-ahead log grows until Copy returns. The copy is not synced.
func Copy(ctx context.Context, from, to string) error {
	db, err := openPool(from, modeReadOnly, copyPragmas)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	return errors.Join(err, db.Close())
}

// Compact writes a database that nothing has open to a file that is empty or does
// not exist, with no free page in it and with incremental vacuum, and moves the
// database's write-ahead log into it: afterwards the log is not there. The copy is
// not synced. While Compact runs no other process can open the database.
func Compact(ctx context.Context, from, to string) error {
	db, err := openPool(from, modeWritable, exclusivePragmas)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	err = func() error {
		var busy, log, moved int
		if err := conn.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &log, &moved); err != nil {
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
	db, err := openPool(":memory:", modeCreate, nil)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var v string
	return v, db.QueryRow("SELECT sqlite_version()").Scan(&v)
}

package store

import (
	"service/store/keyring"
	"service/store/sqlite"
)

// Errors of lower packages that callers of the store check for.
var (
	// ErrUnavailable reports that the store cannot be written or read now: for example the disk
	// is full, or the store is closed. Nothing of the failed write is stored; it may succeed
	// later.
	ErrUnavailable = sqlite.ErrUnavailable
	// ErrDamaged reports that the database is damaged. Its content cannot be trusted, and
	// nothing more is written to it.
	ErrDamaged = sqlite.ErrDamaged
	// ErrKey reports that the secret key or its file cannot be used. The error contains none of
	// the file's content.
	ErrKey = keyring.ErrKey
	// ErrLocked reports that another process has the data directory open.
	ErrLocked = sqlite.ErrLocked
)

// Unavailable reports whether an error means that the whole store cannot be written or read
// now, rather than one record.
func Unavailable(err error) bool { return sqlite.Unavailable(err) }

// DriverName names the SQLite library of this build.
const DriverName = sqlite.DriverName

// SQLiteVersion returns the version of the SQLite library.
func SQLiteVersion() (string, error) { return sqlite.Version() }

package store

import (
	"embed"

	"service/store/keyring"
	"service/store/sqlite"
)

// The errors of the packages below that callers of the store tell apart.
var (
	// ErrUnavailable says that nothing could be written: the disk is full, say,
	// or the store is closed. Nothing of the write is stored; the same one may
	// succeed later.
	ErrUnavailable = sqlite.ErrUnavailable
	// ErrDamaged says that the database is damaged: what it holds cannot be
	// trusted, and nothing more is written to it.
	ErrDamaged = sqlite.ErrDamaged
	// ErrKey says that the key of the secrets, or its file, cannot be used. No
	// error holds anything of the file's content.
	ErrKey = keyring.ErrKey
	// ErrLocked says that another process has the data directory open.
	ErrLocked = sqlite.ErrLocked
)

// Unavailable says whether an error is that of a store that cannot be written
// or read just now, and not that of one record.
func Unavailable(err error) bool { return sqlite.Unavailable(err) }

// DriverName is the SQLite library this binary was built with.
const DriverName = sqlite.DriverName

// SQLiteVersion returns the version of the SQLite library in use.
func SQLiteVersion() (string, error) { return sqlite.Version() }

//go:embed migrations/*.sql
var migrations embed.FS

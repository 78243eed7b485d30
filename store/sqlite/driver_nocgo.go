//go:build !cgo

package sqlite

import (
	"database/sql"
	"errors"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
)

// DriverName is the SQLite library this binary was built with. There is
// exactly one: two of them in one process would drop each other's file locks.
const DriverName = "ncruces"

// openPool opens a pool whose every connection has run the pragmas.
func openPool(path, mode string, pragmas []string) (*sql.DB, error) {
	return driver.Open(dsn(path, mode), func(c *sqlite3.Conn) error {
		for _, p := range pragmas {
			if err := c.Exec(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// IsCorrupt says whether an error is SQLite's word that the file is damaged, or
// no database at all.
func IsCorrupt(err error) bool {
	return errors.Is(err, sqlite3.CORRUPT) || errors.Is(err, sqlite3.NOTADB)
}

// errDisk is what SQLite returns when the disk fails.
var errDisk error = sqlite3.IOERR

// isStorage says whether an error is SQLite's word that it could not read or
// write the file: not a fault of the statement.
func isStorage(err error) bool {
	for _, code := range []sqlite3.ErrorCode{sqlite3.FULL, sqlite3.IOERR, sqlite3.CANTOPEN, sqlite3.READONLY, sqlite3.BUSY, sqlite3.CORRUPT, sqlite3.NOTADB} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

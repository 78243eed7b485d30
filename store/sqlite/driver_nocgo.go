//go:build !cgo

package sqlite

import (
	"database/sql"
	"errors"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
)

// DriverName names the SQLite library of this binary. A binary contains only one,
// because two in one process would drop each other's file locks.
const DriverName = "ncruces"

// openPool opens a connection pool that runs the pragmas, sets the limits, by SQLite's numbers, and
// adds the functions on each new connection.
func openPool(path, mode string, pragmas []string, limits map[int]int, functions ...Function) (*sql.DB, error) {
	return driver.Open(dsn(path, mode), func(c *sqlite3.Conn) error {
		for id, value := range limits {
			c.Limit(sqlite3.LimitCategory(id), value)
		}
		for _, f := range functions {
			err := c.CreateFunction(f.Name, 3, sqlite3.DETERMINISTIC, func(ctx sqlite3.Context, args ...sqlite3.Value) {
				is, err := f.Call(args[0].Text(), args[1].Text(), args[2].RawBlob())
				if err != nil {
					ctx.ResultError(err)
					return
				}
				ctx.ResultBool(is)
			})
			if err != nil {
				return err
			}
		}
		for _, p := range pragmas {
			if err := c.Exec(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// IsCorrupt reports whether err is SQLite's error for a file that is damaged or not a
// database.
func IsCorrupt(err error) bool {
	return errors.Is(err, sqlite3.CORRUPT) || errors.Is(err, sqlite3.NOTADB)
}

// IsConstraint reports whether err means that a row broke a rule of its table, such as that an ID
// is unique.
func IsConstraint(err error) bool { return errors.Is(err, sqlite3.CONSTRAINT) }

// errDisk is the error that SQLite returns when the disk fails.
var errDisk error = sqlite3.IOERR

// isStorage reports whether err means that SQLite could not read or write the file,
// rather than that the statement is faulty.
func isStorage(err error) bool {
	for _, code := range []sqlite3.ErrorCode{
		sqlite3.FULL, sqlite3.IOERR, sqlite3.CANTOPEN, sqlite3.READONLY, sqlite3.BUSY, sqlite3.CORRUPT, sqlite3.NOTADB,
	} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

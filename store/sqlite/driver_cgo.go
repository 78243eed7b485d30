//go:build cgo

package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/mattn/go-sqlite3"
)

// DriverName is the SQLite library this binary was built with. There is
// exactly one: two of them in one process would drop each other's file locks.
const DriverName = "mattn"

// openPool opens a pool whose every connection has run the pragmas.
func openPool(path, mode string, pragmas []string) (*sql.DB, error) {
	return sql.OpenDB(&connector{
		dsn: dsn(path, mode) + "&_mutex=no",
		driver: &sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
			for _, p := range pragmas {
				if _, err := c.Exec(p, nil); err != nil {
					return err
				}
			}
			return nil
		}},
	}), nil
}

// connector opens connections with a hook of its own, without a name in
// database/sql's registry.
type connector struct {
	dsn    string
	driver *sqlite3.SQLiteDriver
}

func (c *connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c *connector) Driver() driver.Driver                        { return c.driver }

// IsCorrupt says whether an error is SQLite's word that the file is damaged, or
// no database at all.
func IsCorrupt(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && (e.Code == sqlite3.ErrCorrupt || e.Code == sqlite3.ErrNotADB)
}

// errDisk is what SQLite returns when the disk fails.
var errDisk error = sqlite3.Error{Code: sqlite3.ErrIoErr}

// isStorage says whether an error is SQLite's word that it could not read or
// write the file: not a fault of the statement.
func isStorage(err error) bool {
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case sqlite3.ErrFull, sqlite3.ErrIoErr, sqlite3.ErrCantOpen, sqlite3.ErrReadonly, sqlite3.ErrBusy, sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return true
	}
	return false
}

//go:build cgo

package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/mattn/go-sqlite3"
)

// DriverName names the SQLite library of this binary. A binary contains only one,
// because two in one process would drop each other's file locks.
const DriverName = "mattn"

// openPool opens a connection pool that runs the pragmas, sets the limits, by SQLite's numbers, and
// adds the functions on each new connection.
func openPool(path, mode string, pragmas []string, limits map[int]int, functions ...Function) (*sql.DB, error) {
	return sql.OpenDB(&connector{
		// SQLite needs no mutex: only one goroutine at a time uses a connection of database/sql.
		dsn: dsn(path, mode) + "&_mutex=no",
		driver: &sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
			for id, value := range limits {
				c.SetLimit(id, value)
			}
			for _, f := range functions {
				if err := c.RegisterFunc(f.Name, f.Call, true); err != nil {
					return err
				}
			}
			for _, p := range pragmas {
				if _, err := c.Exec(p, nil); err != nil {
					return err
				}
			}
			return nil
		}},
	}), nil
}

// connector opens connections with its own connect hook, without registering a
// driver name in database/sql.
type connector struct {
	dsn    string
	driver *sqlite3.SQLiteDriver
}

func (c *connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c *connector) Driver() driver.Driver                        { return c.driver }

// IsCorrupt reports whether err is SQLite's error for a file that is damaged or not a
// database.
func IsCorrupt(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && (e.Code == sqlite3.ErrCorrupt || e.Code == sqlite3.ErrNotADB)
}

// IsConstraint reports whether err means that a row broke a rule of its table, such as that an ID
// is unique.
func IsConstraint(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && e.Code == sqlite3.ErrConstraint
}

// errDisk is the error that SQLite returns when the disk fails.
var errDisk error = sqlite3.Error{Code: sqlite3.ErrIoErr}

// isStorage reports whether err means that SQLite could not read or write the file,
// rather than that the statement is faulty.
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

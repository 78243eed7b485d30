//go:build !cgo

package store

import (
	"database/sql"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
)

// DriverName is the SQLite library this binary was built with. There is
// exactly one: two of them in one process would drop each other's file locks.
const DriverName = "ncruces"

// openDB opens a pool whose every connection has run the pragmas.
func openDB(path string, readOnly bool, pragmas []string) (*sql.DB, error) {
	return driver.Open(dsn(path, readOnly), func(c *sqlite3.Conn) error {
		for _, p := range pragmas {
			if err := c.Exec(p); err != nil {
				return err
			}
		}
		return nil
	})
}

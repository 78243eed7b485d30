//go:build !cgo

package sqlite

import (
	"database/sql/driver"

	"github.com/ncruces/go-sqlite3"
	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
)

// conn wraps ncruces' connection, with the optional methods that database/sql looks
// for.
type conn struct {
	sqlite3driver.Conn
	driver.ExecerContext
}

func open(name string) (*conn, error) {
	c, err := (&sqlite3driver.SQLite{}).Open(name)
	if err != nil {
		return nil, err
	}
	return &conn{c.(sqlite3driver.Conn), c.(driver.ExecerContext)}, nil
}

func (c *conn) exec(query string) error { return c.Raw().Exec(query) }

// CheckNamedValue implements [driver.NamedValueChecker].
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

// FileControlPersistWAL implements [FileControl].
func (c *conn) FileControlPersistWAL(dbName string, mode int) (int, error) {
	if mode != 0 && mode != 1 {
		return 0, errMode
	}
	_, err := c.Raw().FileControl(dbName, sqlite3.FCNTL_PERSIST_WAL, mode == 1)
	return mode, err
}

//go:build cgo

package sqlite

import "github.com/mattn/go-sqlite3"

type conn struct{ *sqlite3.SQLiteConn }

func open(name string) (*conn, error) {
	c, err := (&sqlite3.SQLiteDriver{}).Open(name)
	if err != nil {
		return nil, err
	}
	return &conn{c.(*sqlite3.SQLiteConn)}, nil
}

func (c *conn) exec(query string) error {
	_, err := c.Exec(query, nil)
	return err
}

// FileControlPersistWAL implements [FileControl].
func (c *conn) FileControlPersistWAL(dbName string, mode int) (int, error) {
	if mode != 0 && mode != 1 {
		return 0, errMode
	}
	return mode, c.SetFileControlInt(dbName, sqlite3.SQLITE_FCNTL_PERSIST_WAL, mode)
}

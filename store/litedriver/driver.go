// Package sqlite replaces modernc.org/sqlite, so that Litestream uses the same SQLite
// library as the service: mattn's with cgo, ncruces' without. Two libraries in one process
// would drop each other's file locks, which would lose acknowledged rows.
//
// It registers the database/sql driver "sqlite". A data source is a path or a file:
// URI. Each parameter _pragma=name(value) runs on every new connection, in order;
// busy_timeout should be first. The package contains only the API that Litestream uses.
package sqlite

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// FileControl is implemented by the connections of this driver, see
// [database/sql.Conn.Raw].
type FileControl interface {
	// FileControlPersistWAL sets whether the WAL of a database ("main") is kept (1)
	// or deleted (0) when the last connection closes, and returns the mode. Any
	// other mode is an error.
	FileControlPersistWAL(dbName string, mode int) (int, error)
}

var errMode = errors.New("the mode of FileControlPersistWAL must be 0 or 1")

// Driver is the database/sql driver.
type Driver struct{}

// Open opens a connection and runs the pragmas in its data source name.
func (Driver) Open(name string) (driver.Conn, error) {
	name, pragmas, err := split(name)
	if err != nil {
		return nil, err
	}
	c, err := open(name)
	if err != nil {
		return nil, err
	}
	for _, p := range pragmas {
		if err := c.exec("PRAGMA " + p); err != nil {
			return nil, errors.Join(fmt.Errorf("_pragma=%s: %w", p, err), c.Close())
		}
	}
	return c, nil
}

// split separates the pragmas from the rest of a data source name.
func split(name string) (rest string, pragmas []string, err error) {
	path, query, ok := strings.Cut(name, "?")
	if !ok {
		return name, nil, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", nil, fmt.Errorf("data source %q: %w", name, err)
	}
	pragmas = values["_pragma"]
	delete(values, "_pragma")
	if len(values) > 0 {
		path += "?" + values.Encode()
	}
	return path, pragmas, nil
}

func init() { sql.Register("sqlite", Driver{}) }

// Package sqlite stands in for modernc.org/sqlite, so that Litestream runs on
// the one SQLite library that the service itself uses: mattn's with cgo, and
// ncruces' without. Two libraries in one process would drop each other's locks
// on the file, and acknowledged rows with them.
//
// It registers the database/sql driver "sqlite". A data source is a path or a
// file: URI, of which every _pragma=name(value) is run on each new connection, in
// their order; busy_timeout should be the first. Of the module that it stands in
// for it has what Litestream uses, and nothing else.
package sqlite

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// FileControl is what a connection of this driver can do beside
// database/sql's, see [database/sql.Conn.Raw].
type FileControl interface {
	// FileControlPersistWAL has the write-ahead log of a database ("main")
	// stay (1) or be removed (0) when the last connection is closed, and returns
	// its mode. Any other mode is refused.
	FileControlPersistWAL(dbName string, mode int) (int, error)
}

var errMode = errors.New("the mode of FileControlPersistWAL must be 0 or 1")

// Driver opens connections. It has no state.
type Driver struct{}

// Open opens a connection and runs the pragmas of its name.
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

// split takes the pragmas out of a data source's name.
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

//go:build cgo

package sqlite

import (
	"database/sql"
	"testing"

	"github.com/mattn/go-sqlite3"
)

// A statement with a parameter as its LIMIT is prepared once, however often it runs.
func TestLimitIsPreparedOnce(t *testing.T) {
	const query = "SELECT id FROM items ORDER BY id LIMIT ?"
	db := open(t, Hooks{})
	db.readers.SetMaxOpenConns(1)
	reader, err := db.readers.Conn(t.Context())
	must(t, err)
	readers := countPrepared(t, reader)
	must(t, reader.Close())
	writers := countPrepared(t, db.Writer().conn)
	ignore := func(func(...any) error) error { return nil }
	for limit := range 3 {
		err := db.Each(t.Context(), query, []any{limit}, ignore)
		if err == nil {
			err = db.Writer().Do(func(tx *Tx) error { return tx.Each(query, []any{limit}, ignore) })
		}
		must(t, err)
	}
	if *readers != 1 || *writers != 1 {
		t.Errorf("readers prepared it %d times and the writer %d times, want once each", *readers, *writers)
	}
}

// countPrepared counts how often a connection prepares a SELECT.
func countPrepared(t *testing.T, conn *sql.Conn) *int {
	t.Helper()
	n := new(int)
	err := conn.Raw(func(driver any) error {
		driver.(*sqlite3.SQLiteConn).RegisterAuthorizer(func(action int, _, _, _ string) int {
			if action == sqlite3.SQLITE_SELECT {
				*n++
			}
			return sqlite3.SQLITE_OK
		})
		return nil
	})
	must(t, err)
	return n
}

package harness

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
)

// OpenDatabase opens the database of a data directory that no process has open.
// The test closes it.
func OpenDatabase(tb testing.TB, data string) *sql.DB {
	tb.Helper()
	// The name is that of the one driver that is linked in, whichever it is.
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(data, "service.db"))
	if err != nil {
		tb.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	return db
}

// DatabaseFaults returns what SQLite finds wrong with the database of a data
// directory that no process has open.
func DatabaseFaults(tb testing.TB, data string) (faults []string) {
	tb.Helper()
	db := OpenDatabase(tb, data)
	defer func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	}()
	for _, check := range []string{
		"SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
		`SELECT 'foreign key of ' || "table" || ' row ' || rowid FROM pragma_foreign_key_check`,
		"SELECT 'seq of program ' || program_id || ' has gaps' FROM events GROUP BY program_id HAVING max(seq) - min(seq) + 1 <> count(*) OR min(seq) <> 1",
	} {
		found, err := column(db, check)
		if err != nil {
			return append(faults, fmt.Sprintf("%s: %v", check, err))
		}
		faults = append(faults, found...)
	}
	return faults
}

// column returns the one text column of a query.
func column(db *sql.DB, query string) (all []string, err error) {
	rows, err := db.Query(query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Err(), rows.Close()) }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return all, err
		}
		all = append(all, text)
	}
	return all, nil
}

// Rows returns the rows that a copy of a database must not have if the original
// does not: events with their positions in the log, deliveries with their
// events, subscriptions and tokens. Each is a text whose first word is its kind.
func Rows(tb testing.TB, data string) map[string]bool {
	tb.Helper()
	db := OpenDatabase(tb, data)
	defer db.Close()
	rows, err := column(db, `SELECT 'event ' || program_id || ' ' || seq || ' ' || id FROM events
		UNION ALL SELECT 'delivery ' || num || ' ' || id || ' ' || coalesce(seqs, '') FROM deliveries
		UNION ALL SELECT 'subscription ' || id FROM subscriptions UNION ALL SELECT 'token ' || id FROM tokens`)
	if err != nil {
		tb.Fatal(err)
	}
	all := make(map[string]bool)
	for _, row := range rows {
		all[row] = true
	}
	return all
}

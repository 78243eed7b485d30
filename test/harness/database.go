package harness

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// OpenDatabase opens the database of a data directory that no process has open. The test must close
// it.
func OpenDatabase(tb testing.TB, data string) *sql.DB {
	tb.Helper()
	// Only one driver is linked in, always under this name.
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(data, "service.db"))
	if err != nil {
		tb.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	return db
}

// DatabaseFaults runs SQLite's integrity check on a data directory that no process has open, and
// returns the errors.
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
		"SELECT 'seq of program ' || program_id || ' has gaps' FROM events GROUP BY program_id HAVING max(seq) - min(seq) + 1 <> count(*) OR " +
			"min(seq) <> 1",
	} {
		found, err := column(db, check)
		if err != nil {
			return append(faults, fmt.Sprintf("%s: %v", check, err))
		}
		faults = append(faults, found...)
	}
	return faults
}

// column returns the single text column of a query.
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

// Rows returns the rows that a copy may contain only if the original contains them: events with
// their seqs, deliveries with their events, subscriptions and tokens. The first word of each is its
// kind.
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

// DatabaseDifferences returns the rows of every table, and the schema statements, that only one of
// two databases contains. No process may have them open. It ignores Litestream's own tables.
func DatabaseDifferences(tb testing.TB, one, two string) (differences []string) {
	tb.Helper()
	a, b := tableRows(tb, one), tableRows(tb, two)
	for row, n := range a {
		if b[row] != n {
			differences = append(differences, fmt.Sprintf("%d times instead of %d: %.300s", b[row], n, row))
		}
	}
	for row, n := range b {
		if a[row] == 0 {
			differences = append(differences, fmt.Sprintf("%d times instead of 0: %.300s", n, row))
		}
	}
	slices.Sort(differences)
	return differences
}

// tableRows counts the rows of a database by table name and SQL values.
func tableRows(tb testing.TB, data string) map[string]int {
	tb.Helper()
	db := OpenDatabase(tb, data)
	defer db.Close()
	const ours = `FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE '\_litestream\_%' ESCAPE '\'`
	all, err := column(db, "SELECT 'schema ' || coalesce(sql, name) "+ours)
	tables, err2 := column(db, "SELECT name "+ours+" AND type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
	if err := errors.Join(err, err2); err != nil {
		tb.Fatal(err)
	}
	for _, table := range tables {
		columns, err := column(db, `SELECT 'quote("' || name || '")' FROM pragma_table_info('`+table+`')`)
		if err != nil {
			tb.Fatal(err)
		}
		rows, err := column(db, "SELECT '"+table+" ' || "+strings.Join(columns, " || ',' || ")+` FROM "`+table+`"`)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, rows...)
	}
	count := make(map[string]int)
	for _, row := range all {
		count[row]++
	}
	return count
}

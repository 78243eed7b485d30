package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
)

var limitParameter = regexp.MustCompile(`\bLIMIT (\?\d*)`)

// keepPlan returns the query with a plan that does not depend on the value of its
// LIMIT. SQLite prepares a statement again whenever the parameter of a plain LIMIT is
// bound, because the plan may depend on that number. An expression, 0+?, avoids that.
func keepPlan(query string) string { return limitParameter.ReplaceAllString(query, "LIMIT 0+${1}") }

// stmt returns the cached prepared statement of a query for the readers. The caller has a
// connection, see [DB.turn].
func (db *DB) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if st, ok := db.stmts.Load(query); ok {
		return st.(*sql.Stmt), nil
	}
	st, err := db.readers.PrepareContext(ctx, keepPlan(query))
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, db.corruption.record(err))
	}
	if old, loaded := db.stmts.LoadOrStore(query, st); loaded {
		st.Close()
		return old.(*sql.Stmt), nil
	}
	return st, nil
}

// Scan reads the first row of a query into dest, or returns sql.ErrNoRows. The
// prepared statement is cached until Close, so the number of different queries must
// be small.
func (db *DB) Scan(ctx context.Context, query string, args []any, dest ...any) error {
	end, err := db.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	st, err := db.stmt(ctx, query)
	if err != nil {
		return err
	}
	if err := db.inject(query); err != nil {
		return err
	}
	return db.corruption.record(st.QueryRowContext(ctx, args...).Scan(dest...))
}

// Row returns the function that is [DB.Scan] of a query, for a function that scans a kind of rows.
func (db *DB) Row(ctx context.Context, query string, args ...any) func(dest ...any) error {
	return func(dest ...any) error { return db.Scan(ctx, query, args, dest...) }
}

// Each calls row for every row of a query until row returns an error, which it returns.
// It caches the prepared statement as Scan does. row must call scan before it returns, if
// at all. It must not read in another way, nor wait for a write: it would wait for a connection
// while it has one.
func (db *DB) Each(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error {
	end, err := db.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	st, err := db.stmt(ctx, query)
	if err != nil {
		return err
	}
	if err := db.inject(query); err != nil {
		return err
	}
	rows, err := st.QueryContext(ctx, args...)
	if err != nil {
		return db.corruption.record(err)
	}
	return db.corruption.record(Drain(rows, row))
}

// Drain calls row for every row until row returns an error, which it returns. It closes
// rows.
func Drain(rows *sql.Rows, row func(scan func(...any) error) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// ScanRow runs a query and scans its single row.
type ScanRow = func(query string, args []any, dest ...any) error

// EachRow runs a query and calls row for each row of its result.
type EachRow = func(query string, args []any, row func(scan func(...any) error) error) error

// Reads returns the functions that read the database with a context.
func (db *DB) Reads(ctx context.Context) (ScanRow, EachRow) {
	scan := func(query string, args []any, dest ...any) error { return db.Scan(ctx, query, args, dest...) }
	each := func(query string, args []any, row func(scan func(...any) error) error) error {
		return db.Each(ctx, query, args, row)
	}
	return scan, each
}

// ReadsOf is [DB.Reads] for a database that this package only opened.
func ReadsOf(ctx context.Context, db *sql.DB) (ScanRow, EachRow) {
	scan := func(query string, args []any, dest ...any) error {
		return db.QueryRowContext(ctx, query, args...).Scan(dest...)
	}
	each := func(query string, args []any, row func(scan func(...any) error) error) error {
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		return Drain(rows, row)
	}
	return scan, each
}

// Pages describes the pages of the database file.
type Pages struct {
	All, Free int64
	Size      int64 // bytes of one
	Vacuum    int   // auto_vacuum
}

// IncrementalVacuum is the value of PRAGMA auto_vacuum of a file that can be shrunk.
const IncrementalVacuum = 2

const selectPages = `SELECT page_count, freelist_count, page_size, auto_vacuum
	FROM pragma_page_count, pragma_freelist_count, pragma_page_size, pragma_auto_vacuum`

// ScanPages reads the pages of a database.
func ScanPages(scan ScanRow) (p Pages, err error) {
	return p, scan(selectPages, nil, &p.All, &p.Free, &p.Size, &p.Vacuum)
}

// minMostlyFree is the minimum number of free bytes of a file that is mostly free.
const minMostlyFree = 16 << 20

// MostlyFree reports whether free, the free bytes of a file of the given size, are so many that it
// should be shrunk.
func MostlyFree(file, free int64) bool { return free > file/2 && free >= minMostlyFree }

package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
)

var limitParameter = regexp.MustCompile(`\bLIMIT (\?\d*)`)

// keepPlan returns a query whose plan does not depend on the value of its LIMIT.
// SQLite prepares a statement again each time a parameter that is its LIMIT is
// bound: it may plan by the number.
func keepPlan(query string) string { return limitParameter.ReplaceAllString(query, "LIMIT 0+${1}") }

// stmt returns a prepared statement of the readers.
func (db *DB) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if st, ok := db.stmts.Load(query); ok {
		return st.(*sql.Stmt), nil
	}
	st, err := db.readers.PrepareContext(ctx, keepPlan(query))
	if err != nil {
		return nil, fmt.Errorf("sqlite: prepare %q: %w", query, db.damage.observe(err))
	}
	if old, loaded := db.stmts.LoadOrStore(query, st); loaded {
		st.Close()
		return old.(*sql.Stmt), nil
	}
	return st, nil
}

// Scan reads the one row of a query; sql.ErrNoRows when there is none. The
// query is prepared once and kept: it must be a constant, or one of few.
func (db *DB) Scan(ctx context.Context, query string, args []any, dest ...any) error {
	st, err := db.stmt(ctx, query)
	if err != nil {
		return err
	}
	if err := db.inject(query); err != nil {
		return err
	}
	return db.damage.observe(st.QueryRowContext(ctx, args...).Scan(dest...))
}

// Each calls row for every row of a query, until that returns an error. The
// query is kept as by Scan.
func (db *DB) Each(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error {
	st, err := db.stmt(ctx, query)
	if err != nil {
		return err
	}
	if err := db.inject(query); err != nil {
		return err
	}
	rows, err := st.QueryContext(ctx, args...)
	if err != nil {
		return db.damage.observe(err)
	}
	return db.damage.observe(Drain(rows, row))
}

// Drain calls row for every row, until that returns an error, and closes rows.
func Drain(rows *sql.Rows, row func(scan func(...any) error) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// Tx is the writer's connection inside a transaction. It is valid until the
// function that it was given to returns.
type Tx struct {
	w       *Writer
	current *Op
	wrote   bool  // something may have been written since this was last reset
	changed bool  // the same, since the transaction began
	ended   bool  // SQLite may have ended the transaction by itself
	refused int   // writes that failed for want of the disk
	cause   error // the last of them did
}

// AfterCommit has fn run once what the current write wrote is on disk, before
// its caller goes on. The leader calls it: fn must be quick and must not write.
func (t *Tx) AfterCommit(fn func()) { t.current.after = append(t.current.after, fn) }

// query returns a prepared statement that returns rows.
func (t *Tx) query(query string) (*sql.Stmt, error) {
	t.w.ran++
	if s := t.w.queries[query]; s != nil {
		return s, nil
	}
	s, err := t.w.conn.PrepareContext(context.Background(), keepPlan(query))
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	t.w.queries[query] = s
	return s, nil
}

// statement returns a prepared statement that returns no rows.
func (t *Tx) statement(query string) (*statement, error) {
	t.w.ran++
	if s := t.w.statements[query]; s != nil {
		return s, nil
	}
	s, err := prepare(t.w.conn, query)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	t.w.statements[query] = s
	return s, nil
}

// Exec runs a statement, prepared once. The query must be a constant.
func (t *Tx) Exec(query string, args ...any) error {
	_, err := t.ExecResult(query, args...)
	return err
}

// Affected is Exec; it returns how many rows were changed.
func (t *Tx) Affected(query string, args ...any) (int64, error) {
	r, err := t.ExecResult(query, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// ExecResult is Exec; it returns what database/sql does.
func (t *Tx) ExecResult(query string, args ...any) (sql.Result, error) {
	s, err := t.statement(query)
	if err != nil {
		return nil, err
	}
	if err := t.inject(query); err != nil {
		t.noteError(err)
		return nil, err
	}
	r, err := s.exec(args)
	if t.noteError(err); err == nil {
		n, err := r.RowsAffected()
		t.noteWrite(n != 0 || err != nil)
	}
	return r, err
}

// Scan reads the one row of a query; sql.ErrNoRows when there is none. The
// query may write and return a row.
func (t *Tx) Scan(query string, args []any, dest ...any) error {
	s, err := t.query(query)
	if err != nil {
		return err
	}
	t.read(query)
	if err := t.inject(query); err != nil {
		t.noteError(err)
		return err
	}
	err = s.QueryRowContext(context.Background(), args...).Scan(dest...)
	if !errors.Is(err, sql.ErrNoRows) {
		t.noteError(err)
	}
	return err
}

// noteError notes what the error of a statement, nil for none, means for the
// transaction: a disk that fails, for a read too, may have made SQLite end it.
// What is written from then on is written at once, and cannot be undone.
func (t *Tx) noteError(err error) {
	if err != nil {
		t.noteWrite(true) // for all that is known
		t.ended = t.ended || isStorage(err)
	}
}

// read notes that a query that returns rows is run, which may write as well.
func (t *Tx) read(query string) { t.noteWrite(!strings.HasPrefix(query, "SELECT ")) }

// noteWrite notes whether a statement may have written something.
func (t *Tx) noteWrite(wrote bool) {
	t.wrote = t.wrote || wrote
	t.changed = t.changed || wrote
}

// Each calls row for every row of a query, until that returns an error. The
// query must be a constant.
func (t *Tx) Each(query string, args []any, row func(scan func(...any) error) error) error {
	st, err := t.query(query)
	if err != nil {
		return err
	}
	t.read(query)
	if err := t.inject(query); err != nil {
		t.noteError(err)
		return err
	}
	rows, err := st.QueryContext(context.Background(), args...)
	if err == nil {
		err = Drain(rows, row)
	}
	t.noteError(err)
	return err
}

// Statements returns how many statements the writer has run since it was
// opened.
func (t *Tx) Statements() int64 { return t.w.ran }

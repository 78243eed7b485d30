package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// Tx is a transaction on the writer's connection. It is valid until the function
// that received it returns.
type Tx struct {
	w          *Writer
	number     uint64 // of the transaction
	current    *Op    // the write that is running
	wrote      bool   // the current write may have changed the database; only used without savepoints
	changed    bool   // the transaction may have changed the database
	ended      error  // storage error after which SQLite may have ended the transaction
	overwrites bool   // deleted content is overwritten until the transaction ends
	failures   int    // number of writes that failed with a storage error
	cause      error  // storage error of the last of these writes
}

// Number returns the number of the transaction, from 1 since the database was opened. A batch that
// is repeated has another one.
func (t *Tx) Number() uint64 { return t.number }

// AfterCommit registers fn to run after the current write is on disk and before its
// caller continues. If the write fails, fn does not run. The leader calls fn: it must be
// quick and must not write.
func (t *Tx) AfterCommit(fn func()) { t.current.after = append(t.current.after, fn) }

// query returns the cached prepared statement of a query with result rows, and counts
// the query for [Tx.Statements].
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

// statement returns the cached prepared statement of a query without result rows, and
// counts the query for [Tx.Statements].
func (t *Tx) statement(query string) (*statement, error) {
	t.w.ran++
	if s := t.w.statements[query]; s != nil {
		return s, nil
	}
	s, err := prepare(t.w.conn, query)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	s.overwrite = t.w.overwrite != nil && t.w.overwrite.MatchString(query)
	t.w.statements[query] = s
	return s, nil
}

// setOverwrite turns the overwriting of deleted content on or off.
func (t *Tx) setOverwrite(on bool) error {
	pragma := overwriteCells
	if on {
		pragma = overwritePages
	}
	s, err := t.statement(pragma)
	if err == nil {
		_, err = s.exec(nil)
	}
	t.overwrites = on || err != nil
	return err
}

// Overwrite makes what the transaction replaces or deletes from here on be overwritten with zeros in
// the file, even in pages that become free. It ends with the transaction.
func (t *Tx) Overwrite() error {
	if t.overwrites {
		return nil
	}
	err := t.setOverwrite(true)
	t.noteError(err)
	return err
}

// Exec runs a statement. The query must be a constant: its prepared statement is
// cached until the writer closes.
func (t *Tx) Exec(query string, args ...any) error {
	_, err := t.exec(query, args)
	return err
}

// Insert is like Exec and returns the rowid of the new row.
func (t *Tx) Insert(query string, args ...any) (int64, error) {
	r, err := t.exec(query, args)
	if err != nil {
		return 0, err
	}
	return r.LastInsertId()
}

// Affected is like Exec and returns the number of changed rows.
func (t *Tx) Affected(query string, args ...any) (int64, error) {
	r, err := t.exec(query, args)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// exec is Exec with the result.
func (t *Tx) exec(query string, args []any) (sql.Result, error) {
	if err := t.refuse(query); err != nil {
		return nil, err
	}
	s, err := t.statement(query)
	if err != nil {
		return nil, err
	}
	if err := t.inject(query); err != nil {
		t.noteError(err)
		return nil, err
	}
	if s.overwrite && !t.overwrites {
		if err := t.setOverwrite(true); err != nil {
			t.noteError(err)
			return nil, err
		}
	}
	r, err := s.exec(args)
	if t.noteError(err); err == nil {
		n, err := r.RowsAffected()
		t.noteWrite(n != 0 || err != nil)
	}
	return r, err
}

// startQuery returns the prepared statement of a query with result rows, and records
// whether the query may write.
func (t *Tx) startQuery(query string) (*sql.Stmt, error) {
	if err := t.refuse(query); err != nil {
		return nil, err
	}
	s, err := t.query(query)
	if err != nil {
		return nil, err
	}
	t.noteWrite(!strings.HasPrefix(query, "SELECT ")) // only a SELECT cannot write
	if err := t.inject(query); err != nil {
		t.noteError(err)
		return nil, err
	}
	return s, nil
}

// Scan reads the first row of a query into dest, or returns sql.ErrNoRows. The query
// must be a constant. It may write, with a RETURNING clause.
func (t *Tx) Scan(query string, args []any, dest ...any) error {
	s, err := t.startQuery(query)
	if err != nil {
		return err
	}
	err = s.QueryRowContext(context.Background(), args...).Scan(dest...)
	if !errors.Is(err, sql.ErrNoRows) {
		t.noteError(err)
	}
	return err
}

// Row is like [DB.Row].
func (t *Tx) Row(query string, args ...any) func(dest ...any) error {
	return func(dest ...any) error { return t.Scan(query, args, dest...) }
}

// noteError records the error of a statement, if any.
func (t *Tx) noteError(err error) {
	if err != nil {
		t.noteWrite(true) // the failed statement may have written
		if t.ended == nil && isStorage(err) {
			t.ended = err
		}
	}
}

// refuse returns an error if the query must not run. After a storage error, even in a
// read, SQLite may have ended the transaction. Each later statement would then commit
// immediately and could not be rolled back.
func (t *Tx) refuse(query string) error {
	if t.ended == nil || strings.HasPrefix(query, "ROLLBACK") {
		return nil
	}
	return fmt.Errorf("after an error that may have ended the transaction: %w", t.ended)
}

// noteWrite records whether a statement may have changed the database.
func (t *Tx) noteWrite(wrote bool) {
	t.wrote = t.wrote || wrote
	t.changed = t.changed || wrote
}

// Each calls row for every row of a query until row returns an error, which it returns.
// The query must be a constant.
func (t *Tx) Each(query string, args []any, row func(scan func(...any) error) error) error {
	s, err := t.startQuery(query)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(context.Background(), args...)
	if err == nil {
		err = Drain(rows, row)
	}
	t.noteError(err)
	return err
}

// Statements returns the number of statements that the writer has run since it was
// opened.
func (t *Tx) Statements() int64 { return t.w.ran }

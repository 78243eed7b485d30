package sqlite

import (
	"context"
	"database/sql"
	"errors"
)

// View is one read transaction: everything that is read through it is of one
// moment.
type View struct {
	db  *DB
	ctx context.Context
	tx  *sql.Tx
}

// View calls read with a View, which is valid until read returns. A View that
// stays open keeps the write-ahead log from being shortened.
func (db *DB) View(ctx context.Context, read func(v *View) error) error {
	tx, err := db.readers.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = read(&View{db, ctx, tx})
	if ended := tx.Rollback(); ended != nil && !errors.Is(ended, sql.ErrTxDone) { // which a context's end has brought
		err = errors.Join(err, ended)
	}
	return err
}

// Scan reads the one row of a query; sql.ErrNoRows when there is none.
func (v *View) Scan(query string, args []any, dest ...any) error {
	st, err := v.db.stmt(v.ctx, query)
	if err != nil {
		return err
	}
	return v.db.damage.observe(v.tx.StmtContext(v.ctx, st).QueryRowContext(v.ctx, args...).Scan(dest...))
}

// ErrStop, returned by row, ends [View.Each] without an error.
var ErrStop = errors.New("sqlite: stop")

// Each calls row for every row of a query, until that returns an error.
func (v *View) Each(query string, args []any, row func(scan func(...any) error) error) error {
	st, err := v.db.stmt(v.ctx, query)
	if err != nil {
		return err
	}
	rows, err := v.tx.StmtContext(v.ctx, st).QueryContext(v.ctx, args...)
	if err != nil {
		return v.db.damage.observe(err)
	}
	if err := Drain(rows, row); err != ErrStop {
		return v.db.damage.observe(err)
	}
	return nil
}

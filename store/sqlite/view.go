package sqlite

import (
	"context"
	"database/sql"
	"errors"
)

// View is a read transaction: all its reads see the same snapshot of the database. It
// must not be used concurrently.
type View struct {
	db  *DB
	ctx context.Context
	tx  *sql.Tx
}

// View calls read with a View that is valid until read returns. read must be quick:
// until it returns, the WAL cannot restart from its beginning and only grows.
func (db *DB) View(ctx context.Context, read func(v *View) error) error {
	tx, err := db.readers.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = read(&View{db, ctx, tx})
	// A context that ended has rolled the transaction back already: ErrTxDone.
	if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
		err = errors.Join(err, rollback)
	}
	return err
}

// Scan is like [DB.Scan].
func (v *View) Scan(query string, args []any, dest ...any) error {
	st, err := v.db.stmt(v.ctx, query)
	if err != nil {
		return err
	}
	return v.db.corruption.record(v.tx.StmtContext(v.ctx, st).QueryRowContext(v.ctx, args...).Scan(dest...))
}

// ErrStop, returned by row, ends [View.Each] without an error.
var ErrStop = errors.New("sqlite: stop")

// Each is like [DB.Each].
func (v *View) Each(query string, args []any, row func(scan func(...any) error) error) error {
	st, err := v.db.stmt(v.ctx, query)
	if err != nil {
		return err
	}
	rows, err := v.tx.StmtContext(v.ctx, st).QueryContext(v.ctx, args...)
	if err != nil {
		return v.db.corruption.record(err)
	}
	if err := Drain(rows, row); err != ErrStop {
		return v.db.corruption.record(err)
	}
	return nil
}

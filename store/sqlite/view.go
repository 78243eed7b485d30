package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// View is a read transaction: all its reads see the same snapshot of the database. It
// must not be used concurrently.
type View struct {
	db  *DB
	ctx context.Context
	tx  *sql.Tx

	missed []string // queries whose statements are not cached
}

// View calls read with a View that is valid until read returns. read must be quick:
// until it returns, the WAL cannot restart from its beginning and only grows. It must not read
// in another way, nor wait for a write, as in [DB.Each].
func (db *DB) View(ctx context.Context, read func(v *View) error) error {
	end, err := db.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	tx, err := db.readers.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	v := &View{db: db, ctx: ctx, tx: tx}
	err = read(v)
	// A context that ended has rolled the transaction back already: ErrTxDone.
	if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
		err = errors.Join(err, rollback)
	}
	for _, query := range v.missed { // for the next; a failure costs only that
		_, _ = db.stmt(ctx, query)
	}
	return err
}

// stmt returns the statement of a query in the transaction. One that is not cached is prepared on
// the connection of the transaction: if every View waited for another connection to prepare it,
// none would end.
func (v *View) stmt(query string) (*sql.Stmt, error) {
	if st, ok := v.db.stmts.Load(query); ok {
		return v.tx.StmtContext(v.ctx, st.(*sql.Stmt)), nil
	}
	st, err := v.tx.PrepareContext(v.ctx, keepPlan(query))
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, v.db.corruption.record(err))
	}
	v.missed = append(v.missed, query)
	return st, nil
}

// Scan is like [DB.Scan].
func (v *View) Scan(query string, args []any, dest ...any) error {
	st, err := v.stmt(query)
	if err != nil {
		return err
	}
	return v.db.corruption.record(st.QueryRowContext(v.ctx, args...).Scan(dest...))
}

// ErrStop, returned by row, ends [View.Each] without an error.
var ErrStop = errors.New("sqlite: stop")

// Each is like [DB.Each].
func (v *View) Each(query string, args []any, row func(scan func(...any) error) error) error {
	st, err := v.stmt(query)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(v.ctx, args...)
	if err != nil {
		return v.db.corruption.record(err)
	}
	if err := Drain(rows, row); err != ErrStop {
		return v.db.corruption.record(err)
	}
	return nil
}

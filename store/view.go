package store

import (
	"context"
	"database/sql"
	"errors"
)

// view is one read transaction: all that is read through it is of one moment.
type view struct {
	s   *Store
	ctx context.Context
	tx  *sql.Tx
}

// view calls read with a view, which ends with it.
func (s *Store) view(ctx context.Context, read func(v *view) error) error {
	tx, err := s.readers.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = read(&view{s, ctx, tx})
	if ended := tx.Rollback(); ended != nil && !errors.Is(ended, sql.ErrTxDone) { // which a context's end has brought
		err = errors.Join(err, ended)
	}
	return err
}

// scan reads the one row of a query; sql.ErrNoRows when there is none.
func (v *view) scan(query string, args []any, dest ...any) error {
	st, err := v.s.stmt(v.ctx, query)
	if err != nil {
		return err
	}
	return v.s.damage.notice(v.tx.StmtContext(v.ctx, st).QueryRowContext(v.ctx, args...).Scan(dest...))
}

// errEnough ends each early, without an error.
var errEnough = errors.New("enough")

// each calls row for every row of a query, until that returns an error.
func (v *view) each(query string, args []any, row func(scan func(...any) error) error) error {
	st, err := v.s.stmt(v.ctx, query)
	if err != nil {
		return err
	}
	rows, err := v.tx.StmtContext(v.ctx, st).QueryContext(v.ctx, args...)
	if err != nil {
		return v.s.damage.notice(err)
	}
	if err := drain(rows, row); err != errEnough {
		return v.s.damage.notice(err)
	}
	return nil
}

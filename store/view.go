package store

import (
	"context"

	"service/store/sqlite"
)

// view is one read transaction: everything that is read through it is of one
// moment.
type view struct {
	*sqlite.View
	s *core
}

// view calls read with a view, which is valid until read returns.
func (s *core) view(ctx context.Context, read func(v *view) error) error {
	return s.db.View(ctx, func(v *sqlite.View) error { return read(&view{v, s}) })
}

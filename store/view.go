package store

import (
	"context"

	"service/store/sqlite"
)

// view is a read transaction: everything read through it is from the same moment.
type view struct {
	*sqlite.View
	s *core
}

// view calls read with a view, which is valid until read returns.
func (s *core) view(ctx context.Context, read func(v *view) error) error {
	return s.db.View(ctx, func(v *sqlite.View) error { return read(&view{v, s}) })
}

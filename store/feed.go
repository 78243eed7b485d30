package store

import (
	"context"

	"service/webhook"
)

// feed is a list that goes by cursor along one key, and the query of one of its
// pages. The cursor is the key of the last row of the page before.
type feed struct {
	s         *core
	q         *webhook.ListQuery
	scope     cursorScope
	streams   []stream
	low, high int64 // the bounds of the key, both exclusive
	budget    int   // rows that a page may look at

	// find, unless it is nil, returns the streams within bounds of the key.
	find func(v *view, low, high int64) ([]stream, error)
}

// page returns the keys of the page, and the cursor of the next, "" on the last.
func (f *feed) page(v *view) (keys []int64, next string, err error) {
	low, high := f.low, f.high
	descending := f.q.Sort[0].Descending
	if f.q.Cursor != "" {
		place := []int64{0}
		if err := f.s.place(f.scope, f.q.Cursor, place); err != nil {
			return nil, "", err
		}
		low, high = beyond(place[0], descending, low, high)
	}
	keys, at, more, err := f.walk(v, descending, low, high)
	if more {
		next = f.s.cursor(f.scope, []int64{at})
	}
	return keys, next, err
}

// walk returns the keys of a page between two bounds, and the last that was
// looked at if there may be more.
func (f *feed) walk(v *view, descending bool, low, high int64) (keys []int64, at int64, more bool, err error) {
	streams := f.streams
	if f.find != nil {
		if streams, err = f.find(v, low, high); err != nil {
			return nil, 0, false, err
		}
	}
	keys, at, more, err = v.walk(streams, descending, low, high, f.q.Size+1, f.budget)
	if err == nil && len(keys) > f.q.Size {
		keys = keys[:f.q.Size]
		at = keys[f.q.Size-1]
	}
	return keys, at, more, err
}

// newer returns the cursor of the page before the one that the query asks for by
// its cursor, "" when that is the first: it walks the other way round, from the
// place of the cursor on, which is on that page.
func (f *feed) newer(ctx context.Context) (cursor string, err error) {
	place := []int64{0}
	if err := f.s.place(f.scope, f.q.Cursor, place); err != nil {
		return "", err
	}
	descending := f.q.Sort[0].Descending
	step := int64(1)
	if !descending {
		step = -1
	}
	low, high := beyond(place[0]-step, !descending, f.low, f.high)
	err = f.s.view(ctx, func(v *view) error {
		_, at, more, err := f.walk(v, !descending, low, high)
		if err == nil && more {
			cursor = f.s.cursor(f.scope, []int64{at + step})
		}
		return err
	})
	return cursor, err
}

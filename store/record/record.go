package record

import (
	"context"
	"time"

	"service/store/clock"
	"service/store/dictionary"
	"service/store/list"
	"service/store/sqlite"
)

// Reads is the source of lists and pages.
type Reads struct {
	lists        *list.Reader
	clock        *clock.Clock
	dictionaries *dictionary.Set
	use          func(programID, record string) error
	failedSince  func(time.Time) []string
}

// NewReads returns the reads of a store. use returns the *webhook.Error for a request for a record of
// a program that cannot be used. failedSince returns the subscriptions with failed attempts since a
// time, according to unwritten statistics.
func NewReads(lists *list.Reader, c *clock.Clock, d *dictionary.Set, use func(programID, record string) error,
	failedSince func(time.Time) []string) *Reads {
	return &Reads{lists, c, d, use, failedSince}
}

// Each handle groups the reads of one noun.
type (
	Alerts        struct{ *Reads }
	Deliveries    struct{ *Reads }
	Events        struct{ *Reads }
	Figures       struct{ *Reads }
	Incidents     struct{ *Reads }
	Search        struct{ *Reads }
	Subscriptions struct{ *Reads }
)

// view is a read transaction: everything read through it is from the same moment.
type view struct {
	*sqlite.View
	s *Reads
}

// view calls read with a view, which is valid until read returns.
func (s *Reads) view(ctx context.Context, read func(v *view) error) error {
	return s.lists.DB.View(ctx, func(v *sqlite.View) error { return read(&view{v, s}) })
}

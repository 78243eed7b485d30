package store

import (
	"context"
	"strconv"

	"service/webhook"
)

// maxArrived bounds the count of new rows in a list.
const maxArrived = 1_000

// Arrived counts the rows of a list that were stored after a mark.
type Arrived struct {
	Mark  string // the mark of the newest row, regardless of the filters, for the next call
	Count int    // rows that match the filters
	More  bool   // counting stopped early: there may be more
}

// Arrived counts the events of a program, "" for all, that were stored after a mark, which an
// earlier call returned for the same program; "" only returns the mark. It reads a bounded
// number of rows, as do the other methods of this name.
func (s Events) Arrived(ctx context.Context, programID string, q *webhook.ListQuery, mark string) (Arrived, error) {
	query := *q
	query.Size = maxArrived
	newest, args := "SELECT coalesce(max(rowid), 0) FROM events", []any(nil)
	f, err := s.feedAll(ctx, &query)
	if programID != "" {
		newest, args = "SELECT coalesce(max(seq), 0) FROM events WHERE program_id = ?", []any{programID}
		f, err = s.feed(ctx, programID, &query)
	}
	if err != nil {
		return Arrived{}, err
	}
	return f.arrived(ctx, mark, newest, args)
}

// Arrived counts the entries that were stored after a mark.
func (s Audit) Arrived(ctx context.Context, q *webhook.ListQuery, mark string) (Arrived, error) {
	query := *q
	query.Size = maxArrived
	f, err := s.feed(ctx, &query)
	if err != nil {
		return Arrived{}, err
	}
	return f.arrived(ctx, mark, "SELECT coalesce(max(num), 0) FROM audit", nil)
}

// Arrived counts the deliveries that were stored after a mark.
func (s Deliveries) Arrived(ctx context.Context, q *webhook.ListQuery, mark string) (Arrived, error) {
	query := *q
	query.Size = maxArrived
	f, err := s.deliveryFeed(ctx, "", "", webhook.AllDeliveryList, &query)
	if err != nil {
		return Arrived{}, err
	}
	return f.arrived(ctx, mark, selectNewestNum, nil)
}

// arrived counts the rows with a key greater than a mark. newest selects the greatest key.
func (f *feed) arrived(ctx context.Context, mark, newest string, args []any) (a Arrived, err error) {
	err = f.s.view(ctx, func(v *view) error {
		var key int64
		if err := v.Scan(newest, args, &key); err != nil {
			return err
		}
		a.Mark = strconv.FormatInt(key, 10)
		after, err := strconv.ParseInt(mark, 10, 64)
		if err != nil || after < 0 || after >= key {
			return nil // the first call, or an invalid mark
		}
		keys, _, more, err := f.walk(v, false, after)
		a.Count, a.More = len(keys), more
		return err
	})
	return a, err
}

// Arrived counts the subscriptions that were created after a mark.
func (s Subscriptions) Arrived(ctx context.Context, programID string, q *webhook.ListQuery, mark string) (a Arrived, err error) {
	up := *q
	up.Size = maxArrived
	up.Sort = []webhook.SortField{{Name: q.Sort[0].Name}}
	l := newSubscriptionWalk(s.core, programID, &up)
	l.at = mark
	err = s.view(ctx, func(v *view) error {
		if err := v.Scan("SELECT coalesce(max(id), '') FROM subscriptions", nil, &a.Mark); err != nil || !webhook.IsID(mark) {
			return err
		}
		ids, _, more, err := l.walk(v)
		a.Count, a.More = len(ids), more
		return err
	})
	return a, err
}

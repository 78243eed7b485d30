package record

import (
	"context"

	"service/store/list"
	"service/webhook"
)

// Arrived counts the events of a program, "" for all, that were stored after a mark, which an
// earlier call returned for the same program; "" only returns the mark. It reads a bounded
// number of rows, like the other methods of this name.
func (s Events) Arrived(ctx context.Context, programID string, q *webhook.ListQuery, mark string) (list.Arrived, error) {
	query := *q
	query.Size = list.MaxArrived
	f, err := s.feedOf(ctx, programID, &query)
	if err != nil {
		return list.Arrived{}, err
	}
	newest, args := SelectNewestRow, []any(nil)
	if programID != "" {
		newest, args = "SELECT coalesce(max(seq), 0) FROM events WHERE program_id = ?", []any{programID}
	}
	return f.Arrived(ctx, mark, newest, args)
}

// Arrived counts the deliveries that were stored after a mark.
func (s Deliveries) Arrived(ctx context.Context, q *webhook.ListQuery, mark string) (list.Arrived, error) {
	query := *q
	query.Size = list.MaxArrived
	f, err := s.DeliveryFeed(ctx, "", "", webhook.AllDeliveryList, &query)
	if err != nil {
		return list.Arrived{}, err
	}
	return f.Arrived(ctx, mark, SelectNewestNum, nil)
}

// Arrived counts the subscriptions that were created after a mark.
func (s Subscriptions) Arrived(ctx context.Context, programID string, q *webhook.ListQuery, mark string) (a list.Arrived, err error) {
	up := *q
	up.Size = list.MaxArrived
	up.Sort = []webhook.SortField{{Name: q.Sort[0].Name}}
	l := newSubscriptionWalk(s.Reads, programID, &up)
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

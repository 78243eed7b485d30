package record

import (
	"context"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// Arrivals are the deliveries that were stored after a num and match a query.
type Arrivals struct {
	Newest int64 // the num of the newest delivery, regardless of the query
	Count  int   // number of arrivals
	More   bool  // counting stopped early: there are more
	Rows   []webhook.Delivery
	Nums   []int64 // of Rows
}

// Arrivals returns the arrivals after a num for a query of webhook.AllDeliveryList, regardless
// of its page. It reads rows, newest first, only if there are at most limit arrivals; otherwise
// it counts them, at a constant cost without filters, and at a bounded cost like a page with
// filters.
func (s Deliveries) Arrivals(ctx context.Context, q *webhook.ListQuery, after int64, limit int) (a Arrivals, err error) {
	query := *q
	query.Size = s.lists.Limits.Scan
	f, err := s.DeliveryFeed(ctx, "", "", webhook.AllDeliveryList, &query)
	if err != nil {
		return Arrivals{Newest: after}, err
	}
	err = s.view(ctx, func(v *view) error {
		if err := v.Scan(SelectNewestNum, nil, &a.Newest); err != nil || a.Newest <= after {
			a.Newest = max(a.Newest, after)
			return err
		}
		if all := a.Newest - after; len(q.Filters) == 0 && len(q.Ranges) == 0 && all > int64(limit) {
			a.Count = int(all)
			return nil
		}
		f.Low, f.High = max(f.Low, after), min(f.High, a.Newest+1)
		nums, _, more, err := f.Walk(v.View, true, list.Start(true))
		a.Count, a.More = len(nums), more
		if err != nil || more || len(nums) > limit {
			return err
		}
		a.Rows, a.Nums, err = v.deliveries(nums)
		return err
	})
	return a, err
}

// UpTo returns the newest deliveries up to a num that match a query of webhook.AllDeliveryList,
// newest first and at most limit, with their nums.
func (s Deliveries) UpTo(ctx context.Context, q *webhook.ListQuery, num int64,
	limit int) (page []webhook.Delivery, nums []int64, err error) {
	query := *q
	query.Size = limit
	f, err := s.DeliveryFeed(ctx, "", "", webhook.AllDeliveryList, &query)
	if err != nil {
		return nil, nil, err
	}
	err = s.view(ctx, func(v *view) error {
		f.High = min(f.High, num+1)
		found, _, _, err := f.Walk(v.View, true, list.Start(true))
		if err != nil {
			return err
		}
		page, nums, err = v.deliveries(found)
		return err
	})
	return page, nums, err
}

// At returns the deliveries of any program with these nums, in their order, and their nums.
// Removed ones are omitted.
func (s Deliveries) At(ctx context.Context, nums []int64) (all []webhook.Delivery, found []int64, err error) {
	err = s.view(ctx, func(v *view) error {
		all, found, err = v.deliveries(nums)
		return err
	})
	return all, found, err
}

const selectNumOf = "SELECT num FROM deliveries WHERE id = ?"

// Behind returns the cursor of the page of a query of webhook.AllDeliveryList that begins after
// a delivery.
func (s Deliveries) Behind(ctx context.Context, q *webhook.ListQuery, id string) (string, error) {
	var num int64
	if err := s.lists.DB.Scan(ctx, selectNumOf, []any{ShortID(id)}, &num); err != nil {
		return "", sqlite.NoRows(err, webhook.NotFound("delivery"))
	}
	scope := list.Scope{List: "deliveries", Selection: webhook.AllDeliveryList.Selection(q)}
	return s.lists.Key.Cursor(scope, []int64{num}), nil
}

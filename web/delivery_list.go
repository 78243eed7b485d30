package web

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"service/store/list"
	"service/web/ui"
	"service/webhook"
)

// deliveryPages are the pages of deliveries.
type deliveryPages struct{ *site }

// deliveryList is a page of the deliveries of all subscriptions.
type deliveryList struct {
	list      *ui.Listing
	rows      []deliveryRow
	pager     ui.Pager
	newRows   *ui.NewRows // nil on the first page
	next      string      // cursor of the next rows, "" at the end
	behind    string      // address of the page after a row, without the parameter for its ID; "" if the page is not live
	failed    string      // the ID of this request if the rows could not be loaded, "" if they could
	curl      string
	subscribe string    // command that creates the first subscription
	histogram *ui.Chart // of the time range of the list, nil for none
	unfolded  bool      // filters are set that the histogram does not apply
}

// deliveryColumns are the columns of the list. Visitors who may resend deliveries can select
// rows.
func deliveryColumns(selectable bool) []ui.Column {
	columns := []ui.Column{
		{Name: "Selected", Class: "w-tick", Hidden: true, Select: "Select all on this page"},
		{Name: "Status", Class: "w-status"}, {Name: "Delivery", Class: "w-delivery"}, {Name: "Response", Class: "w-response number"},
		{Name: "Attempts", Class: "w-attempt number"}, {Name: "Duration", Class: "w-took number"}, {Name: "Age", Class: "w-age number"},
		{Name: "ID", Class: "w-copy", Hidden: true},
	}
	if !selectable {
		return columns[1:]
	}
	return columns
}

// all is the label of the choice of all matching deliveries.
func (l *deliveryList) all() string {
	if l.countAddress() == "" {
		return allMatching(len(l.rows), false)
	}
	return "Select all matching deliveries"
}

// allMatching is the label once the number of matches is known.
func allMatching(n int, more bool) string {
	if more {
		return "Select all matching deliveries (at least " + ui.Number(int64(n)) + ")"
	}
	if n == 1 {
		return "Select the 1 matching delivery"
	}
	return "Select all " + ui.Number(int64(n)) + " matching deliveries"
}

// countAddress is where the script requests the number of matching rows, "" if that is known.
func (l *deliveryList) countAddress() string {
	if l.next == "" && l.list.Query.Cursor == "" {
		return ""
	}
	return l.list.Selection("/deliveries/count")
}

// matching is the query that selects all matching deliveries.
func (l *deliveryList) matching() string {
	_, query, _ := strings.Cut(l.list.Selection(""), "?")
	return query
}

// ofProgram returns the query narrowed to the selected program, if any.
func ofProgram(q *webhook.ListQuery, program string) *webhook.ListQuery {
	if program == "" {
		return q
	}
	narrow := *q
	narrow.Filters = maps.Clone(q.Filters)
	if narrow.Filters == nil {
		narrow.Filters = make(map[string][]string)
	}
	if given := narrow.Filters["program_id"]; given != nil && !slices.Contains(given, program) {
		program = "" // matches no delivery
	}
	narrow.Filters["program_id"] = []string{program}
	return &narrow
}

// list shows the list. It shows the error of an invalid query at the form.
func (h *deliveryPages) list(r *request) (response, error) {
	v, err := r.listing(webhook.AllDeliveryList, behindParameter)
	if err != nil {
		return response{}, err
	}
	if id := v.Values.Get(behindParameter); id != "" && v.Error == nil {
		return h.pageBehind(r, v, id)
	}
	if found, err := h.nameSubscriptions(r, v); found != "" || err != nil {
		return response{location: found}, err
	}
	v.Events = h.eventNames()
	l := deliveryList{list: v, curl: h.listCurl(&v.Query), subscribe: h.subscribeCommand()}
	f := h.frame(r, "Deliveries")
	var newest int64
	failed, status, err := h.loaded(r, v, func() (err error) {
		newest, err = h.readList(r, &l)
		return err
	})
	if err != nil {
		return response{}, err
	}
	l.failed, f.NewRows = failed, l.newRows
	if status == 0 && v.Query.Cursor == "" {
		if l.histogram, l.unfolded, err = h.histogram(r, v); err != nil {
			return response{}, err
		}
	}
	if status == 0 && v.Query.Cursor == "" && v.Query.Sort[0].Descending {
		f.Live = &ui.Live{
			Stream: v.Selection("/deliveries/stream"), From: livePoint{newest, newest, r.clock.Now}.String(),
			Page: f.Address, Noun: "delivery",
		}
		l.behind = v.With(behindParameter)
		if v.Values.Has(ui.SpanParameter) {
			f.Live.Stream = v.With(ui.SpanParameter, v.Values.Get(ui.SpanParameter))
			f.Live.Stream = "/deliveries/stream" + strings.TrimPrefix(f.Live.Stream, v.Path)
		}
	}
	return response{page: deliveriesPage(f, &l), status: status}, nil
}

// listOfProgram is list for a partner: the deliveries of the partner's program, without live
// updates.
func (h *deliveryPages) listOfProgram(r *request) (response, error) {
	v, err := r.listing(webhook.ProgramDeliveryList)
	if err != nil {
		return response{}, err
	}
	if found, err := h.nameSubscriptions(r, v); found != "" || err != nil {
		return response{location: found}, err
	}
	v.Events = h.eventNames()
	l := deliveryList{list: v}
	failed, status, err := h.loaded(r, v, func() error {
		page, next, err := h.store.Deliveries().PageProgram(r.Context(), r.program, &v.Query)
		if err != nil {
			return err
		}
		l.next, l.pager = next, v.FeedPages("", next)
		l.rows, err = h.deliveryRows(r.Context(), page)
		return err
	})
	if err != nil {
		return response{}, err
	}
	l.failed = failed
	return response{page: deliveriesPage(h.frame(r, "Deliveries"), &l), status: status}, nil
}

// readList reads the rows of a page. It returns the num of the newest delivery before the read.
func (h *deliveryPages) readList(r *request, l *deliveryList) (newest int64, err error) {
	ctx, q := r.Context(), ofProgram(&l.list.Query, r.program)
	if newest, err = h.store.Deliveries().Newest(ctx); err != nil {
		return 0, err
	}
	page, next, err := h.store.Deliveries().PageAll(ctx, q)
	if err != nil {
		return 0, err
	}
	if l.rows, err = h.deliveryRows(ctx, page); err != nil {
		return 0, err
	}
	if q.Cursor == "" {
		l.list.Since = strconv.FormatInt(newest, 10) // the page is live
	} else if l.newRows, err = h.newRows(r, l.list, h.arrived); err != nil {
		return 0, err
	}
	l.next = next
	l.pager, err = feedPager(l.list, next, func() (string, error) { return h.store.Deliveries().Newer(ctx, q) })
	return newest, err
}

// arrived counts the deliveries of a list that were stored after a mark.
func (h *deliveryPages) arrived(r *request, q *webhook.ListQuery, mark string) (list.Arrived, error) {
	return h.store.Deliveries().Arrived(r.Context(), ofProgram(q, r.program), mark)
}

// deliveryRows adds the data of subscriptions and last attempts to deliveries.
func (h *site) deliveryRows(ctx context.Context, deliveries []webhook.Delivery) ([]deliveryRow, error) {
	var ids, subscriptions []string
	for _, d := range deliveries {
		ids = append(ids, d.ID)
		if !slices.Contains(subscriptions, d.SubscriptionID) {
			subscriptions = append(subscriptions, d.SubscriptionID)
		}
	}
	if ids == nil {
		return nil, nil
	}
	labels, err := h.store.Subscriptions().Labels(ctx, subscriptions)
	if err != nil {
		return nil, err
	}
	attempts, err := h.store.Deliveries().LastAttempts(ctx, ids)
	if err != nil {
		return nil, err
	}
	rows := make([]deliveryRow, 0, len(deliveries))
	for _, d := range deliveries {
		label := labels[d.SubscriptionID]
		row := deliveryRow{Delivery: d, url: label.URL, name: firstLineOf(label.Description)}
		// An attempt recorded after the delivery was read would contradict the delivery.
		if a, ok := attempts[d.ID]; ok && (d.Status.Final() || d.Status == webhook.StatusRetryable || a.Number < d.AttemptsMade) {
			row.last = &a
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// listCurl returns the request for the list over the API, where lists belong to a subscription.
func (h *deliveryPages) listCurl(q *webhook.ListQuery) string {
	values := make(url.Values)
	id := "SUBSCRIPTION_ID"
	if len(q.Sort) > 0 { // the sort parameter is valid
		same := *q
		same.Cursor = ""
		values = webhook.DeliveryList.Values(&same)
		if ids := q.Filters["subscription_id"]; len(ids) == 1 {
			id = ids[0]
		}
	}
	return h.curl.Command("GET", ui.Address("/v2/webhooks/subscriptions/"+id+"/deliveries", values), "")
}

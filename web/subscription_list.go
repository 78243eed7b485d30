package web

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"service/store/list"
	"service/store/record"
	"service/web/once"
	"service/web/ui"
	"service/webhook"
)

// subscriptionPages are the pages of subscriptions.
type subscriptionPages struct {
	*site
	formCodes   *once.Codes   // codes of one-time forms, by session
	portalCodes *once.Codes   // the same in the portal
	quickCount  time.Duration // how long a reconciliation counts before it is shown
}

// apiSubscriptions is the path of the subscriptions in the API.
const apiSubscriptions = "/v2/webhooks/subscriptions"

// subscriptionRecords is a page of the list of subscriptions.
type subscriptionRecords struct {
	list    *ui.Listing
	rows    []subscriptionRow
	pager   ui.Pager
	newRows *ui.NewRows
	curl    string
	failure string // ID of the request if the list could not be loaded, "" if it could
}

// subscriptionRow is a subscription with its state and the results of its attempts in each of the
// last 24 hours, oldest first.
type subscriptionRow struct {
	record.SubscriptionSummary
	state ui.SubscriptionState
	hours []webhook.Stat
}

// statHours is the number of hours in the chart of a row.
const statHours = 24

func (h *subscriptionPages) list(r *request) (response, error) {
	v, err := r.listing(webhook.AllSubscriptionList)
	if err != nil {
		return response{}, err
	}
	v.Events = h.eventNames()
	page := subscriptionRecords{list: v}
	failed, status, err := h.loaded(r, v, func() error { return h.readList(r, &page) })
	if err != nil {
		return response{}, err
	}
	page.failure = failed
	page.curl = h.curl.Command("GET", ui.Address(apiSubscriptions, asPartner(&v.Query)), "")
	f := h.frame(r, "Subscriptions")
	if !r.portal.in() {
		f.NewRows = page.newRows
	}
	return response{page: subscriptionsPage(f, &page), status: status}, nil
}

// arrived counts the subscriptions of a list that were stored after a mark.
func (h *subscriptionPages) arrived(r *request, q *webhook.ListQuery, mark string) (list.Arrived, error) {
	return h.store.Subscriptions().Arrived(r.Context(), r.program, q, mark)
}

// readList reads the rows of the page.
func (h *subscriptionPages) readList(r *request, page *subscriptionRecords) (err error) {
	if page.newRows, err = h.newRows(r, page.list, h.arrived); err != nil {
		return err
	}
	var next string
	if page.rows, next, err = h.subscriptionRows(r, &page.list.Query); err != nil {
		return err
	}
	page.pager, err = feedPager(page.list, next, func() (string, error) {
		return h.store.Subscriptions().Newer(r.Context(), r.program, &page.list.Query)
	})
	return err
}

// subscriptionRows reads a page of subscriptions with their states and the results of the last 24
// hours. It takes three reads, regardless of the number of subscriptions.
func (h *site) subscriptionRows(r *request, q *webhook.ListQuery) (rows []subscriptionRow, next string, err error) {
	subs, next, err := h.store.Subscriptions().PageAll(r.Context(), r.program, q)
	if err != nil {
		return nil, "", err
	}
	to := r.clock.Now.Truncate(time.Hour).Add(time.Hour)
	from := to.Add(-statHours * time.Hour)
	records := subscriptionsOf(subs)
	stats, err := h.store.Subscriptions().Stats(r.Context(), records, record.StatHour, from, to)
	if err != nil {
		return nil, "", err
	}
	states, err := h.subscriptionStates(r.Context(), r.clock.Now, records)
	if err != nil {
		return nil, "", err
	}
	for _, s := range subs {
		rows = append(rows, subscriptionRow{s, states[s.ID], steps(stats[s.ID], from, to, time.Hour)})
	}
	return rows, next, nil
}

// asPartner returns the part of a query that the API supports for a partner's own list.
func asPartner(q *webhook.ListQuery) map[string][]string {
	own := webhook.ListQuery{Size: cmp.Or(q.Size, webhook.DefaultPageSize), Number: 1, Ranges: q.Ranges, Sort: q.Sort}
	if len(own.Sort) == 0 || !slices.Contains(webhook.SubscriptionList.Sort, own.Sort[0].Name) {
		own.Sort = webhook.SubscriptionList.Default
	}
	for _, name := range []string{"status", "active", "event"} {
		values, ok := q.Filters[name]
		degraded := func(s string) bool { return s == string(webhook.HealthDegraded) } // a state that the API lacks
		if values = slices.DeleteFunc(slices.Clone(values), degraded); ok && len(values) > 0 {
			if own.Filters == nil {
				own.Filters = make(map[string][]string)
			}
			own.Filters[name] = values
		}
	}
	return webhook.SubscriptionList.Values(&own)
}

// steps sums statistics into steps of a given length between two times. A step without attempts
// is zero.
func steps(stats []webhook.Stat, from, to time.Time, long time.Duration) []webhook.Stat {
	all := make([]webhook.Stat, int(to.Sub(from)/long))
	for i := range all {
		all[i].At, all[i].Span = from.Add(time.Duration(i)*long), long
	}
	for i := range stats {
		since := stats[i].At.Sub(from)
		if at := int(since / long); since >= 0 && at < len(all) {
			all[at].Add(&stats[i])
		}
	}
	return all
}

// statSum returns the sum of all statistics.
func statSum(stats []webhook.Stat) (sum webhook.Stat) {
	for i := range stats {
		sum.Add(&stats[i])
	}
	return sum
}

// rate formats the share of successful attempts, "" if there were none. It never rounds up to 100 %
// or down to 0 %.
func rate(s *webhook.Stat) string {
	share, ok := s.SuccessRate()
	switch {
	case !ok:
		return ""
	case s.Success == s.Total():
		return "100 %"
	case s.Success == 0:
		return "0 %"
	}
	return strconv.FormatFloat(min(max(share*100, 0.1), 99.9), 'f', 1, 64) + " %"
}

// hoursText describes the chart of a row in words.
func hoursText(sum *webhook.Stat) string {
	if sum.Total() == 0 {
		return "No attempts in the last 24 hours"
	}
	return rate(sum) + " of " + ui.Number(sum.Total()) + " attempts in the last 24 hours succeeded"
}

// export sends the list of subscriptions as a file. It omits the query of a URL, which may contain
// a secret.
func (h *subscriptionPages) export(r *request) (response, error) {
	return h.exportList(r, webhook.AllSubscriptionList, &export{
		noun: "subscriptions", action: webhook.ActionSubscriptionExport,
		columns: []string{
			"id", "program_id", "url", "status", "failing_reason", "active", "disabled_reason", "description", "events",
			"ordered", "max_in_flight", "max_per_second", "max_events", "has_authorization_header", "header_names", "filters",
			"created_by", "last_success_at", "failing_since", "failures_in_a_row",
			"waiting_events", "oldest_event_at", "waiting_deliveries", "lost_events",
			"created_at", "updated_at", "deleted_at",
		},
		page: func(q *webhook.ListQuery) (rows [][]any, more bool, err error) {
			q.Sort = []webhook.SortField{{Name: "created_at", Descending: true}} // the keys of other orders change during the export
			page, next, err := h.store.Subscriptions().PageAll(r.Context(), r.program, q)
			for i := range page {
				s := &page[i]
				_, _, whole := webhook.Endpoint(s.URL)
				rows = append(rows, []any{
					s.ID, s.ProgramID, whole, string(s.Status), string(s.FailingReason), s.Active, s.DisabledReason, s.Description,
					s.Events, s.Ordered, s.MaxInFlight, s.MaxPerSecond, s.MaxEvents, s.HasAuthorizationHeader, s.HeaderNames, s.Filters,
					s.CreatedBy, s.LastSuccess, s.Failures.Since, s.Failures.InARow(), s.WaitingEvents, s.OldestEvent, s.WaitingDeliveries, s.Lost,
					s.CreatedAt, s.UpdatedAt, s.DeletedAt,
				})
			}
			q.Cursor = next
			return rows, next != "", err
		},
	})
}

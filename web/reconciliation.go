package web

import (
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// reconciliation is what a subscription was owed in a time range, and what has become of it.
type reconciliation struct {
	*record.SubscriptionView
	list   *ui.Listing
	counts record.Owed
	rows   []record.OwedEvent
	pager  ui.Pager
	more   string // the address of the page with a longer count, "" if the count is complete or was long
	api    string
	failed string // the ID of this request when the rows could not be loaded, "" when they could
}

// reconcile shows the events of a subscription by what has become of them.
func (h *subscriptionPages) reconcile(r *request, u *record.SubscriptionView) (response, error) {
	v, err := r.listing(webhook.ReconciliationList, countParameter)
	if err != nil {
		return response{}, err
	}
	p := reconciliation{SubscriptionView: u, list: v}
	failed, status, err := h.loaded(r, v, func() error { return h.readOwed(r, &p) })
	if err != nil {
		return response{}, err
	}
	p.failed = failed
	f := h.frame(r, "Reconciliation")
	f.Program, f.Programs = "", nil // the page belongs to one program, whatever program is selected
	return response{page: reconciliationPage(f, &p), status: status}, nil
}

// betweenOf returns the parameters of the API for the time range of a query.
func betweenOf(q *webhook.ListQuery) url.Values {
	values := make(url.Values)
	received := q.Ranges["received_at"]
	if received.From.IsZero() {
		received.From = time.Unix(0, 0) // without from, the API begins at the end of the log
	}
	values.Set("from", webhook.FormatTime(received.From))
	if !received.To.IsZero() {
		values.Set("to", webhook.FormatTime(received.To.Add(-1)))
	}
	return values
}

// readOwed reads the counts and the rows of a page.
func (h *subscriptionPages) readOwed(r *request, p *reconciliation) (err error) {
	q, events := &p.list.Query, h.store.Events()
	p.api = h.curl.Command("GET", ui.Address(apiSubscriptionPath(p.ID)+"/events", betweenOf(q)), "")
	limit, long := h.quickCount, p.list.Values.Get(countParameter) == "all"
	if long {
		limit = matchTime
	}
	if p.counts, err = events.CountOwed(r.Context(), &p.Subscription, q, limit); err != nil {
		return err
	}
	if !p.counts.Complete && !long {
		p.more = p.list.With(countParameter, "all")
	}
	p.list.Values.Del(countParameter) // other pages count by themselves
	var next string
	if p.rows, next, err = events.Owed(r.Context(), &p.Subscription, q); err != nil {
		return err
	}
	p.pager, err = feedPager(p.list, next, func() (string, error) { return events.NewerOwed(r.Context(), &p.Subscription, q) })
	return err
}

// exportOwed sends the events as the API returns them, one per line.
func (h *subscriptionPages) exportOwed(r *request, u *record.SubscriptionView) (response, error) {
	return h.exportList(r, webhook.ReconciliationList, &export{
		noun: "events", action: webhook.ActionEventExport, program: u.ProgramID, subject: u.ID,
		lines: func(q *webhook.ListQuery, to io.Writer) (more bool, err error) {
			page, next, err := h.store.Events().Owed(r.Context(), &u.Subscription, q)
			if err != nil {
				return false, err
			}
			var text []byte
			for i := range page {
				text = append(page[i].AppendLogged(text, string(page[i].Status)), '\n')
			}
			q.Cursor = next
			_, err = to.Write(text)
			return next != "", err
		},
	})
}

// received says which events are counted.
func (p *reconciliation) received(c ui.Clock) string {
	between := p.list.Query.Ranges["received_at"]
	text := "Received"
	if !between.From.IsZero() {
		text += " from " + c.Exact(between.From)
	}
	if between.To.IsZero() {
		return text + " to now"
	}
	return text + " to " + c.Exact(between.To)
}

// owedCount is the number of events of a group.
type owedCount struct {
	name, class string
	n           int
	href        string // of their list
}

// groups are the counts of the page. Before the count is complete, they are lower bounds.
func (p *reconciliation) groups() []owedCount {
	all := []owedCount{
		{name: "Owed", n: p.counts.Total, href: p.list.With("filter[status]")},
		{name: "Delivered", href: p.list.With("filter[status]", "delivered")},
		{name: "Failed", href: p.list.With("filter[status]", "failed"), class: "bad"},
		{name: "Waiting", href: p.list.With("filter[status]", "waiting")},
		{name: "Not sent", href: p.list.With("filter[status]", "not_sent"), class: "weak"},
	}
	for state, n := range p.counts.States {
		all[1+slices.Index([]string{"delivered", "failed", "waiting", "not_sent"}, state.Group())].n += n
	}
	return all
}

// owedReason is why events were not delivered.
type owedReason struct {
	state record.DeliveryState
	n     int
}

// reasons are the counts of events that failed, wait or were not sent, the most frequent first.
func (p *reconciliation) reasons() (all []owedReason) {
	for state, n := range p.counts.States {
		if state.Group() != "delivered" {
			all = append(all, owedReason{state, n})
		}
	}
	slices.SortFunc(all, func(a, b owedReason) int {
		if a.n != b.n {
			return b.n - a.n
		}
		return strings.Compare(string(a.state.Status)+a.state.Reason, string(b.state.Status)+b.state.Reason)
	})
	return all
}

// owedState returns the state whose color and symbol an event has, and its word.
func owedState(d record.DeliveryState) (state, word string) {
	switch d.Status {
	case record.DeliveryNone:
		return "filter", "not sent" // no state of a delivery
	case record.DeliveryWaiting:
		return "pending", "waiting"
	case record.DeliveryStatus(webhook.StatusPending):
		return "pending", "sending"
	case record.DeliveryStatus(webhook.StatusSuccess):
		return "success", "delivered"
	}
	return string(d.Status), ui.StateWord(string(d.Status))
}

// why explains a state in a few words, and in a sentence for its title.
func (p *reconciliation) why(d record.DeliveryState, forPartner bool) (short, long string) {
	switch d.Status {
	case record.DeliveryStatus(webhook.StatusFailed):
		return deliveryNoteOf(&webhook.Delivery{Status: webhook.StatusFailed, FailureReason: webhook.FailureReason(d.Reason)}, forPartner)
	case record.DeliveryStatus(webhook.StatusRetryable):
		return "another attempt follows", ""
	case record.DeliveryStatus(webhook.StatusPending):
		return "in a delivery", ""
	case record.DeliveryWaiting:
		switch {
		case !p.Active:
			return waitReason(&record.EventWait{Subscription: p.Subscription}), ""
		case p.Status == webhook.HealthFailing:
			return "endpoint failing", ""
		}
		return "not reached yet", ""
	case record.DeliveryStatus(webhook.StatusSuccess):
		return "", ""
	}
	switch d.Reason {
	case record.NotSentNew:
		return "before the subscription", "Accepted before the subscription was created."
	case record.NotSentPaused:
		return "paused or not selected", "Accepted while the subscription was paused, or had other event types or filters."
	case record.NotSentGone:
		return "no longer stored", "Sent, but the delivery is older than the retention period."
	case record.NotSentErased:
		return "erased", "Erased before a delivery succeeded."
	case string(webhook.FailureSubscriptionDeleted):
		return "subscription deleted", failureText(webhook.FailureSubscriptionDeleted, forPartner)
	}
	return ui.Words(d.Reason), ""
}

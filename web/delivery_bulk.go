package web

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

const (
	// bulkTime bounds one run, so that it ends while the visitor waits.
	bulkTime = 20 * time.Second
	// maxRuns is how many reports are kept in memory; the audit has them all.
	maxRuns = 100

	newestParameter = "newest" // the place that a bulk action looks back from
	restParameter   = "rest"   // the place that its run ends at
	tickedParameter = "ticked" // the rows are named one by one
	runPrefix       = "run-"   // of the ids of runs, which are no ids of deliveries
)

// bulkVerb is something that is done to many deliveries.
type bulkVerb struct {
	action webhook.Action
	path   string
	title  string
	button string
	means  string // what it means for a delivery
	will   string // follows their number
	was    string // follows their number
	danger bool
}

var (
	bulkRedeliver = &bulkVerb{
		action: webhook.ActionDeliveryRedeliver, path: "/deliveries/redeliver", title: "Redeliver", button: "Redeliver",
		will: "will be sent again.", was: "queued to be sent again.",
		means: "Each becomes a new delivery of the same events, linked to the old one, with an id and five attempts of its own. Receivers know events that they had by their ids. What is sent again goes before what is new to the same subscription.",
	}
	bulkCancel = &bulkVerb{
		action: webhook.ActionDeliveryCancel, path: "/deliveries/cancel", title: "Cancel", button: "Cancel", danger: true,
		will: "will be cancelled.", was: "cancelled.",
		means: "Nothing more is sent of them: each ends as failed, with the reason cancelled. Their events stay in the log, and can be redelivered or replayed.",
	}
)

func (b *bulkVerb) does(n int) string {
	if n == 0 {
		return "Nothing can be done here."
	}
	return deliveriesOf(n) + " " + b.will
}

func (b *bulkVerb) did(n int) string { return deliveriesOf(n) + " " + b.was }

// deliveriesOf is a number of deliveries.
func deliveriesOf(n int) string {
	if n == 1 {
		return "1 delivery"
	}
	return ui.Number(int64(n)) + " deliveries"
}

// waitingText says that deliveries wait for room among open redeliveries.
func waitingText(n int) string {
	return "Waiting: " + deliveriesOf(n) + ". A subscription may have " + ui.Number(webhook.MaxOpenRedeliveries) + " redeliveries that have not ended."
}

// matching says how many deliveries match.
func matching(n int) string {
	if n == 1 {
		return "1 delivery matches."
	}
	return deliveriesOf(n) + " match."
}

// bulkForm asks before a run.
type bulkForm struct {
	verb      *bulkVerb
	list      *ui.Listing
	plan      store.BulkPlan
	selection [][2]string
	id        string // of the run that the form begins
	back      string
}

func (b *bulkForm) confirmation() ui.Confirmation {
	c := ui.Confirmation{
		Action: b.list.Selection(b.verb.path), Button: b.verb.button + " " + deliveriesOf(b.plan.Done), Danger: b.verb.danger, CancelTo: b.back, CancelLabel: "Leave them",
		Hidden: [][2]string{{"run", b.id}, {newestParameter, strconv.FormatInt(b.plan.Newest, 10)}, {restParameter, strconv.FormatInt(b.plan.Rest, 10)}},
	}
	if b.plan.Done == 0 && b.plan.Rest == 0 {
		c.Refused = "There is nothing to do."
	} else if b.plan.Done == 0 {
		c.Button = "Go on with older ones"
	}
	return c
}

// rest is the same form for what is older.
func (b *bulkForm) rest(newest int64) string {
	return b.list.Selection(b.verb.path, newestParameter, strconv.FormatInt(newest, 10))
}

// selectionOf says by what a query picks, as pairs of what and which.
func selectionOf(v *ui.Listing, program string) (all [][2]string) {
	if program != "" {
		all = append(all, [2]string{"program", program})
	}
	q := webhook.ListQuery{Sort: v.List.Default, Filters: v.Query.Filters, Ranges: v.Query.Ranges, Size: webhook.DefaultPageSize, Number: 1}
	values := v.List.Values(&q)
	for _, fl := range v.List.Filters {
		for _, name := range []string{fl.Name, fl.Name + ".from", fl.Name + ".to"} {
			if value := values.Get("filter[" + name + "]"); value != "" {
				all = append(all, [2]string{ui.Words(strings.ReplaceAll(name, ".", " ")), value})
			}
		}
	}
	return all
}

// parseBulk reads the form of a bulk action: what it is of, and from where on to
// where.
func (h *deliveryPages) parseBulk(r *request, verb *bulkVerb) (b bulkForm, newest, rest int64, err error) {
	b = bulkForm{verb: verb}
	if b.list, err = r.listing(webhook.AllDeliveryList, newestParameter, tickedParameter); err != nil {
		return b, 0, 0, err
	}
	b.list.Path = "/deliveries"
	b.back = b.list.Selection("/deliveries")
	for name, place := range map[string]*int64{newestParameter: &newest, restParameter: &rest} {
		given := r.FormValue(name)
		if given == "" {
			continue
		}
		if *place, err = strconv.ParseInt(given, 10, 64); err != nil || *place < 0 {
			return b, 0, 0, &problem{status: http.StatusBadRequest, title: "This form cannot be read", text: "What it says of the " + map[string]string{newestParameter: "newest delivery", restParameter: "rest"}[name] + " is no number. Nothing was done."}
		}
	}
	b.selection = selectionOf(b.list, r.program)
	return b, newest, rest, nil
}

// confirmBulk shows what a bulk action would do.
func (h *deliveryPages) confirmBulk(verb *bulkVerb) handler {
	return func(r *request) (response, error) {
		b, newest, _, err := h.parseBulk(r, verb)
		if err != nil {
			return response{}, err
		}
		f := h.frame(r, verb.title+" deliveries")
		f.Section = "/deliveries"
		if b.list.Error != nil {
			return response{page: bulkPage(f, &b), status: http.StatusBadRequest}, nil
		}
		if b.list.Values.Has(tickedParameter) && b.list.Query.Filters["id"] == nil {
			return response{location: ui.InProgram("/deliveries", r.program), note: &ui.Note{Kind: ui.NoteWarning, Text: "No delivery was ticked. Tick some first, or choose all that match."}}, nil
		}
		b.id = runPrefix + webhook.NewID()
		b.plan, err = h.store.BulkRuns().Plan(r.Context(), verb.action, ofProgram(&b.list.Query, r.program), newest)
		if errors.As(err, &b.list.Error) {
			return response{page: bulkPage(f, &b), status: http.StatusBadRequest}, nil
		}
		if err != nil {
			return response{}, err
		}
		return response{page: bulkPage(f, &b)}, nil
	}
}

// runBulk does it, and leads to the report. It goes on when the visitor leaves:
// who sends the form twice is told of the one run.
func (h *deliveryPages) runBulk(verb *bulkVerb) handler {
	return func(r *request) (response, error) {
		b, newest, rest, err := h.parseBulk(r, verb)
		if err != nil {
			return response{}, err
		}
		refuse := func() (response, error) {
			f := h.frame(r, verb.title+" deliveries")
			f.Section = "/deliveries"
			return response{page: bulkPage(f, &b), status: http.StatusBadRequest}, nil
		}
		if b.list.Error != nil {
			return refuse()
		}
		id := r.PostFormValue("run")
		if len(id) != len(runPrefix)+36 || !strings.HasPrefix(id, runPrefix) {
			return response{}, &problem{status: http.StatusBadRequest, title: "This form cannot be read", text: "It does not name its run. Nothing was done."}
		}
		report := response{location: runPath(id)}
		run, mine, free := h.runs.begin(id, &bulkRun{
			verb: verb, selection: b.selection, back: b.back, ended: make(chan struct{}),
		})
		if !free {
			return response{}, &problem{status: http.StatusConflict, title: "Another run is under way", text: "Only one at a time goes through the deliveries. Wait until it has ended, go back, and send the form again. Nothing was done."}
		}
		if !mine {
			select {
			case <-run.ended:
			case <-r.Context().Done():
			}
			return report, nil
		}
		begun, err := h.runOnce(r, &b, run, newest, rest, id)
		switch {
		case begun:
			return report, nil
		case errors.Is(err, store.ErrBegun):
			return report, nil // by an earlier process
		case errors.As(err, &b.list.Error):
			return refuse()
		}
		return response{}, err
	}
}

// runOnce runs a bulk action and keeps what came of it in run. When it could not
// begin, it says so and why; what stops it later is part of the report.
func (h *deliveryPages) runOnce(r *request, b *bulkForm, run *bulkRun, newest, rest int64, id string) (begun bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), bulkTime)
	defer cancel()
	result, err := h.store.BulkRuns().Run(ctx, &store.Bulk{
		ID: id, Action: b.verb.action, Query: ofProgram(&b.list.Query, r.program), Newest: newest, Rest: rest,
		Audit: r.entry(b.verb.action, r.program, id, ""),
	}, func(so store.BulkResult) {
		begun = true
		run.set(so)
	})
	if !begun {
		h.runs.forget(id, run)
		return false, err
	}
	stopped := ""
	switch {
	case err != nil && ctx.Err() != nil:
		stopped = "the time for one run was over."
	case err != nil:
		h.log(r, err)
		stopped = "the store could not go on. The log says more, under the request id " + r.id + "."
	}
	again := ""
	if result.Left > 0 {
		again = b.list.Selection(b.verb.path, newestParameter, strconv.FormatInt(newest, 10))
	} else if result.Rest > 0 {
		again = b.rest(result.Rest)
	}
	h.runs.end(run, result, stopped, again)
	return true, nil
}

func runPath(id string) string { return ui.Address("/deliveries/report", url.Values{"run": {id}}) }

// bulkRuns are the last bulk actions of this process.
type bulkRuns struct {
	mu      sync.Mutex
	all     map[string]*bulkRun
	order   []string // their ids, oldest first
	current *bulkRun // that is under way
}

// bulkRun is one of them. The mutex of runs guards what changes.
type bulkRun struct {
	verb      *bulkVerb
	selection [][2]string
	back      string
	ended     chan struct{} // closed at the end

	mu      sync.Mutex
	result  store.BulkResult
	stopped string // why it did not come to all, "" when it did
	again   string // the form for the rest, "" for none
}

func (b *bulkRun) set(so store.BulkResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.result = so
}

// begin returns the run of an id: this one, which is mine then, or an earlier
// one. It is not free while another is under way.
func (rs *bulkRuns) begin(id string, b *bulkRun) (run *bulkRun, mine, free bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if earlier := rs.all[id]; earlier != nil {
		return earlier, false, true
	}
	if rs.current != nil {
		return nil, false, false
	}
	if rs.all == nil {
		rs.all = make(map[string]*bulkRun)
	}
	if len(rs.order) == maxRuns {
		delete(rs.all, rs.order[0])
		rs.order = rs.order[1:]
	}
	rs.all[id], rs.order, rs.current = b, append(rs.order, id), b
	return b, true, true
}

// forget takes back a run that was not begun.
func (rs *bulkRuns) forget(id string, b *bulkRun) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.all, id)
	rs.order = rs.order[:len(rs.order)-1] // none came after it
	rs.current = nil
	close(b.ended)
}

func (rs *bulkRuns) end(b *bulkRun, result store.BulkResult, stopped, again string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.result, b.stopped, b.again = result, stopped, again
	rs.current = nil
	close(b.ended)
}

func (rs *bulkRuns) find(id string) *bulkRun {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.all[id]
}

// runReport is what a page says of a run: from memory, or after a restart what
// the audit has of it.
type runReport struct {
	id        string
	verb      *bulkVerb
	running   bool
	result    *store.BulkResult
	stopped   string
	selection [][2]string
	again     string
	back      string
	entries   []webhook.AuditEntry
}

func (r *runReport) kind() ui.NoteKind {
	if r.result.Left > 0 || r.result.Done == 0 {
		return ui.NoteWarning
	}
	return ui.NoteSuccess
}

func (h *deliveryPages) report(r *request) (response, error) {
	id := r.URL.Query().Get("run")
	report := runReport{id: id, back: "/deliveries"}
	title := ""
	if run := h.runs.find(id); run != nil {
		run.mu.Lock()
		result := run.result
		report.verb, report.result, report.stopped, report.again = run.verb, &result, run.stopped, run.again
		run.mu.Unlock()
		report.selection, report.back, title = run.selection, run.back, run.verb.title
		select {
		case <-run.ended:
		default:
			report.running = true
		}
	} else {
		q, invalid := webhook.AuditList.Parse(url.Values{"filter[subject_id]": {id}, "sort": {"at"}})
		if invalid != nil || !strings.HasPrefix(id, runPrefix) {
			return notFound(r)
		}
		var err error
		if report.entries, _, err = h.store.Audit().Page(r.Context(), &q); err != nil {
			return response{}, err
		}
		if len(report.entries) == 0 {
			return notFound(r)
		}
		for _, verb := range []*bulkVerb{bulkRedeliver, bulkCancel} {
			if report.entries[0].Action == verb.action {
				title = verb.title
			}
		}
	}
	f := h.frame(r, title+" deliveries: report")
	f.Section = "/deliveries"
	return response{page: runPage(f, &report)}, nil
}

package web

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

const (
	// countTime is how long the server counts before it shows the confirmation. The page's script
	// then continues the count.
	countTime = 50 * time.Millisecond

	newestParameter   = "newest"   // num of the newest delivery that a bulk run may include
	tickedParameter   = "ticked"   // the form names each row
	allParameter      = "all"      // everything that matchingParameter selects, instead of named rows
	matchingParameter = "matching" // the query of a list
	runParameter      = "run"      // the ID of the run that a form starts
	countParameter    = "count"    // all: the page counts without a time limit
)

// bulkVerb is an action on many deliveries.
type bulkVerb struct {
	action webhook.BulkAction
	path   string
	title  string
	button string
	means  string // its effect on a delivery
	will   string // follows the number of deliveries
	was    string // follows the number of deliveries
	danger bool
}

var (
	bulkRedeliver = &bulkVerb{
		action: webhook.BulkRedeliver, path: "/deliveries/redeliver", title: "Resend", button: "Resend",
		will: "will be resent.", was: "resent",
		means: "Each becomes a new delivery of the same events, linked to the original, with its own ID and five attempts. Receivers " +
			"recognize events that they already have by their IDs. Resent deliveries are sent before new events of the same subscription.",
	}
	bulkCancel = &bulkVerb{
		action: webhook.BulkCancel, path: "/deliveries/cancel", title: "Cancel", button: "Cancel", danger: true,
		will: "will be cancelled.", was: "cancelled",
		means: "They are not sent again: each ends as failed, with the reason cancelled. Their events stay in the event log and can be resent " +
			"or replayed.",
	}
)

// verbOf returns the verb of a bulk run.
func verbOf(a webhook.BulkAction) *bulkVerb {
	if a == webhook.BulkCancel {
		return bulkCancel
	}
	return bulkRedeliver
}

func (b *bulkVerb) does(n int) string {
	if n == 0 {
		return "0 deliveries " + b.will
	}
	return deliveriesOf(n) + " " + b.will
}

// skipText explains why deliveries are skipped.
func skipText(s webhook.BulkSkip) string {
	if s == webhook.SkipRedelivered {
		return "already resent"
	}
	return s.Text()
}

// matching formats how many deliveries match.
func matching(n int) string {
	if n == 1 {
		return "1 delivery matches."
	}
	return deliveriesOf(n) + " match."
}

// bulkForm is the confirmation of a bulk run.
type bulkForm struct {
	verb      *bulkVerb
	list      *ui.Listing
	plan      store.BulkPlan
	selection [][2]string
	id        string // of the run that the form starts
	back      string
}

func (b *bulkForm) confirmation() ui.Confirmation {
	c := ui.Confirmation{
		Action: b.list.Selection(b.verb.path), Button: b.verb.button + " " + deliveriesOf(b.plan.Done), Danger: b.verb.danger, CancelTo: b.back,
		CancelLabel: "Back",
		Hidden:      [][2]string{{runParameter, b.id}, {newestParameter, strconv.FormatInt(b.plan.Newest, 10)}},
	}
	switch {
	case !b.plan.Complete:
		c.Button = b.verb.button + " all matching"
	case b.plan.Done == 0:
		c.Refused = "No matching delivery can be " + b.verb.was + "."
	}
	return c
}

// share is the progress of the count, in percent.
func (b *bulkForm) share() string { return strconv.Itoa(int(b.plan.Share*100)) + " %" }

// countAll is the address of the form that follows a complete count.
func (b *bulkForm) countAll() string { return b.list.Selection(b.verb.path, countParameter, "all") }

// selectionOf describes a query as pairs of a filter and its value.
func selectionOf(l *webhook.List, query *webhook.ListQuery, program string) (all [][2]string) {
	if program != "" {
		all = append(all, [2]string{"program", program})
	}
	q := webhook.ListQuery{Sort: l.Default, Filters: query.Filters, Ranges: query.Ranges, Size: webhook.DefaultPageSize, Number: 1}
	values := l.Values(&q)
	for _, fl := range l.Filters {
		for _, name := range []string{fl.Name, fl.Name + ".from", fl.Name + ".to"} {
			if value := values.Get("filter[" + name + "]"); value != "" {
				all = append(all, [2]string{ui.Words(strings.ReplaceAll(name, ".", " ")), value})
			}
		}
	}
	return all
}

// parseBulk reads the form of a bulk run: its query, and the num of the newest delivery that it may
// include, 0 if the form contains none.
func (h *deliveryPages) parseBulk(r *request, verb *bulkVerb) (b bulkForm, newest int64, err error) {
	b = bulkForm{verb: verb}
	if b.list, err = r.listing(webhook.AllDeliveryList, newestParameter, tickedParameter, matchingParameter, countParameter,
		runParameter); err != nil {
		return b, 0, err
	}
	b.list.Path = "/deliveries"
	b.back = b.list.Selection("/deliveries")
	if given := r.FormValue(newestParameter); given != "" {
		if newest, err = strconv.ParseInt(given, 10, 64); err != nil || newest < 0 {
			return b, 0, &problem{
				status: http.StatusBadRequest, title: "Invalid form",
				text: "The newest delivery must be a number. Nothing was done.",
			}
		}
	}
	b.selection = selectionOf(b.list.List, &b.list.Query, r.program)
	return b, newest, nil
}

// bulkFrame returns the frame of the bulk run pages.
func (h *deliveryPages) bulkFrame(r *request, title string) ui.Frame {
	f := h.frame(r, title)
	f.Section = "/deliveries"
	return f
}

// confirmBulk shows the effects of a bulk run.
func (h *deliveryPages) confirmBulk(verb *bulkVerb) handler {
	return func(r *request) (response, error) {
		if given := r.URL.Query(); given.Get(allParameter) != "" {
			matching, err := url.ParseQuery(given.Get(matchingParameter))
			if err != nil {
				return response{}, &problem{
					status: http.StatusBadRequest, title: "Invalid form",
					text: "Its selection has an invalid escape. Nothing was done.",
				}
			}
			return response{location: ui.Address(verb.path, matching)}, nil
		}
		b, newest, err := h.parseBulk(r, verb)
		if err != nil {
			return response{}, err
		}
		f := h.bulkFrame(r, verb.title+" deliveries")
		if b.list.Error != nil {
			return response{page: bulkPage(f, &b), status: http.StatusBadRequest}, nil
		}
		if b.list.Values.Has(tickedParameter) && b.list.Query.Filters["id"] == nil {
			return response{location: ui.InProgram("/deliveries", r.program), note: &ui.Note{Kind: ui.NoteWarning,
				Text: "No delivery is selected. Select some, or all matching deliveries."}}, nil
		}
		limit := countTime
		if r.FormValue(countParameter) == "all" {
			limit = 0
		}
		b.id = webhook.NewID()
		b.plan, err = h.store.BulkRuns().Plan(r.Context(), verb.action, ofProgram(&b.list.Query, r.program), newest, limit, nil)
		if errors.As(err, &b.list.Error) {
			return response{page: bulkPage(f, &b), status: http.StatusBadRequest}, nil
		}
		if err != nil {
			return response{}, err
		}
		if !b.plan.Complete {
			stream := b.list.Selection(verb.path+"/count", runParameter, b.id, newestParameter, strconv.FormatInt(b.plan.Newest, 10))
			f.Live = &ui.Live{Stream: stream, Page: b.countAll(), Noun: "delivery"}
		}
		return response{page: bulkPage(f, &b)}, nil
	}
}

// matchTime is how long the list counts matching deliveries after rows were selected.
const matchTime = 2 * time.Second

// count returns how many deliveries match, for the list.
func (h *deliveryPages) count(r *request) (response, error) {
	v, err := r.listing(webhook.AllDeliveryList)
	if err != nil {
		return response{}, err
	}
	if v.Error != nil {
		return response{}, &problem{status: http.StatusBadRequest, title: "These deliveries cannot be counted", text: v.Error.Error()}
	}
	n, more, err := h.store.BulkRuns().Count(r.Context(), ofProgram(&v.Query, r.program), matchTime)
	if errors.As(err, &v.Error) {
		return response{}, &problem{status: http.StatusBadRequest, title: "These deliveries cannot be counted", text: v.Error.Error()}
	}
	return response{page: matchCount(n, more)}, err
}

// countedEvent is the ID of the event that carries the result of a count.
const countedEvent = "counted"

// countBulk continues the count of a confirmation and streams its progress.
func (h *deliveryPages) countBulk(verb *bulkVerb) handler {
	return func(r *request) (response, error) {
		b, newest, err := h.parseBulk(r, verb)
		if err != nil {
			return response{}, err
		}
		b.id = r.FormValue(runParameter)
		if !webhook.IsID(b.id) || b.list.Error != nil {
			return response{}, &problem{
				status: http.StatusBadRequest, title: "These deliveries cannot be counted",
				text: "The address is not that of a confirmation page.",
			}
		}
		f := h.bulkFrame(r, "")
		return response{stream: func(s *stream) error {
			if s.lastID == countedEvent {
				return s.await(nil, nil)
			}
			sent := time.Now()
			var late error
			show := func(id string) error {
				sent = time.Now()
				f.Clock.Now = sent
				return s.send(id, bulkFormPart(f, &b))
			}
			b.plan, err = h.store.BulkRuns().Plan(s.Context(), verb.action, ofProgram(&b.list.Query, r.program), newest, 0, func(so store.BulkPlan) {
				if b.plan = so; late == nil && time.Since(sent) >= livePace {
					late = show("")
				}
			})
			if err = errors.Join(err, late); err == nil {
				err = show(countedEvent)
			}
			if err != nil {
				return err
			}
			return s.await(nil, nil)
		}}, nil
	}
}

// runBulk starts a run and redirects to its page. A form that is sent twice starts one run.
func (h *deliveryPages) runBulk(verb *bulkVerb) handler {
	return func(r *request) (response, error) {
		b, newest, err := h.parseBulk(r, verb)
		if err != nil {
			return response{}, err
		}
		refuse := func() (response, error) {
			return response{page: bulkPage(h.bulkFrame(r, verb.title+" deliveries"), &b), status: http.StatusBadRequest}, nil
		}
		if b.list.Error != nil {
			return refuse()
		}
		id := r.PostFormValue(runParameter)
		if !webhook.IsID(id) {
			return response{}, &problem{
				status: http.StatusBadRequest, title: "Invalid form",
				text: "The form does not contain the ID of its run. Nothing was done.",
			}
		}
		query := ofProgram(&b.list.Query, r.program)
		if err := h.store.BulkRuns().Check(r.Context(), query); errors.As(err, &b.list.Error) {
			return refuse()
		} else if err != nil {
			return response{}, err
		}
		err = h.store.Write(r, func(w store.Write) error {
			_, err := w.BulkRuns().Create(&store.NewBulkRun{
				ID: id, ProgramID: r.program, Action: verb.action, Query: query, Newest: newest, Audit: r.entry(verb.action.Audited(), r.program, "",
					""),
			})
			return err
		})
		if err != nil && !errors.Is(err, store.ErrBegun) {
			return response{}, asProblem(err)
		}
		return response{location: runPath(id)}, nil
	}
}

// runPath returns the path of the bulk run page.
func runPath(id string) string { return "/bulk-runs/" + url.PathEscape(id) }

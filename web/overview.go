package web

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// overviewPages has the handlers of the overview.
type overviewPages struct{ *site }

// overviewDeliveries is how many recent deliveries the overview shows.
const overviewDeliveries = 15

// overview is the data of the overview.
type overview struct {
	notReady  string // why the service is not ready, "" when it is
	fullDisk  bool   // a full disk is the only reason
	version   string
	started   time.Time
	database  string
	directory string
	baseURL   string
	setup     []setupStep // of a new installation, nil once it is set up
	totals    store.Totals
	backlog   webhook.Backlog
	degraded  int  // subscriptions
	more      bool // degraded is a lower bound
	incidents openIncidents
	health    health
	stats     *attemptStats // of the last hour
	rows      []deliveryRow // newest first
	filter    []filterLink
	older     string // link to all of them, "" when the rows are complete
	filtered  bool   // the rows are not the newest ones of all
}

// filterLink is a link to the deliveries of one status, or of all.
type filterLink struct {
	label, url string
	current    bool
}

// overviewURL is the address of the overview of a program. The query selects deliveries as in the
// API.
func overviewURL(program string, values url.Values) string {
	if program != "" {
		values.Set(ui.ProgramParameter, program)
	}
	return ui.Address("/", values)
}

// statusLinks are the links to the deliveries by status.
func statusLinks(program string, q *webhook.ListQuery) []filterLink {
	shown := q.Filters["status"]
	links := []filterLink{{"All", ui.InProgram("/", program), len(shown) == 0}}
	for _, s := range []webhook.Status{webhook.StatusPending, webhook.StatusRetryable, webhook.StatusFailed, webhook.StatusSuccess} {
		links = append(links, filterLink{
			label: ui.StateWord(string(s)), url: overviewURL(program, url.Values{"filter[status]": {string(s)}}),
			current: slices.Equal(shown, []string{string(s)}),
		})
	}
	return links
}

func (h *overviewPages) show(r *request) (response, error) {
	ctx := r.Context()
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return response{}, &problem{status: http.StatusBadRequest, title: "Invalid address",
			text: "The query has an invalid % escape."}
	}
	values.Del(ui.ProgramParameter)
	query, invalid := webhook.AllDeliveryList.Parse(values)
	if invalid != nil {
		return response{}, invalidQuery(invalid)
	}
	if !values.Has("page[size]") {
		query.Size = overviewDeliveries
	}
	o := overview{
		version: h.cfg.Version, started: h.cfg.Started,
		directory: h.store.Dir(), baseURL: h.cfg.BaseURL,
	}
	sqlite, err := store.SQLiteVersion()
	if err != nil {
		return response{}, err
	}
	o.database = "SQLite " + sqlite + " (" + store.DriverName + ")"
	if o.health, err = h.readHealth(ctx); err != nil {
		return response{}, err
	}
	if o.incidents, err = h.readOpenIncidents(ctx, r.program); err != nil {
		return response{}, err
	}
	if o.stats, err = h.readStats(ctx, r.clock, r.program, "", store.StatMinute, 60); err != nil {
		return response{}, err
	}
	if h.cfg.Backlog != nil {
		if o.backlog, err = h.cfg.Backlog(ctx, ""); err != nil {
			return response{}, err
		}
	}
	if h.cfg.Ready != nil {
		if err := h.cfg.Ready(ctx); err != nil {
			o.notReady = err.Error()
			var full *webhook.Error
			o.fullDisk = o.health.disk.Low && errors.As(err, &full)
		}
	}
	if o.totals, err = h.store.Figures().Totals(ctx); err != nil {
		return response{}, err
	}
	if o.degraded, o.more, err = h.store.Subscriptions().CountDegraded(ctx, ""); err != nil {
		return response{}, err
	}
	if o.setup, err = h.firstRun(r); err != nil {
		return response{}, err
	}
	deliveries, next, err := h.store.Deliveries().PageAll(ctx, ofProgram(&query, r.program))
	if errors.As(err, &invalid) {
		return response{}, invalidQuery(invalid)
	}
	if err != nil {
		return response{}, err
	}
	o.filter, o.filtered = statusLinks(r.program, &query), len(values) > 0 || r.program != ""
	if next != "" {
		all := query
		all.Size, all.Cursor = webhook.DefaultPageSize, ""
		values := webhook.AllDeliveryList.Values(&all)
		if r.program != "" {
			values.Set(ui.ProgramParameter, r.program)
		}
		o.older = ui.Address("/deliveries", values)
	}
	if o.rows, err = h.deliveryRows(ctx, deliveries); err != nil {
		return response{}, err
	}
	f := h.frame(r, "Overview")
	f.Section = "/"
	return response{page: overviewPage(f, &o)}, nil
}

// invalidQuery describes what is invalid in a query, and what is allowed.
func invalidQuery(e *webhook.Error) *problem {
	return &problem{status: http.StatusBadRequest, title: "These deliveries cannot be listed", text: e.Error()}
}

// waits returns how many events wait: in the logs, and in deliveries for their next attempt.
func (o *overview) waits() string {
	return atLeast(o.backlog.Events+int(o.totals.WaitingEvents), o.backlog.More || o.totals.Waiting >= store.CountLimit)
}

// retries returns how many deliveries wait for their next attempt.
func (o *overview) retries() string {
	return countedOf(o.totals.Waiting, "delivery") + " waiting for an attempt"
}

package web

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"service/store"
	"service/webhook"
)

// overviewDeliveries is how many of the last deliveries the overview shows.
const overviewDeliveries = 15

// overview is what the page of the same name shows.
type overview struct {
	notReady  string // why the service is not ready, "" when it is
	fullDisk  bool   // and that is for want of room on the disk alone
	version   string
	started   time.Time
	database  string
	directory string
	program   string
	baseURL   string
	caFile    string
	totals    store.Totals
	behind    int       // subscriptions that events wait for
	oldest    time.Time // when the oldest of those events was accepted; zero for none
	health    health
	pulse     *pulse        // of the last hour
	rows      []deliveryRow // newest first
	filter    []filterLink
	older     string // the link to all of them, "" when rows are all
	filtered  bool   // the rows are not simply the newest
}

// filterLink shows the deliveries of one status, or all.
type filterLink struct {
	label, url string
	current    bool
}

// overviewURL is the overview of a program with a query of the deliveries: the
// API's own.
func overviewURL(program string, values url.Values) string {
	if program != "" {
		values.Set(programParameter, program)
	}
	return address("/", values)
}

// statusLinks are the choices of a status beside the query that is shown.
func statusLinks(program string, q *webhook.ListQuery) []filterLink {
	shown := q.Filters["status"]
	links := []filterLink{{"All", inProgram("/", program), len(shown) == 0}}
	for _, s := range []webhook.Status{webhook.StatusPending, webhook.StatusRetryable, webhook.StatusFailed, webhook.StatusSuccess} {
		links = append(links, filterLink{
			label: words(string(s)), url: overviewURL(program, url.Values{"filter[status]": {string(s)}}),
			current: slices.Equal(shown, []string{string(s)}),
		})
	}
	return links
}

func (w *Web) overview(r *request) (answer, error) {
	ctx := r.Context()
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return answer{}, &problem{status: http.StatusBadRequest, title: "This address cannot be read", text: "Its query has an escape that is not valid."}
	}
	values.Del(programParameter)
	query, invalid := webhook.AllDeliveryList.Parse(values)
	if invalid != nil {
		return answer{}, badQuery(invalid)
	}
	if !values.Has("page[size]") {
		query.Size = overviewDeliveries
	}
	o := overview{
		version: w.cfg.Version, started: w.cfg.Started,
		directory: w.cfg.Store.Dir(), program: w.cfg.Program, baseURL: w.cfg.BaseURL, caFile: w.cfg.CAFile,
	}
	sqlite, err := store.SQLiteVersion()
	if err != nil {
		return answer{}, err
	}
	o.database = "SQLite " + sqlite + " (" + store.DriverName + ")"
	if o.health, err = w.readHealth(ctx); err != nil {
		return answer{}, err
	}
	if o.pulse, err = w.pulseOf(ctx, r.clock, r.program, "", store.StatMinute, 60); err != nil {
		return answer{}, err
	}
	if w.cfg.Backlog != nil {
		if o.behind, o.oldest, err = w.cfg.Backlog(ctx, ""); err != nil {
			return answer{}, err
		}
	}
	if w.cfg.Ready != nil {
		if err := w.cfg.Ready(ctx); err != nil {
			o.notReady = err.Error()
			var full *webhook.Error
			o.fullDisk = o.health.disk.Low && errors.As(err, &full)
		}
	}
	if o.totals, err = w.cfg.Store.Totals(ctx); err != nil {
		return answer{}, err
	}
	deliveries, next, err := w.cfg.Store.AllDeliveries(ctx, ofProgram(&query, r.program))
	if errors.As(err, &invalid) {
		return answer{}, badQuery(invalid)
	}
	if err != nil {
		return answer{}, err
	}
	o.filter, o.filtered = statusLinks(r.program, &query), len(values) > 0 || r.program != ""
	if next != "" {
		all := query
		all.Size, all.Cursor = webhook.DefaultPageSize, ""
		values := webhook.AllDeliveryList.Values(&all)
		if r.program != "" {
			values.Set(programParameter, r.program)
		}
		o.older = address("/deliveries", values)
	}
	if o.rows, err = w.deliveryRows(ctx, deliveries); err != nil {
		return answer{}, err
	}
	f := w.frame(r, "Overview")
	f.path = "/"
	return answer{page: overviewPage(f, &o)}, nil
}

// badQuery tells what of a query cannot be shown, and what can.
func badQuery(e *webhook.Error) *problem {
	return &problem{status: http.StatusBadRequest, title: "These deliveries cannot be listed", text: e.Error()}
}

// waits says how many deliveries wait to be sent.
func (o *overview) waits() string { return counted(o.totals.Waiting) }

// tokenCommand makes a token and keeps it in a variable of the shell.
func (o *overview) tokenCommand() string {
	return "TOKEN=$(" + o.program + " token create --data " + shell(o.directory) +
		" \\\n  --program acme --user me --scope webhooks.read,webhooks.write,events.read,events.write)"
}

// subscribeCommand makes a subscription with that token.
func (o *overview) subscribeCommand() string {
	return o.curl("/v2/webhooks/subscriptions", `{"url": "https://example.com/webhooks", "events": [{"name": "ping"}]}`)
}

func (o *overview) curl(path, body string) string {
	var b strings.Builder
	b.WriteString("curl ")
	if o.caFile != "" {
		b.WriteString("--cacert " + shell(o.caFile) + " ")
	}
	b.WriteString(shell(o.baseURL+path) + " \\\n")
	b.WriteString("  -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\\n")
	b.WriteString("  -d " + shell(body))
	return b.String()
}

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
const overviewDeliveries = 50

// overview is what the page of the same name shows.
type overview struct {
	now       time.Time
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
	health    health
	pulse     *pulse        // of the last hour
	rows      []deliveryRow // newest first
	filter    []filterLink
	older     string // the link to what comes after rows, "" at the end
	filtered  bool   // the rows are not simply the newest
}

// filterLink shows the deliveries of one status, or all.
type filterLink struct {
	label, url string
	current    bool
}

// listURL is the overview with a query of the deliveries: the API's own.
func listURL(values url.Values) string {
	if len(values) == 0 {
		return "/"
	}
	return "/?" + values.Encode()
}

// statusLinks are the choices of a status beside the query that is shown.
func statusLinks(q *webhook.ListQuery) []filterLink {
	shown := q.Filters["status"]
	links := []filterLink{{"All", "/", len(shown) == 0}}
	for _, s := range []webhook.Status{webhook.StatusPending, webhook.StatusRetryable, webhook.StatusFailed, webhook.StatusSuccess} {
		links = append(links, filterLink{
			label: words(string(s)), url: listURL(url.Values{"filter[status]": {string(s)}}),
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
	query, invalid := webhook.AllDeliveryList.Parse(values)
	if invalid != nil {
		return answer{}, badQuery(invalid)
	}
	if !values.Has("page[size]") {
		query.Size = overviewDeliveries
	}
	o := overview{
		now: time.Now(), version: w.cfg.Version, started: w.cfg.Started,
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
	deliveries, next, err := w.cfg.Store.AllDeliveries(ctx, &query)
	if errors.As(err, &invalid) {
		return answer{}, badQuery(invalid)
	}
	if err != nil {
		return answer{}, err
	}
	o.filter, o.filtered = statusLinks(&query), len(values) > 0
	if next != "" {
		older := query
		older.Cursor = next
		o.older = listURL(webhook.AllDeliveryList.Values(&older))
	}
	var ids, subscriptions []string
	for _, d := range deliveries {
		ids = append(ids, d.ID)
		if !slices.Contains(subscriptions, d.SubscriptionID) {
			subscriptions = append(subscriptions, d.SubscriptionID)
		}
	}
	urls, err := w.cfg.Store.SubscriptionURLs(ctx, subscriptions)
	if err != nil {
		return answer{}, err
	}
	attempts, err := w.cfg.Store.LastAttempts(ctx, ids)
	if err != nil {
		return answer{}, err
	}
	for _, d := range deliveries {
		row := deliveryRow{Delivery: d, url: urls[d.SubscriptionID]}
		// One that was recorded after the delivery was read would contradict it.
		if a, ok := attempts[d.ID]; ok && (d.Status.Final() || d.Status == webhook.StatusRetryable || a.Number < d.AttemptsMade) {
			row.last = &a
		}
		o.rows = append(o.rows, row)
	}
	f := w.frame(r, "Overview")
	f.path = "/"
	return answer{page: overviewPage(f, &o)}, nil
}

// badQuery tells what of a query cannot be shown, and what can.
func badQuery(e *webhook.Error) *problem {
	return &problem{status: http.StatusBadRequest, title: "These deliveries cannot be listed", text: e.Error()}
}

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

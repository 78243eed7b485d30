package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// incidentPages are the pages of incidents.
type incidentPages struct{ *site }

const (
	// overviewIncidents is how many open incidents the overview reads.
	overviewIncidents = 50
	// overviewRows is how many rows of them it shows.
	overviewRows = 6
)

// incidentPath returns the path of the page of an incident.
func incidentPath(id string) string { return "/incidents/" + url.PathEscape(id) }

// openIncidents are the incidents on the overview.
type openIncidents struct {
	groups []incidentGroup // the most severe first
	shown  int             // number of incidents in groups
	total  int
}

// incidentGroup groups open incidents with one cause: the same server and result. The first is the
// most severe.
type incidentGroup struct {
	all     []incidentRow
	host    string
	result  string
	severe  bool
	since   time.Time // the first failure
	success time.Time // last success of any of them; zero if unknown
	waiting int
	more    bool // waiting counts are lower bounds
	failed  int64
}

// incidentRow is an incident with the details that a list shows.
type incidentRow struct {
	webhook.Incident
	message string // message for the partner
}

// readOpenIncidents reads the open incidents of a program, or of all for "".
func (h *site) readOpenIncidents(ctx context.Context, program string) (o openIncidents, err error) {
	all, err := h.store.Incidents().Open(ctx, program, overviewIncidents, store.MaxWaiting)
	if err != nil {
		return o, err
	}
	if o.total, err = h.store.Incidents().CountOpen(ctx, program); err != nil {
		return o, err
	}
	o.groups = groupIncidents(all)
	o.groups = o.groups[:min(len(o.groups), overviewRows)]
	for _, g := range o.groups {
		o.shown += len(g.all)
	}
	return o, nil
}

// groupIncidents groups incidents by cause.
func groupIncidents(all []webhook.Incident) (groups []incidentGroup) {
	type cause struct{ origin, result string }
	at := make(map[cause]int)
	for n := range all {
		i := &all[n]
		host, _, _ := webhook.Endpoint(i.URL)
		c := cause{originOf(i.URL), incidentResult(i)}
		g, ok := at[c]
		if !ok {
			g = len(groups)
			at[c] = g
			groups = append(groups, incidentGroup{host: host, result: c.result, since: i.FirstFailure})
		}
		groups[g].add(i)
	}
	return groups
}

func (g *incidentGroup) add(i *webhook.Incident) {
	g.all = append(g.all, incidentRow{*i, partnerMessage(i)})
	g.severe = g.severe || isSevere(i)
	if i.FirstFailure.Before(g.since) {
		g.since = i.FirstFailure
	}
	if i.LastSuccess.After(g.success) {
		g.success = i.LastSuccess
	}
	g.waiting += i.WaitingEvents
	g.more = g.more || i.WaitingMore
	g.failed += i.Failed
}

// state is the state whose color and symbol the group has.
func (g *incidentGroup) state() string {
	if g.severe {
		return "failed"
	}
	return "retryable"
}

// originOf returns the scheme and the host of a URL.
func originOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	return u.Scheme + "://" + u.Host
}

// isSevere reports whether a subscription receives no events at all.
func isSevere(i *webhook.Incident) bool { return i.Open() && i.FailingReason != "" }

// incidentName names a subscription by its description, or else by its URL.
func incidentName(i *webhook.Incident) string {
	name, _, _ := strings.Cut(strings.TrimSpace(i.Description), "\n")
	if name != "" {
		return name
	}
	host, path, _ := webhook.Endpoint(i.URL)
	return cmp.Or(host+path, i.SubscriptionID)
}

// incidentResult describes the last failed attempt: 401 Unauthorized, or connection refused.
func incidentResult(i *webhook.Incident) string {
	switch {
	case i.ErrorFact != "" && i.Error == webhook.ErrorConnect:
		return ui.Visible(i.ErrorFact)
	case i.ErrorFact != "":
		return errorTitles[i.Error] + ": " + ui.Visible(i.ErrorFact)
	}
	return incidentOutcome(i)
}

// incidentOutcome is incidentResult without the cause of an error, which only admins see.
func incidentOutcome(i *webhook.Incident) string {
	if i.Error == webhook.ErrorNone && i.ResponseStatus == 0 {
		return cmp.Or(ui.FailingReason(i.FailingReason), "failing")
	}
	return attemptOutcome(&webhook.Attempt{ResponseStatus: i.ResponseStatus, Error: i.Error})
}

// attemptOutcome describes the result of an attempt for use in a sentence: 401 Unauthorized, or
// DNS lookup failed.
func attemptOutcome(a *webhook.Attempt) string {
	if a.Error != webhook.ErrorNone {
		return errorTitles[a.Error]
	}
	return outcomeText(a)
}

// errorTitles name the errors of attempts.
var errorTitles = map[webhook.ErrorCode]string{
	webhook.ErrorTimeout:     "timeout",
	webhook.ErrorDNS:         "DNS lookup failed",
	webhook.ErrorConnect:     "connection failed",
	webhook.ErrorTLS:         "TLS failed",
	webhook.ErrorBlocked:     "address not allowed",
	webhook.ErrorProtocol:    "invalid HTTP response",
	webhook.ErrorInterrupted: "interrupted",
}

// incidentState returns the state whose color and symbol an incident has, and the
// word for it.
func incidentState(i *webhook.Incident) (state, word string) {
	switch {
	case !i.Open():
		return "success", "resolved"
	case isSevere(i):
		return "failed", "open, deliveries stopped"
	}
	return "retryable", "open, some failed"
}

// waitingText formats the number of waiting events and permanently failed deliveries: 312 events
// waiting, 5 deliveries failed.
func waitingText(waiting int, more bool, failed int64) string {
	var parts []string
	if waiting > 0 || more {
		parts = append(parts, countWord(waiting, atLeast(waiting, more), "event")+" waiting")
	}
	if failed > 0 {
		parts = append(parts, countWord(int(failed), ui.Number(failed), "delivery")+" failed")
	}
	return strings.Join(parts, ", ")
}

// countWord formats a number with its noun.
func countWord(n int, written, noun string) string {
	if n != 1 {
		if stem, ok := strings.CutSuffix(noun, "y"); ok {
			noun = stem + "ie"
		}
		noun += "s"
	}
	return written + " " + noun
}

// closedByText describes how an incident was closed.
func closedByText(by webhook.IncidentEnd) string {
	switch by {
	case webhook.IncidentHealthy:
		return "a delivery succeeded"
	case webhook.IncidentIsQuiet:
		return "no delivery failed permanently for an hour"
	case webhook.IncidentChanged:
		return "the URL of the subscription was changed, or the subscription was resumed"
	case webhook.IncidentDeleted:
		return "the subscription was deleted"
	}
	return string(by)
}

// resendFrom is the start of the time range to resend: when the oldest event of a permanently
// failed delivery was accepted.
func resendFrom(i *webhook.Incident) time.Time {
	switch {
	case !i.FailedFrom.IsZero():
		return i.FailedFrom
	case !i.LastSuccess.IsZero() && i.LastSuccess.Before(i.FirstFailure):
		return i.LastSuccess
	}
	return i.FirstFailure.Add(-24 * time.Hour)
}

// canResend reports whether events of the failed deliveries of an incident are left to resend.
func canResend(i *webhook.Incident) bool {
	return i.Undelivered > 0 && i.ClosedBy != webhook.IncidentDeleted && i.URL != ""
}

// incidentList is a page of incidents.
type incidentList struct {
	list   *ui.Listing
	rows   []webhook.Incident
	pager  ui.Pager
	next   string // the address of the next page, "" on the last
	failed string // the id of this request when the rows could not be loaded, "" when they could
	curl   string
}

func (h *incidentPages) list(r *request) (response, error) {
	v, err := r.listing(webhook.AllIncidentList)
	if err != nil {
		return response{}, err
	}
	l := incidentList{list: v, curl: h.curl.Command("GET", "/v2/incidents?filter[status]=open", "")}
	status := 0
	if v.Error == nil {
		if l.failed, status, err = h.loaded(r, v, h.readList(r, &l)); err != nil {
			return response{}, err
		}
	}
	if v.Error != nil {
		status = http.StatusBadRequest
	}
	return response{page: incidentListPage(h.frame(r, "Incidents"), &l), status: status}, nil
}

func (h *incidentPages) readList(r *request, l *incidentList) (err error) {
	q := ofProgram(&l.list.Query, r.program)
	incidents := h.store.Incidents()
	var newer, next string
	if l.rows, next, err = incidents.Page(r.Context(), "", q); err != nil {
		return err
	}
	if q.Cursor != "" {
		if newer, err = incidents.Newer(r.Context(), "", q); err != nil {
			return err
		}
	}
	l.pager = l.list.FeedPages(newer, next)
	l.next = l.pager.Older
	return nil
}

// incidentView shows one incident.
type incidentView struct {
	incidentRow
	curl string
}

func (h *incidentPages) show(r *request) (response, error) {
	i, err := h.store.Incidents().Get(r.Context(), "", r.PathValue("id"))
	if err != nil {
		return response{}, asProblem(err)
	}
	v := incidentView{incidentRow{i, partnerMessage(&i)}, h.curl.Command("GET", "/v2/incidents/"+i.ID, "")}
	f := h.frame(r, ui.Visible(incidentName(&i)))
	f.Program, f.Programs = "", nil // the page belongs to one program, whatever program is selected
	return response{page: incidentPage(f, &v)}, nil
}

// alertTitle names an alert.
func alertTitle(name webhook.AlertName) string {
	_, label := alertState(&store.Alert{Name: name})
	return label
}

// alertSending describes the result of sending an alert.
func alertSending(s webhook.Status) string {
	switch s {
	case store.AlertUnsent:
		return "not sent: no alert channel is set up"
	case webhook.StatusSuccess:
		return "sent"
	case webhook.StatusFailed:
		return "could not be sent"
	}
	return "is being sent"
}

// probeText describes the result of a probe.
func probeText(p *webhook.IncidentProbe) string {
	return incidentResult(&webhook.Incident{ResponseStatus: p.ResponseStatus, Error: p.Error})
}

// probesBefore is how many failed probes of an incident are not in its timeline.
func (v *incidentView) probesBefore() int {
	n := v.Probes
	for _, e := range v.Timeline {
		if e.Probe != nil && !e.Probe.Succeeded() {
			n--
		}
	}
	return max(n, 0)
}

// lasted formats the duration of an incident.
func lasted(i *webhook.Incident, now time.Time) time.Duration {
	if !i.Open() {
		now = i.ClosedAt
	}
	return now.Sub(i.FirstFailure)
}

func waitingOf(i *webhook.Incident) string {
	return waitingText(i.WaitingEvents, i.WaitingMore, i.Failed)
}

// disabledText describes what happens to the events of a disabled subscription: the ones already
// waiting, and the ones published later.
func disabledText(i *webhook.Incident) string {
	if i.WaitingEvents == 0 {
		return "new events are not delivered"
	}
	return "new events are not delivered; those waiting were published before and are delivered after it is resumed"
}

// failedDeliveries is the address of the failed deliveries of an incident that are not recovered.
func failedDeliveries(i *webhook.Incident) string {
	values := url.Values{
		"filter[subscription_id]":   {i.SubscriptionID},
		"filter[recovered]":         {"false"},
		"filter[completed_at.from]": {webhook.FormatTime(i.OpenedAt.Add(-time.Second))},
	}
	if !i.Open() {
		values.Set("filter[completed_at.to]", webhook.FormatTime(i.ClosedAt))
	}
	return ui.Address("/deliveries", values)
}

// leftText ends the sentence about the failed deliveries of a resolved incident.
func leftText(i *webhook.Incident) string {
	if i.Undelivered == 0 {
		return ". Their events have been delivered since."
	}
	return " and can be resent."
}

func failedText(n int64) string {
	if n == 1 {
		return "1 delivery failed permanently"
	}
	return ui.Number(n) + " deliveries failed permanently"
}

// where names the server of a group and its programs.
func (g *incidentGroup) where() string {
	parts := []string{ui.Visible(g.host)}
	if len(g.all) == 1 {
		_, path, _ := webhook.Endpoint(g.all[0].URL)
		parts[0] += ui.Visible(path)
	}
	var programs []string
	for n := range g.all {
		if p := ui.Visible(g.all[n].ProgramID); !slices.Contains(programs, p) {
			programs = append(programs, p)
		}
	}
	return strings.Join(append(parts, strings.Join(programs, ", ")), " · ")
}

// dash returns a number, or a dash for none.
func dash(is bool, number string) string {
	if is {
		return number
	}
	return "–"
}

// firstProbe reports whether the n-th entry is the first probe of a timeline.
func firstProbe(entries []webhook.IncidentEntry, n int) bool {
	for _, e := range entries[:n] {
		if e.Probe != nil {
			return false
		}
	}
	return true
}

func earlierProbes(n int) string {
	if n == 1 {
		return "1 earlier probe failed"
	}
	return ui.Number(int64(n)) + " earlier probes failed"
}

// resentEvents describes what was resent.
func resentEvents(r *webhook.IncidentResend) string {
	if r.Events == 0 {
		return "Resent"
	}
	return webhook.Count(int(r.Events), "event") + " resent"
}

// resentText describes in what it was resent, by whom, and the results: in 5 deliveries by
// ada@example.com: 4 succeeded, 1 failed.
func resentText(r *webhook.IncidentResend) string {
	text := "in " + deliveriesOf(int(r.Deliveries)) + " by " + cmp.Or(ui.Visible(r.Admin), "API")
	switch {
	case r.Running:
		text += " so far"
	case r.Cancelled:
		text += ", then cancelled"
	}
	var parts []string
	for _, b := range bulkResults {
		if n := r.Results[b.status]; n > 0 {
			parts = append(parts, ui.Number(n)+" "+b.word)
		}
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

// resentPath is the page of the resent deliveries.
func resentPath(r *webhook.IncidentResend) string {
	if r.BulkRunID != "" {
		return runPath(r.BulkRunID)
	}
	return ui.Address("/deliveries", url.Values{"filter[replay_id]": {r.ReplayID}})
}

package web

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/store"
	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// incidentPages are the pages of incidents.
type incidentPages struct{ *site }

const (
	// overviewIncidents is how many open incidents the overview reads.
	overviewIncidents = 50
	// overviewRows is how many rows of open incidents the overview shows.
	overviewRows = 6
	// pageIncidents is how many open and how many resolved incidents the incidents page shows.
	pageIncidents = 100
	// recentlyResolved is how long the incidents page shows a resolved incident.
	recentlyResolved = 24 * time.Hour
	// allIncidentsParameter lists all incidents, newest first, in pages.
	allIncidentsParameter = "all"
)

// incidentPath returns the path of the incident page.
func incidentPath(id string) string { return "/incidents/" + url.PathEscape(id) }

// openIncidents are the open incidents that a page shows. On the overview they include ended
// incidents that left deliveries to resend.
type openIncidents struct {
	groups []incidentGroup // the most severe first
	shown  int             // number of open incidents in groups
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
	success time.Time // last success of any incident; zero if unknown
	waiting int
	more    bool // waiting counts are lower bounds
	failed  int64
}

// incidentRow is an incident with the details that a list shows.
type incidentRow struct {
	webhook.Incident
	message string // message for the partner
}

// readOpenIncidents reads at most limit open incidents of a program, or of all for "", and groups
// them into at most rows rows.
func (h *site) readOpenIncidents(ctx context.Context, program string, limit, rows int) (o openIncidents, err error) {
	all, err := h.store.Incidents().Open(ctx, program, limit, record.MaxWaiting)
	if err != nil {
		return o, err
	}
	if o.total, err = h.store.Incidents().CountOpen(ctx, program); err != nil {
		return o, err
	}
	o.groups = groupIncidents(all)
	o.groups = o.groups[:min(len(o.groups), rows)]
	for _, g := range o.groups {
		o.shown += len(g.all)
	}
	return o, nil
}

// groupIncidents groups incidents by cause. It sorts failing before degraded, then by the number of
// waiting events.
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
	slices.SortStableFunc(groups, func(a, b incidentGroup) int {
		if a.severe != b.severe {
			if a.severe {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.waiting, a.waiting)
	})
	return groups
}

// singleRows shows each incident in a row of its own, in the given order.
func singleRows(all []webhook.Incident) (groups []incidentGroup) {
	for n := range all {
		groups = append(groups, groupIncidents(all[n:n+1])...)
	}
	return groups
}

func (g *incidentGroup) add(i *webhook.Incident) {
	g.all = append(g.all, incidentRow{*i, partnerMessage(i, nil)})
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

// state is the state that sets the group's color and symbol.
func (g *incidentGroup) state() string {
	switch {
	case g.severe:
		return "failed"
	case g.open():
		return "retryable"
	}
	return "success"
}

// open reports whether the incidents of the group are open. A group of several always is.
func (g *incidentGroup) open() bool { return g.all[0].Open() }

// left reports whether failed deliveries of the group remain undelivered.
func (g *incidentGroup) left() bool {
	return slices.ContainsFunc(g.all, func(i incidentRow) bool { return i.Open() && i.Failed > 0 || i.Undelivered > 0 })
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

// incidentName names the subscription of an incident.
func incidentName(i *webhook.Incident) string { return nameOf(i.Description, i.URL, i.SubscriptionID) }

// nameOf names a subscription by its description, or else by its URL.
func nameOf(description, url, id string) string {
	host, path, _ := webhook.Endpoint(url)
	return cmp.Or(firstLineOf(strings.TrimSpace(description)), host+path, id)
}

// incidentResult describes the last failed attempt: 401 Unauthorized, or connection refused.
func incidentResult(i *webhook.Incident) string {
	switch {
	case i.ErrorFact != "" && (i.Error == webhook.ErrorConnect || i.ErrorFact == errorTitles[i.Error]):
		return ui.Visible(i.ErrorFact)
	case i.ErrorFact != "":
		return errorTitles[i.Error] + ": " + ui.Visible(i.ErrorFact)
	}
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

// incidentState returns the state that sets an incident's color and symbol, and the word for it.
func incidentState(i *webhook.Incident) (state, word string) {
	switch {
	case !i.Open():
		return "success", "resolved"
	case i.Health == webhook.HealthDisabled:
		return "failed", "disabled"
	case isSevere(i):
		return "failed", "failing"
	}
	return "retryable", "degraded"
}

// waitingText formats the number of waiting events and permanently failed deliveries: 312 events
// waiting, 5 deliveries failed.
func waitingText(waiting int, more bool, failed int64) string {
	var parts []string
	if waiting > 0 || more {
		parts = append(parts, countWord(waiting, atLeast(waiting, more), "event")+" waiting")
	}
	if failed > 0 {
		parts = append(parts, numbered(failed, "delivery")+" failed")
	}
	return strings.Join(parts, ", ")
}

// closedByText describes how an incident was closed.
func closedByText(by webhook.IncidentEnd) string {
	switch by {
	case webhook.IncidentHealthy:
		return "a delivery succeeded"
	case webhook.IncidentIsQuiet:
		return "no delivery failed permanently for an hour"
	case webhook.IncidentChanged:
		return "the subscription URL was changed, or the subscription was resumed"
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

// canResend reports whether events of an incident's failed deliveries remain to be resent.
func canResend(i *webhook.Incident) bool {
	return i.Undelivered > 0 && i.ClosedBy != webhook.IncidentDeleted && i.URL != ""
}

// incidentList is the incidents page: without filters the open and recently resolved incidents,
// otherwise a page of matching ones.
type incidentList struct {
	list     *ui.Listing
	overview bool // no filter is set
	open     openIncidents
	resolved bool            // more were resolved recently than rows contains
	rows     []incidentGroup // the recently resolved incidents, or the page; one row each
	pager    ui.Pager
	failed   string // the ID of this request if the rows could not be loaded, "" if they could
	curl     string
}

func (h *incidentPages) list(r *request) (response, error) {
	v, err := r.listing(webhook.AllIncidentList, allIncidentsParameter)
	if err != nil {
		return response{}, err
	}
	if found, err := h.nameSubscriptions(r, v); found != "" || err != nil {
		return response{location: found}, err
	}
	v.Kept = []string{allIncidentsParameter}
	l := incidentList{list: v, overview: true, curl: h.curl.Command("GET", "/v2/incidents?filter[status]=open", "")}
	for name := range v.Values {
		l.overview = l.overview && name == ui.ProgramParameter
	}
	read := h.readList
	if l.overview {
		read = h.readOverview
	}
	failed, status, err := h.loaded(r, v, func() error { return read(r, &l) })
	if err != nil {
		return response{}, err
	}
	l.failed = failed
	return response{page: incidentListPage(h.frame(r, "Incidents"), &l), status: status}, nil
}

// readOverview reads the open and the recently resolved incidents.
func (h *incidentPages) readOverview(r *request, l *incidentList) (err error) {
	if l.open, err = h.readOpenIncidents(r.Context(), r.program, pageIncidents, pageIncidents); err != nil {
		return err
	}
	q, invalid := webhook.AllIncidentList.Parse(l.resolvedValues(r.clock.Now))
	if invalid != nil {
		return invalid
	}
	resolved, next, err := h.store.Incidents().Page(r.Context(), "", ofProgram(&q, r.program))
	slices.SortStableFunc(resolved, func(a, b webhook.Incident) int { return b.ClosedAt.Compare(a.ClosedAt) })
	l.rows, l.resolved = singleRows(resolved), next != ""
	return err
}

// resolvedValues is the query of the recently resolved incidents.
func (l *incidentList) resolvedValues(now time.Time) url.Values {
	return url.Values{
		"filter[status]":         {webhook.IncidentResolved},
		"filter[closed_at.from]": {webhook.FormatTime(now.Add(-recentlyResolved))},
		"page[size]":             {strconv.Itoa(pageIncidents)},
	}
}

func (h *incidentPages) readList(r *request, l *incidentList) (err error) {
	q := ofProgram(&l.list.Query, r.program)
	incidents := h.store.Incidents()
	all, next, err := incidents.Page(r.Context(), "", q)
	if err != nil {
		return err
	}
	l.rows = singleRows(all)
	l.pager, err = feedPager(l.list, next, func() (string, error) { return incidents.Newer(r.Context(), "", q) })
	return err
}

// incidentView is the page of one incident.
type incidentView struct {
	incidentGroup // contains only this incident
	*incidentRow
	timeline []timelineEntry
	access   *portalAccess // included in the message for the partner, nil for none
	curl     string
}

// read reads the incident of the page.
func (h *incidentPages) read(r *request) (*incidentView, error) {
	i, err := h.store.Incidents().Get(r.Context(), "", r.PathValue("id"))
	if err != nil {
		return nil, asProblem(err)
	}
	v := &incidentView{incidentGroup: singleRows([]webhook.Incident{i})[0], timeline: foldProbes(i.Timeline),
		curl: h.curl.Command("GET", "/v2/incidents/"+i.ID, "")}
	v.incidentRow = &v.all[0]
	return v, nil
}

func (h *incidentPages) show(r *request, v *incidentView) (response, error) {
	return response{page: incidentPage(h.incidentFrame(r, v), v), secret: v.access != nil}, nil
}

func (h *incidentPages) incidentFrame(r *request, v *incidentView) ui.Frame {
	f := h.frame(r, ui.Visible(incidentName(&v.Incident)))
	f.Program, f.Programs = "", nil // the page belongs to one program, whatever program is selected
	f.Address = incidentPath(v.ID)
	return f
}

// addPortalLink creates a portal link and includes it in the message for the partner, in this
// response only.
func (h *incidentPages) addPortalLink(r *request, v *incidentView) (response, error) {
	n := webhook.NewPortalLink{ProgramID: v.ProgramID, Role: webhook.PortalRole(r.PostForm.Get("role")),
		ExpiresAt: r.clock.Now.Add(webhook.DefaultPortalLinkLife)}
	var link webhook.PortalLink
	var code string
	err := h.store.Write(r, func(sw store.Write) (err error) {
		link, code, err = sw.Programs().CreatePortalLink(n, r.actor())
		return err
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	v.access = &portalAccess{h.cfg.BaseURL + webhook.PortalLinkPath(code), link.Role, link.ExpiresAt}
	v.message = partnerMessage(&v.Incident, v.access)
	return h.show(r, v)
}

// timelineEntry is an entry of a timeline as it is shown.
type timelineEntry struct {
	webhook.IncidentEntry
	probes int       // consecutive probes with the same result
	last   time.Time // the end of the last probe
}

// foldProbes merges consecutive probes with the same result into one entry. The entry has the time
// of the first probe and the delivery of the last.
func foldProbes(entries []webhook.IncidentEntry) (folded []timelineEntry) {
	for _, e := range entries {
		if e.Probe == nil {
			folded = append(folded, timelineEntry{IncidentEntry: e})
			continue
		}
		if n := len(folded) - 1; n >= 0 && folded[n].Probe != nil && probeText(folded[n].Probe) == probeText(e.Probe) {
			folded[n].Probe, folded[n].last = e.Probe, e.At
			folded[n].probes++
			continue
		}
		folded = append(folded, timelineEntry{e, 1, e.At})
	}
	return folded
}

// alertTitle names an alert.
func alertTitle(name webhook.AlertName) string {
	_, label := alertState(&record.Alert{Name: name})
	return label
}

// alertSending describes the result of sending an alert.
func alertSending(s webhook.Status) string {
	switch s {
	case record.AlertUnsent:
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

// probesBefore returns the number of failed probes that the timeline omits.
func (v *incidentView) probesBefore() int {
	n := v.Probes
	for _, e := range v.Timeline {
		if e.Probe != nil && !e.Probe.Succeeded() {
			n--
		}
	}
	return max(n, 0)
}

// lasted is how long an incident has lasted since its first failure.
func lasted(i *webhook.Incident, since, now time.Time) time.Duration {
	if !i.Open() {
		now = i.ClosedAt
	}
	return now.Sub(since)
}

func waitingOf(i *webhook.Incident) string {
	return waitingText(i.WaitingEvents, i.WaitingMore, i.Failed)
}

// disabledText describes what happens to the events of a disabled subscription: the waiting events,
// and those published later.
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

// failedOutcome describes the outcome of a resolved incident's failed deliveries, "" if it had
// none. at is when the last of them was delivered again, zero to omit that.
func failedOutcome(i *webhook.Incident) (text string, at time.Time) {
	n := ui.Number(i.Failed)
	switch {
	case i.Failed == 0:
		return "", time.Time{}
	case i.ClosedBy == webhook.IncidentDeleted:
		return failedText(i.Failed), time.Time{}
	case i.Undelivered == 0 && i.Failed == 1:
		return "The failed delivery was delivered again", i.RecoveredAt
	case i.Undelivered == 0:
		return "All " + n + " delivered again", i.RecoveredAt
	case i.Recovered > 0 && i.Recovered < i.Failed:
		return ui.Number(i.Recovered) + " of " + n + " delivered again; " + ui.Number(i.Failed-i.Recovered) + " failed", time.Time{}
	}
	return failedText(i.Failed), time.Time{}
}

func failedText(n int64) string { return numbered(n, "delivery") + " failed permanently" }

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
func firstProbe(entries []timelineEntry, n int) bool {
	return entries[n].Probe != nil && !slices.ContainsFunc(entries[:n], func(e timelineEntry) bool { return e.Probe != nil })
}

// resentEvents describes what was resent.
func resentEvents(r *webhook.IncidentResend) string {
	if r.Events == 0 {
		return "Resent"
	}
	return webhook.Count(int(r.Events), "event") + " resent"
}

// resentText describes a resend: the deliveries, who started it, and the results, such as "in 5
// deliveries by ada@example.com: 4 succeeded, 1 failed".
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

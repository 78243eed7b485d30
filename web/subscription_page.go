package web

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

const (
	recentDeliveries = 10
	maxAnswers       = 24      // kinds of responses that are listed individually
	pingLines        = 12      // shown lines of a response to a ping
	pingBytes        = 2 << 10 // shown bytes of a response to a ping
)

// subscriptionPage is the data of a subscription's page.
type subscriptionPage struct {
	*record.SubscriptionView
	state  ui.SubscriptionState
	recent []deliveryRow // the newest first
	ping   *pingResult   // nil without one in the query
	day    []webhook.Stat
	week   []webhook.Stat
	shown  string // the period of the charts: 24h or 7d
	curls  []subscriptionCurl
	types  []string // the event types to choose for a test, the subscribed ones first

	incident *webhook.Incident // the newest, nil without any

	disableAt   time.Time // when a failed probe disables the subscription; zero for never
	pausedUntil time.Time // the end of the pause that the receiver asked for; zero for none
}

// subscriptionCurl is a command with the API request of an action of the page.
type subscriptionCurl struct{ name, command string }

// pingResult is the result of a ping, a test or a probe.
type pingResult struct {
	probe    bool
	delivery webhook.Delivery
	first    *webhook.Attempt // nil while the attempt is in flight
	answer   *ui.Body         // the first lines of the response, nil if there are none
}

// testName is the name of a test event, "" for a ping.
func (p *pingResult) testName() string {
	if len(p.delivery.Events) == 0 || p.delivery.Events[0].Name == webhook.EventPing {
		return ""
	}
	return p.delivery.Events[0].Name
}

// find reads the subscription of the path. The error is a problem if it does not exist.
func (h *subscriptionPages) find(r *request) (*record.SubscriptionView, error) {
	u, err := h.store.Subscriptions().View(r.Context(), r.PathValue("id"), recentDeliveries)
	if err == nil && !r.mine(u.ProgramID) {
		err = webhook.NotFound("subscription")
	}
	if err != nil {
		return nil, asProblem(err)
	}
	return &u, nil
}

// existing is find without deleted subscriptions.
func (h *subscriptionPages) existing(r *request) (*record.SubscriptionView, error) {
	u, err := h.find(r)
	if err == nil && !u.DeletedAt.IsZero() {
		return nil, &problem{
			status: http.StatusConflict, title: "This subscription is deleted",
			text: "You can still read its history. It receives nothing and cannot be changed.",
		}
	}
	return u, err
}

func (h *subscriptionPages) show(r *request, u *record.SubscriptionView) (response, error) {
	p := subscriptionPage{SubscriptionView: u, shown: "24h"}
	if r.URL.Query().Get(ui.SpanParameter) == "7d" {
		p.shown = "7d"
	}
	to := r.clock.Now.Truncate(time.Hour).Add(time.Hour)
	stats, err := h.store.Figures().Stats(r.Context(), u.ProgramID, u.ID, record.StatHour, to.Add(-7*24*time.Hour), to)
	if err != nil {
		return response{}, err
	}
	if p.state, err = h.subscriptionState(r.Context(), r.clock.Now, &u.Subscription); err != nil {
		return response{}, err
	}
	p.day = steps(stats, to.Add(-24*time.Hour), to, time.Hour)
	p.week = steps(stats, to.Add(-7*24*time.Hour), to, 6*time.Hour)
	if p.recent, err = h.deliveryRows(r.Context(), u.Recent); err != nil {
		return response{}, err
	}
	if p.ping, err = h.readPing(r, u); err != nil {
		return response{}, err
	}
	if i, err := h.store.Incidents().Newest(r.Context(), u.ID); err == nil {
		p.incident = &i
	} else if !isCallerError(err) {
		return response{}, err
	}
	if p.incident != nil && r.portal.in() {
		p.incident.ErrorFact = "" // for admins only
	}
	if after := h.cfg.DisableAfter; after > 0 && u.Status == webhook.HealthFailing {
		p.disableAt = u.Failures.Since.Add(after)
	}
	if h.cfg.PausedUntil != nil && u.Active {
		p.pausedUntil = h.cfg.PausedUntil(u.ID)
	}
	p.curls = h.curls(u)
	p.types = h.testTypes(u)
	host, path, _ := webhook.Endpoint(u.URL)
	f := h.frame(r, cmp.Or(ui.Visible(firstLineOf(u.Description)), host+path))
	f.Program = "" // the page belongs to one program, whatever program is selected
	f.Programs = nil
	return response{page: subscriptionView(f, &p)}, nil
}

// waiting returns how many events wait for the subscription.
func (p *subscriptionPage) waiting() string {
	n, more := p.WaitingEvents, p.WaitingMore
	if p.incident != nil && p.incident.Open() {
		n, more = p.incident.WaitingEvents, p.incident.WaitingMore // including those in deliveries
	}
	switch n {
	case 0:
		return "New events wait"
	case 1:
		return atLeast(n, more) + " event waits"
	}
	return atLeast(n, more) + " events wait"
}

// failed reports whether permanently failed deliveries remain to be resent. Cancelled deliveries
// alone are no reason to offer that, but they are included in the count.
func (p *subscriptionPage) failed() bool { return p.Left.Failed && p.DeletedAt.IsZero() }

// failedText describes the deliveries that remain to be resent: 2 deliveries failed permanently.
func (p *subscriptionPage) failedText() string {
	text := countWord(p.Left.Deliveries, atLeast(p.Left.Deliveries, p.Left.More), "delivery")
	if p.Left.Events != p.Left.Deliveries {
		text += " of " + countWord(p.Left.Events, atLeast(p.Left.Events, p.Left.More), "event")
	}
	return text + " failed permanently"
}

// failedList is the address of the deliveries that remain to be resent.
func (p *subscriptionPage) failedList() string {
	return ui.Address("/deliveries", url.Values{"filter[subscription_id]": {p.ID}, "filter[recovered]": {"false"}})
}

// resending returns the replay that resends what failed in the newest incident, nil for none.
func (p *subscriptionPage) resending() *webhook.Replay {
	if p.incident == nil {
		return nil
	}
	for n := range p.Replays {
		r := &p.Replays[n]
		if r.Only != webhook.ReplayMissed && r.Status != webhook.ReplayCancelled && !r.CreatedAt.Before(p.incident.LastFailure) {
			return r
		}
	}
	return nil
}

// resentText describes what a replay has resent: 5 events resent in 1 delivery.
func (p *subscriptionPage) resentText(r *webhook.Replay) string {
	text := eventCount(r.EventsSent) + " resent in " + deliveriesOf(int(r.Deliveries))
	if r.Status == webhook.ReplayRunning {
		text += " so far"
	}
	return text
}

// testTypes returns the event types to choose for a test, the subscribed ones first.
func (h *subscriptionPages) testTypes(u *record.SubscriptionView) []string {
	names := slices.DeleteFunc(h.eventNames(), func(name string) bool { return name == webhook.EventPing })
	slices.SortStableFunc(names, func(a, b string) int {
		rank := func(name string) int {
			if slices.Contains(u.Events, name) {
				return 0
			}
			return 1
		}
		return rank(a) - rank(b)
	})
	return names
}

// newestPing stands for the ID of the newest ping.
const newestPing = "newest"

// readPing reads the ping or the probe in the query, nil for none.
func (h *subscriptionPages) readPing(r *request, u *record.SubscriptionView) (*pingResult, error) {
	probe := r.URL.Query().Get("probe")
	id := cmp.Or(probe, r.URL.Query().Get("ping"))
	if id == newestPing {
		id = ""
		for _, d := range u.Recent {
			if len(d.Events) == 1 && d.Events[0].Name == webhook.EventPing {
				id = d.ID
				break
			}
		}
	}
	if id == "" || !u.DeletedAt.IsZero() {
		return nil, nil
	}
	d, err := h.store.Deliveries().Get(r.Context(), u.ProgramID, u.ID, id)
	if isCallerError(err) {
		return nil, nil // the delivery does not exist, or was pruned
	}
	if err != nil {
		return nil, err
	}
	p := &pingResult{delivery: d, probe: probe != ""}
	if n := len(d.Attempts); n > 0 {
		p.first = &d.Attempts[0]
		if p.probe {
			p.first = &d.Attempts[n-1] // an earlier attempt may not have been a probe
		}
		if !r.portal.in() {
			p.answer = firstLines(d.ID, p.first)
		}
	}
	return p, nil
}

// firstLines returns the first lines of a response body of a delivery, nil if there is none.
func firstLines(id string, a *webhook.Attempt) *ui.Body {
	if len(a.ResponseBody) == 0 {
		return nil
	}
	b := responseBody("ping-answer-"+id, "Response body", a)
	if len(b.Data) > pingBytes {
		b.Data, b.Cut = ui.TrimPartialRune(b.Data[:pingBytes]), true
	}
	if lines := bytes.SplitAfterN(b.Data, []byte("\n"), pingLines+1); len(lines) > pingLines {
		b.Data, b.Cut = bytes.Join(lines[:pingLines], nil), true
	}
	return &b
}

// stats returns the statistics of the shown period, in steps.
func (p *subscriptionPage) stats() []webhook.Stat {
	if p.shown == "7d" {
		return p.week
	}
	return p.day
}

// charts draws the statistics of the shown period: results, success rate, latency.
func (p *subscriptionPage) charts(c ui.Clock) (results, success, latencies *ui.Chart) {
	all := p.stats()
	form, step := "15:04", "Hour from"
	if p.shown == "7d" {
		form, step = "Mon 2 Jan 15:04", "Six hours from"
	}
	labels, links := stepLabels(c, all, form, "", p.ID)
	rates := make([]float64, len(all))
	for i := range all {
		rates[i] = math.NaN()
		if share, ok := all[i].SuccessRate(); ok {
			rates[i] = math.Round(share*100*10) / 10
		}
	}
	results = &ui.Chart{ID: "results", Name: "Attempts by result", StepName: step, Labels: labels, Links: links, Series: resultSeries(all)}
	success = &ui.Chart{ID: "success-rate", Max: 100, Name: "Success rate", StepName: step, Labels: labels, Links: links,
		Series: []ui.Series{{Name: "Success", State: "success", Values: rates}},
		Format: func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) + " %" }}
	latencies = &ui.Chart{ID: "latency", Name: "Latency", StepName: step, Labels: labels, Links: links, Log: true,
		Series: durationSeries(all, 50, 95, 99), Format: chartTime}
	if i := p.incident; i != nil && i.Open() && len(all) > 0 {
		for _, chart := range []*ui.Chart{results, success, latencies} {
			chart.MarkAt(i.OpenedAt, all[0].At, all[0].Span, incidentMark(i))
		}
	}
	return results, success, latencies
}

// quantileText formats a quantile of attempt durations, "" without any.
func quantileText(s *webhook.Stat, q float64) string {
	t, ok := s.Durations.Quantile(q)
	if !ok {
		return ""
	}
	return ui.Latency(t)
}

// responseCount counts one kind of response.
type responseCount struct {
	answer, meaning string
	todo            string // recommended action, "" for none
	state           string // state that sets the color
	filter, value   string // filter for the list of deliveries; "" if several responses are combined
	n, of           int64
}

// responseCounts counts the responses, the most frequent first. The rarest are combined
// at the end.
func responseCounts(sum *webhook.Stat) []responseCount {
	names := slices.SortedFunc(maps.Keys(sum.Answers), func(a, b string) int {
		return cmp.Or(cmp.Compare(sum.Answers[b], sum.Answers[a]), cmp.Compare(a, b))
	})
	var all []responseCount
	for i, name := range names {
		if i == maxAnswers && len(names) > maxAnswers+1 {
			rest := responseCount{answer: strconv.Itoa(len(names)-i) + " others", meaning: "The rarest responses combined", state: "pending",
				of: sum.Total()}
			for _, name := range names[i:] {
				rest.n += sum.Answers[name]
			}
			return append(all, rest)
		}
		a := responseCount{answer: name, n: sum.Answers[name], of: sum.Total()}
		result := webhook.ResultRetryable
		if status, err := strconv.Atoi(name); err == nil {
			a.meaning, result = http.StatusText(status), webhook.Classify(status, webhook.ErrorNone)
			a.todo = adviceOf(&webhook.Attempt{ResponseStatus: status}).todo
			a.filter, a.value = "filter[response_status]", name
		} else {
			code := webhook.ErrorCode(name)
			a.answer, a.meaning, result = errorName(code), code.Detail(), webhook.Classify(0, code)
			a.todo = errorAdvice[code]
			a.filter, a.value = "filter[error]", name
		}
		a.state = string(result)
		all = append(all, a)
	}
	return all
}

// share formats the response's share of all attempts.
func (a *responseCount) share() string {
	return strconv.FormatFloat(float64(a.n)/float64(max(a.of, 1))*100, 'f', 1, 64) + " %"
}

// createdBy names the creator of a subscription.
func createdBy(user string) string {
	if email, ok := adminOf(user); ok {
		return email + " (admin)"
	}
	if strings.HasPrefix(user, record.PortalUser("")) {
		return "a partner in the portal"
	}
	return "user " + user
}

// adminOf returns the email of the admin who created a record.
func adminOf(user string) (string, bool) {
	prefix := record.AdminUser("")
	if len(user) > len(prefix) && user[:len(prefix)] == prefix {
		return user[len(prefix):], true
	}
	return "", false
}

// curls returns the API requests of the page's actions.
func (h *subscriptionPages) curls(u *record.SubscriptionView) []subscriptionCurl {
	if !u.DeletedAt.IsZero() {
		return nil
	}
	path := apiSubscriptionPath(u.ID)
	active := subscriptionCurl{"Pause", h.curl.Command("PUT", path, `{"active": false}`)}
	if !u.Active {
		active = subscriptionCurl{"Resume", h.curl.Command("PUT", path, `{"active": true}`)}
	}
	curls := []subscriptionCurl{
		{"Read", h.curl.Command("GET", path, "")},
		{"List deliveries", h.curl.Command("GET", path+"/deliveries", "")},
		{"Ping", h.curl.Command("POST", path+"/ping", "")},
		{"Send a test event", h.curl.Command("POST", path+"/test", `{"name": "content_updated"}`)},
		active,
		{"Rotate secret", h.curl.Command("POST", path+"/rotate_secret", "")},
		{"Delete", h.curl.Command("DELETE", path, "")},
	}
	if u.Status == webhook.HealthFailing && u.Active {
		curls = slices.Insert(curls, 3, subscriptionCurl{"Probe", h.curl.Command("POST", path+"/probe", "")})
	}
	return curls
}

// percent renders the progress of a replay.
func percent(r *webhook.Replay) string {
	if r.Total == 0 {
		return "100 %"
	}
	return strconv.FormatInt(r.Scanned*100/r.Total, 10) + " %"
}

// doReplay describes what a replay sends.
func doReplay(only webhook.ReplayOnly) string {
	switch only {
	case webhook.ReplayFailed:
		return "Failed events"
	case webhook.ReplayMissed:
		return "Missed events"
	default:
		return "Everything"
	}
}

func apiSubscriptionPath(id string) string { return apiSubscriptions + "/" + url.PathEscape(id) }

package web

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// attemptStats are the results of attempts over some time: numbers and their charts.
type attemptStats struct {
	begin    time.Time // of the first step
	span     time.Duration
	total    webhook.Stat
	results  ui.Chart // stacked
	times    ui.Chart // p50 and p95
	failures []failedResponse
}

// failedResponse counts the attempts with one result other than 2xx.
type failedResponse struct {
	answer string // 503, timeout, DNS
	says   string
	todo   string
	count  int64
	state  string
	href   string // the deliveries whose last attempt has this result
}

// maxFailedResponses is how many failed responses are shown.
const maxFailedResponses = 6

// readStats reads the results of the attempts of a subscription, of a program, or of all programs,
// in steps of span up to now.
func (h *site) readStats(ctx context.Context, c ui.Clock, programID, subscriptionID string, span time.Duration, steps int) (*attemptStats,
	error) {
	// The last step is the current one, which is incomplete.
	end := c.Now.UTC().Truncate(span).Add(span)
	begin := end.Add(-time.Duration(steps) * span)
	stats, err := h.store.Figures().Stats(ctx, programID, subscriptionID, span, begin, end)
	if err != nil {
		return nil, err
	}
	p := attemptStats{begin: begin, span: span}
	byTime := make(map[time.Time]*webhook.Stat)
	for i := range stats {
		byTime[stats[i].At] = &stats[i]
		p.total.Add(&stats[i])
	}
	step, format := "minute", "15:04"
	if span == record.StatHour {
		step, format = "hour", "2 Jan 15:04"
	}
	p.results = ui.Chart{ID: "results", Name: "Attempts by result, per " + step, StepName: ui.Label(step), Series: []ui.Series{
		{Name: "Success", State: "success"}, {Name: "Failed, can be retried", State: "retryable"}, {Name: "Failed, not retried", State: "failed"},
	}}
	p.times = ui.Chart{ID: "times", Name: "Attempt duration", StepName: ui.Label(step), Format: chartTime, Log: true,
		Series: []ui.Series{{Name: "p50"}, {Name: "p95"}}}
	for at := begin; at.Before(end); at = at.Add(span) {
		s := byTime[at]
		if s == nil {
			s = new(webhook.Stat)
		}
		label := at.In(c.Location()).Format(format)
		link := ""
		if s.Total() > 0 {
			link = deliveriesIn(programID, subscriptionID, at, span)
		}
		p.results.Labels, p.times.Labels = append(p.results.Labels, label), append(p.times.Labels, label)
		p.results.Links, p.times.Links = append(p.results.Links, link), append(p.times.Links, link)
		for i, n := range []int64{s.Success, s.Retryable, s.Failed} {
			p.results.Series[i].Values = append(p.results.Series[i].Values, float64(n))
		}
		for i, q := range []float64{0.5, 0.95} {
			v := math.NaN()
			if d, ok := s.Durations.Quantile(q); ok {
				v = float64(d) / float64(time.Millisecond)
			}
			p.times.Series[i].Values = append(p.times.Series[i].Values, v)
		}
	}
	p.failures = failedResponses(&p.total, programID, subscriptionID)
	return &p, nil
}

// deliveriesIn is the address of the deliveries created within a time range: those of a
// subscription, of a program, or all.
func deliveriesIn(programID, subscriptionID string, from time.Time, long time.Duration) string {
	values := url.Values{"filter[created_at.from]": {webhook.FormatTime(from)}, "filter[created_at.to]": {webhook.FormatTime(from.Add(long))}}
	if subscriptionID != "" {
		values.Set("filter[subscription_id]", subscriptionID)
	} else if programID != "" {
		values.Set(ui.ProgramParameter, programID)
	}
	return ui.Address("/deliveries", values)
}

// incidentMark is the text of an incident's mark in a chart.
func incidentMark(i *webhook.Incident) string { return "Incident: " + incidentName(i) }

// chartTime renders a number of milliseconds.
func chartTime(ms float64) string { return ui.Latency(time.Duration(ms * float64(time.Millisecond))) }

// failedResponses are the responses other than 2xx, the most frequent first.
func failedResponses(s *webhook.Stat, programID, subscriptionID string) []failedResponse {
	var all []failedResponse
	for answer, n := range s.Answers {
		k := failedResponse{answer: answer, count: n, state: "failed"}
		filter := "filter[error]"
		if isStatus := strings.Trim(answer, "0123456789") == ""; isStatus {
			if strings.HasPrefix(answer, "2") {
				continue
			}
			status, _ := strconv.Atoi(answer) // answer has only digits
			a := adviceOf(&webhook.Attempt{ResponseStatus: status})
			filter, k.says, k.todo = "filter[response_status]", a.what, a.todo
			if strings.HasPrefix(answer, "5") {
				k.state = "retryable"
			}
		} else {
			a := adviceOf(&webhook.Attempt{Error: webhook.ErrorCode(answer)})
			k.answer, k.says, k.todo = errorName(webhook.ErrorCode(answer)), a.what, a.todo
			if answer != string(webhook.ErrorBlocked) {
				k.state = "retryable"
			}
		}
		values := url.Values{filter: {answer}}
		if subscriptionID != "" {
			values.Set("filter[subscription_id]", subscriptionID)
		} else if programID != "" {
			values.Set(ui.ProgramParameter, programID)
		}
		k.href = ui.Address("/deliveries", values)
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b failedResponse) int {
		if a.count != b.count {
			return int(min(max(b.count-a.count, -1), 1))
		}
		return strings.Compare(a.answer, b.answer)
	})
	return all[:min(len(all), maxFailedResponses)]
}

// responses counts the responses of all attempts by kind: successful ones first, then the others by
// frequency.
func (p *attemptStats) responses() []failedResponse {
	return append([]failedResponse{{answer: "2xx", count: p.total.Success}}, p.failures[:min(len(p.failures), 3)]...)
}

// share formats a part of a total in percent.
func share(n, of int64) string {
	if of == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", float64(n)*100/float64(of))
}

// rate formats the success rate.
func (p *attemptStats) rate() string { return successRate(&p.total) }

func successRate(s *webhook.Stat) string {
	r, ok := s.SuccessRate()
	switch {
	case !ok:
		return "–"
	case r == 1:
		return "100 %"
	}
	// Only exactly 100 % and 0 % are shown as such.
	return fmt.Sprintf("%.1f %%", min(max(r*100, 0.1), 99.9))
}

func (p *attemptStats) quantile(q float64) string {
	d, ok := p.total.Durations.Quantile(q)
	switch {
	case !ok:
		return "–"
	case d < time.Millisecond:
		return "< 1 ms"
	}
	return ui.Latency(d)
}

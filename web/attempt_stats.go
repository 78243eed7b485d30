package web

import (
	"cmp"
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

// attemptStats are the results of the attempts of the last 24 hours: numbers and their charts.
type attemptStats struct {
	begin    time.Time // of the first hour
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

// readStats reads the results of the attempts of a program, or of all programs, in the last 24 hours.
func (h *site) readStats(ctx context.Context, c ui.Clock, programID string) (*attemptStats, error) {
	// The last hour is the current one, which is incomplete.
	end := c.Now.UTC().Truncate(record.StatHour).Add(record.StatHour)
	begin := end.Add(-statHours * record.StatHour)
	stats, err := h.store.Figures().Stats(ctx, programID, "", record.StatHour, begin, end)
	if err != nil {
		return nil, err
	}
	p := attemptStats{begin: begin, total: statSum(stats)}
	all := steps(stats, begin, end, record.StatHour)
	labels, links := stepLabels(c, all, "2 Jan 15:04", programID, "")
	p.results = ui.Chart{ID: "results", Name: "Attempts by result, per hour", StepName: "Hour", Labels: labels, Links: links,
		Series: resultSeries(all)}
	p.times = ui.Chart{ID: "times", Name: "Attempt duration", StepName: "Hour", Labels: labels, Links: links, Format: chartTime, Log: true,
		Series: durationSeries(all, 50, 95)}
	p.failures = failedResponses(&p.total, programID)
	return &p, nil
}

// stepLabels returns the labels of steps in a chart, and the addresses of their deliveries: those of a
// subscription, of a program, or all. A step without attempts has no address.
func stepLabels(c ui.Clock, all []webhook.Stat, format, programID, subscriptionID string) (labels, links []string) {
	for i := range all {
		link := ""
		if all[i].Total() > 0 {
			link = deliveriesIn(programID, subscriptionID, all[i].At, all[i].Span)
		}
		labels, links = append(labels, all[i].At.In(c.Location()).Format(format)), append(links, link)
	}
	return labels, links
}

// resultSeries are the numbers of attempts by result.
func resultSeries(all []webhook.Stat) []ui.Series {
	series := []ui.Series{
		{Name: "Success", State: "success"}, {Name: "Failed, can be retried", State: "retryable"}, {Name: "Failed, not retried", State: "failed"},
	}
	for i := range all {
		for k, n := range []int64{all[i].Success, all[i].Retryable, all[i].Failed} {
			series[k].Values = append(series[k].Values, float64(n))
		}
	}
	return series
}

// durationSeries are percentiles of the durations of attempts, in milliseconds.
func durationSeries(all []webhook.Stat, percentiles ...int) (series []ui.Series) {
	for _, percent := range percentiles {
		s := ui.Series{Name: "p" + strconv.Itoa(percent)}
		for i := range all {
			v := math.NaN()
			if d, ok := all[i].Durations.Quantile(float64(percent) / 100); ok {
				v = float64(d) / float64(time.Millisecond)
			}
			s.Values = append(s.Values, v)
		}
		series = append(series, s)
	}
	return series
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
func failedResponses(s *webhook.Stat, programID string) []failedResponse {
	var all []failedResponse
	for answer, n := range s.Answers {
		a, filter := webhook.Attempt{Error: webhook.ErrorCode(answer)}, "filter[error]"
		if status, err := strconv.Atoi(answer); err == nil {
			a, filter = webhook.Attempt{ResponseStatus: status}, "filter[response_status]"
		}
		result := webhook.Classify(a.ResponseStatus, a.Error)
		if result == webhook.ResultSuccess {
			continue
		}
		short, _ := responseText(&a)
		of, values := adviceOf(&a), url.Values{filter: {answer}}
		if programID != "" {
			values.Set(ui.ProgramParameter, programID)
		}
		all = append(all, failedResponse{short, of.what, of.todo, n, string(result), ui.Address("/deliveries", values)})
	}
	slices.SortFunc(all, func(a, b failedResponse) int {
		return cmp.Or(cmp.Compare(b.count, a.count), strings.Compare(a.answer, b.answer))
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
func (p *attemptStats) rate() string { return cmp.Or(rate(&p.total), "–") }

func (p *attemptStats) quantile(q float64) string { return cmp.Or(quantileText(&p.total, q), "–") }

package web

import (
	"slices"
	"time"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// histogramBars is the approximate maximum number of bars in a histogram.
const histogramBars = 48

// histogramSteps are the possible durations of a bar. Durations below an hour use the statistics by
// minute, which the store keeps for two days.
var histogramSteps = []time.Duration{
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour,
}

// minutesKept is how far back statistics by minute are used.
const minutesKept = 47 * time.Hour

// histogramRange returns the time range of a histogram and the duration of a bar, for the time
// range of a list. The default is the last day.
func histogramRange(r webhook.TimeRange, now time.Time) (from, to time.Time, step time.Duration) {
	if from, to = r.From, r.To; to.IsZero() || to.After(now) {
		to = now
	}
	if from.IsZero() {
		from = to.Add(-24 * time.Hour)
	}
	for _, step = range histogramSteps {
		if step < time.Hour && from.Before(now.Add(-minutesKept)) {
			continue
		}
		if to.Sub(from) <= histogramBars*step {
			break
		}
	}
	from = from.Truncate(step)
	if end := to.Truncate(step); end.Before(to) {
		to = end.Add(step)
	}
	return from, to, step
}

// histogram draws the results of attempts above a list of deliveries, nil if there are none. It
// covers the list's time range, program and single subscription. It does not apply other filters;
// rest reports whether some are set.
func (h *deliveryPages) histogram(r *request, v *ui.Listing) (c *ui.Chart, rest bool, err error) {
	q := &v.Query
	from, to, step := histogramRange(q.Ranges["created_at"], r.clock.Now)
	if !from.Before(to) || to.Sub(from) > ui.MaxBars*step {
		return nil, false, nil // longer than the retention
	}
	program, subscription := r.program, ""
	filters := len(q.Filters) + len(q.Ranges)
	if _, ok := q.Ranges["created_at"]; ok {
		filters--
	}
	if ids := q.Filters["subscription_id"]; len(ids) == 1 {
		u, err := h.store.Subscriptions().View(r.Context(), ids[0], 1)
		if isCallerError(err) {
			return nil, false, nil
		} else if err != nil {
			return nil, false, err
		}
		program, subscription, filters = u.ProgramID, u.ID, filters-1
	} else if ids := q.Filters["program_id"]; len(ids) == 1 && program == "" {
		program, filters = ids[0], filters-1
	}
	span := record.StatHour
	if step < time.Hour {
		span = record.StatMinute
	}
	stats, err := h.store.Figures().Stats(r.Context(), program, subscription, span, from, to)
	if err != nil {
		return nil, false, err
	}
	all := steps(stats, from, to, step)
	if !slices.ContainsFunc(all, func(s webhook.Stat) bool { return s.Total() > 0 }) {
		return nil, false, nil
	}
	form := "15:04"
	switch {
	case step >= 24*time.Hour:
		form = "2 Jan"
	case to.Sub(from) > 24*time.Hour:
		form = "Mon 2 Jan 15:04"
	}
	name := "Attempts by result"
	if _, ok := q.Ranges["created_at"]; !ok {
		name += ", last 24 h"
	}
	c = &ui.Chart{ID: "histogram", Name: name, StepName: "From", Pick: v.TimeField(), Series: resultSeries(all)}
	for i := range all {
		s := &all[i]
		c.Labels = append(c.Labels, s.At.In(r.clock.Location()).Format(form))
		c.Links = append(c.Links, v.WithTime(webhook.FormatTime(s.At), webhook.FormatTime(s.At.Add(step))))
	}
	return c, filters > 0, nil
}

package web

import (
	"context"
	"errors"
	"strconv"
	"time"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// overviewPages serve the overview.
type overviewPages struct{ *site }

// rateOver is the time over which the overview averages the rate of events.
const rateOver = 10 * time.Second

// overview is the data of the overview.
type overview struct {
	notReady  string // why the service is not ready, "" if it is
	fullDisk  bool   // a full disk is the only reason
	directory string
	setup     []setupStep // of a new installation, nil once it is set up
	totals    record.Totals
	arrived   int64 // events accepted within rateOver
	backlog   webhook.Backlog
	failing   healthTotal
	degraded  healthTotal
	incidents openIncidents
	health    health
	hour      webhook.Stat  // of the last hour
	day       *attemptStats // of the last 24 hours
}

// healthTotal counts the subscriptions with one health.
type healthTotal struct {
	count int
	more  bool // count is a lower bound
}

func (h *overviewPages) show(r *request) (response, error) {
	ctx := r.Context()
	o := overview{directory: h.store.Dir()}
	var err error
	if o.health, err = h.readHealth(ctx); err != nil {
		return response{}, err
	}
	if o.incidents, err = h.readOpenIncidents(ctx, r.program, overviewIncidents, overviewRows); err != nil {
		return response{}, err
	}
	if room := overviewRows - len(o.incidents.groups); room > 0 {
		left, err := h.store.Incidents().Unrecovered(ctx, r.program, r.clock.Now.Add(-recentlyResolved), room)
		if err != nil {
			return response{}, err
		}
		o.incidents.groups = append(o.incidents.groups, singleRows(left)...)
	}
	if o.hour, err = h.lastHour(ctx, r); err != nil {
		return response{}, err
	}
	if o.day, err = h.readStats(ctx, r.clock, r.program); err != nil {
		return response{}, err
	}
	for _, g := range o.incidents.groups {
		for n := range g.all {
			o.day.results.MarkAt(g.all[n].OpenedAt, o.day.begin, record.StatHour, incidentMark(&g.all[n].Incident))
		}
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
	if o.arrived, err = h.store.Figures().Arrived(ctx, r.clock.Now.Add(-rateOver)); err != nil {
		return response{}, err
	}
	for health, total := range map[webhook.Health]*healthTotal{webhook.HealthFailing: &o.failing, webhook.HealthDegraded: &o.degraded} {
		if total.count, total.more, err = h.store.Subscriptions().CountHealth(ctx, r.program, health); err != nil {
			return response{}, err
		}
	}
	if o.setup, err = h.firstRun(r); err != nil {
		return response{}, err
	}
	f := h.frame(r, "Overview")
	f.Section = "/"
	return response{page: overviewPage(f, &o)}, nil
}

// lastHour returns the results of the attempts of the last 60 minutes.
func (h *overviewPages) lastHour(ctx context.Context, r *request) (webhook.Stat, error) {
	from, to := record.LastHour(r.clock.Now)
	stats, err := h.store.Figures().Stats(ctx, r.program, "", record.StatMinute, from, to)
	return statSum(stats), err
}

// headline is the conclusion of the page.
func (o *overview) headline() string {
	if o.notReady != "" {
		return "The service is not ready"
	}
	if o.totals.Subscriptions == 0 {
		return "Overview"
	}
	switch n := o.incidents.total; {
	case n == 1:
		return "1 endpoint needs attention"
	case n > 1:
		return ui.Number(int64(n)) + " endpoints need attention"
	case len(o.incidents.groups) > 0:
		return "Failed deliveries are left to resend"
	case o.failing.count+o.degraded.count > 0:
		return "No open incidents"
	}
	return "All endpoints are healthy"
}

// sentence says what the headline means for events.
func (o *overview) sentence(program string) string {
	if o.totals.Subscriptions == 0 {
		return ""
	}
	text := o.waits() + " events wait to be delivered"
	switch o.waits() {
	case "0":
		text = "No event waits to be delivered"
	case "1":
		text = "1 event waits to be delivered"
	}
	if program != "" {
		text += " in all programs"
	}
	return capitalized(text) + "."
}

// inAll formats a number that counts all programs, and says so if one is selected.
func inAll(name, program string) string {
	if program == "" {
		return name
	}
	return name + ", all programs"
}

// rate formats how many events are accepted per second now.
func (o *overview) rate() string {
	perSecond := float64(o.arrived) / rateOver.Seconds()
	if perSecond > 0 && perSecond < 10 {
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	}
	return ui.Number(int64(perSecond + 0.5))
}

// waits returns how many events wait: in the logs, and in deliveries for their next attempt.
func (o *overview) waits() string {
	return atLeast(o.backlog.Events+int(o.totals.WaitingEvents), o.backlog.More || o.totals.Waiting >= record.CountLimit)
}

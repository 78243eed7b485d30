package dispatcher

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"service/store"
	"service/webhook"
)

const (
	// scrapeTime bounds what a scrape may read.
	scrapeTimeout = 2 * time.Second
	// maxBehind is how many subscriptions of a program a scrape looks into for
	// the oldest event that waits: those that are furthest behind.
	maxOldestLookups = 100
)

// metrics are what the dispatcher counts for its operator; docs/metrics.md says
// what each means. They begin at zero, and cost an attempt neither a lock nor
// memory: the maps are not written to.
type metrics struct {
	attempts  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	alerts    *prometheus.CounterVec
	lag       prometheus.Histogram
	delivered prometheus.Histogram

	byStatus   [10]prometheus.Counter // of attempts, by the first digit of the response's status
	byError    map[webhook.ErrorCode]prometheus.Counter
	byDuration map[webhook.Result]prometheus.Observer
	byAlert    map[webhook.Result]prometheus.Counter
}

// lagBuckets go from an event that leaves at once to the longest an attempt may
// be waited for, in seconds.
var lagBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21600, 86400}

// durationBuckets go from what a subscriber in the same network takes to the longest
// --attempt-timeout, in seconds.
var durationBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

func newMetrics() *metrics {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "service_attempts_total",
			Help: "Attempts that have ended, pings included, by result and by the class of the response's status or the error.",
		}, []string{"result", "answer"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "service_attempt_duration_seconds",
			Help: "Time from dialling to the end of the response, by result.", Buckets: durationBuckets,
		}, []string{"result"}),
		alerts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "service_alert_attempts_total",
			Help: "Attempts to send an alert to the operator's URL, by result.",
		}, []string{"result"}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "service_delivery_lag_seconds",
			Help:    "Time from the acceptance of a delivery's oldest event to its first attempt; redeliveries, replays and pings aside.",
			Buckets: lagBuckets,
		}),
		delivered: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "service_delivery_time_seconds",
			Help:    "Time from the acceptance of a delivery's oldest event until it was delivered, by whichever attempt; redeliveries, replays and pings aside.",
			Buckets: lagBuckets,
		}),
		byError:    make(map[webhook.ErrorCode]prometheus.Counter),
		byDuration: make(map[webhook.Result]prometheus.Observer),
		byAlert:    make(map[webhook.Result]prometheus.Counter),
	}
	for digit := 2; digit < len(m.byStatus); digit++ {
		m.byStatus[digit] = m.attempts.WithLabelValues(string(webhook.Classify(digit*100, webhook.ErrorNone)), strconv.Itoa(digit)+"xx")
	}
	for _, code := range webhook.ErrorCodes() {
		m.byError[code] = m.attempts.WithLabelValues(string(webhook.Classify(0, code)), string(code))
	}
	for _, result := range []webhook.Result{webhook.ResultSuccess, webhook.ResultFailed, webhook.ResultRetryable} {
		m.byDuration[result] = m.durations.WithLabelValues(string(result))
		m.byAlert[result] = m.alerts.WithLabelValues(string(result))
	}
	return m
}

// attempt counts an attempt that was made.
func (m *metrics) attempt(a *webhook.Attempt) {
	if a.ResponseStatus >= http.StatusOK { // 200 to 999, see client.Send
		m.byStatus[a.ResponseStatus/100].Inc()
	} else if c := m.byError[a.Error]; c != nil {
		c.Inc()
	}
	m.byDuration[a.Result].Observe(a.Duration.Seconds())
}

var (
	inFlightDesc      = prometheus.NewDesc("service_deliveries_in_flight", "Deliveries with an attempt under way.", []string{"kind"}, nil)
	limitDesc         = prometheus.NewDesc("service_deliveries_in_flight_limit", "How many deliveries can have an attempt under way.", []string{"kind"}, nil)
	pausedDesc        = prometheus.NewDesc("service_deliveries_held", "Whether no attempt is begun because the store has failed, or after a restore.", nil, nil)
	subscriptionsDesc = prometheus.NewDesc("service_subscriptions", "Subscriptions by status.", []string{"program", "status"}, nil)
	failingDesc       = prometheus.NewDesc("service_subscriptions_failing", "Subscriptions that are failing, by reason.", []string{"program", "reason"}, nil)
	inactiveDesc      = prometheus.NewDesc("service_subscriptions_inactive", "Subscriptions that are not active: nothing but pings is sent to them.", []string{"program"}, nil)
	behindDesc        = prometheus.NewDesc("service_backlog_subscriptions", "Active subscriptions that events wait for.", []string{"program"}, nil)
	distanceDesc      = prometheus.NewDesc("service_backlog_distance_events", "How many places of the event log the active subscription that is furthest behind has yet to pass: at least as many as events wait for it.", []string{"program"}, nil)
	ageDesc           = prometheus.NewDesc("service_backlog_age_seconds", "Time since the oldest event was accepted that an active subscription waits for; 0 when none does.", []string{"program"}, nil)
)

// collector is the dispatcher as a scrape sees it.
type collector struct{ d *Dispatcher }

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.attempts, m.durations, m.alerts, m.lag, m.delivered}
}

// Describe implements [prometheus.Collector].
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, part := range c.d.metrics.collectors() {
		part.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{inFlightDesc, limitDesc, pausedDesc, subscriptionsDesc, failingDesc, inactiveDesc, behindDesc, distanceDesc, ageDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. It copies the state of each queue, in
// portions that hold nobody up, and reads the store for at most scrapeTime.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	d := c.d
	for _, part := range d.metrics.collectors() {
		part.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	programs, inFlight, pinging, held := d.snapshot(time.Now())
	gauge(inFlightDesc, float64(inFlight), "event")
	gauge(inFlightDesc, float64(pinging), "ping")
	gauge(limitDesc, float64(d.cfg.MaxConnections), "event")
	gauge(limitDesc, maxPings, "ping")
	if held {
		gauge(pausedDesc, 1)
	} else {
		gauge(pausedDesc, 0)
	}

	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	for id, p := range programs {
		for _, status := range []webhook.Health{webhook.HealthHealthy, webhook.HealthFailing, webhook.HealthDisabled} {
			gauge(subscriptionsDesc, float64(p.statuses[status]), id, string(status))
		}
		gauge(failingDesc, float64(p.statuses[webhook.HealthFailing]-p.rejecting), id, string(webhook.FailingUnreachable))
		gauge(failingDesc, float64(p.rejecting), id, string(webhook.FailingRejecting))
		gauge(inactiveDesc, float64(p.inactive), id)
		gauge(behindDesc, float64(len(p.backlogged)), id)
		gauge(distanceDesc, float64(p.distance), id)
		oldest, err := p.oldest(ctx, d.store, id)
		switch {
		case err != nil:
			ch <- prometheus.NewInvalidMetric(ageDesc, err)
		case oldest.IsZero():
			gauge(ageDesc, 0, id)
		default:
			gauge(ageDesc, max(0, time.Since(oldest).Seconds()), id)
		}
	}
}

// programState is how a program's subscriptions are doing.
type programState struct {
	statuses   map[webhook.Health]int
	rejecting  int // of those that are failing
	inactive   int
	distance   int64             // of the one that is furthest behind
	backlogged []backloggedQueue // that events wait for
}

// behind is a queue that events wait for.
type backloggedQueue struct {
	id           string
	spans        []store.Interest // not to be changed
	seen, wanted int64
}

// snapshot copies what a scrape asks for. Queues may change while it does.
func (d *Dispatcher) snapshot(now time.Time) (programs map[string]*programState, inFlight, pinging int, held bool) {
	programs = make(map[string]*programState)
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, q := range d.queues {
		if n++; n%yieldEvery == 0 {
			d.yield()
		}
		if q.ProgramID == "" {
			continue // it is yet to be read
		}
		p := programs[q.ProgramID]
		if p == nil {
			p = &programState{statuses: make(map[webhook.Health]int, 3)}
			programs[q.ProgramID] = p
		}
		p.statuses[q.Status]++
		if q.Failing && q.Rejecting {
			p.rejecting++
		}
		switch {
		case !q.Active:
			p.inactive++
		case q.seen < q.wanted:
			p.distance = max(p.distance, q.wanted-q.seen)
			p.backlogged = append(p.backlogged, backloggedQueue{q.SubscriptionID, q.Interests, q.seen, q.wanted})
		}
	}
	return programs, d.credits.Taken(), d.pings.inFlight, d.restoreHold || now.Before(d.pausedUntil)
}

// oldest returns when the oldest event was accepted that a subscription waits
// for, the zero time for none. It looks into those that are furthest behind,
// while one may have an older event than was found.
func (p *programState) oldest(ctx context.Context, s *store.Store, programID string) (oldest time.Time, err error) {
	slices.SortFunc(p.backlogged, func(a, b backloggedQueue) int { return cmp.Compare(a.seen, b.seen) })
	var first int64 // its place in the log
	for i, b := range p.backlogged {
		if i == maxOldestLookups || first > 0 && first <= b.seen+1 {
			break
		}
		newest := b.wanted
		if first > 0 {
			newest = min(newest, first-1)
		}
		seq, received, err := s.Queues().FirstWanted(ctx, programID, b.spans, b.seen, newest)
		if err != nil {
			return oldest, err
		}
		if seq > 0 {
			first, oldest = seq, received
		}
	}
	return oldest, nil
}

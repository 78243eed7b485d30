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
	// scrapeTimeout bounds the reads of one scrape.
	scrapeTimeout = 2 * time.Second
	// maxOldestLookups is how many subscriptions per program, those with the lowest cursors, a
	// scrape or Backlog searches for the oldest waiting event.
	maxOldestLookups = 100
)

// metrics are the dispatcher's counters and histograms; docs/metrics.md describes
// them. All series exist from the start, so counting an attempt takes no lock and
// allocates nothing.
type metrics struct {
	attempts  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	alerts    *prometheus.CounterVec
	lag       prometheus.Histogram
	delivered prometheus.Histogram

	byStatus   [10]prometheus.Counter // attempts by the first digit of the response status
	byError    map[webhook.ErrorCode]prometheus.Counter
	byDuration map[webhook.Result]prometheus.Observer
	byAlert    map[webhook.Result]prometheus.Counter
}

// lagBuckets reach from an event that is sent immediately to the longest retry
// schedule, in seconds.
var lagBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21600, 86400}

// durationBuckets reach from a receiver in the same network to the longest
// --attempt-timeout, in seconds.
var durationBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

func newMetrics() *metrics {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "webhooks_attempts_total",
			Help: "Completed attempts, including pings, by result and by class of response status or error.",
		}, []string{"result", "answer"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "webhooks_attempt_duration_seconds",
			Help: "Duration of attempts from dialing to the end of the response, by result.", Buckets: durationBuckets,
		}, []string{"result"}),
		alerts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "webhooks_alert_attempts_total",
			Help: "Attempts to send an alert, by result.",
		}, []string{"result"}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "webhooks_delivery_lag_seconds",
			Help:    "Time from the acceptance of a delivery's oldest event to its first attempt, excluding redeliveries, replays and pings.",
			Buckets: lagBuckets,
		}),
		delivered: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "webhooks_delivery_time_seconds",
			Help:    "Time from the acceptance of a delivery's oldest event to its successful attempt, excluding redeliveries, replays and pings.",
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

// attempt counts a completed attempt. Pings include tests here.
func (m *metrics) attempt(a *webhook.Attempt) {
	if a.ResponseStatus >= http.StatusOK { // 200 to 999, see client.Send
		m.byStatus[a.ResponseStatus/100].Inc()
	} else if c := m.byError[a.Error]; c != nil {
		c.Inc()
	}
	m.byDuration[a.Result].Observe(a.Duration.Seconds())
}

var (
	inFlightDesc = gaugeDesc("webhooks_deliveries_in_flight", "Deliveries in flight.", "kind")
	limitDesc    = gaugeDesc("webhooks_deliveries_in_flight_limit", "Maximum number of deliveries in flight.", "kind")
	pausedDesc   = gaugeDesc("webhooks_deliveries_held",
		"1 while deliveries are held because the store failed, or after a restore, else 0.")
	subscriptionsDesc = gaugeDesc("webhooks_subscriptions", "Subscriptions by status.", "program", "status")
	failingDesc       = gaugeDesc("webhooks_subscriptions_failing",
		"Failing subscriptions by reason.", "program", "reason")
	inactiveDesc = gaugeDesc("webhooks_subscriptions_inactive",
		"Inactive subscriptions; they receive only pings and tests.", "program")
	behindDesc = gaugeDesc("webhooks_backlog_subscriptions",
		"Active subscriptions with waiting events.", "program")
	distanceDesc = gaugeDesc("webhooks_backlog_distance_events",
		"Distance in the event log between the cursor furthest behind and the newest event that its "+
			"subscription wants; an upper bound for its waiting events.", "program")
	programSlotsDesc = gaugeDesc("webhooks_program_deliveries_in_flight",
		"Deliveries in flight of a program with max_in_flight, excluding pings.", "program")
	programLimitDesc = gaugeDesc("webhooks_program_deliveries_in_flight_limit", "The max_in_flight of a program that has one.", "program")
	programHeldDesc  = gaugeDesc("webhooks_program_subscriptions_held",
		"Subscriptions with something to send that wait for a slot of their program.", "program")
	ageDesc = gaugeDesc("webhooks_backlog_age_seconds",
		"Age of the oldest event waiting for an active subscription; 0 if none is waiting.", "program")
)

func gaugeDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// collector collects the metrics for a scrape.
type collector struct{ d *Dispatcher }

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.attempts, m.durations, m.alerts, m.lag, m.delivered}
}

// Describe implements [prometheus.Collector].
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, part := range c.d.metrics.collectors() {
		part.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{
		inFlightDesc, limitDesc, pausedDesc, subscriptionsDesc, failingDesc, inactiveDesc, behindDesc, distanceDesc, ageDesc,
		programSlotsDesc, programLimitDesc, programHeldDesc,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. It copies the state of each queue,
// releasing the lock regularly, and reads the store for at most scrapeTimeout.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	d := c.d
	for _, part := range d.metrics.collectors() {
		part.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	programs, inFlight, pinging, paused := d.snapshot(time.Now())
	gauge(inFlightDesc, float64(inFlight), "event")
	gauge(inFlightDesc, float64(pinging), "ping")
	gauge(limitDesc, float64(d.cfg.MaxConnections), "event")
	gauge(limitDesc, maxPings, "ping")
	for _, p := range d.limitedPrograms() {
		gauge(programSlotsDesc, float64(p.taken), p.id)
		gauge(programLimitDesc, float64(p.limit), p.id)
		gauge(programHeldDesc, float64(p.held), p.id)
	}
	if paused {
		gauge(pausedDesc, 1)
	} else {
		gauge(pausedDesc, 0)
	}

	ctx, cancel := context.WithTimeout(store.ForLists(context.Background(), ""), scrapeTimeout)
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

// programState summarizes the subscriptions of one program.
type programState struct {
	statuses   map[webhook.Health]int
	rejecting  int // failing subscriptions whose receiver rejects deliveries
	inactive   int
	distance   int64             // between the cursor furthest behind and its newest selected event, in seqs
	backlogged []backloggedQueue // queues with waiting events
}

// backloggedQueue is a queue with waiting events.
type backloggedQueue struct {
	id                 string
	interests          []store.Interest // read only
	readSeq, wantedSeq int64            // see subscriptionQueue
}

// snapshot copies the state that Backlog and a scrape need. Queues may change during it.
func (d *Dispatcher) snapshot(now time.Time) (programs map[string]*programState, inFlight, pinging int, paused bool) {
	programs = make(map[string]*programState)
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, q := range d.queues {
		if n++; n%yieldEvery == 0 {
			d.yield()
		}
		if q.ProgramID == "" || d.store.Programs().Hidden(q.ProgramID) {
			continue // not read yet, or being erased
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
		case q.readSeq < q.wantedSeq:
			p.distance = max(p.distance, q.wantedSeq-q.readSeq)
			p.backlogged = append(p.backlogged, backloggedQueue{q.SubscriptionID, q.Interests, q.readSeq, q.wantedSeq})
		}
	}
	return programs, d.credits.Taken(), d.pings.inFlight, d.restoreHold || now.Before(d.pausedUntil)
}

// oldest returns when the oldest waiting event was accepted, the zero time for none. It
// searches the subscriptions with the lowest cursors, as long as an older event is possible.
func (p *programState) oldest(ctx context.Context, s *store.Store, programID string) (oldest time.Time, err error) {
	slices.SortFunc(p.backlogged, func(a, b backloggedQueue) int { return cmp.Compare(a.readSeq, b.readSeq) })
	var first int64 // its seq in the log
	for i, b := range p.backlogged {
		if i == maxOldestLookups || first > 0 && first <= b.readSeq+1 {
			break
		}
		newest := b.wantedSeq
		if first > 0 {
			newest = min(newest, first-1)
		}
		seq, received, err := s.Queues().FirstWanted(ctx, programID, b.interests, b.readSeq, newest)
		if err != nil {
			return oldest, err
		}
		if seq > 0 {
			first, oldest = seq, received
		}
	}
	return oldest, nil
}

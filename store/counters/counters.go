// Package counters counts what the store does, for the metrics. It reads and writes no database.
package counters

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"service/webhook"
)

// Names of the metrics that Summarize reads.
const (
	commitDuration = "webhooks_commit_duration_seconds"
	commitWrites   = "webhooks_commit_writes"
	commitFailures = "webhooks_commit_failures_total"
)

// Counters are the store's counters and histograms, described in docs/metrics.md. They start at
// zero with every Open. Counting costs writes neither a lock nor an allocation.
type Counters struct {
	accepted  *prometheus.CounterVec
	programs  map[string]prometheus.Counter                // accepted by program; owned by the leader of the writer
	Ended     map[webhook.FailureReason]prometheus.Counter // FailureNone is success; read-only
	endedVec  *prometheus.CounterVec
	Recovered prometheus.Counter
	commits   prometheus.Histogram // seconds
	writes    prometheus.Histogram // per commit
	failures  prometheus.Counter   // of commits

	Acknowledging  prometheus.Gauge
	Acknowledged   prometheus.Histogram // waits, in seconds
	Unacknowledged prometheus.Counter   // waits
	uploads        prometheus.Counter   // files
	uploading      prometheus.Histogram // seconds
}

// New returns counters at zero.
func New() *Counters {
	uploadBuckets := []float64{.0025, .005, .01, .02, .03, .04, .05, .075, .1, .15, .25, .5, 1, 2.5, 5, 10}
	m := &Counters{
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "webhooks_events_accepted_total",
			Help: "Accepted events, excluding repeated ones.",
		}, []string{"program"}),
		programs: make(map[string]prometheus.Counter),
		Ended:    make(map[webhook.FailureReason]prometheus.Counter),
		endedVec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "webhooks_deliveries_ended_total",
			Help: "Completed deliveries, including pings, by status and failure reason.",
		}, []string{"status", "failure_reason"}),
		Recovered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "webhooks_deliveries_recovered_total",
			Help: "Failed deliveries whose events have all been delivered otherwise.",
		}),
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    commitDuration,
			Help:    "Duration of a commit, from its first write until all its writes are on disk.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}),
		writes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    commitWrites,
			Help:    "Writes that shared one commit.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10), // up to 512, the most in one commit
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: commitFailures,
			Help: "Commits that failed, or that lost at least one write, because the disk could not be written.",
		}),
		Acknowledging: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "webhooks_acknowledge_waiting",
			Help: "Requests waiting for the replica to have their write.",
		}),
		Acknowledged: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "webhooks_acknowledge_duration_seconds",
			Help:    "Time that a request waited for the replica to have its write.",
			Buckets: uploadBuckets,
		}),
		Unacknowledged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "webhooks_acknowledge_timeouts_total",
			Help: "Requests refused because the replica did not have their write in time.",
		}),
		uploads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "webhooks_replica_uploads_total",
			Help: "Files of changes uploaded to the replica.",
		}),
		uploading: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "webhooks_replica_upload_duration_seconds",
			Help:    "Duration of an upload of changes to the replica.",
			Buckets: uploadBuckets,
		}),
	}
	m.Ended[webhook.FailureNone] = m.endedVec.WithLabelValues(string(webhook.StatusSuccess), "")
	for _, reason := range webhook.FailureReasons() {
		m.Ended[reason] = m.endedVec.WithLabelValues(string(webhook.StatusFailed), string(reason))
	}
	return m
}

// Forget removes the series of a program. Only the leader of the writer calls it.
func (m *Counters) Forget(programID string) {
	delete(m.programs, programID)
	m.accepted.DeleteLabelValues(programID)
}

// Accept counts events that are on disk. The leader of the writer calls it.
func (m *Counters) Accept(programID string, n int) {
	c := m.programs[programID]
	if c == nil {
		c = m.accepted.WithLabelValues(programID)
		m.programs[programID] = c
	}
	c.Add(float64(n))
}

// End counts a delivery if the step completes it.
func (m *Counters) End(step webhook.Step) {
	if step.Status.Final() {
		m.Ended[step.FailureReason].Inc()
	}
}

// Summary is what the counters say about commits.
type Summary struct {
	Commits  uint64
	Seconds  float64 // per commit, on average
	Writes   float64 // per commit, on average
	Failures float64 // failed commits
}

// Summarize reads the counters of commits through a registry of its own, as the server does.
func (m *Counters) Summarize() (y Summary, err error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{m.commits, m.writes, m.failures} {
		if err := registry.Register(c); err != nil {
			return y, err
		}
	}
	families, err := registry.Gather()
	if err != nil {
		return y, err
	}
	var writes float64
	for _, f := range families {
		one := f.GetMetric()[0]
		switch f.GetName() {
		case commitDuration:
			y.Commits, y.Seconds = one.GetHistogram().GetSampleCount(), one.GetHistogram().GetSampleSum()
		case commitWrites:
			writes = one.GetHistogram().GetSampleSum()
		case commitFailures:
			y.Failures = one.GetCounter().GetValue()
		}
	}
	if y.Commits > 0 {
		y.Seconds /= float64(y.Commits)
		y.Writes = writes / float64(y.Commits)
	}
	return y, nil
}

// Commit counts a commit of n writes. failed means that the disk could not be written, for the
// Commit or for one of its writes.
func (m *Counters) Commit(n int, took time.Duration, failed bool) {
	m.commits.Observe(took.Seconds())
	m.writes.Observe(float64(n))
	if failed {
		m.failures.Inc()
	}
}

// Upload counts an upload of a number of files.
func (m *Counters) Upload(files int, took time.Duration) {
	m.uploads.Add(float64(files))
	m.uploading.Observe(took.Seconds())
}

// Collectors returns the metrics to register.
func (m *Counters) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.accepted, m.endedVec, m.Recovered, m.commits, m.writes, m.failures, m.Acknowledging, m.Acknowledged,
		m.Unacknowledged, m.uploads, m.uploading}
}

package api

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"service/webhook"
)

const metricsPath = "/metrics"

// metricsType is the Prometheus text format.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// readMetrics returns the metrics of the process, or only the series of the program that the request
// acts in. It logs metrics that cannot be collected, and returns the others.
func readMetrics(req *request) (answer, error) {
	// Scrapes run one at a time, so that frequent scrapes delay each other and not the service.
	select {
	case req.api.scraping <- struct{}{}:
		defer func() { <-req.api.scraping }()
	case <-req.ctx.Done():
		return answer{}, req.ctx.Err()
	}
	families, err := req.api.registry.Gather()
	if err != nil {
		req.api.logError(req, "failed to collect some metrics", err)
	}
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if id := req.program(); id != "" {
			all := family.Metric
			family.Metric = all[:0]
			for _, series := range all {
				for _, label := range series.Label {
					if label.GetName() == programLabel && label.GetValue() == id {
						family.Metric = append(family.Metric, series)
					}
				}
			}
			if len(family.Metric) == 0 {
				continue
			}
		}
		if err := encoder.Encode(family); err != nil {
			return answer{}, fmt.Errorf("metric %s: %w", family.GetName(), err)
		}
	}
	if err := req.ctx.Err(); err != nil {
		return answer{}, err
	}
	return answer{file: &file{contentType: metricsType, content: text.Bytes()}}, nil
}

// programLabel is the label of the series of one program.
const programLabel = "program"

// localHeaders are the headers that scrapers, command-line clients and browsers send. Proxies add
// others.
var localHeaders = []string{
	"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Cache-Control", "Connection", "Cookie", "Dnt",
	"If-Modified-Since", "If-None-Match", "Keep-Alive", "Pragma", "Priority", "Referer", "Te", "Upgrade-Insecure-Requests", "User-Agent",
	"X-Prometheus-Scrape-Timeout-Seconds",
}

// isLocal reports whether a request comes from this machine and is addressed to it. Such
// a request may read the metrics without a token. A loopback address alone is not enough:
//
//   - A TLS proxy on this machine forwards the requests of others from a loopback
//     address. It is recognized by a header that no client sends itself; a proxy that
//     adds none must not forward /metrics.
//   - A page in a browser on this machine may use a name that resolves to it (DNS
//     rebinding). It is recognized by the name in Host.
func isLocal(r *http.Request) bool {
	for name := range r.Header {
		if !slices.Contains(localHeaders, name) && !strings.HasPrefix(name, "Sec-") {
			return false
		}
	}
	sender, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !sender.Addr().Unmap().IsLoopback() {
		return false
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if len(host) > 2 && host[0] == '[' {
		host = host[1 : len(host)-1]
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}

// needsNoToken reports whether a request is allowed without a token.
func (req *request) needsNoToken() bool {
	switch req.route.scope {
	case scopeNone:
		return true
	case webhook.ScopeMetricsRead:
		return len(req.http.Header["Authorization"]) == 0 && isLocal(req.http)
	}
	return false
}

// metrics are the metrics of the API; docs/metrics.md describes them. Counting a request
// takes no lock and allocates nothing.
type metrics struct {
	durations *prometheus.HistogramVec
	refused   *prometheus.CounterVec
	routes    map[routeKey]*routeMetrics // read-only once requests are served

	rateLimited, invalidTokens prometheus.Counter // refused requests

	// limited counts the requests that a program's limit rejected. A program without rejected
	// requests, or that no longer exists, has no series.
	limited struct {
		mu       sync.Mutex
		programs map[string]int64
		exists   func(programID string) bool
	}

	forwards  *prometheus.CounterVec
	forwarded map[string]prometheus.Counter // of forwards, by result; read-only
}

// routeKey identifies a route.
type routeKey struct{ method, pattern string }

// routeMetrics are the metrics of one route. HEAD counts as GET.
type routeMetrics struct {
	answers   [600]atomic.Int64 // by status
	durations prometheus.Observer
}

var requestsDesc = prometheus.NewDesc("webhooks_requests_total",
	"Requests by route and status; route - stands for requests that match no route.", []string{"method", "route", "status"}, nil)

var limitedDesc = prometheus.NewDesc("webhooks_program_requests_rate_limited_total",
	"Requests rejected with 429 by the limit of their program.", []string{"program"}, nil)

// limitProgram counts a request that the limit of its program rejected.
func (m *metrics) limitProgram(id string) {
	m.limited.mu.Lock()
	defer m.limited.mu.Unlock()
	if m.limited.programs == nil {
		m.limited.programs = make(map[string]int64)
	}
	m.limited.programs[id]++
}

// collectLimited collects the counts of the programs that exist, and drops the others.
func (m *metrics) collectLimited(ch chan<- prometheus.Metric) {
	m.limited.mu.Lock()
	defer m.limited.mu.Unlock()
	for id, n := range m.limited.programs {
		if !m.limited.exists(id) {
			delete(m.limited.programs, id)
			continue
		}
		ch <- prometheus.MustNewConstMetric(limitedDesc, prometheus.CounterValue, float64(n), id)
	}
}

// noRoute counts requests that match no route. Their paths are chosen by the client, and
// must not become labels.
var noRoute = routeKey{"-", "-"}

// newMetrics returns metrics without routes; handle adds them.
func newMetrics() *metrics {
	m := &metrics{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "webhooks_request_duration_seconds", Help: "Time from the header of a request to the end of its response, by route.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"method", "route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "webhooks_requests_rate_limited_total", Help: "Requests rejected with 429, by limit.",
		}, []string{"limit"}),
		forwards: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "webhooks_requests_forwarded_total", Help: "Requests of moved programs forwarded to other installations, by result.",
		}, []string{"result"}),
		routes: make(map[routeKey]*routeMetrics), forwarded: make(map[string]prometheus.Counter),
	}
	for _, result := range forwardResults {
		m.forwarded[result] = m.forwards.WithLabelValues(result)
	}
	m.rateLimited, m.invalidTokens = m.refused.WithLabelValues("program"), m.refused.WithLabelValues("invalid_tokens")
	m.add(noRoute)
	return m
}

// add adds a route.
func (m *metrics) add(key routeKey) {
	m.routes[key] = &routeMetrics{durations: m.durations.WithLabelValues(key.method, key.pattern)}
}

// request counts a completed request.
func (m *metrics) request(rt *route, status int, took time.Duration) {
	of := m.routes[routeKey{rt.method, rt.pattern}]
	if of == nil {
		of = m.routes[noRoute]
	}
	of.answers[min(max(status, 0), len(of.answers)-1)].Add(1)
	of.durations.Observe(took.Seconds())
}

// Describe implements [prometheus.Collector].
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.durations.Describe(ch)
	m.refused.Describe(ch)
	m.forwards.Describe(ch)
	ch <- requestsDesc
	ch <- limitedDesc
}

// Collect implements [prometheus.Collector].
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.durations.Collect(ch)
	m.refused.Collect(ch)
	m.forwards.Collect(ch)
	m.collectLimited(ch)
	for key, of := range m.routes {
		for status := range of.answers {
			if n := of.answers[status].Load(); n > 0 {
				ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(n), key.method, key.pattern, strconv.Itoa(status))
			}
		}
	}
}

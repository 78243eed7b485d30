package api

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"service/webhook"
)

const metricsPath = "/metrics"

// metricsType is Prometheus's text format.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// metrics answers with all metrics of the process. When some cannot be read
// the others are of all the more use: it answers with those, and logs why.
func (h statusHandlers) metrics(req *request) (answer, error) {
	// One at a time: who asks without pause is held up, and not the service.
	select {
	case h.api.scraping <- struct{}{}:
		defer func() { <-h.api.scraping }()
	case <-req.ctx.Done():
		return answer{}, req.ctx.Err()
	}
	families, err := h.api.registry.Gather()
	if err != nil {
		h.api.logError(req, "some metrics could not be read", err)
	}
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return answer{}, fmt.Errorf("metric %s: %w", family.GetName(), err)
		}
	}
	if err := req.ctx.Err(); err != nil {
		return answer{}, err
	}
	return answer{file: &file{contentType: metricsType, content: text.Bytes()}}, nil
}

// forwarding are the headers by which proxies tell that a request is another's.
var forwarding = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via"}

// isLocal says whether a request was made on this machine, and for it: whoever
// can do that may read the metrics without a token. That its sender's address
// is loopback does not say so by itself:
//
//   - A TLS proxy on this machine sends everybody's requests from loopback. It
//     is told by the headers that proxies add; one that adds none must not pass
//     /metrics on.
//   - A page in a browser on this machine may have a name that leads here. It is
//     told by that name, in Host.
func isLocal(r *http.Request) bool {
	for _, name := range forwarding {
		if _, ok := r.Header[name]; ok {
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

// free says whether a request needs no token.
func (req *request) free() bool {
	switch req.route.scope {
	case scopeNone:
		return true
	case webhook.ScopeMetricsRead:
		return len(req.http.Header["Authorization"]) == 0 && isLocal(req.http)
	}
	return false
}

// metrics are what the API counts for its operator; docs/metrics.md says what
// each means. They begin at zero, and cost a request neither a lock nor memory.
type metrics struct {
	durations *prometheus.HistogramVec
	refused   *prometheus.CounterVec
	routes    map[routeKey]*routeMetrics // not written to once requests are served

	rateLimited, invalidTokens prometheus.Counter // of refused
}

// routeKey names a row of the table of routes.
type routeKey struct{ method, pattern string }

// routeMetrics are those of one route. HEAD counts as GET.
type routeMetrics struct {
	answers   [600]atomic.Int64 // by status
	durations prometheus.Observer
}

var requestsDesc = prometheus.NewDesc("service_requests_total",
	"Requests that were answered, by route and status; - stands for whatever no route is for.", []string{"method", "route", "status"}, nil)

// noRoute stands for all requests that no route is for: what they ask for is
// the client's choice, and must not become a label.
var noRoute = routeKey{"-", "-"}

func newMetrics() *metrics {
	m := &metrics{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "service_request_duration_seconds", Help: "Time from a request's header to the end of its answer, by route.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"method", "route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "service_requests_rate_limited_total", Help: "Requests that were answered 429, by the limit that was reached.",
		}, []string{"limit"}),
		routes: make(map[routeKey]*routeMetrics),
	}
	m.rateLimited, m.invalidTokens = m.refused.WithLabelValues("program"), m.refused.WithLabelValues("invalid_tokens")
	m.add(noRoute)
	return m
}

// add makes a route known.
func (m *metrics) add(key routeKey) {
	m.routes[key] = &routeMetrics{durations: m.durations.WithLabelValues(key.method, key.pattern)}
}

// request counts a request that was answered.
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
	ch <- requestsDesc
}

// Collect implements [prometheus.Collector].
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.durations.Collect(ch)
	m.refused.Collect(ch)
	for key, of := range m.routes {
		for status := range of.answers {
			if n := of.answers[status].Load(); n > 0 {
				ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(n), key.method, key.pattern, strconv.Itoa(status))
			}
		}
	}
}

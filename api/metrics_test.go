package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"service/store"
	"service/webhook"
)

// metricsOf reads the metrics like a Prometheus on the same machine.
func (s *service) metricsOf() string {
	s.t.Helper()
	r := httptest.NewRequest("GET", metricsPath, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:40000", "localhost:8443"
	got := s.serve(r)
	wantStatus(s.t, "the metrics", got, 200)
	return got.body
}

// Metrics need a token with the scope, or a request from this machine that no proxy has forwarded.
func TestMetricsAccess(t *testing.T) {
	s := start(t)
	reader := s.newToken("", "prometheus", webhook.ScopeMetricsRead)
	other := s.newToken("acme", "bob", webhook.ScopeWebhooksRead, webhook.ScopeWebhooksWrite, webhook.ScopeEventsRead,
		webhook.ScopeEventsWrite)
	for _, test := range []struct {
		name, sender, host, token string
		header                    [2]string
		want                      int
	}{
		{"a token from anywhere", "203.0.113.7:40000", "service.example", reader, [2]string{}, 200},
		{"a token through a proxy", "127.0.0.1:40000", "service.example", reader, [2]string{"X-Forwarded-For", "203.0.113.7"}, 200},
		{"no token from elsewhere", "203.0.113.7:40000", "127.0.0.1:8443", "", [2]string{}, 401},
		{"a token without the scope from elsewhere", "203.0.113.7:40000", "service.example", other, [2]string{}, 403},
		{"loopback", "127.0.0.1:40000", "127.0.0.1:8443", "", [2]string{}, 200},
		{"loopback, by name", "127.0.0.1:40000", "localhost:8443", "", [2]string{}, 200},
		{"loopback, IPv6", "[::1]:40000", "[::1]:8443", "", [2]string{}, 200},
		{"loopback, IPv4 mapped", "[::ffff:127.0.0.1]:40000", "[::ffff:127.0.0.1]", "", [2]string{}, 200},
		{"loopback, without a port", "127.0.0.9:40000", "127.0.0.9", "", [2]string{}, 200},
		{"loopback with a token that is none", "127.0.0.1:40000", "localhost", webhook.NewTokenSecret(webhook.TokenPrefix), [2]string{}, 401},
		{"loopback with a token without the scope", "127.0.0.1:40000", "localhost", other, [2]string{}, 403},
		{"forwarded", "127.0.0.1:40000", "localhost", "", [2]string{"X-Forwarded-For", "203.0.113.7"}, 401},
		{"forwarded for loopback", "127.0.0.1:40000", "localhost", "", [2]string{"X-Forwarded-For", "127.0.0.1"}, 401},
		{"forwarded, by RFC 7239", "127.0.0.1:40000", "localhost", "", [2]string{"Forwarded", "for=203.0.113.7"}, 401},
		{"forwarded, in small letters", "127.0.0.1:40000", "localhost", "", [2]string{"x-forwarded-proto", "https"}, 401},
		{"forwarded, empty", "127.0.0.1:40000", "localhost", "", [2]string{"X-Forwarded-Host", ""}, 401},
		{"forwarded, by its real address", "127.0.0.1:40000", "localhost", "", [2]string{"X-Real-IP", "203.0.113.7"}, 401},
		{"via a proxy", "127.0.0.1:40000", "localhost", "", [2]string{"Via", "1.1 proxy"}, 401},
		{"forwarded by Cloudflare", "127.0.0.1:40000", "localhost", "", [2]string{"CF-Connecting-IP", "203.0.113.7"}, 401},
		{"forwarded by Akamai", "127.0.0.1:40000", "localhost", "", [2]string{"True-Client-IP", "203.0.113.7"}, 401},
		{"forwarded by Fly", "127.0.0.1:40000", "localhost", "", [2]string{"Fly-Client-IP", "203.0.113.7"}, 401},
		{"forwarded by Azure", "127.0.0.1:40000", "localhost", "", [2]string{"X-Azure-ClientIP", "203.0.113.7"}, 401},
		{"forwarded by Amazon", "127.0.0.1:40000", "localhost", "", [2]string{"X-Amzn-Trace-Id", "Root=1-67"}, 401},
		{"forwarded by Envoy", "127.0.0.1:40000", "localhost", "", [2]string{"X-Request-Id", "1"}, 401},
		{"forwarded by a proxy of its own", "127.0.0.1:40000", "localhost", "", [2]string{"X-Acme-Client", "203.0.113.7"}, 401},
		{"Prometheus", "127.0.0.1:40000", "localhost", "", [2]string{"X-Prometheus-Scrape-Timeout-Seconds", "10"}, 200},
		{"browser", "127.0.0.1:40000", "localhost", "", [2]string{"Sec-Fetch-Site", "none"}, 200},
		{"a name that leads here", "127.0.0.1:40000", "evil.example:8443", "", [2]string{}, 401},
		{"an address that leads here", "127.0.0.1:40000", "192.0.2.1", "", [2]string{}, 401},
		{"no host", "127.0.0.1:40000", "", "", [2]string{}, 401},
		{"a sender that is no address", "@", "localhost", "", [2]string{}, 401},
		{"an address of a private network", "10.0.0.1:40000", "localhost", "", [2]string{}, 401},
	} {
		r := httptest.NewRequest("GET", metricsPath, nil)
		r.RemoteAddr, r.Host = test.sender, test.host
		if test.token != "" {
			r.Header.Set("Authorization", "Bearer "+test.token)
		}
		if test.header[0] != "" {
			r.Header.Set(test.header[0], test.header[1])
		}
		got := s.serve(r)
		wantStatus(t, test.name, got, test.want)
		if (test.want == 200) != strings.Contains(got.body, "webhooks_request_duration_seconds") {
			t.Errorf("%s: got %.200s", test.name, got.body)
		}
	}
	// Other routes need a token even on loopback.
	r := httptest.NewRequest("GET", "/v2/events", nil)
	r.RemoteAddr, r.Host = "127.0.0.1:40000", "localhost"
	wantStatus(t, "events from loopback", s.serve(r), 401)
}

// TestMetricsOfPrograms checks that a program token, and a platform token that acts in a program,
// read only that program's series, and that an installation token reads all series and nothing
// else.
func TestMetricsOfPrograms(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := start(t, func(c *Config) { c.Metrics = registry })
	figures := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "webhooks_planted", Help: "Help."}, []string{"other", "program"})
	registry.MustRegister(figures)
	figures.WithLabelValues("acme", "other").Set(1) // the value of another label
	figures.WithLabelValues("x", "acme").Set(2)
	figures.WithLabelValues("x", "acme2").Set(3)
	scrape := func(token string, headers ...string) response {
		return s.send("GET", metricsPath, "", append(headers, "Authorization", "Bearer "+token)...)
	}
	const own = "# HELP webhooks_planted Help.\n# TYPE webhooks_planted gauge\nwebhooks_planted{other=\"x\",program=\"acme\"} 2\n"
	for name, got := range map[string]response{
		"token of the program": scrape(s.newToken("acme", "prometheus", webhook.ScopeMetricsRead)),
		"platform token":       scrape(s.platform, programHeader, "acme"),
	} {
		wantStatus(t, name, got, 200)
		if got.body != own {
			t.Errorf("%s: got %s", name, got.body)
		}
	}
	all := s.newToken("", "prometheus", webhook.ScopeMetricsRead)
	wantBody(t, "token of the installation", scrape(all), 200, `program="other"} 1`, `program="acme"} 2`, `program="acme2"} 3`,
		"webhooks_request_duration_seconds")
	wantStatus(t, "token of the installation, in a program", scrape(all, programHeader, "acme"), 403)
	for _, rt := range routes() {
		want := 403
		switch {
		case rt.scope == scopeNone || rt.pattern == metricsPath:
			continue
		case rt.scope == scopeAny:
			want = 200
		}
		path := strings.NewReplacer(":name", "ping", ":id", "acme").Replace(rt.pattern)
		wantStatus(t, rt.method+" "+rt.pattern, s.send(rt.method, path, "", "Authorization", "Bearer "+all), want)
	}
}

// Each request is counted under its route, and client input never becomes a label.
func TestRequestsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, limited(8))
		id := s.subscribe("content_updated") // 1 of 8
		wantStatus(t, "one", s.send("GET", "/v2/webhooks/subscriptions/"+id, ""), 200)
		wantStatus(t, "HEAD of it", s.send("HEAD", "/v2/webhooks/subscriptions/"+id, ""), 200)
		wantStatus(t, "another", s.send("GET", "/v2/webhooks/subscriptions/"+webhook.NewID(), ""), 404)
		wantStatus(t, "nothing", s.send("GET", "/v2/nothing/planted", ""), 404)
		wantStatus(t, "a method", s.send("PLANTED", "/v2/events", ""), 405)
		wantStatus(t, "a long path", s.send("GET", "/v2/events?planted="+strings.Repeat("x", maxURI), ""), 414)
		for range 4 {
			s.send("GET", "/v2/events", "")
		}
		for range invalidTokenLimit.Burst + 3 {
			s.send("GET", "/v2/event_types", "", "Authorization", "Bearer planted")
		}
		got := s.metricsOf()
		for _, want := range []string{
			`webhooks_requests_total{method="POST",route="/v2/webhooks/subscriptions",status="201"} 1`,
			`webhooks_requests_total{method="GET",route="/v2/webhooks/subscriptions/:id",status="200"} 2`,
			`webhooks_requests_total{method="GET",route="/v2/webhooks/subscriptions/:id",status="404"} 1`,
			`webhooks_requests_total{method="-",route="-",status="404"} 1`,
			`webhooks_requests_total{method="-",route="-",status="405"} 1`,
			`webhooks_requests_total{method="-",route="-",status="414"} 1`,
			`webhooks_requests_total{method="GET",route="/v2/events",status="200"} 2`,
			`webhooks_requests_total{method="GET",route="/v2/events",status="429"} 2`,
			fmt.Sprintf(`webhooks_requests_total{method="GET",route="/v2/event_types",status="401"} %d`, invalidTokenLimit.Burst),
			`webhooks_requests_total{method="GET",route="/v2/event_types",status="429"} 3`,
			`webhooks_requests_rate_limited_total{limit="program"} 2`,
			`webhooks_requests_rate_limited_total{limit="invalid_tokens"} 3`,
			`webhooks_request_duration_seconds_count{method="GET",route="/v2/webhooks/subscriptions/:id"} 3`,
			`webhooks_request_duration_seconds_count{method="-",route="-"} 3`,
		} {
			if !strings.Contains(got, want+"\n") {
				t.Errorf("the metrics lack %s", want)
			}
		}
		if n := strings.Count(got, "\nwebhooks_program_requests_rate_limited_total{"); n != 1 ||
			!strings.Contains(got, `webhooks_program_requests_rate_limited_total{program="acme"} 2`) {
			t.Errorf("%d programs were limited, want acme, twice", n)
		}
		must(t, s.store.Write(t.Context(), func(w store.Write) error {
			_, err := w.Programs().Erase("acme", webhook.AuditEntry{})
			return err
		}))
		if strings.Contains(s.metricsOf(), "webhooks_program_requests_rate_limited_total{") {
			t.Error("the metrics contain a program that is being erased")
		}
		if strings.Contains(got, "planted") || strings.Contains(strings.ToLower(got), id) {
			t.Errorf("the metrics show what clients send:\n%s", got)
		}
		if t.Failed() {
			t.Log(got)
		}
		problems, err := promlint.New(strings.NewReader(got)).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("promlint: %v (%v)", problems, err)
		}
	})
}

// broken is a collector that fails.
type broken struct{ desc *prometheus.Desc }

func (b broken) Describe(ch chan<- *prometheus.Desc) { ch <- b.desc }
func (b broken) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(b.desc, errors.New("it is out of order"))
}

func TestMetricsWithAFailingCollector(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(broken{prometheus.NewDesc("webhooks_broken", "Broken.", nil, nil)})
	s := start(t, func(c *Config) { c.Metrics = registry })
	got := s.metricsOf()
	if !strings.Contains(got, "webhooks_request_duration_seconds") || strings.Contains(got, "webhooks_broken") {
		t.Errorf("got\n%s\nwant all but the failing one", got)
	}
	if n := strings.Count(s.log.String(), "it is out of order"); n != 1 {
		t.Errorf("the error was logged %d times, want once:\n%s", n, s.log)
	}
}

// slow is a slow collector.
type slow struct {
	broken
	begun, done chan struct{}
}

func (b slow) Collect(ch chan<- prometheus.Metric) {
	b.begun <- struct{}{}
	<-b.done
	ch <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, 1)
}

// Scrapes run one at a time; others wait for at most the request timeout.
func TestConcurrentScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := slow{broken{prometheus.NewDesc("webhooks_slow", "Slow.", nil, nil)}, make(chan struct{}), make(chan struct{})}
		registry := prometheus.NewRegistry()
		registry.MustRegister(m)
		s := start(t, func(c *Config) { c.Metrics, c.RequestTimeout = registry, 50*time.Millisecond })
		ask := func(ctx context.Context) int {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(ctx, "GET", metricsPath, nil)
			r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
			s.api.ServeHTTP(w, r)
			return w.Code
		}
		first := make(chan int, 1)
		go func() { first <- ask(t.Context()) }()
		<-m.begun
		if got := ask(t.Context()); got != http.StatusGatewayTimeout {
			t.Errorf("a second request during the first: got %d, want 504", got)
		}
		synctest.Wait() // the first has timed out
		m.done <- struct{}{}
		if got := <-first; got != http.StatusGatewayTimeout {
			t.Errorf("a slow one: got %d, want 504", got)
		}
		go func() { <-m.begun; m.done <- struct{}{} }()
		if got := ask(t.Context()); got != http.StatusOK {
			t.Errorf("the next: got %d, want 200", got)
		}
	})
}

// Counting a request allocates nothing.
func TestCountingARequestAllocatesNothing(t *testing.T) {
	m := newMetrics()
	rt := &route{method: "GET", pattern: "/v2/events"}
	m.add(routeKey{rt.method, rt.pattern})
	unknown := &route{pattern: "-"}
	if n := testing.AllocsPerRun(100, func() {
		m.request(rt, 200, time.Millisecond)
		m.request(unknown, 999, time.Millisecond)
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

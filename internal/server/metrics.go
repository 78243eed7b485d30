package server

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"service/store"
)

// newRegistry returns the registry of all metrics, including those of the process.
func newRegistry(version string) (*prometheus.Registry, error) {
	sqlite, err := store.SQLiteVersion()
	if err != nil {
		return nil, err
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "webhooks_build_info", Help: "Always 1; the labels identify the binary.",
		ConstLabels: prometheus.Labels{
			"version": version, "go_version": runtime.Version(), "sqlite_version": sqlite, "driver": store.DriverName,
		},
	})
	build.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry, nil
}

// Node metrics, the same in both roles.
var (
	roleDesc      = prometheus.NewDesc("webhooks_node_role", "1 for this node's role, 0 for the other.", []string{"role"}, nil)
	takeoversDesc = prometheus.NewDesc("webhooks_takeovers_total", "Times that this process took over from another primary.", nil, nil)
	leaseAgeDesc  = prometheus.NewDesc("webhooks_lease_age_seconds",
		"Time since this node last renewed its lease; 0 on a standby and without a lease.", nil, nil)
	leaseTimeDesc = prometheus.NewDesc("webhooks_lease_duration_seconds", "Value of --lease; 0 without one.", nil, nil)
	standbysDesc  = prometheus.NewDesc("webhooks_standbys",
		"Standbys of this primary that were seen in the last 7 days, by state: ready (could take over), unable, silent (not seen for minutes).",
		[]string{"state"}, nil)
	standbyLagDesc = prometheus.NewDesc("webhooks_standby_lag_seconds",
		"Time since this standby's copy was known to be complete; 0 on a primary and without a copy.", nil, nil)
	canTakeOverDesc = prometheus.NewDesc("webhooks_standby_can_take_over", "1 if this standby could take over now; 0 on a primary.", nil, nil)
)

// nodeFigures are the values of a node's metrics.
type nodeFigures struct {
	primary     bool
	leaseAge    time.Duration
	standbys    standbyCounts
	lag         float64 // seconds
	canTakeOver bool
}

// nodeCollector collects the metrics of a node.
type nodeCollector struct {
	cfg     *Config
	figures func() nodeFigures
}

// Describe implements [prometheus.Collector].
func (c nodeCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements [prometheus.Collector].
func (c nodeCollector) Collect(ch chan<- prometheus.Metric) {
	f := c.figures()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(roleDesc, boolValue(f.primary), "primary")
	gauge(roleDesc, boolValue(!f.primary), "standby")
	ch <- prometheus.MustNewConstMetric(takeoversDesc, prometheus.CounterValue, float64(atomic.LoadInt64(&c.cfg.takeovers)))
	gauge(leaseAgeDesc, f.leaseAge.Seconds())
	gauge(leaseTimeDesc, c.cfg.Lease.Seconds())
	gauge(standbysDesc, float64(f.standbys.ready), "ready")
	gauge(standbysDesc, float64(f.standbys.unable), "unable")
	gauge(standbysDesc, float64(f.standbys.silent), "silent")
	gauge(standbyLagDesc, f.lag)
	gauge(canTakeOverDesc, boolValue(f.canTakeOver))
}

// figures returns the values of a primary's metrics.
func (s *Server) figures() nodeFigures {
	f := nodeFigures{primary: true}
	if s.lease != nil {
		f.leaseAge, f.standbys = s.lease.Age(), s.standbys.counts(time.Now())
	}
	return f
}

// figures returns the values of a standby's metrics.
func (b *Standby) figures() nodeFigures {
	s := b.status()
	f := nodeFigures{canTakeOver: s.CanTakeOver}
	if s.LagSeconds != nil {
		f.lag = *s.LagSeconds
	}
	return f
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

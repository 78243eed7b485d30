package server

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"service/store"
)

// newRegistry returns the registry of all metrics, with those of the process itself.
func newRegistry(version string) (*prometheus.Registry, error) {
	sqlite, err := store.SQLiteVersion()
	if err != nil {
		return nil, err
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "service_build_info", Help: "Always 1; the labels identify the binary.",
		ConstLabels: prometheus.Labels{
			"version": version, "go_version": runtime.Version(), "sqlite_version": sqlite, "driver": store.DriverName,
		},
	})
	build.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry, nil
}

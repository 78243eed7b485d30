package server

import (
	"log/slog"
	"testing"
	"time"

	"service/store/doctor"
	"service/webhook"
)

// testConfig returns a configuration with a new data directory and a free port. Its defaults are
// those of the command line, except for a short grace period.
func testConfig(t *testing.T) *Config {
	t.Helper()
	return &Config{
		Data: Data{Dir: t.TempDir(), MinFreeDisk: doctor.AutoFreeDisk, Retention: webhook.Retention{All: 30 * 24 * time.Hour}},
		Delivery: Delivery{
			RetryPolicy: webhook.DefaultRetryPolicy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 10},
			AttemptTimeout: 10 * time.Second, MaxInFlight: 8, MaxConnections: 512, BatchSize: 100, Grace: 100 * time.Millisecond,
		},
		Listen: "127.0.0.1:0", TLS: true, RateLimit: 1000, RequestTimeout: 30 * time.Second, MaxSubscriptions: 100,
		Logger: slog.New(slog.DiscardHandler), Version: "test", Program: "service",
	}
}

package store

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"service/webhook"
)

// scrape returns the output of a scrape, and its error.
func scrape(t *testing.T, registry *prometheus.Registry) (string, error) {
	t.Helper()
	families, failed := registry.Gather()
	var text bytes.Buffer
	for _, family := range families {
		_, err := expfmt.MetricFamilyToText(&text, family)
		must(t, err)
	}
	return text.String(), failed
}

func wantMetrics(t *testing.T, registry *prometheus.Registry, lines ...string) {
	t.Helper()
	text, err := scrape(t, registry)
	if err != nil {
		t.Error(err)
	}
	for _, line := range lines {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func openMeasured(t *testing.T) (*Store, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	s := opened(t, Config{Dir: memoryDir(t), Metrics: registry, MinFreeDisk: 1})
	t.Cleanup(func() { s.Close() })
	return s, registry
}

func TestMetrics(t *testing.T) {
	s, registry := openMeasured(t)
	program(t, s, "p")
	program(t, s, "q")
	sub := subscribe(t, s, "p", "content_updated")
	events := publish(t, s, "p", "content_updated", "content_updated", "content_updated")
	// Two of these events exist already.
	if added, err := s.Events().Publish(context.Background(), "p", append(events[:2], event("content_updated"))); err != nil || added != 1 {
		t.Fatalf("got %d (%v), want 1 added", added, err)
	}
	publish(t, s, "q", "content_updated")

	l := queue(t, s, sub.ID)
	for _, step := range []webhook.Step{
		{Status: webhook.StatusSuccess},
		{Status: webhook.StatusFailed, FailureReason: webhook.FailureRejected},
		{Status: webhook.StatusRetryable, NextAttemptAt: time.Now().Add(time.Hour)},
	} {
		c := form(t, s, l, 1)
		a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultSuccess, ResponseStatus: 200}
		recordResult(t, s, c, &a, step, webhook.HealthPolicy{})
	}
	wantMetrics(t, registry,
		`webhooks_events_accepted_total{program="p"} 4`,
		`webhooks_events_accepted_total{program="q"} 1`,
		`webhooks_deliveries_ended_total{failure_reason="",status="success"} 1`,
		`webhooks_deliveries_ended_total{failure_reason="rejected",status="failed"} 1`,
		`webhooks_deliveries_ended_total{failure_reason="subscription_deleted",status="failed"} 0`,
		`webhooks_deliveries_waiting 2`, // one is the subscription's ping
		`webhooks_alerts_total{name="subscription_failing"} 0`,
		`webhooks_events_lost_total 0`,
		`webhooks_retention_removed_total{record="event"} 0`,
		`webhooks_commit_failures_total 0`,
		`webhooks_disk_low 0`,
		`webhooks_disk_min_bytes 1`,
		`webhooks_store_up 1`)
	unsubscribe(t, s, "p", sub.ID)
	wantMetrics(t, registry,
		`webhooks_deliveries_ended_total{failure_reason="subscription_deleted",status="failed"} 2`,
		`webhooks_deliveries_waiting 0`)
}

// A failed write counts only its commit.
func TestMetricsOfFailedWrites(t *testing.T) {
	s, registry := openMeasured(t)
	program(t, s, "p")
	conflict := event("content_updated")
	publish(t, s, "p", "content_updated")
	publishAll(t, s, "p", conflict)
	conflict.JSON = bytes.Replace(conflict.JSON, []byte("7}"), []byte("8}"), 1)
	_, err := s.Events().Publish(context.Background(), "p", []webhook.Event{event("content_updated"), conflict})
	wantCode(t, err, webhook.CodeConflict)
	wantMetrics(t, registry, `webhooks_events_accepted_total{program="p"} 2`, `webhooks_commit_failures_total 0`)

	// The disk is full.
	execute(t, s, "PRAGMA max_page_count = 1")
	large := event("content_updated")
	large.JSON = bytes.Repeat([]byte(" "), 1<<20)
	if _, err := s.Events().Publish(context.Background(), "p", []webhook.Event{large}); !Unavailable(err) {
		t.Fatalf("full disk: got %v", err)
	}
	wantMetrics(t, registry, `webhooks_events_accepted_total{program="p"} 2`, `webhooks_commit_failures_total 1`)
}

// If the store cannot be read in time, a scrape lacks only the metrics that it reads there,
// and takes a bounded time.
func TestMetricsOfBusyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, registry := openMeasured(t)
		for range s.db.Readers().Stats().MaxOpenConnections { // use all readers
			conn, err := s.db.Readers().Conn(context.Background())
			must(t, err)
			defer conn.Close()
		}
		began := time.Now()
		text, err := scrape(t, registry)
		if took := time.Since(began); took > scrapeTime {
			t.Errorf("the scrape took %s, want less", took)
		}
		if err == nil || !strings.Contains(text, "webhooks_store_up 0\n") || strings.Contains(text, "webhooks_deliveries_waiting") ||
			!strings.Contains(text, "webhooks_database_bytes") {
			t.Errorf("got error %v and\n%s\nwant all metrics that need no read", err, text)
		}
	})
}

func TestFirstWanted(t *testing.T) {
	s := openProgram(t)
	published := publish(t, s, "p", "content_updated", "content_deleted", "content_archived", "content_deleted", "content_updated")
	const always = math.MaxInt64
	for _, test := range []struct {
		name          string
		spans         []Interest
		after, newest int64
		want          int64
	}{
		{"nothing is asked for", nil, 0, 5, 0},
		{"the first of a name", []Interest{{"content_deleted", 0, always, nil}}, 0, 5, 2},
		{"after it", []Interest{{"content_deleted", 0, always, nil}}, 2, 5, 4},
		{"asked for later", []Interest{{"content_deleted", 3, always, nil}}, 0, 5, 4},
		{"asked for until then", []Interest{{"content_deleted", 0, 3, nil}}, 2, 5, 0},
		{"of several names", []Interest{
			{"content_archived", 0, always, nil}, {"content_deleted", 0, always, nil}, {"content_updated", 1, always, nil},
		}, 0, 5, 2},
		{"up to an event before it", []Interest{{"content_updated", 1, always, nil}}, 0, 4, 0},
	} {
		got, at, err := s.Queues().FirstWanted(context.Background(), "p", test.spans, test.after, test.newest)
		if err != nil || got != test.want {
			t.Errorf("%s: got %d (%v), want %d", test.name, got, err, test.want)
		}
		if got > 0 && !at.Equal(published[got-1].ReceivedAt) {
			t.Errorf("%s: got time %s, want %s", test.name, at, published[got-1].ReceivedAt)
		}
	}
	if seq, _, err := s.Queues().FirstWanted(context.Background(), "q", []Interest{{"content_updated", 0, always, nil}}, 0, 5); err != nil ||
		seq != 0 {
		t.Errorf("another program: got %d (%v), want 0", seq, err)
	}
}

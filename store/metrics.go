package store

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"service/store/datadir"
	"service/store/record"
	"service/store/replica"
	"service/store/sqlite"
	"service/webhook"
)

const (
	// scrapeTime bounds how long a scrape reads the store. If the store does not respond in
	// time, only some metrics are missing.
	scrapeTime = 2 * time.Second
	// scrapeCount bounds how far a scrape counts rows.
	scrapeCount = 10_000
)

// newDesc describes a metric that is measured when it is scraped.
func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	upDesc      = newDesc("webhooks_store_up", "Whether the store could be read for this scrape.")
	waitingDesc = newDesc("webhooks_deliveries_waiting",
		"Deliveries, including pings, with a scheduled next attempt; 10000 means that many or more.")
	alertsDesc  = newDesc("webhooks_alerts_total", "Alerts by name.", "name")
	removedDesc = newDesc("webhooks_retention_removed_total", "Records removed because they were older than the retention.", "record")
	differsDesc = newDesc("webhooks_retention_clock_difference_seconds",
		"Advance of the wall clock minus the time that retention counted, over about one retention; 0 until retention has run.")
	lostDesc = newDesc("webhooks_events_lost_total",
		"Events that retention removed before a subscription received them, counted once per subscription.")
	databaseDesc = newDesc("webhooks_database_bytes", "Size of the database, without its write-ahead log.")
	usedDesc     = newDesc("webhooks_database_used_bytes", "Bytes of the database in use, which is the size of a full copy.")
	forecastDesc = newDesc("webhooks_forecast_database_bytes",
		"Forecast size of the database if events keep arriving as in the last day; 0 if unknown.")
	fullDesc = newDesc("webhooks_forecast_disk_full_timestamp_seconds",
		"Forecast time when the disk is full, in Unix time; 0 for never and if unknown.")
	dayDesc      = newDesc("webhooks_forecast_retention_day_bytes", "Forecast size of one more day of retention; 0 if unknown.")
	walDesc      = newDesc("webhooks_wal_bytes", "Size of the database's write-ahead log.")
	diskFreeDesc = newDesc("webhooks_disk_free_bytes", "Free bytes on the data directory's disk.")
	diskSizeDesc = newDesc("webhooks_disk_size_bytes", "Size of the data directory's disk.")
	diskMinDesc  = newDesc("webhooks_disk_min_bytes",
		"Minimum free bytes on the disk for events to be accepted; 0 for no minimum.")
	termDesc    = newDesc("webhooks_replica_term", "Number of the term to which the replica is written, 0 before it has one.")
	causeDesc   = newDesc("webhooks_replica_failure", "1 for the cause of the replica's current failure, 0 for the others.", "cause")
	replicaDesc = newDesc("webhooks_replica_state", "1 for the current state of the replica, 0 for the others.", "state")
	lagDesc     = newDesc("webhooks_replica_lag_seconds",
		"Age of the oldest change that is not in the replica; 0 if there is none, and without a replica.")
	verifiedDesc = newDesc("webhooks_replica_verified_timestamp_seconds",
		"When the replica's content was last found equal to the database, in Unix time; 0 for never, and without a replica.")
	damagedDesc = newDesc("webhooks_replica_damaged_timestamp_seconds",
		"When the replica's content was last found damaged, in Unix time; 0 for never, and without a replica.")
	verifyDesc = newDesc("webhooks_replica_verify_interval_seconds",
		"Time between two comparisons of the replica's content with the database; 0 for none.")
	syncedDesc = newDesc("webhooks_replica_last_success_timestamp_seconds",
		"When the replica was last known to have all changes, in Unix time; 0 for never, and without a replica.")
	diskLowDesc = newDesc("webhooks_disk_low", "Whether free disk space is below the minimum, so that events are rejected.")
)

// collector collects the metrics of a store.
type collector struct{ s *Store }

// Describe implements [prometheus.Collector].
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, part := range c.s.metrics.Collectors() {
		part.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{
		upDesc, waitingDesc, alertsDesc, removedDesc, differsDesc, lostDesc, databaseDesc, usedDesc, forecastDesc, fullDesc, dayDesc, walDesc,
		diskFreeDesc, diskSizeDesc, diskMinDesc, diskLowDesc, replicaDesc, termDesc, causeDesc, lagDesc, syncedDesc, verifiedDesc,
		damagedDesc, verifyDesc,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. It reads the store for at most scrapeTime.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.s
	for _, part := range s.metrics.Collectors() {
		part.Collect(ch)
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, err error, labels ...string) {
		if err != nil {
			ch <- prometheus.NewInvalidMetric(d, err)
			return
		}
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}

	ctx, cancel := context.WithTimeout(inBackground(context.Background()), scrapeTime)
	defer cancel()
	var waiting, events int
	err := s.db.Scan(ctx, record.SelectWaitingTotal, []any{scrapeCount}, &waiting, &events)
	send(waitingDesc, prometheus.GaugeValue, float64(waiting), err)
	send(upDesc, prometheus.GaugeValue, boolValue(err == nil), nil)

	for _, name := range webhook.AlertNames() {
		send(alertsDesc, prometheus.CounterValue, float64(s.Alerts().Count(name)), nil, string(name))
	}
	swept := s.Figures().Swept()
	send(removedDesc, prometheus.CounterValue, float64(swept.Events), nil, "event")
	send(removedDesc, prometheus.CounterValue, float64(swept.Deliveries), nil, "delivery")
	send(lostDesc, prometheus.CounterValue, float64(swept.Lost), nil)
	differs, _, err := s.clockDifference(ctx)
	send(differsDesc, prometheus.GaugeValue, differs.Seconds(), err)

	// Stat does not open the file, so SQLite's locks are safe.
	path := filepath.Join(s.dir, datadir.Database)
	for file, d := range map[string]*prometheus.Desc{path: databaseDesc, path + "-wal": walDesc} {
		info, err := os.Stat(file)
		size := int64(0)
		if err == nil {
			size = info.Size()
		}
		send(d, prometheus.GaugeValue, float64(size), err)
	}
	f, err := s.Figures().Forecast(ctx)
	if f.Full {
		f.FullAt = s.clock.Now()
	}
	send(usedDesc, prometheus.GaugeValue, float64(f.Copy), err)
	send(forecastDesc, prometheus.GaugeValue, float64(f.Size), err)
	send(fullDesc, prometheus.GaugeValue, unixSeconds(f.FullAt), err)
	send(dayDesc, prometheus.GaugeValue, float64(f.DayBytes), err)
	disk, err := s.Figures().Disk()
	send(diskFreeDesc, prometheus.GaugeValue, float64(disk.Free), err)
	send(diskSizeDesc, prometheus.GaugeValue, float64(disk.Size), err)
	send(diskMinDesc, prometheus.GaugeValue, float64(disk.MinFree), err)
	send(diskLowDesc, prometheus.GaugeValue, boolValue(disk.Low), err)

	status := s.Replica().Status()
	for _, state := range []ReplicaState{ReplicaOff, ReplicaOpening, ReplicaRunning, ReplicaFailing} {
		send(replicaDesc, prometheus.GaugeValue, boolValue(status.State == state), nil, string(state))
	}
	send(termDesc, prometheus.GaugeValue, float64(status.Term), nil)
	for _, cause := range replica.Causes() {
		send(causeDesc, prometheus.GaugeValue, boolValue(status.Cause == cause), nil, string(cause))
	}
	send(lagDesc, prometheus.GaugeValue, status.Lag.Seconds(), nil)
	send(syncedDesc, prometheus.GaugeValue, unixSeconds(status.LastSuccess), nil)
	send(verifiedDesc, prometheus.GaugeValue, unixSeconds(status.Verified.Time), nil)
	send(damagedDesc, prometheus.GaugeValue, unixSeconds(status.Verified.Failed), nil)
	send(verifyDesc, prometheus.GaugeValue, status.VerifyInterval.Seconds(), nil)
}

// unixSeconds returns a Unix time in seconds, 0 for the zero time.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

const (
	selectFirstWanted = "SELECT min(e.seq) FROM events e WHERE e.program_id = ? AND e.name = ? AND e.seq > ? AND e.seq <= ? " +
		"AND " + record.NotErased
	// Looks as far as waitingEvents.
	selectFirstMatching = `SELECT min(seq) FROM (SELECT seq FROM events e WHERE program_id = ?1 AND name = ?2 AND seq > ?3
		AND seq <= min(?4, ?3 + ` + record.ExaminedSeqs + ") AND erased_at IS NULL AND event_matches(?5, e.id, e.json) ORDER BY seq LIMIT 1)"
)

// FirstWanted returns the seq of the oldest event in a program's log after one seq, up to
// newest, and within one of the spans, and when it was accepted; 0 if there is none. It costs
// one index lookup per span.
func (s Queues) FirstWanted(ctx context.Context, programID string, spans []Interest, after,
	newest int64) (first int64, accepted time.Time, err error) {
	for i := range spans {
		in := &spans[i]
		var seq sql.NullInt64
		query, args := selectFirstWanted, []any{programID, in.Name, max(after, in.After), min(newest, in.Until)}
		if in.Filter != nil {
			query, args = selectFirstMatching, append(args, in.Filter.JSON())
		}
		if err := s.db.Scan(ctx, query, args, &seq); err != nil {
			return 0, time.Time{}, err
		}
		if seq.Valid {
			first, newest = seq.Int64, seq.Int64-1
		}
	}
	if first == 0 {
		return 0, time.Time{}, nil
	}
	const selectAccepted = "SELECT received_at FROM events WHERE program_id = ? AND seq = ?"
	err = s.db.Scan(ctx, selectAccepted, []any{programID, first}, (*sqlite.Time)(&accepted))
	if errors.Is(err, sql.ErrNoRows) {
		return 0, time.Time{}, nil // removed by retention in between
	}
	return first, accepted, err
}

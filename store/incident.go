package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"service/store/clock"
	"service/store/record"
	"service/store/sqlite"
	"service/store/watch"
	"service/webhook"
)

// incident is the part of an open incident that failed attempts change. It is stored in the row
// of the subscription's failures, which these attempts write anyway.
type incident struct {
	num        int64 // 0 if none is open
	failed     int64 // deliveries that failed permanently since it opened
	failedFrom int64 // when the oldest of their events was accepted, in Unix milliseconds; 0 if unknown
	quietAt    int64 // when it closes unless another delivery fails, in wait clock time; 0 if none failed
	probeLog   string

	// The last failed attempt, possibly from before the incident opened:
	lastAt       int64 // when it completed, in Unix milliseconds; 0 if unknown
	lastStatus   int64
	lastError    string
	lastDelivery int64
}

// maxProbeLog is how many of the last probes are kept.
const maxProbeLog = 10

// note records a completed attempt, including that of a ping.
func (in *incident) note(c *Claim, a *webhook.Attempt, now time.Time) error {
	if a.Error == webhook.ErrorInterrupted || c.Ping && !c.Probe {
		return nil
	}
	if a.Result != webhook.ResultSuccess {
		in.lastAt, in.lastStatus, in.lastError, in.lastDelivery = now.UnixMilli(), int64(a.ResponseStatus), string(a.Error), c.num
	}
	if !c.Probe {
		return nil
	}
	var log []record.ProbeEntry
	if in.probeLog != "" {
		if err := json.Unmarshal([]byte(in.probeLog), &log); err != nil {
			return err
		}
	}
	log = append(log, record.ProbeEntry{At: now.UnixMilli(), Status: a.ResponseStatus, Error: a.Error, Delivery: c.num})
	text, err := json.Marshal(log[max(len(log)-maxProbeLog, 0):])
	in.probeLog = string(text)
	return err
}

// noteFailed counts a delivery that failed permanently.
func (in *incident) noteFailed(clock *clock.Clock, now, accepted time.Time) {
	in.failed++
	in.quietAt = clock.Wait(now.Add(webhook.IncidentQuiet))
	if !accepted.IsZero() && (in.failedFrom == 0 || accepted.UnixMilli() < in.failedFrom) {
		in.failedFrom = accepted.UnixMilli()
	}
}

const (
	selectIncidentTime = "SELECT coalesce(max(opened_at), 0) FROM (SELECT opened_at FROM incidents ORDER BY num DESC LIMIT 1)"
	insertIncident     = "INSERT INTO incidents (id, program_id, subscription_id, opened_at, first_at, succeeded_at) VALUES (?, ?, ?, ?, ?, ?)"
	closeIncident      = `UPDATE incidents SET closed_at = ?, counted_at = ?, closed_by = ?, failing_reason = ?, failed = ?, failed_from = ?,
		last_at = ?, last_status = ?, last_error = ?, last_delivery = ?, probes = ?, probe_log = ? WHERE num = ?`
)

var selectSuccessBefore = "SELECT " + record.LastSuccess + " FROM subscriptions x WHERE x.id = ?"

// openIncident stores a new incident with the time of its first failure, and sets in.num.
func (t *tx) openIncident(in *incident, programID, subscriptionID string, first time.Time) (err error) {
	var last int64
	if err := t.Scan(selectIncidentTime, nil, &last); err != nil {
		return err
	}
	var succeeded sql.NullInt64
	if err := sqlite.NoRows(t.Scan(selectSuccessBefore, []any{subscriptionID}, &succeeded), nil); err != nil {
		return err
	}
	opened := max(last, t.s.clock.Now().UnixMilli())
	began := min(first.UnixMilli(), opened)
	in.num, err = t.Insert(insertIncident, webhook.NewID(), programID, subscriptionID, opened, began,
		sqlite.Millis(sqlite.FromMillis(succeeded)))
	if err != nil {
		return err
	}
	t.incidentsChanged()
	return nil
}

// closeIncident closes the open incident of a subscription with the failures f, if there is
// one. The caller stores the failures without it.
func (t *tx) closeIncident(in *incident, f *webhook.Failures, by webhook.IncidentEnd) error {
	if in.num == 0 {
		return nil
	}
	t.incidentsChanged()
	return t.Exec(closeIncident, t.s.clock.Now().UnixMilli(), t.counted(), string(by), sqlite.OrNull(string(f.Reason)), in.failed,
		sqlite.OrNull(in.failedFrom), sqlite.OrNull(in.lastAt), sqlite.OrNull(in.lastStatus), sqlite.OrNull(in.lastError),
		sqlite.OrNull(in.lastDelivery), f.Probes,
		sqlite.OrNull(in.probeLog), in.num)
}

// endIncident closes the open incident of a subscription that was changed or deleted, if there
// is one.
func (t *tx) endIncident(subscriptionID string, by webhook.IncidentEnd) error {
	f, in, err := t.failures(subscriptionID)
	if err != nil {
		return err
	}
	return t.closeIncident(&in, &f, by)
}

// incidentsChanged notifies watchers, after the commit, that an incident was opened or closed,
// and housekeeping, which closes quiet incidents.
func (t *tx) incidentsChanged() {
	t.AfterCommit(func() {
		t.s.watchers.Notify(func(c *watch.Changes) { c.Incidents = true })
		wake(t.s.housekeeping.incidents)
	})
}

// noteEnded counts n deliveries of a subscription that failed permanently without the result of
// an attempt: interrupted by the end of the process, or expired. accepted is when the oldest of
// their events was accepted, zero if unknown. It returns the open incident.
func (t *tx) noteEnded(programID, subscriptionID string, n int64, accepted time.Time) (incident int64, err error) {
	f, in, err := t.failures(subscriptionID)
	if err != nil {
		return 0, err
	}
	opens := in.num == 0
	if opens {
		in.failed, in.failedFrom, in.quietAt, in.probeLog = 0, 0, 0, "" // left by an earlier incident
	}
	now := t.s.clock.Now()
	in.noteFailed(t.s.clock, now, accepted)
	in.failed += n - 1
	if opens {
		first := f.First
		if first.IsZero() {
			first = now
		}
		if err := t.openIncident(&in, programID, subscriptionID, first); err != nil {
			return 0, err
		}
	}
	return in.num, t.setFailures(subscriptionID, f, in)
}

// selectQuiet returns the open incidents of subscriptions that are not failing, and when they
// close. Only subscriptions with failures have a row.
const selectQuiet = "SELECT subscription_id, quiet_at FROM failures WHERE incident IS NOT NULL AND failing_since IS NULL"

// closeQuiet closes the incidents of subscriptions that are not failing after no delivery has
// failed permanently for [webhook.IncidentQuiet]. It returns when the next one is due,
// monotonic, zero for none.
func (s *core) closeQuiet(ctx context.Context) (next time.Time, err error) {
	var due []string
	now := time.Now()
	err = s.db.Each(ctx, selectQuiet, nil, func(scan func(...any) error) error {
		var id string
		var quiet sql.NullInt64
		err := scan(&id, &quiet)
		// Without a time: opened by a circuit breaker that has closed since.
		switch at := s.clock.Process(quiet); {
		case !at.After(now):
			due = append(due, id)
		case next.IsZero() || at.Before(next):
			next = at
		}
		return err
	})
	if err != nil {
		return next, err
	}
	var errs []error
	for _, id := range due {
		errs = append(errs, s.writer.doRepeatable(func(t *tx) error {
			f, in, err := t.failures(id)
			if err != nil || in.num == 0 || !f.Since.IsZero() || in.quietAt > s.clock.Wait(s.clock.Now()) {
				return err // changed since
			}
			if err := t.closeIncident(&in, &f, webhook.IncidentIsQuiet); err != nil {
				return err
			}
			return t.setFailures(id, f, incident{})
		}))
	}
	return next, errors.Join(errs...)
}

package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// Bounds of an incident's count of waiting events; a count at its bound means that many or
// more.
const (
	MaxWaiting      = 10_000    // in a list
	maxWaitingOfOne = 1_000_000 // in [store.Incidents.Get]
)

// While an incident is open, its changing columns are in f, the failures of its subscription
// x; once it is closed, they are in n. ?2 bounds the count of waiting events.
var (
	incidentColumns = `n.num, n.id, n.program_id, n.subscription_id, coalesce(x.url, ''), coalesce(x.description, ''), coalesce(x.status, ''),
		n.opened_at, n.closed_at, coalesce(n.closed_by, ''), coalesce(f.failing_reason, n.failing_reason, ''), n.first_at,
		iif(n.closed_at IS NULL, coalesce(` + LastSuccess + `, n.succeeded_at), n.succeeded_at),
		f.next_probe_at, coalesce(f.probes, n.probes), coalesce(f.probe_log, n.probe_log, ''),
		coalesce(f.last_at, n.last_at), coalesce(f.last_status, n.last_status, 0), coalesce(f.last_error, n.last_error, ''),
		coalesce((SELECT a.response_header FROM attempts a WHERE a.delivery = coalesce(f.last_delivery, n.last_delivery)
			AND a.error = coalesce(f.last_error, n.last_error) ORDER BY a.number DESC LIMIT 1), ''),
		coalesce((SELECT d.id FROM deliveries d WHERE d.num = coalesce(f.last_delivery, n.last_delivery)), ''),
		coalesce(f.failed, n.failed), coalesce(f.failed_from, n.failed_from),
		(SELECT count(DISTINCT u.seq) FROM undelivered u WHERE u.incident = n.num AND u.incident IS NOT NULL),
		iif(n.closed_at IS NULL,
			` + waitingCount + ` + (SELECT coalesce(sum(json_array_length(d.seqs)), 0) FROM (SELECT seqs FROM deliveries INDEXED BY deliveries_due
				WHERE subscription_id = x.id AND next_attempt_at IS NOT NULL AND ping IS NULL LIMIT ?2) d), 0),
		iif(n.closed_at IS NULL, ` + waitingMore + `, 0), ?2, iif(n.closed_at IS NULL, ` + waitingSince + `, NULL),
		coalesce((SELECT e.id FROM events e WHERE e.program_id = n.program_id AND e.seq = coalesce(
			(SELECT min(u.seq) FROM undelivered u WHERE u.incident = n.num AND u.incident IS NOT NULL),
			(SELECT d.seqs ->> 0 FROM deliveries d WHERE d.num = coalesce(f.last_delivery, n.last_delivery)))), '')`

	selectIncidents = "SELECT " + incidentColumns + ` FROM json_each(?1) j CROSS JOIN incidents n ON n.num = j.value
		LEFT JOIN subscriptions x ON x.id = n.subscription_id LEFT JOIN cursors c ON c.subscription_id = x.id
		LEFT JOIN failures f ON f.subscription_id = n.subscription_id AND f.incident = n.num ORDER BY j.key`

	selectIncidentNum = "SELECT num FROM incidents WHERE id = ? AND (program_id = ? OR ? = '')"
	// Most severe first, as far as known without counting waiting events.
	selectOpenIncidents = `SELECT n.num FROM incidents n INDEXED BY incidents_unresolved LEFT JOIN failures f
		ON f.subscription_id = n.subscription_id
		WHERE n.closed_at IS NULL AND (n.program_id = ?1 OR ?1 = '') AND n.program_id` + list.CanBeUsed + `
		ORDER BY f.failing_since IS NULL, f.failed DESC, n.num LIMIT ?2`
	// Of the newest incidents only, excluding subscriptions with a later incident.
	selectUnrecovered = `SELECT n.num FROM incidents n CROSS JOIN subscriptions x ON x.id = n.subscription_id
		WHERE n.num > (SELECT coalesce(max(num), 0) - 1000 FROM incidents) AND n.closed_at >= ?2 AND (n.program_id = ?1 OR ?1 = '') AND n.program_id` + list.CanBeUsed + `
		AND EXISTS (SELECT 1 FROM undelivered u WHERE u.incident = n.num AND u.incident IS NOT NULL)
		AND NOT EXISTS (SELECT 1 FROM incidents o INDEXED BY incidents_by_subscription
			WHERE o.subscription_id = n.subscription_id AND o.num > n.num)
		ORDER BY n.num DESC LIMIT ?3`
	countOpenIncidents = "SELECT count(*) FROM incidents INDEXED BY incidents_unresolved WHERE closed_at IS NULL " +
		"AND (program_id = ?1 OR ?1 = '') AND program_id" + list.CanBeUsed
)

// scanIncident reads a row of incidentColumns, with the num and the log of probes.
func scanIncident(scan func(...any) error) (i webhook.Incident, num int64, log []ProbeEntry, err error) {
	var limit int
	var probe time.Time
	var text, header string
	err = scan(&num, &i.ID, &i.ProgramID, &i.SubscriptionID, &i.URL, &i.Description, &i.Health,
		(*sqlite.Time)(&i.OpenedAt), (*sqlite.Time)(&i.ClosedAt), &i.ClosedBy, &i.FailingReason, (*sqlite.Time)(&i.FirstFailure),
		(*sqlite.Time)(&i.LastSuccess), (*sqlite.Time)(&probe), &i.Probes, &text,
		(*sqlite.Time)(&i.LastFailure), &i.ResponseStatus, &i.Error, &header, (*DeliveryID)(&i.DeliveryID), &i.Failed,
		(*sqlite.Time)(&i.FailedFrom), &i.Undelivered, &i.WaitingEvents, &i.WaitingMore, &limit, (*sqlite.Time)(&i.OldestEvent), &i.FailedEvent)
	if err != nil {
		return i, num, nil, err
	}
	i.WaitingMore = i.WaitingMore || i.WaitingEvents >= limit
	if fact, ok := strings.CutPrefix(header, FactMark); ok {
		i.ErrorFact = fact
	}
	if i.Health == webhook.HealthFailing {
		i.NextProbe = probe
	}
	if text != "" {
		if err := json.Unmarshal([]byte(text), &log); err != nil {
			return i, num, nil, fmt.Errorf("store: probes of incident %s: %w", i.ID, err)
		}
	}
	return i, num, log, nil
}

// CountOpen returns the number of open incidents of a program, "" for all.
func (s Incidents) CountOpen(ctx context.Context, programID string) (n int, err error) {
	return n, s.lists.DB.Scan(ctx, countOpenIncidents, []any{programID}, &n)
}

// Open returns the open incidents of a program, "" for all, at most limit, the most severe
// first: those with an open circuit breaker, then those with the most events, then the oldest.
// Waiting events are counted up to waiting.
func (s Incidents) Open(ctx context.Context, programID string, limit, waiting int) (all []webhook.Incident, err error) {
	err = s.view(ctx, func(v *view) error {
		var nums []int64
		err := v.Each(selectOpenIncidents, []any{programID, limit}, sqlite.Into(&nums))
		if err != nil {
			return err
		}
		all, err = v.incidents(nums, waiting)
		return err
	})
	slices.SortStableFunc(all, func(a, b webhook.Incident) int {
		if blocked := a.FailingReason != ""; blocked != (b.FailingReason != "") {
			if blocked {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(int64(b.WaitingEvents)+b.Failed, int64(a.WaitingEvents)+a.Failed), a.FirstFailure.Compare(b.FirstFailure))
	})
	return all, err
}

// Unrecovered returns the incidents of a program, "" for all, that were closed since a time although
// events of their failed deliveries are still undelivered, at most limit, newest first. It checks the
// newest 1,000 incidents, and at the last one of each subscription.
func (s Incidents) Unrecovered(ctx context.Context, programID string, since time.Time, limit int) (all []webhook.Incident, err error) {
	err = s.view(ctx, func(v *view) error {
		var nums []int64
		err := v.Each(selectUnrecovered, []any{programID, since.UnixMilli(), limit}, sqlite.Into(&nums))
		if err == nil {
			all, err = v.incidents(nums, MaxWaiting)
		}
		return err
	})
	return all, err
}

// incidents returns incidents by num.
func (v *view) incidents(nums []int64, waiting int) (all []webhook.Incident, err error) {
	if len(nums) == 0 {
		return nil, nil
	}
	err = v.Each(selectIncidents, []any{sqlite.JSON(nums), waiting}, func(scan func(...any) error) error {
		i, _, _, err := scanIncident(scan)
		all = append(all, i)
		return err
	})
	return all, err
}

// Get returns an incident of a program, "" for any, with its timeline. It counts waiting events
// up to maxWaitingOfOne.
func (s Incidents) Get(ctx context.Context, programID, id string) (i webhook.Incident, err error) {
	err = s.view(ctx, func(v *view) error {
		var num int64
		var log []ProbeEntry
		if err := v.Scan(selectIncidentNum, []any{id, programID, programID}, &num); err != nil {
			return sqlite.NoRows(err, webhook.NotFound("incident"))
		}
		err := v.Each(selectIncidents, []any{sqlite.JSON([]int64{num}), maxWaitingOfOne}, func(scan func(...any) error) (err error) {
			i, num, log, err = scanIncident(scan)
			return err
		})
		if err == nil {
			err = s.use(i.ProgramID, "incident")
		}
		if err != nil {
			return err
		}
		return errors.Join(v.recovered(&i), v.timeline(&i, num, log))
	})
	return i, err
}

const selectIncidentRecovered = `SELECT count(*), count(r.delivery), max(r.at) FROM (
		SELECT num, completed_at FROM deliveries INDEXED BY deliveries_by_status
		WHERE status = 'failed' AND status <> 'success' AND subscription_id = ?1 AND ping IS NULL ORDER BY num DESC LIMIT ?4) d
	LEFT JOIN recovered r ON r.delivery = d.num WHERE d.completed_at BETWEEN ?2 AND ?3`

// recovered counts the failed deliveries of an incident whose events have all been delivered
// since. The count is unknown if not all of them are stored, or among the newest failures.
func (v *view) recovered(i *webhook.Incident) error {
	until := i.ClosedAt
	if i.Open() {
		until = v.s.clock.Now()
	}
	var failed int64
	// A delivery ends a moment before its result opens the incident.
	from := i.OpenedAt.Add(-time.Second).UnixMilli()
	err := v.Scan(selectIncidentRecovered, []any{i.SubscriptionID, from, until.UnixMilli(), maxResultRows}, &failed, &i.Recovered,
		(*sqlite.Time)(&i.RecoveredAt))
	if failed != i.Failed {
		i.Recovered, i.RecoveredAt = -1, time.Time{}
	}
	return err
}

const selectNewestIncident = "SELECT num FROM incidents INDEXED BY incidents_by_subscription WHERE subscription_id = ? " +
	"ORDER BY num DESC LIMIT 1"

// Newest returns the newest incident of a subscription, without its timeline. It counts waiting
// events up to MaxWaiting.
func (s Incidents) Newest(ctx context.Context, subscriptionID string) (i webhook.Incident, err error) {
	err = s.view(ctx, func(v *view) error {
		var num int64
		if err := v.Scan(selectNewestIncident, []any{subscriptionID}, &num); err != nil {
			return sqlite.NoRows(err, webhook.NotFound("incident"))
		}
		all, err := v.incidents([]int64{num}, MaxWaiting)
		if err == nil {
			i = all[0]
		}
		return err
	})
	return i, err
}

const (
	selectIncidentAlerts = "SELECT a.name, " + alertStatus + ", a.created_at FROM alerts a WHERE a.subscription_id = ? AND a.incident = ? " +
		"ORDER BY a.num LIMIT 100"
	// The status of an alert a over all its channels: success if any has received it.
	alertStatus = `iif(a.status = 'success', a.status, coalesce(
		(SELECT CASE WHEN sum(s.status = 'success') > 0 THEN 'success'
			WHEN sum(s.status <> 'failed') > 0 THEN 'pending' WHEN count(*) > 0 THEN 'failed' END
			FROM alert_sends s WHERE s.alert = a.num), a.status))`
	selectIncidentReplays = "SELECT " + ReplayColumns + ` FROM replays INDEXED BY replays_by_subscription
		WHERE subscription_id = ? AND only_which <> 'missed' AND created_at >= ? AND from_at <= ? LIMIT 100`
	selectDeliveryIDs = "SELECT d.num, d.id FROM json_each(?) j CROSS JOIN deliveries d ON d.num = j.value"
)

// timeline fills in the timeline of an incident.
func (v *view) timeline(i *webhook.Incident, num int64, log []ProbeEntry) error {
	i.Timeline = []webhook.IncidentEntry{{At: i.OpenedAt, Kind: webhook.IncidentEntryOpened}}
	err := v.Each(selectIncidentAlerts, []any{i.SubscriptionID, num}, func(scan func(...any) error) error {
		e := webhook.IncidentEntry{Kind: webhook.IncidentEntryAlert}
		err := scan(&e.Alert, &e.AlertStatus, (*sqlite.Time)(&e.At))
		i.Timeline = append(i.Timeline, e)
		return err
	})
	if err != nil {
		return err
	}
	if err := v.timelineProbes(i, log); err != nil {
		return err
	}
	if !i.Open() {
		i.Timeline = append(i.Timeline, webhook.IncidentEntry{At: i.ClosedAt, Kind: webhook.IncidentEntryClosed})
	}
	if err := v.timelineResent(i, num); err != nil {
		return err
	}
	slices.SortStableFunc(i.Timeline, func(a, b webhook.IncidentEntry) int { return a.At.Compare(b.At) })
	return nil
}

const (
	selectIncidentRuns = `SELECT r.num, r.id, r.program_id, r.status, r.admin, r.created_at, r.done, x.done
		FROM bulk_run_subscriptions x CROSS JOIN bulk_runs r ON r.num = x.run
		WHERE x.subscription_id = ?1 AND r.created_at >= ?2
		AND r.created_at < coalesce((SELECT n.opened_at FROM incidents n INDEXED BY incidents_by_subscription WHERE n.subscription_id = ?1
		AND n.num > ?3 ORDER BY n.num LIMIT 1), 1 << 62)
		ORDER BY x.run LIMIT 100`
	selectRunResults = `SELECT d.status, count(*), sum(json_array_length(d.seqs)) FROM bulk_run_deliveries x CROSS JOIN deliveries d ON d.num = x.delivery
		WHERE x.run = ? AND d.subscription_id = ? GROUP BY 1`
	selectReplayResults = "SELECT d.status, count(*), sum(json_array_length(d.seqs)) FROM deliveries d INDEXED BY deliveries_by_replay " +
		"WHERE d.replay_id = ? AND d.replay_id IS NOT NULL GROUP BY 1"
	// The audit log records in its detail which admin started a replay.
	selectReplayAdmin = `SELECT a.admin FROM audit a INDEXED BY audit_by_subject WHERE a.subject_id = ?1 AND a.action = 'subscription.replay'
		AND a.detail LIKE '%; replay ' || ?2 ORDER BY a.num DESC LIMIT 1`
)

// maxResultRows is how many deliveries of a replay or a bulk run are read to count their
// results.
const maxResultRows = 5000

// timelineResent adds the replays and bulk runs that resent deliveries of an incident.
func (v *view) timelineResent(i *webhook.Incident, num int64) error {
	until := i.ClosedAt
	if i.Open() {
		until = v.s.clock.Now()
	}
	type source struct {
		query string
		args  []any
	}
	var sources []source // of the results of each entry
	first := len(i.Timeline)
	add := func(at time.Time, r webhook.IncidentResend, rows int64, query string, args ...any) {
		if rows > maxResultRows {
			query = ""
		}
		sources = append(sources, source{query, args})
		i.Timeline = append(i.Timeline, webhook.IncidentEntry{At: at, Kind: webhook.IncidentEntryResent, Resent: &r})
	}
	err := v.Each(selectIncidentReplays, []any{i.SubscriptionID, i.OpenedAt.UnixMilli(), until.UnixMilli()},
		func(scan func(...any) error) error {
			r, err := ScanReplay(scan)
			add(r.CreatedAt, webhook.IncidentResend{
				ReplayID: r.ID, Events: r.EventsSent, Deliveries: r.Deliveries,
				Running: r.Status == webhook.ReplayRunning, Cancelled: r.Status == webhook.ReplayCancelled,
			}, r.Deliveries, selectReplayResults, r.ID)
			return err
		})
	if err != nil {
		return err
	}
	err = v.Each(selectIncidentRuns, []any{i.SubscriptionID, i.OpenedAt.UnixMilli(), num}, func(scan func(...any) error) error {
		var run, rows int64
		var created time.Time
		var status webhook.BulkStatus
		var r webhook.IncidentResend
		err := scan(&run, &r.BulkRunID, &r.ProgramID, &status, &r.Admin, (*sqlite.Time)(&created), &rows, &r.Deliveries)
		r.Running, r.Cancelled = status == webhook.BulkRunning, status == webhook.BulkCancelled
		add(created, r, rows, selectRunResults, run, i.SubscriptionID)
		return err
	})
	for n, from := range sources {
		if err != nil {
			return err
		}
		r := i.Timeline[first+n].Resent
		if from.query != "" {
			var events int64
			r.Results, events, err = v.results(from.query, from.args)
			r.Events = max(r.Events, events)
		}
		if r.ReplayID != "" && err == nil {
			err = sqlite.NoRows(v.Scan(selectReplayAdmin, []any{i.SubscriptionID, r.ReplayID}, &r.Admin), nil)
		}
	}
	return err
}

// results counts deliveries by status, and their events.
func (v *view) results(query string, args []any) (counts map[webhook.Status]int64, events int64, err error) {
	counts = make(map[webhook.Status]int64)
	err = v.Each(query, args, func(scan func(...any) error) error {
		var status webhook.Status
		var n, of int64
		err := scan(&status, &n, &of)
		counts[status] = n
		events += of
		return err
	})
	return counts, events, err
}

// timelineProbes adds the last probes to the timeline of an incident.
func (v *view) timelineProbes(i *webhook.Incident, log []ProbeEntry) error {
	nums, ids := make([]int64, len(log)), make(map[int64]string, len(log))
	for n, p := range log {
		nums[n] = p.Delivery
	}
	err := v.Each(selectDeliveryIDs, []any{sqlite.JSON(nums)}, func(scan func(...any) error) error {
		var num int64
		var id string
		err := scan(&num, (*DeliveryID)(&id))
		ids[num] = id
		return err
	})
	for _, p := range log {
		probe := webhook.IncidentProbe{At: time.UnixMilli(p.At).UTC(), ResponseStatus: p.Status, Error: p.Error, DeliveryID: ids[p.Delivery]}
		i.Timeline = append(i.Timeline, webhook.IncidentEntry{At: probe.At, Kind: webhook.IncidentEntryProbe, Probe: &probe})
	}
	return err
}

// Page returns a page of the incidents of a program, for a query of webhook.IncidentList, and
// the cursor of the next page, "" on the last. With program "" it returns those of all
// programs, for a query of webhook.AllIncidentList. It reads a bounded number of incidents, so
// a page may be short or empty although more follow.
func (s Incidents) Page(ctx context.Context, programID string, q *webhook.ListQuery) (all []webhook.Incident, next string, err error) {
	f, err := s.feed(ctx, programID, q)
	if err != nil {
		return nil, "", err
	}
	err = s.view(ctx, func(v *view) error {
		var nums []int64
		if nums, next, err = f.Page(v.View); err != nil {
			return err
		}
		all, err = v.incidents(nums, MaxWaiting)
		return err
	})
	return all, next, err
}

// Newer returns the cursor of the page before the one at the cursor of q, "" if that is the
// first.
func (s Incidents) Newer(ctx context.Context, programID string, q *webhook.ListQuery) (string, error) {
	f, err := s.feed(ctx, programID, q)
	if err != nil {
		return "", err
	}
	return f.Newer(ctx)
}

// feed returns the feed of incidents that match q.
func (s Incidents) feed(ctx context.Context, programID string, q *webhook.ListQuery) (*list.Feed, error) {
	low, high, err := s.lists.Between(ctx, "incidents", q.Ranges["opened_at"], s.before)
	if err != nil {
		return nil, err
	}
	of, b := webhook.AllIncidentList, list.BindsOf(q)
	programs := q.Filters["program_id"]
	if programID != "" {
		of, programs = webhook.IncidentList, []string{programID}
		b["program_id"] = sqlite.JSON(programs)
	}
	f := &list.Feed{Reader: s.lists, Query: q, Binds: b, Low: low, High: high, Scope: list.Scope{List: "incidents", ProgramID: programID,
		Selection: of.Selection(q)},
		Budget: s.lists.Limits.Scan}
	switch subscriptions := q.Filters["subscription_id"]; {
	case subscriptions != nil:
		f.AddStreams(incidentsBySubscription, subscriptions)
	case slices.Equal(q.Filters["status"], []string{webhook.IncidentOpen}):
		f.Streams = []list.Stream{{Access: incidentsUnresolved}}
	case programs != nil:
		f.AddStreams(incidentsByProgram, programs)
	default:
		f.Streams = []list.Stream{{Access: incidentsAll}}
	}
	return f, nil
}

var (
	incidentMatches = list.AllOf("n.program_id"+list.CanBeUsed, list.IsIn("n.program_id"), list.IsIn("n.subscription_id"),
		list.IsIn("n.closed_by"),
		list.IsWithin("closed_at", "n.closed_at"), list.IsWithin("opened_at", "n.opened_at"),
		":status IS NULL OR iif(n.closed_at IS NULL, 'open', 'resolved') IN (SELECT value FROM json_each(:status))",
		":failing_reason IS NULL OR coalesce(n.failing_reason, (SELECT f.failing_reason FROM failures f "+
			"WHERE f.subscription_id = n.subscription_id AND f.incident = n.num)) IN (SELECT value FROM json_each(:failing_reason))")
	incidentsAll        = list.Along("n.num", "n.num", incidentMatches, "FROM incidents n WHERE TRUE")
	incidentsUnresolved = list.Along("n.num", "n.num", incidentMatches,
		"FROM incidents n INDEXED BY incidents_unresolved WHERE n.closed_at IS NULL")
	incidentsByProgram = list.Along("n.num", "n.num", incidentMatches,
		"FROM incidents n INDEXED BY incidents_by_program WHERE n.program_id = :value")
	incidentsBySubscription = list.Along("n.num", "n.num", incidentMatches,
		"FROM incidents n INDEXED BY incidents_by_subscription WHERE n.subscription_id = :value")
)

const selectIncidentFrom = "SELECT num, opened_at FROM incidents WHERE num >= ? ORDER BY num LIMIT 1"

// before returns the highest num of an incident that was opened before a time, 0 if there is
// none.
func (s Incidents) before(ctx context.Context, at time.Time) (int64, error) {
	return s.lists.LastBefore(ctx, "incidents", "SELECT 0, coalesce(max(num), 0) + 1 FROM incidents", selectIncidentFrom, at)
}

const countWaiting = "SELECT " + waitingCount + ", " + waitingMore +
	" FROM subscriptions x CROSS JOIN cursors c ON c.subscription_id = x.id WHERE x.id = ?1"

// WaitingEvents counts the events in the log that wait for subscriptions, at most limit in
// total, and reports whether more may wait.
func (s Subscriptions) WaitingEvents(ctx context.Context, subscriptionIDs []string, limit int) (total int, more bool, err error) {
	for _, id := range subscriptionIDs {
		var n int
		var unexamined bool
		err := s.lists.DB.Scan(ctx, countWaiting, []any{id, limit - total}, &n, &unexamined)
		if total, more = total+n, more || unexamined; err != nil || total >= limit {
			return total, true, err
		}
	}
	return total, more, nil
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"service/webhook"
)

// UnhealthySubscription is a subscription whose server has been failing, and
// what that has come to. It is a copy, for admins.
type UnhealthySubscription struct {
	ID             string
	ProgramID      string
	URL            string
	Status         webhook.Health
	DisabledReason string // "" while it is failing
	Failures       webhook.Failures

	// Last is the attempt that was begun last, pings aside, without what the
	// server answered but for its status; nil when its delivery is not among
	// the newest, or was removed.
	Last *webhook.Attempt

	Events      int       // in the log that wait for it, at most CountLimit
	OldestEvent time.Time // when the first of them was accepted; zero without one
	Deliveries  int       // with a time for their next attempt, at most CountLimit
}

// lastAttemptAmong is among how many of the newest deliveries of a subscription
// its last attempt is looked for.
const lastAttemptAmong = "50"

// Only what is shown is looked at in depth: ?3 rows. ?2 is CountLimit.
var selectUnhealthy = `WITH shown AS MATERIALIZED (
		SELECT s.id, s.program_id, s.url, s.status, s.disabled_reason, f.count, f.rejected, f.first_at, f.failing_since, f.failing_reason, f.next_probe_at, count(*) OVER () AS total
		FROM (SELECT id, program_id, url, status, disabled_reason FROM subscriptions INDEXED BY subscriptions_by_health
			WHERE status = ?1 AND status <> 'healthy' AND deleted_at IS NULL LIMIT ?2) s
		CROSS JOIN failures f ON f.subscription_id = s.id
		ORDER BY f.failing_since DESC, s.id LIMIT ?3)
	SELECT x.total, x.id, x.program_id, x.url, x.status, x.disabled_reason, x.count, x.rejected, x.first_at, x.failing_since, x.failing_reason, x.next_probe_at,
		(SELECT count(*) FROM (SELECT 1 FROM interests i CROSS JOIN events e ON ` + waitingEvents + ` WHERE i.subscription_id = x.id LIMIT ?2)),
		(SELECT o.received_at FROM events o WHERE o.program_id = x.program_id AND o.seq = (
			SELECT min((SELECT min(e.seq) FROM events e WHERE ` + waitingEvents + `)) FROM interests i WHERE i.subscription_id = x.id)),
		(SELECT count(*) FROM (SELECT 1 FROM deliveries w INDEXED BY deliveries_due WHERE w.subscription_id = x.id AND w.next_attempt_at IS NOT NULL LIMIT ?2)),
		` + lastAttemptColumns + `
	FROM shown x CROSS JOIN cursors c ON c.subscription_id = x.id
	LEFT JOIN deliveries d ON d.num = (
			SELECT y.num FROM (` + byCreation.query("d.num", "x.id", "", " ORDER BY 1 DESC LIMIT "+lastAttemptAmong) + `) n
			CROSS JOIN deliveries y ON y.num = n.num LEFT JOIN attempts t ON t.delivery = y.num
			WHERE y.ping IS NULL AND (t.delivery IS NOT NULL OR y.duration_ms IS NOT NULL)
			ORDER BY coalesce(t.started_at, y.created_at + y.started_after) DESC, y.num DESC LIMIT 1)
	LEFT JOIN attempts a ON a.delivery = d.num AND a.number = (SELECT max(number) FROM attempts WHERE delivery = d.num)
	ORDER BY x.failing_since DESC, x.id`

// Of the events e, those that the interest i asks for beyond the cursor c.
const waitingEvents = `e.program_id = x.program_id AND e.name = i.name
	AND e.seq > max(i.after_seq, c.seq) AND e.seq <= coalesce(i.until_seq, 9223372036854775807)`

// Unhealthy returns the subscriptions of any program that are failing, or that
// are disabled, for admins: those that began to fail last first, at most limit
// of them; and how many there are, at most CountLimit. When there are more than
// that, those that were created last are not looked at.
func (s Subscriptions) Unhealthy(ctx context.Context, health webhook.Health, limit int) (shown []UnhealthySubscription, total int, err error) {
	err = s.db.Each(ctx, selectUnhealthy, []any{string(health), CountLimit, limit}, func(scan func(...any) error) error {
		var u UnhealthySubscription
		var first int64
		var reason, result, code sql.NullString
		var next, since, oldest, number, started, duration, status sql.NullInt64
		err := scan(&total, &u.ID, &u.ProgramID, &u.URL, &u.Status, &reason, &u.Failures.Count, &u.Failures.Rejected, &first, &since, &u.Failures.Reason, &next,
			&u.Events, &oldest, &u.Deliveries, &number, &started, &duration, &result, &status, &code)
		u.DisabledReason, u.OldestEvent = reason.String, fromMillis(oldest)
		u.Failures.First, u.Failures.Since, u.Failures.NextProbe = time.UnixMilli(first).UTC(), fromMillis(since), fromMillis(next)
		if started.Valid {
			u.Last = &webhook.Attempt{
				Number: int(number.Int64), StartedAt: fromMillis(started), Duration: time.Duration(duration.Int64) * time.Millisecond,
				Result: webhook.Result(result.String), ResponseStatus: int(status.Int64), Error: webhook.ErrorCode(code.String),
			}
		}
		shown = append(shown, u)
		return err
	})
	return shown, total, err
}

// Loss is what retention has cost a subscription: events that were removed
// before they could be delivered to it.
type Loss struct {
	SubscriptionID string
	ProgramID      string
	URL            string
	Deleted        bool // the subscription was, since
	Events         int64
	FirstAt        time.Time // when it was first found out
	LastAt         time.Time
}

// LossTotals say how much was lost over all programs.
type LossTotals struct {
	Subscriptions int   // at most CountLimit
	Events        int64 // of those
}

const selectLosses = `SELECT count(*) OVER (), sum(l.events) OVER (), l.subscription_id, s.program_id, s.url, s.deleted_at IS NOT NULL, l.events, l.first_at, l.last_at
	FROM (SELECT subscription_id, events, first_at, last_at FROM losses INDEXED BY losses_by_time ORDER BY last_at DESC, subscription_id DESC LIMIT ?1) l
	CROSS JOIN subscriptions s ON s.id = l.subscription_id
	ORDER BY l.last_at DESC, l.subscription_id DESC LIMIT ?2`

// Losses returns what subscriptions of any program lost to retention, deleted
// ones too while anything of them is kept, for admins: the newest first, at
// most limit; and the totals.
func (s Subscriptions) Losses(ctx context.Context, limit int) (shown []Loss, totals LossTotals, err error) {
	err = s.db.Each(ctx, selectLosses, []any{CountLimit, limit}, func(scan func(...any) error) error {
		var l Loss
		var first, last int64
		err := scan(&totals.Subscriptions, &totals.Events, &l.SubscriptionID, &l.ProgramID, &l.URL, &l.Deleted, &l.Events, &first, &last)
		l.FirstAt, l.LastAt = time.UnixMilli(first).UTC(), time.UnixMilli(last).UTC()
		shown = append(shown, l)
		return err
	})
	return shown, totals, err
}

// AlertUnsent is the status of an alert that is not to be sent; the others are
// those of a delivery.
const AlertUnsent webhook.Status = "unsent"

// Alert is an alert as it is remembered.
type Alert struct {
	ID             string
	Name           webhook.AlertName
	ProgramID      string
	SubscriptionID string
	URL            string // of the subscription at that time, without its query
	Message        string // what happened
	Action         string // what to do about it
	LostEvents     int64  // of events_lost

	Status        webhook.Status // of sending it, or AlertUnsent
	AttemptsMade  int
	NextAttemptAt time.Time
	CreatedAt     time.Time
}

const selectLastAlerts = `SELECT id, name, program_id, subscription_id, json, status, attempts_made, next_attempt_at, created_at
	FROM alerts ORDER BY num DESC LIMIT ?`

// Last returns the newest alerts of any program, the newest first, at
// most limit, for admins.
func (s Alerts) Last(ctx context.Context, limit int) (alerts []Alert, err error) {
	err = s.db.Each(ctx, selectLastAlerts, []any{limit}, func(scan func(...any) error) error {
		var a Alert
		var text []byte
		var next sql.NullInt64
		var created int64
		if err := scan(&a.ID, &a.Name, &a.ProgramID, &a.SubscriptionID, &text, &a.Status, &a.AttemptsMade, &next, &created); err != nil {
			return err
		}
		a.NextAttemptAt, a.CreatedAt = s.clock.shown(next), time.UnixMilli(created).UTC()
		var sent struct {
			Message, Action string
			Subscription    struct{ URL string }
			LostEvents      int64 `json:"lost_events"`
		}
		if err := json.Unmarshal(text, &sent); err != nil {
			return fmt.Errorf("store: alert %s: %w", a.ID, err)
		}
		a.Message, a.Action, a.URL, a.LostEvents = sent.Message, sent.Action, sent.Subscription.URL, sent.LostEvents
		alerts = append(alerts, a)
		return nil
	})
	return alerts, err
}

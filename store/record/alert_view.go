package record

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// lastAttemptAmong is how many of the newest deliveries of a subscription are searched for its
// last attempt.
const lastAttemptAmong = "50"

const (
	// wantedEvents joins the events e that the interest i of the subscription x names beyond the cursor c.
	wantedEvents = `e.program_id = x.program_id AND e.name = i.name
		AND e.seq > max(i.after_seq, c.seq) AND e.seq <= coalesce(i.until_seq, 9223372036854775807)
		AND ` + NotErased
	// WaitingEvents are those that the interest's filter lets pass, which is tried on the next examinedSeqs
	// of the log; unexaminedEvents are those after them.
	WaitingEvents = wantedEvents + ` AND (i.filter IS NULL
		OR e.seq <= max(i.after_seq, c.seq) + ` + ExaminedSeqs + ` AND ` + PassesFilter + `)`
	UnexaminedEvents = wantedEvents + ` AND i.filter IS NOT NULL AND e.seq > max(i.after_seq, c.seq) + ` + ExaminedSeqs

	// Columns for a subscription x with the cursor c. waitingCount is at most ?2; waitingMore reports
	// whether the filter was not tried on some events.
	waitingCount = `(SELECT count(*) FROM (
		SELECT 1 FROM interests i CROSS JOIN events e ON ` + WaitingEvents + ` WHERE i.subscription_id = x.id LIMIT ?2))`
	waitingMore  = `EXISTS (SELECT 1 FROM interests i CROSS JOIN events e ON ` + UnexaminedEvents + ` WHERE i.subscription_id = x.id)`
	waitingSince = `(SELECT o.received_at FROM events o WHERE o.program_id = x.program_id AND o.seq = (
		SELECT min((SELECT min(e.seq) FROM events e WHERE ` + WaitingEvents + `)) FROM interests i WHERE i.subscription_id = x.id))`
)

// Loss counts the events that retention removed before they could be delivered to a
// subscription.
type Loss struct {
	SubscriptionID string
	ProgramID      string
	URL            string
	Deleted        bool // the subscription has been deleted since
	Events         int64
	FirstAt        time.Time // when the first loss was detected
	LastAt         time.Time
}

// LossTotals are the losses over all programs.
type LossTotals struct {
	Subscriptions int   // at most CountLimit
	Events        int64 // lost by these subscriptions
}

var selectLosses = `SELECT count(*) OVER (), sum(l.events) OVER (), l.subscription_id, s.program_id, s.url, s.deleted_at IS NOT NULL,
	l.events, l.first_at, l.last_at
	FROM (SELECT subscription_id, events, first_at, last_at FROM losses INDEXED BY losses_by_time
	ORDER BY last_at DESC, subscription_id DESC LIMIT ?1) l
	CROSS JOIN subscriptions s ON s.id = l.subscription_id WHERE s.program_id` + list.CanBeUsed + `
	ORDER BY l.last_at DESC, l.subscription_id DESC LIMIT ?2`

// Losses returns the losses of the subscriptions of all programs to retention, newest first,
// at most limit, with the totals. Deleted subscriptions are included while any of their data
// is kept.
func (s Subscriptions) Losses(ctx context.Context, limit int) (shown []Loss, totals LossTotals, err error) {
	err = s.lists.DB.Each(ctx, selectLosses, []any{CountLimit, limit}, func(scan func(...any) error) error {
		var l Loss
		err := scan(&totals.Subscriptions, &totals.Events, &l.SubscriptionID, &l.ProgramID, &l.URL, &l.Deleted, &l.Events,
			(*sqlite.Time)(&l.FirstAt), (*sqlite.Time)(&l.LastAt))
		shown = append(shown, l)
		return err
	})
	return shown, totals, err
}

// AlertUnsent is the status of an alert that will not be sent. Other alerts have the status of a
// delivery.
const AlertUnsent webhook.Status = "unsent"

// Alert is a stored alert.
type Alert struct {
	ID             string
	Name           webhook.AlertName
	ProgramID      string
	SubscriptionID string
	URL            string // of the subscription at that time, without its query
	Description    string // the same
	IncidentID     string // "" for none
	ResponseStatus int    // of the last attempt before the alert, 0 for none
	Error          webhook.ErrorCode
	LostEvents     int64 // of events_lost

	Channels      int            // that it is sent to, including --alert-url
	Sent          int            // of Channels, the ones that have received it
	Status        webhook.Status // of sending it, or AlertUnsent
	AttemptsMade  int
	NextAttemptAt time.Time
	CreatedAt     time.Time
}

var selectLastAlerts = "SELECT id, name, program_id, subscription_id, json, " + alertStatus + `, attempts_made, next_attempt_at,
	created_at, coalesce((SELECT n.id FROM incidents n WHERE n.num = a.incident AND n.subscription_id = a.subscription_id), ''),
	(a.status <> 'unsent') + (SELECT count(*) FROM alert_sends s WHERE s.alert = a.num),
	(a.status = 'success') + (SELECT count(*) FROM alert_sends s WHERE s.alert = a.num AND s.status = 'success')
	FROM alerts a WHERE a.program_id` + list.CanBeUsed + " ORDER BY num DESC LIMIT ?1"

// Last returns the newest alerts of all programs, newest first, at most limit.
func (s Alerts) Last(ctx context.Context, limit int) (alerts []Alert, err error) {
	err = s.lists.DB.Each(ctx, selectLastAlerts, []any{limit}, func(scan func(...any) error) error {
		var a Alert
		var text []byte
		var next sql.NullInt64
		if err := scan(&a.ID, &a.Name, &a.ProgramID, &a.SubscriptionID, &text, &a.Status, &a.AttemptsMade, &next, (*sqlite.Time)(&a.CreatedAt),
			&a.IncidentID, &a.Channels, &a.Sent); err != nil {
			return err
		}
		a.NextAttemptAt = s.clock.Shown(next)
		var sent struct {
			Subscription struct{ URL, Description string }
			LastAttempt  struct {
				ResponseStatus int `json:"response_status"`
				Error          struct{ Code webhook.ErrorCode }
			} `json:"last_attempt"`
			LostEvents int64 `json:"lost_events"`
		}
		if err := json.Unmarshal(text, &sent); err != nil {
			return fmt.Errorf("store: alert %s: %w", a.ID, err)
		}
		a.URL, a.Description, a.LostEvents = sent.Subscription.URL, sent.Subscription.Description, sent.LostEvents
		a.ResponseStatus, a.Error = sent.LastAttempt.ResponseStatus, sent.LastAttempt.Error.Code
		alerts = append(alerts, a)
		return nil
	})
	return alerts, err
}

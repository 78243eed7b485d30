package store

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"service/webhook"
)

// alert remembers, in the write that brings it about, what the operator must
// hear of; logs it once that is on disk; and has it sent if alerts are. It belongs to
// the incident with this num, 0 for none.
func (s *core) alert(t *tx, a *webhook.Alert, incident int64) error {
	a.ID, a.At = webhook.NewID(), s.clock.now().UTC().Truncate(time.Millisecond)
	json, err := a.JSON()
	if err != nil {
		return err
	}
	status, next := "unsent", any(nil)
	if s.sendAlerts {
		status, next = string(webhook.StatusPending), s.clock.wait(a.At)
	}
	level, attributes := slog.LevelWarn, []slog.Attr{
		slog.String("alert", string(a.Name)), slog.String("program", a.Subscription.ProgramID), slog.String("subscription", a.Subscription.ID),
		slog.Int("failures", a.Failures.InARow()),
	}
	if a.Attempt != nil {
		attributes = append(attributes, slog.String("delivery", a.DeliveryID), slog.String("result", string(a.Attempt.Result)))
		if a.Attempt.ResponseStatus != 0 {
			attributes = append(attributes, slog.Int("response_status", a.Attempt.ResponseStatus))
		}
		if a.Attempt.Error != webhook.ErrorNone {
			attributes = append(attributes, slog.String("error", string(a.Attempt.Error)))
		}
	}
	if a.Name == webhook.AlertRecovered {
		level = slog.LevelInfo
	}
	t.AfterCommit(func() {
		s.logger.LogAttrs(context.Background(), level, a.Summary(), attributes...)
		s.alerts[a.Name].Add(1)
		if s.sendAlerts {
			s.watchers.tell(func(c *Changes) { c.Alerts = true })
		}
	})
	return t.Exec("INSERT INTO alerts (id, name, program_id, subscription_id, json, status, attempts_made, next_attempt_at, created_at, incident) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
		a.ID, string(a.Name), a.Subscription.ProgramID, a.Subscription.ID, json, status, next, a.At.UnixMilli(), orNull(incident))
}

// AlertClaim is an alert whose next attempt has been counted, durably, and must
// now be made and recorded.
type AlertClaim struct {
	ID             string
	ProgramID      string
	SubscriptionID string
	Number         int // of the attempt
	JSON           []byte
}

const (
	claimAlert = `UPDATE alerts SET status = 'retryable', attempts_made = attempts_made + 1, next_attempt_at = ?2
		WHERE num = (SELECT num FROM alerts WHERE next_attempt_at <= ?1 AND next_attempt_at IS NOT NULL AND attempts_made < 5 ORDER BY next_attempt_at, num LIMIT 1)
		RETURNING id, program_id, subscription_id, attempts_made, json`
	// The last attempt was cut off by the end of the process.
	endAlerts       = "UPDATE alerts SET status = 'failed', next_attempt_at = NULL WHERE next_attempt_at <= ? AND next_attempt_at IS NOT NULL AND attempts_made = 5"
	selectNextAlert = "SELECT min(next_attempt_at) FROM alerts WHERE next_attempt_at IS NOT NULL"
)

// Claim counts the next attempt of the alert that has been due the
// longest, and returns the claim on it, nil when none is due; and when the next
// one will be due, by the process's time, zero for none. An attempt that is not
// recorded within lease counts as cut off, and the alert is due again.
func (s Alerts) Claim(lease time.Duration) (*AlertClaim, time.Time, error) {
	var c AlertClaim
	var next sql.NullInt64
	err := s.writer.do(func(t *tx) error {
		now := s.clock.now()
		if err := t.Exec(endAlerts, s.clock.wait(now)); err != nil {
			return err
		}
		err := t.Scan(claimAlert, []any{s.clock.wait(now), s.clock.wait(now.Add(lease))}, &c.ID, &c.ProgramID, &c.SubscriptionID, &c.Number, &c.JSON)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return t.Scan(selectNextAlert, nil, &next)
	})
	if err != nil || c.ID == "" {
		return nil, s.clock.process(next), err
	}
	return &c, s.clock.process(next), nil
}

// Record stores where an alert stands after an attempt.
func (s Alerts) Record(c *AlertClaim, step webhook.Step) error {
	return s.writer.do(func(t *tx) error {
		return t.Exec("UPDATE alerts SET status = ?, next_attempt_at = ? WHERE id = ?", string(step.Status), s.clock.stored(step.NextAttemptAt), c.ID)
	})
}

// Count is how many alerts of a name there have been since Open.
func (s Alerts) Count(name webhook.AlertName) int64 { return s.alerts[name].Load() }

package store

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"service/webhook"
)

// alert stores an alert in the write that causes it, logs it after the commit, and queues it
// for sending. incident is the num of its incident, 0 for none. A program that is being erased has
// no alerts.
func (s *core) alert(t *tx, a *webhook.Alert, incident int64) error {
	return s.alertAfter(t, 0, a, incident)
}

// alertAfter is alert for one that is sent after a delay, until which it may be changed or withdrawn.
func (s *core) alertAfter(t *tx, delay time.Duration, a *webhook.Alert, incident int64) error {
	if t.use(a.Subscription.ProgramID, "") != nil {
		return nil
	}
	a.ID, a.At = webhook.NewID(), s.clock.now().UTC().Truncate(time.Millisecond)
	json, err := a.JSON()
	if err != nil {
		return err
	}
	status, next := "unsent", any(nil)
	if s.sendAlerts {
		status, next = string(webhook.StatusPending), s.clock.wait(a.At.Add(delay))
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
			s.watchers.notify(func(c *Changes) { c.Alerts = true })
		}
	})
	r, err := t.ExecResult("INSERT INTO alerts (id, name, program_id, subscription_id, json, status, attempts_made, next_attempt_at, "+
		"created_at, counted_at, incident) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)",
		a.ID, string(a.Name), a.Subscription.ProgramID, a.Subscription.ID, json, status, next, a.At.UnixMilli(), t.counted(),
		orNull(incident))
	if err != nil {
		return err
	}
	num, err := r.LastInsertId()
	if err != nil {
		return err
	}
	return t.queueSends(num, a, t.w.clock.wait(a.At.Add(delay)))
}

// AlertClaim is an alert whose next attempt has been counted durably, and must now be made and
// recorded.
type AlertClaim struct {
	ID             string
	Channel        *webhook.AlertChannel // nil for --alert-url
	ProgramID      string
	SubscriptionID string
	Number         int // of the attempt
	JSON           []byte

	send int64 // num in alert_sends, 0 for --alert-url
}

// Alerts of programs that cannot be used are not sent.
var (
	claimAlert = `UPDATE alerts SET status = 'retryable', attempts_made = attempts_made + 1, next_attempt_at = ?2
		WHERE num = (SELECT num FROM alerts WHERE next_attempt_at <= ?1 AND next_attempt_at IS NOT NULL AND attempts_made < 5
		AND program_id` + canBeUsed + ` ORDER BY next_attempt_at, num LIMIT 1)
		RETURNING id, program_id, subscription_id, attempts_made, json`
	claimSend = `UPDATE alert_sends SET status = 'retryable', attempts_made = attempts_made + 1, next_attempt_at = ?2
		WHERE num = (SELECT num FROM alert_sends WHERE next_attempt_at <= ?1 AND next_attempt_at IS NOT NULL AND attempts_made < 5
		AND ` + programOfSend + canBeUsed + ` ORDER BY next_attempt_at, num LIMIT 1)
		RETURNING num, alert, channel_id, attempts_made, json`
	selectNextAlert = "SELECT min(next_attempt_at) FROM alerts WHERE next_attempt_at IS NOT NULL AND program_id" + canBeUsed
	selectNextSend  = "SELECT min(next_attempt_at) FROM alert_sends WHERE next_attempt_at IS NOT NULL AND " + programOfSend + canBeUsed
)

const (
	programOfSend = "coalesce((SELECT a.program_id FROM alerts a WHERE a.num = alert_sends.alert), '')"
	// The last attempt was interrupted by the end of the process.
	endAlerts = "UPDATE alerts SET status = 'failed', next_attempt_at = NULL WHERE next_attempt_at <= ? " +
		"AND next_attempt_at IS NOT NULL AND attempts_made = 5"
	endSends = "UPDATE alert_sends SET status = 'failed', next_attempt_at = NULL WHERE next_attempt_at <= ? " +
		"AND next_attempt_at IS NOT NULL AND attempts_made = 5"
)

// next returns when the next alert is due, in wait clock time, NULL for none. Alerts to
// --alert-url count only if that is configured.
func (s Alerts) next(scan func(query string, args []any, dest ...any) error) (sql.NullInt64, error) {
	var alert, send sql.NullInt64
	if s.sendAlerts {
		if err := scan(selectNextAlert, nil, &alert); err != nil {
			return alert, err
		}
	}
	err := scan(selectNextSend, nil, &send)
	if !alert.Valid || send.Valid && send.Int64 < alert.Int64 {
		return send, err
	}
	return alert, err
}

// Claim counts the next attempt of the alert that has been due the longest, and returns its
// claim, nil if none is due, and when the next one is due, monotonic, zero for none. An attempt
// that is not recorded within lease counts as interrupted, and the alert is due again. If none
// is due, Claim writes nothing.
func (s Alerts) Claim(ctx context.Context, lease time.Duration) (*AlertClaim, time.Time, error) {
	next, err := s.next(func(query string, args []any, dest ...any) error { return s.db.Scan(ctx, query, args, dest...) })
	if err != nil || !next.Valid || next.Int64 > s.clock.wait(s.clock.now()) {
		return nil, s.clock.process(next), err
	}
	var c AlertClaim
	err = s.writer.do(func(t *tx) (err error) {
		c = AlertClaim{}
		now := s.clock.now()
		due, until := s.clock.wait(now), s.clock.wait(now.Add(lease))
		if s.sendAlerts {
			if err := t.Exec(endAlerts, due); err != nil {
				return err
			}
			err := t.Scan(claimAlert, []any{due, until}, &c.ID, &c.ProgramID, &c.SubscriptionID, &c.Number, &c.JSON)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
		if c.ID == "" {
			if err := s.claimSend(t, &c, due, until); err != nil {
				return err
			}
		}
		next, err = s.next(t.Scan)
		return err
	})
	if err != nil || c.ID == "" {
		return nil, s.clock.process(next), err
	}
	return &c, s.clock.process(next), nil
}

// claimSend claims the alert for a channel that has been due the longest, if there is one.
func (s Alerts) claimSend(t *tx, c *AlertClaim, due, until int64) error {
	if err := t.Exec(endSends, due); err != nil {
		return err
	}
	var alert sql.NullInt64
	var channel string
	err := t.Scan(claimSend, []any{due, until}, &c.send, &alert, &channel, &c.Number, &c.JSON)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	c.ID = webhook.NewID() // a test alert has no stored id
	if alert.Valid {
		err := t.Scan("SELECT id, program_id, subscription_id, json FROM alerts WHERE num = ?", []any{alert.Int64}, &c.ID, &c.ProgramID,
			&c.SubscriptionID, &c.JSON)
		if err != nil {
			return err
		}
	}
	to, err := newWrite(s.core, t).Channels().Get(channel)
	c.Channel = &to
	return err
}

// Record stores the result of an attempt, and the resulting state of its alert.
func (s Alerts) Record(c *AlertClaim, a *webhook.Attempt, step webhook.Step) error {
	return s.writer.do(func(t *tx) error {
		if c.send == 0 {
			return t.Exec("UPDATE alerts SET status = ?, next_attempt_at = ? WHERE id = ?", string(step.Status),
				s.clock.stored(step.NextAttemptAt), c.ID)
		}
		status, code := outcome(a)
		return t.Exec("UPDATE alert_sends SET status = ?, next_attempt_at = ?, response_status = ?, error = ?, attempted_at = ? WHERE num = ?",
			string(step.Status), s.clock.stored(step.NextAttemptAt), status, code, s.clock.now().UnixMilli(), c.send)
	})
}

// Count returns how many alerts with a name there have been since Open.
func (s Alerts) Count(name webhook.AlertName) int64 { return s.alerts[name].Load() }

package store

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/store/watch"
	"service/webhook"
)

// alert stores an alert in the write that causes it, logs it after the commit, and queues it
// for sending. incident is the num of its incident, 0 for none. A program that is being erased has
// no alerts.
func (s *core) alert(t *tx, a *webhook.Alert, incident int64) error {
	return s.alertAfter(t, 0, a, incident)
}

// alertAfter is alert with a delay. Until the alert is sent, it may be changed or withdrawn.
func (s *core) alertAfter(t *tx, delay time.Duration, a *webhook.Alert, incident int64) error {
	if t.use(a.Subscription.ProgramID, "") != nil {
		return nil
	}
	a.ID, a.At = webhook.NewID(), s.clock.Now().UTC().Truncate(time.Millisecond)
	json, err := a.JSON()
	if err != nil {
		return err
	}
	status, next := "unsent", any(nil)
	if s.sendAlerts {
		status, next = string(webhook.StatusPending), s.clock.Wait(a.At.Add(delay))
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
			s.watchers.Notify(func(c *watch.Changes) { c.Alerts = true })
		}
	})
	num, err := t.Insert("INSERT INTO alerts (id, name, program_id, subscription_id, json, status, attempts_made, next_attempt_at, "+
		"created_at, counted_at, incident) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)",
		a.ID, string(a.Name), a.Subscription.ProgramID, a.Subscription.ID, json, status, next, a.At.UnixMilli(), t.counted(),
		sqlite.OrNull(incident))
	if err != nil {
		return err
	}
	return t.queueSends(num, t.s.clock.Wait(a.At.Add(delay)))
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

// Alerts of programs that cannot be used are not sent. An alert of a subscription waits for the
// previous one, unless that has not been due yet. ?1 is now, in wait clock time.
const (
	dueAlerts = "a.next_attempt_at IS NOT NULL AND a.program_id" + list.CanBeUsed + ` AND NOT EXISTS (SELECT 1 FROM alerts e
		WHERE e.subscription_id = a.subscription_id AND e.num < a.num AND ` + waitedFor + ")"
	dueSends = "a.next_attempt_at IS NOT NULL AND a.program_id" + list.CanBeUsed + ` AND NOT EXISTS (SELECT 1 FROM alert_sends e
		WHERE e.channel_id = a.channel_id AND e.subscription_id = a.subscription_id AND e.num < a.num AND e.subscription_id <> ''
		AND ` + waitedFor + ")"
	waitedFor = "e.next_attempt_at IS NOT NULL AND (e.attempts_made > 0 OR e.next_attempt_at <= ?1)"

	selectAlertQueues = "SELECT '', min(a.next_attempt_at) FROM alerts a WHERE ?2 AND " + dueAlerts + ` HAVING count(*) > 0
		UNION ALL SELECT a.channel_id, min(a.next_attempt_at) FROM alert_sends a WHERE ` + dueSends + " GROUP BY a.channel_id"

	// Programs take turns: the next is the one after ?3.
	inTurn = " AND a.next_attempt_at <= ?1 AND a.attempts_made < 5 " +
		"ORDER BY a.program_id <= ?3, a.program_id, a.next_attempt_at, a.num LIMIT 1)"
	claimAlert = `UPDATE alerts SET status = 'retryable', attempts_made = attempts_made + 1, next_attempt_at = ?2
		WHERE num = (SELECT a.num FROM alerts a WHERE ` + dueAlerts + inTurn + " RETURNING id, program_id, subscription_id, attempts_made, json"
	claimSend = `UPDATE alert_sends SET status = 'retryable', attempts_made = attempts_made + 1, next_attempt_at = ?2
		WHERE num = (SELECT a.num FROM alert_sends a WHERE a.channel_id = ?4 AND ` + dueSends + inTurn +
		" RETURNING num, alert, attempts_made, json, program_id, subscription_id"

	// The last attempt was interrupted by the end of the process.
	endInterrupted = " SET status = 'failed', next_attempt_at = NULL WHERE next_attempt_at <= ? " +
		"AND next_attempt_at IS NOT NULL AND attempts_made = 5"
	endAlerts = "UPDATE alerts" + endInterrupted
	endSends  = "UPDATE alert_sends" + endInterrupted
)

// Queues returns when the next alert to each channel is due, monotonic; --alert-url, if that is
// configured, is the channel "". Channels without alerts to send are missing.
func (s Alerts) Queues(ctx context.Context) (map[string]time.Time, error) {
	queues := make(map[string]time.Time)
	err := s.db.Each(ctx, selectAlertQueues, []any{s.clock.Wait(s.clock.Now()), s.sendAlerts}, func(scan func(...any) error) error {
		var channel string
		var at sql.NullInt64
		err := scan(&channel, &at)
		queues[channel] = s.clock.Process(at)
		return err
	})
	return queues, err
}

// Claim counts the next attempt of a due alert to a channel and returns its claim, nil if none is
// due. Programs take turns: after is the program whose turn was last. An attempt that is not
// recorded within lease counts as interrupted, and the alert is due again.
func (s Alerts) Claim(channel, after string, lease time.Duration) (claim *AlertClaim, err error) {
	err = s.writer.do(func(t *tx) error {
		claim = nil
		now := s.clock.Now()
		args := []any{s.clock.Wait(now), s.clock.Wait(now.Add(lease)), after}
		if err := errors.Join(t.Exec(endAlerts, args[0]), t.Exec(endSends, args[0])); err != nil {
			return err
		}
		var c AlertClaim
		var err error
		if channel == "" {
			err = t.Scan(claimAlert, args, &c.ID, &c.ProgramID, &c.SubscriptionID, &c.Number, &c.JSON)
		} else {
			err = s.claimSend(t, &c, channel, args)
		}
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		claim = &c
		return err
	})
	return claim, err
}

// claimSend claims an alert to a channel.
func (s Alerts) claimSend(t *tx, c *AlertClaim, channel string, args []any) error {
	var alert sql.NullInt64
	err := t.Scan(claimSend, append(args, channel), &c.send, &alert, &c.Number, &c.JSON, &c.ProgramID, &c.SubscriptionID)
	if err != nil {
		return err
	}
	c.ID = webhook.NewID() // a test alert has no stored ID
	if alert.Valid {
		if err := t.Scan("SELECT id, json FROM alerts WHERE num = ?", []any{alert.Int64}, &c.ID, &c.JSON); err != nil {
			return err
		}
	}
	to, err := Write{t}.Channels().Get(channel)
	c.Channel = &to
	return err
}

// Record stores the result of an attempt, and the resulting state of its alert.
func (s Alerts) Record(c *AlertClaim, a *webhook.Attempt, step webhook.Step) error {
	return s.writer.do(func(t *tx) error {
		if c.send == 0 {
			return t.Exec("UPDATE alerts SET status = ?, next_attempt_at = ? WHERE id = ?", string(step.Status),
				s.clock.Stored(step.NextAttemptAt), c.ID)
		}
		status, code := outcome(a)
		t.AfterCommit(func() { s.watchers.Notify(func(c *watch.Changes) { c.AlertSends = true }) })
		return t.Exec("UPDATE alert_sends SET status = ?, next_attempt_at = ?, response_status = ?, error = ?, attempted_at = ? WHERE num = ?",
			string(step.Status), s.clock.Stored(step.NextAttemptAt), status, code, s.clock.Now().UnixMilli(), c.send)
	})
}

// Count returns how many alerts with a name were stored since Open.
func (s Alerts) Count(name webhook.AlertName) int64 { return s.alerts[name].Load() }

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"service/store/sqlite"
	"service/store/watch"
	"service/webhook"
)

// channelTarget is the encrypted part of a channel.
type channelTarget struct {
	URL    string   `json:"url,omitzero"`
	To     []string `json:"to,omitzero"`
	Secret []byte   `json:"secret,omitzero"`
}

const (
	channelColumns = "id, kind, name, target, alerts, active, created_at, updated_at"
	selectChannel  = "SELECT " + channelColumns + " FROM alert_channels WHERE id = ?"
)

// channelPlace returns the associated data of a channel's encrypted target.
func channelPlace(id string) string { return "alert channel " + id }

// scanChannel reads a row of channelColumns, and decrypts the target.
func (s *core) scanChannel(scan func(...any) error) (c webhook.AlertChannel, err error) {
	var target []byte
	var alerts string
	if err := scan(&c.ID, &c.Kind, &c.Name, &target, &alerts, &c.Active,
		(*sqlite.Time)(&c.CreatedAt), (*sqlite.Time)(&c.UpdatedAt)); err != nil {
		return c, err
	}
	plain, err := s.keys.Decrypt(target, channelPlace(c.ID))
	if err != nil {
		return c, err
	}
	var t channelTarget
	if err := json.Unmarshal(plain, &t); err != nil {
		return c, fmt.Errorf("store: target of alert channel %s is not valid", c.ID) // the error of Unmarshal may quote it
	}
	c.URL, c.To, c.Secret = t.URL, t.To, t.Secret
	return c, json.Unmarshal([]byte(alerts), &c.Alerts)
}

func (s *core) encryptTarget(c *webhook.AlertChannel) ([]byte, error) {
	plain, err := json.Marshal(channelTarget{c.URL, c.To, c.Secret})
	return s.keys.Encrypt(plain, channelPlace(c.ID)), err
}

// Channels returns the alert channels in the order of creation, including their URLs and
// secrets, which must not be shown.
func (s Alerts) Channels(ctx context.Context) (all []webhook.AlertChannel, err error) {
	err = s.db.Each(ctx, "SELECT "+channelColumns+" FROM alert_channels ORDER BY id", nil, sqlite.ScanInto(&all, s.scanChannel))
	return all, err
}

// Channel returns an alert channel.
func (s Alerts) Channel(ctx context.Context, id string) (webhook.AlertChannel, error) {
	c, err := s.scanChannel(s.db.Row(ctx, selectChannel, id))
	return c, sqlite.NoRows(err, webhook.NotFound("alert channel"))
}

// Create stores a valid channel with a new ID. A webhook gets a new signing secret,
// which is returned to be shown once.
func (w ChannelWrites) Create(c webhook.AlertChannel) (webhook.AlertChannel, error) {
	var n int
	if err := w.t.Scan("SELECT count(*) FROM alert_channels", nil, &n); err != nil {
		return c, err
	}
	if n >= webhook.MaxChannels {
		return c, webhook.Invalid(webhook.Validation{Code: webhook.InvalidTooMany, Parameter: "channels",
			Detail: fmt.Sprintf("there are %d, the maximum is %d; delete one first", n, webhook.MaxChannels)})
	}
	c.ID, c.Secret = webhook.NewID(), nil
	if c.Kind == webhook.ChannelWebhook {
		c.Secret = webhook.NewSigningSecret()
	}
	c.CreatedAt = w.t.s.clock.Now().UTC().Truncate(time.Millisecond)
	return c, w.put(&c)
}

// put inserts or replaces a channel, and sets its UpdatedAt.
func (w ChannelWrites) put(c *webhook.AlertChannel) error {
	target, err := w.t.s.encryptTarget(c)
	if err != nil {
		return err
	}
	c.UpdatedAt = w.t.s.clock.Now().UTC().Truncate(time.Millisecond)
	return w.t.Exec("INSERT OR REPLACE INTO alert_channels ("+channelColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		c.ID, string(c.Kind), c.Name, target, sqlite.JSONText(c.Alerts), c.Active, c.CreatedAt.UnixMilli(), c.UpdatedAt.UnixMilli())
}

// Get returns an alert channel as of this write.
func (w ChannelWrites) Get(id string) (webhook.AlertChannel, error) {
	c, err := w.t.s.scanChannel(w.t.Row(selectChannel, id))
	return c, sqlite.NoRows(err, webhook.NotFound("alert channel"))
}

// Update stores a channel that was read with [ChannelWrites.Get], except its kind and
// secret, which do not change.
func (w ChannelWrites) Update(c webhook.AlertChannel) error {
	before, err := w.Get(c.ID)
	if err != nil {
		return err
	}
	c.Kind, c.Secret, c.CreatedAt = before.Kind, before.Secret, before.CreatedAt
	return w.put(&c)
}

// Delete removes a channel with its pending alerts.
func (w ChannelWrites) Delete(id string) error {
	n, err := w.t.Affected("DELETE FROM alert_channels WHERE id = ?", id)
	if err != nil {
		return err
	}
	if n == 0 {
		return webhook.NotFound("alert channel")
	}
	return w.t.Exec("DELETE FROM alert_sends WHERE channel_id = ?", id)
}

// Test queues a test alert for a channel. Its number is for [Alerts.Send].
func (w ChannelWrites) Test(id string) (num int64, err error) {
	if _, err := w.Get(id); err != nil {
		return 0, err
	}
	now := w.t.s.clock.Now()
	text, err := webhook.NewTestAlert(now)
	if err != nil {
		return 0, err
	}
	w.t.alertQueued()
	return w.t.Insert("INSERT INTO alert_sends (channel_id, program_id, subscription_id, name, json, status, attempts_made, "+
		"next_attempt_at, created_at, counted_at) VALUES (?, '', '', ?, ?, 'pending', 0, ?, ?, ?)",
		id, string(webhook.AlertTest), text, w.t.s.clock.Wait(now), now.UnixMilli(), w.t.counted())
}

// alertQueued notifies the dispatcher, after the commit, of an alert to send.
func (t *tx) alertQueued() {
	t.AfterCommit(func() { t.s.watchers.Notify(func(c *watch.Changes) { c.Alerts = true }) })
}

const insertSends = `INSERT INTO alert_sends (channel_id, program_id, subscription_id, alert, name, status, attempts_made,
		next_attempt_at, created_at, counted_at)
	SELECT c.id, a.program_id, a.subscription_id, a.num, a.name, 'pending', 0, ?2, ?3, ?4 FROM alerts a CROSS JOIN alert_channels c
	WHERE a.num = ?1 AND c.active = 1 AND a.name IN (SELECT value FROM json_each(c.alerts))`

// queueSends queues an alert for the channels that select it, to be sent at the wait clock time at.
func (t *tx) queueSends(alert, at int64) error {
	n, err := t.Affected(insertSends, alert, at, t.s.clock.Now().UnixMilli(), t.counted())
	if n > 0 {
		t.alertQueued()
	}
	return err
}

// AlertSend is the sending of an alert to a channel.
type AlertSend struct {
	ChannelID      string
	Name           webhook.AlertName
	Status         webhook.Status
	AttemptsMade   int
	NextAttemptAt  time.Time
	ResponseStatus int
	Error          webhook.ErrorCode
	AttemptedAt    time.Time // when the last attempt completed; zero for none
	CreatedAt      time.Time
}

const (
	sendColumns = `SELECT channel_id, name, status, attempts_made, next_attempt_at, coalesce(response_status, 0), coalesce(error, ''),
		attempted_at, created_at FROM alert_sends`
	selectSends = sendColumns + " WHERE channel_id = ? ORDER BY num DESC LIMIT ?"
	selectSend  = sendColumns + " WHERE num = ?"
)

// scanSend reads a row of sendColumns.
func (s Alerts) scanSend(scan func(...any) error) (a AlertSend, err error) {
	var next sql.NullInt64
	err = scan(&a.ChannelID, &a.Name, &a.Status, &a.AttemptsMade, &next, &a.ResponseStatus, &a.Error, (*sqlite.Time)(&a.AttemptedAt),
		(*sqlite.Time)(&a.CreatedAt))
	a.NextAttemptAt = s.clock.Shown(next)
	return a, err
}

// Sends returns the newest alerts that were or will be sent to a channel.
func (s Alerts) Sends(ctx context.Context, channelID string, limit int) (all []AlertSend, err error) {
	err = s.db.Each(ctx, selectSends, []any{channelID, limit}, sqlite.ScanInto(&all, s.scanSend))
	return all, err
}

// Send returns the sending of an alert by its number.
func (s Alerts) Send(ctx context.Context, num int64) (AlertSend, error) {
	a, err := s.scanSend(s.db.Row(ctx, selectSend, num))
	return a, sqlite.NoRows(err, webhook.NotFound("test alert"))
}

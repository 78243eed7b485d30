package store

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"service/webhook"
)

func channel(kind webhook.ChannelKind, alerts ...webhook.AlertName) webhook.AlertChannel {
	c := webhook.AlertChannel{Kind: kind, Name: "on call", URL: "https://hooks.example/canary", Alerts: alerts, Active: true}
	if kind == webhook.ChannelEmail {
		c.URL, c.To = "", []string{"canary@operator.example"}
	}
	return c
}

func createChannel(t *testing.T, s *Store, c webhook.AlertChannel) webhook.AlertChannel {
	t.Helper()
	mustWrite(t, s, func(w Write) (err error) { c, err = w.Channels().Create(c); return err })
	return c
}

// An alert is sent to the active channels that select it, each with its own retries. A test
// alert is sent only to its channel.
func TestAlertsToChannels(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		all := createChannel(t, s, channel(webhook.ChannelSlack, webhook.AlertNames()...))
		mail := createChannel(t, s, channel(webhook.ChannelEmail, webhook.AlertFailing))
		createChannel(t, s, channel(webhook.ChannelWebhook, webhook.AlertRecovered))
		paused := channel(webhook.ChannelWebhook, webhook.AlertNames()...)
		paused.Active = false
		createChannel(t, s, paused)
		must(t, s.writer.do(func(t *tx) error { return s.alert(t, &webhook.Alert{Name: webhook.AlertFailing, Subscription: sub}, 0) }))
		sent := make(map[string]*AlertClaim)
		for c := dueAlert(t, s); c != nil; c = dueAlert(t, s) {
			if c.Channel == nil || c.Number != 1 || c.SubscriptionID != sub.ID || !bytes.Contains(c.JSON, []byte("subscription_failing")) {
				t.Fatalf("claim: got %+v", c)
			}
			sent[c.Channel.ID] = c
		}
		if len(sent) != 2 || sent[all.ID] == nil || sent[mail.ID] == nil || sent[all.ID].Channel.URL != all.URL ||
			!slices.Equal(sent[mail.ID].Channel.To, mail.To) {
			t.Fatalf("sent to %v", sent)
		}
		good := webhook.Attempt{ResponseStatus: 200, Result: webhook.ResultSuccess}
		must(t, s.Alerts().Record(sent[all.ID], &good, webhook.Step{Status: webhook.StatusSuccess}))
		bad := webhook.Attempt{Error: webhook.ErrorConnect, Result: webhook.ResultRetryable}
		must(t, s.Alerts().Record(sent[mail.ID], &bad, webhook.Step{Status: webhook.StatusRetryable, NextAttemptAt: time.Now().Add(time.Hour)}))
		if queues, err := s.Alerts().Queues(t.Context()); err != nil || len(queues) != 1 || !queues[mail.ID].Equal(time.Now().Add(time.Hour)) {
			t.Errorf("got queues %v, %v, want the next mail in an hour", queues, err)
		}
		last, err := s.Alerts().Last(t.Context(), 10)
		if err != nil || len(last) != 1 || last[0].Status != webhook.StatusSuccess || last[0].Channels != 2 || last[0].Sent != 1 {
			t.Errorf("last alerts: got %+v, %v", last, err)
		}
		sends, err := s.Alerts().Sends(t.Context(), mail.ID, 10)
		if err != nil || len(sends) != 1 || sends[0].Status != webhook.StatusRetryable || sends[0].Error != webhook.ErrorConnect ||
			sends[0].AttemptsMade != 1 || sends[0].AttemptedAt.IsZero() {
			t.Errorf("sends of the channel: got %+v, %v", sends, err)
		}
		testAndDelete(t, s, all.ID, mail.ID)
	})
}

// dueAlert claims the next due alert, nil for none.
func dueAlert(t *testing.T, s *Store) *AlertClaim {
	t.Helper()
	queues, err := s.Alerts().Queues(t.Context())
	must(t, err)
	for channel, at := range queues {
		if at.After(time.Now()) {
			continue
		}
		c, err := s.Alerts().Claim(channel, "", time.Minute)
		if must(t, err); c != nil {
			return c
		}
	}
	return nil
}

// testAndDelete tests a channel and deletes another with a pending alert. After that only the
// test is due, and retention removes both alerts.
func testAndDelete(t *testing.T, s *Store, tested, deleted string) {
	t.Helper()
	var num int64
	mustWrite(t, s, func(w Write) (err error) { num, err = w.Channels().Test(tested); return err })
	if a, err := s.Alerts().Send(t.Context(), num); err != nil || a.ChannelID != tested || a.Status != webhook.StatusPending {
		t.Errorf("test alert: got %+v, %v", a, err)
	}
	if c := dueAlert(t, s); c == nil || c.Channel.ID != tested || c.ID == "" || !bytes.Contains(c.JSON, []byte("alert_test")) {
		t.Errorf("test alert: got %+v", c)
	}
	mustWrite(t, s, func(w Write) error { return w.Channels().Delete(deleted) })
	time.Sleep(2 * time.Hour)
	if c := dueAlert(t, s); c == nil || c.Channel.ID != tested { // the interrupted test
		t.Errorf("after the channel was deleted: got %+v", c)
	}
	_, err := s.Alerts().Channel(t.Context(), deleted)
	wantCode(t, err, webhook.CodeNotFound)
	time.Sleep(time.Hour)
	sweepAt(t, s, time.Now())
	if sends, err := s.Alerts().Sends(t.Context(), tested, 10); err != nil || len(sends) != 0 {
		t.Errorf("after retention: got %+v, %v", sends, err)
	}
}

// An alert that was interrupted five times has failed.
func TestAlertSendIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		c := createChannel(t, s, channel(webhook.ChannelSlack, webhook.AlertFailing))
		mustWrite(t, s, func(w Write) error { _, err := w.Channels().Test(c.ID); return err })
		n := 0
		for range 10 {
			if claim := dueAlert(t, s); claim != nil {
				n++
			}
			time.Sleep(2 * time.Minute)
		}
		sends, err := s.Alerts().Sends(t.Context(), c.ID, 1)
		if err != nil || n != webhook.MaxAttempts || sends[0].Status != webhook.StatusFailed {
			t.Errorf("got %d attempts, %+v, %v", n, sends, err)
		}
	})
}

// A change keeps the kind and secret of a channel. Its URL and secret are encrypted, and a key
// rotation re-encrypts them.
func TestChannelsAreEncrypted(t *testing.T) {
	s := open(t)
	hook := createChannel(t, s, channel(webhook.ChannelWebhook, webhook.AlertFailing))
	createChannel(t, s, channel(webhook.ChannelEmail, webhook.AlertFailing))
	if len(hook.Secret) == 0 {
		t.Error("a webhook has no signing secret")
	}
	changed := hook
	changed.Name, changed.URL, changed.Kind, changed.Secret, changed.Active = "other", "https://hooks.example/canary/2",
		webhook.ChannelSlack, nil, false
	mustWrite(t, s, func(w Write) error { return w.Channels().Update(changed) })
	got, err := s.Alerts().Channel(t.Context(), hook.ID)
	must(t, err)
	if got.Name != "other" || got.URL != changed.URL || got.Kind != webhook.ChannelWebhook || !bytes.Equal(got.Secret, hook.Secret) ||
		got.Active || got.Target() != "https://hooks.example/…" {
		t.Errorf("got %+v", got)
	}
	err = s.db.Each(t.Context(), "SELECT target FROM alert_channels", nil, func(scan func(...any) error) error {
		var target []byte
		err := scan(&target)
		if bytes.Contains(target, []byte("canary")) {
			t.Errorf("%q is stored unencrypted", target)
		}
		return err
	})
	must(t, err)
	r, err := s.RotateKey(t.Context())
	if err != nil || r.AlertChannels != 2 {
		t.Errorf("rotation: got %+v, %v", r, err)
	}
	if all, err := s.Alerts().Channels(t.Context()); err != nil || len(all) != 2 || all[0].URL != changed.URL {
		t.Errorf("after the rotation: got %+v, %v", all, err)
	}
	for n := 2; n < webhook.MaxChannels; n++ {
		createChannel(t, s, channel(webhook.ChannelSlack, webhook.AlertFailing))
	}
	err = s.Write(t.Context(), func(w Write) error {
		_, err := w.Channels().Create(channel(webhook.ChannelSlack, webhook.AlertFailing))
		return err
	})
	wantCode(t, err, webhook.CodeInvalid)
}

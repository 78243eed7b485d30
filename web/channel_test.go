package web

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"service/store/record"
	"service/webhook"
)

// Forms create, test, change and delete a channel. The pages show its URL and its secret at most
// once, and the audit log contains neither.
func TestChannelPages(t *testing.T) {
	v, w := startSignedIn(t, func(cfg *Config) { cfg.Email = true })
	v.do("GET", "/alerts").want(t, 200, "No alert channels yet.")
	v.do("GET", "/alerts/new").want(t, 200, "Slack-compatible webhook")
	v.send("/alerts/new", "name", "", "kind", "slack", "url", "http://hooks.example/").want(t, 422, "must have at least one alert")
	v.send("/alerts/new", "name", "x", "kind", "email", "to", "no-address", "alert", "subscription_failing").want(t, 422,
		"must be an email address")

	made := v.send("/alerts/new", "name", "On call", "kind", "webhook", "url", "https://hooks.example/canary", "alert", "events_lost")
	made.want(t, 200, "Copy the signing secret now:")
	secret := regexp.MustCompile(`whsec_[A-Za-z0-9+/]{43}=`).FindString(made.body)
	if secret == "" {
		t.Fatalf("the page has no secret:\n%s", made.body)
	}
	path := regexp.MustCompile(`/alerts/[0-9a-f-]{36}`).FindString(made.body)
	shown := func(path string, texts ...string) {
		t.Helper()
		p := v.do("GET", path)
		p.want(t, 200, texts...)
		p.hasNot(t, "canary", secret)
	}
	shown(path, "https://hooks.example/…", "Send test alert", "No alerts sent yet.", "Events lost")
	shown("/alerts", "On call", "Events lost")
	sendAlerts(t, w)
	tested := v.send(path + "/test")
	tested.want(t, 303, "")
	shown(tested.Header.Get("Location"), `<div id="tested" role="status">`, "On call: test alert sent (200 OK)")
	shown(path, ">Test", "200 OK", "1 of 5 attempts")
	v.do("GET", path).hasNot(t, "test alert sent")
	shown("/alerts", `hx-post="`+path+`/test"`, `<div id="tested" role="status">`)
	shown(path+"/edit", "Leave empty to keep it.")
	v.send(path+"/edit", "name", "Night shift", "alert", "subscription_failing").want(t, 303, "") // paused: the box is unchecked
	shown("/alerts", "Night shift", "paused")
	id := strings.TrimPrefix(path, "/alerts/")
	c, err := w.store.Alerts().Channel(t.Context(), id)
	if err != nil || c.URL != "https://hooks.example/canary" || c.Secret.Reveal() != secret || c.Active || len(c.Alerts) != 1 {
		t.Errorf("it is %+v, %v", c, err)
	}
	v.send("/alerts/new", "name", "Mail", "kind", "email", "to", "Ana@operator.example, bo@operator.example", "alert",
		"subscription_failing").want(t, 303, "")
	shown("/alerts", "ana@operator.example, bo@operator.example")
	v.do("GET", path+"/delete").want(t, 200, "Delete channel")
	v.send(path+"/delete").want(t, 303, "")
	v.do("GET", path).want(t, 404, "")
	shown("/audit", "Create alert channel", "Edit alert channel", "Test alert channel", "Delete alert channel")
}

// sendAlerts sends the alerts that are queued from now on, as the dispatcher does. Every receiver
// accepts them.
func sendAlerts(t *testing.T, w *Web) {
	t.Helper()
	watch, ended := w.store.Watch(), make(chan struct{})
	t.Cleanup(func() { <-ended; watch.Close() })
	go func() {
		defer close(ended)
		for {
			select {
			case <-t.Context().Done():
				return
			case <-watch.C:
			}
			if !watch.Take().Alerts {
				continue
			}
			queues, _ := w.store.Alerts().Queues(t.Context())
			for channel := range queues {
				c, err := w.store.Alerts().Claim(channel, "", time.Minute)
				if err != nil || c == nil {
					continue
				}
				err = w.store.Alerts().Record(c, &webhook.Attempt{Number: 1, StartedAt: time.Now(), ResponseStatus: 200, Result: webhook.ResultSuccess},
					webhook.Step{Status: webhook.StatusSuccess})
				if err != nil {
					t.Error(err)
				}
			}
		}
	}()
}

// The list says to how many channels an alert was sent.
func TestAlertSent(t *testing.T) {
	for _, test := range []struct {
		alert record.Alert
		want  string
	}{
		{record.Alert{Status: record.AlertUnsent}, "no channel"},
		{record.Alert{Status: webhook.StatusSuccess, Channels: 2, Sent: 2}, "sent to 2 channels"},
		{record.Alert{Status: webhook.StatusSuccess, Channels: 2, Sent: 1}, "sent to 1 of 2 channels"},
		{record.Alert{Status: webhook.StatusFailed, Channels: 1}, "not sent to 1 channel"},
		{record.Alert{Status: webhook.StatusRetryable, Channels: 1, NextAttemptAt: testNow.Add(time.Minute)}, "retrying, next in 1 min"},
		{record.Alert{Status: webhook.StatusPending, Channels: 3}, "sending to 3 channels"},
	} {
		if got := alertSent(&test.alert, testNow); got != test.want {
			t.Errorf("%+v: got %q, want %q", test.alert, got, test.want)
		}
	}
}

// Without a mail server no email channel can be created, and the page explains why.
func TestChannelWithoutMailServer(t *testing.T) {
	v, _ := startSignedIn(t, func(cfg *Config) { cfg.AlertURL = true })
	v.do("GET", "/alerts").want(t, 200, "--smtp-host", "Set by a flag, read-only here")
	v.send("/alerts/new", "name", "Mail", "kind", "email", "to", "ana@operator.example", "alert", "subscription_failing").want(t, 422,
		"needs an SMTP server")
}

package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"service/store"
	"service/webhook"
)

// alert is an alert event with the fields that the tests read.
type alert struct {
	Name         string
	Action       string
	Subscription struct{ ID, URL, Status string }
	FailingSince string `json:"failing_since"`
	HTMLURL      string `json:"html_url"`
	Failures     int
	LastAttempt  struct {
		ResponseStatus int `json:"response_status"`
	} `json:"last_attempt"`
}

// alertReceiver is the operator's server. It refuses the first request.
type alertReceiver struct {
	t      *testing.T
	secret webhook.SigningSecret

	mu               sync.Mutex
	requests, signed int // signed counts accepted requests with a valid signature
	alerts           []alert
}

func (o *alertReceiver) serve(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var d struct {
		DeliveryID string `json:"delivery_id"`
		Events     []alert
	}
	if err = errors.Join(err, json.Unmarshal(body, &d)); err != nil || len(d.Events) != 1 {
		o.t.Errorf("got alert %q (%v), want a delivery with one event", body, err)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.requests++; o.requests == 1 {
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	at, err := strconv.ParseInt(r.Header.Get("webhook-timestamp"), 10, 64)
	if err == nil && r.Header.Get("webhook-signature") == o.secret.Sign(d.DeliveryID, time.Unix(at, 0), body) {
		o.signed++
	}
	o.alerts = append(o.alerts, d.Events[0])
}

// names returns the names of the accepted alerts.
func (o *alertReceiver) names() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.alerts {
		all = append(all, e.Name)
	}
	return all
}

// The operator gets one signed alert, with the last response, when a subscription
// starts to fail, recovers, and is disabled. Alerts are retried while the
// operator's server fails, which causes no further alert.
func TestAlerts(t *testing.T) {
	secret := webhook.NewSigningSecret()
	cfg := Config{
		RetryPolicy: exactRetryPolicy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 3, DisableAfter: time.Hour},
		// The address of the first receiver: the operator's server is created
		// first.
		Alerts: &AlertTarget{URL: "http://10.0.0.0/alerts", Secret: secret}, BaseURL: "https://service.example",
	}
	runInBubble(t, cfg, func(w *testbed) {
		operator := &alertReceiver{t: t, secret: secret}
		w.subscriber(nil).handler = operator.serve
		failing := statusSwitch{code: http.StatusBadGateway}
		r := w.subscriber(failing.respond)
		sub := w.subscribe(r, func(f *webhook.SubscriptionFields) { f.URL = new(r.url + "?token=canary") })

		failing.Store(true)
		w.publish("content_updated")
		time.Sleep(40 * time.Minute)
		if got := operator.names(); !slices.Equal(got, []string{"subscription_failing"}) || operator.requests != 2 || operator.signed != 1 {
			t.Errorf("got %v in %d requests, %d with a valid signature; want subscription_failing, at the second request",
				got, operator.requests, operator.signed)
		}
		first := operator.alerts[0]
		if first.Subscription.ID != sub.ID || first.Subscription.URL != r.url || first.Subscription.Status != "failing" || first.Failures != 3 ||
			first.LastAttempt.ResponseStatus != http.StatusBadGateway || first.FailingSince == "" || first.Action == "" ||
			first.HTMLURL != "https://service.example/subscriptions/"+sub.ID {
			t.Errorf("got alert %+v, want the subscription with its page, 3 failures and the 502", first)
		}
		failing.Store(false)
		time.Sleep(10 * time.Minute)
		w.publish("content_updated")
		time.Sleep(3 * time.Hour)
		failing.Store(true)
		w.publishEvery(20*time.Minute, 10, "content_updated")
		time.Sleep(10 * time.Hour)
		if got, want := operator.names(), []string{"subscription_failing",
			"subscription_recovered", "subscription_failing", "subscription_disabled"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// channel creates a channel for all alerts.
func (w *testbed) channel(kind webhook.ChannelKind, url string) (c webhook.AlertChannel) {
	w.t.Helper()
	err := w.d.store.Write(context.Background(), func(sw store.Write) (err error) {
		c, err = sw.Channels().Create(webhook.AlertChannel{Kind: kind, Name: "c", URL: url, Alerts: webhook.AlertNames(), Active: true})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// Alerts go to the channels in the store: signed to a webhook, as text to Slack.
// The egress guard applies to them.
func TestAlertChannels(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 1},
		BaseURL: "https://service.example"}, func(w *testbed) {
		var mu sync.Mutex
		bodies := make(map[string][]string)
		signatures := make(map[string]string)
		receive := func(name string) *subscriber {
			s := w.subscriber(nil)
			s.handler = func(_ http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				bodies[name] = append(bodies[name], string(body))
				signatures[name] = r.Header.Get("webhook-signature")
			}
			return s
		}
		w.channel(webhook.ChannelWebhook, receive("webhook").url)
		w.channel(webhook.ChannelSlack, receive("slack").url)
		inside := w.channel(webhook.ChannelSlack, "http://169.254.169.254/")
		email := w.channel(webhook.ChannelEmail, "")
		w.subscribe(w.subscriber(respondWith(500)), nil)
		w.publishEvery(time.Minute, 3, "content_updated")
		mu.Lock()
		defer mu.Unlock()
		if len(bodies["webhook"]) != 1 || !strings.Contains(bodies["webhook"][0], `"name":"subscription_failing"`) ||
			!strings.HasPrefix(signatures["webhook"], "v1,") {
			t.Errorf("got %q signed %q at the webhook, want one signed subscription_failing", bodies["webhook"], signatures["webhook"])
		}
		if len(bodies["slack"]) != 1 || !strings.Contains(bodies["slack"][0], `{"text":"*`) ||
			!strings.Contains(bodies["slack"][0], "https://service.example/subscriptions/") {
			t.Errorf("got %q at Slack, want one text with a link", bodies["slack"])
		}
		for _, c := range []struct {
			id   string
			want webhook.ErrorCode
		}{{inside.ID, webhook.ErrorBlocked}, {email.ID, webhook.ErrorConnect}} {
			sends, err := w.d.store.Alerts().Sends(context.Background(), c.id, 10)
			if err != nil || len(sends) != 1 || sends[0].Error != c.want {
				t.Errorf("got %+v (%v), want 1 attempt with error %s", sends, err, c.want)
			}
		}
	})
}

// An alert is sent at most five times to a server that always fails, and its failure causes
// no further alert.
func TestAlertsAreNotRecursive(t *testing.T) {
	cfg := Config{
		RetryPolicy: exactRetryPolicy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 1},
		Alerts: &AlertTarget{URL: "http://10.0.0.0/alerts", Secret: webhook.NewSigningSecret()},
	}
	runInBubble(t, cfg, func(w *testbed) {
		operator := w.subscriber(respondWith(500))
		w.subscribe(w.subscriber(respondWith(500)), nil)
		w.publishEvery(time.Minute, 3, "content_updated")
		time.Sleep(24 * time.Hour)
		if n := len(operator.all()); n != webhook.MaxAttempts {
			t.Errorf("got %d requests at the operator's server, want %d", n, webhook.MaxAttempts)
		}
		if n := w.d.store.Alerts().Count(webhook.AlertFailing); n != 1 {
			t.Errorf("got %d alerts, want 1", n)
		}
	})
}

// Each channel has its own queue: a hanging channel delays only itself and gets one alert at a
// time. A failure and its end reach a channel in order.
func TestAlertChannelThatHangs(t *testing.T) {
	const subscriptions = 12
	cfg := Config{RetryPolicy: exactRetryPolicy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: 1},
		Alerts: &AlertTarget{URL: "http://10.0.0.0/alerts", Secret: webhook.NewSigningSecret()}}
	runInBubble(t, cfg, func(w *testbed) {
		hanging := w.subscriber(hang)
		quick := &alertReceiver{t: t}
		quick.requests++ // it refuses no request
		r := w.subscriber(nil)
		r.handler = quick.serve
		w.channel(webhook.ChannelWebhook, r.url)
		refused := statusSwitch{code: http.StatusInternalServerError}
		refused.Store(true)
		for range subscriptions {
			w.subscribe(w.subscriber(refused.respond), nil)
		}
		for range 3 {
			time.Sleep(time.Minute)
			w.publish("content_updated")
		}
		time.Sleep(time.Second)
		if got := quick.names(); len(got) != subscriptions {
			t.Errorf("after a second the quick channel has %d alerts, want %d", len(got), subscriptions)
		}
		time.Sleep(75 * time.Second)
		hanging.wantOneByOne(t)
		refused.Store(false)
		time.Sleep(3 * time.Hour)
		quick.wantOrder(subscriptions)
	})
}

// wantOneByOne checks that a server whose requests hang for 10 s got them one at a time, after the
// first ones.
func (r *subscriber) wantOneByOne(t *testing.T) {
	t.Helper()
	requests := r.all()
	for i := maxAlerts + 1; i < len(requests); i++ {
		if requests[i].at.Sub(requests[i-1].at) < 10*time.Second {
			t.Errorf("got request %d at %s, after one at %s", i, requests[i].at, requests[i-1].at)
		}
	}
	if len(requests) < 2*maxAlerts {
		t.Errorf("got %d requests, want at least %d", len(requests), 2*maxAlerts)
	}
}

// wantOrder checks that the operator got the failure of each subscription, and then its end.
func (o *alertReceiver) wantOrder(subscriptions int) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	begun := make(map[string]bool)
	for _, a := range o.alerts {
		if failing := a.Name == string(webhook.AlertFailing); failing == begun[a.Subscription.ID] {
			o.t.Errorf("got %s of a subscription out of order", a.Name)
		}
		begun[a.Subscription.ID] = true
	}
	if len(o.alerts) != 2*subscriptions {
		o.t.Errorf("got %d alerts, want the failure and its end of %d subscriptions", len(o.alerts), subscriptions)
	}
}

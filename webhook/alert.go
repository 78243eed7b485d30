package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// AlertName is the kind of an alert.
type AlertName string

const (
	AlertFailing   AlertName = "subscription_failing"   // its circuit breaker has opened
	AlertRecovered AlertName = "subscription_recovered" // its circuit breaker has closed
	AlertDisabled  AlertName = "subscription_disabled"  // it was failing for too long
	AlertFailed    AlertName = "events_failed"          // events failed permanently although its circuit breaker is closed
	AlertLost      AlertName = "events_lost"            // retention removed events that it had not received
)

// AlertNames returns every alert name that a subscription can cause.
func AlertNames() []AlertName {
	return []AlertName{AlertFailing, AlertRecovered, AlertDisabled, AlertFailed, AlertLost}
}

var alertTexts = map[AlertName]struct{ message, action string }{
	AlertFailing: {
		"The circuit breaker is open: several attempts in a row have failed. " +
			"New events wait, and only probes are sent, to test whether the endpoint works again. No event is lost within the retention period.",
		"Check the last response and contact the partner, whose endpoint must respond with 2xx. Press Probe now on the " +
			"subscription's page to test it. Delivery resumes after the first success.",
	},
	AlertRecovered: {
		"The circuit breaker has closed: the endpoint accepts deliveries again. The events that waited are being sent.",
		"No action is needed.",
	},
	AlertDisabled: {
		"The subscription was disabled after failing for too long. Events published from now on are not delivered to it.",
		"When the endpoint works again, resume the subscription (set active to true) and replay the missed events.",
	},
	AlertFailed: {
		"Events failed for good: the endpoint refused each of them by itself, or did not accept it in 5 attempts. Other events are delivered.",
		"Check the last response with the partner. Resend the failed events on the subscription's page once the endpoint accepts them.",
	},
	AlertLost: {
		"Events that waited for the subscription were older than the retention period and were removed. They will not be delivered.",
		"Tell the partner which events are missing, and publish them again if your platform still has them. " +
			"A longer --retention keeps waiting events for longer.",
	},
}

// Alert is a message to the operator about a subscription.
type Alert struct {
	ID           string
	Name         AlertName
	At           time.Time
	Subscription Subscription
	Failures     Failures // at the time of the alert

	DeliveryID string    // of Attempt, "" for none
	Attempt    *Attempt  // the last attempt, or nil
	ResendFrom time.Time // acceptance of the oldest event that is left to resend, for AlertRecovered; zero for none
	Failed     int64     // events of the incident that failed and were not delivered since, for AlertFailed
	Lost       int64     // events lost so far, for AlertLost
	LostBefore time.Time
}

// alertJSON is an alert in JSON: an event like any other.
type alertJSON struct {
	ID           string `json:"id"`
	Timestamp    string `json:"timestamp"`
	Name         string `json:"name"`
	Version      string `json:"version"`
	Message      string `json:"message"`
	Action       string `json:"action"`
	Subscription struct {
		ID             string  `json:"id"`
		URL            string  `json:"url"`
		Description    string  `json:"description"`
		Active         bool    `json:"active"`
		Status         Health  `json:"status"`
		DisabledReason *string `json:"disabled_reason"`
	} `json:"subscription"`
	Failures      int               `json:"failures"`
	FailingReason *FailingReason    `json:"failing_reason"`
	FailingSince  *string           `json:"failing_since"`
	ResendFrom    *string           `json:"resend_from,omitempty"`
	LastAttempt   *alertAttemptJSON `json:"last_attempt"`
	FailedEvents  *int64            `json:"failed_events,omitempty"`
	LostEvents    *int64            `json:"lost_events,omitempty"`
	LostBefore    *string           `json:"lost_before,omitempty"`
}

type alertAttemptJSON struct {
	DeliveryID     string          `json:"delivery_id"`
	Number         int             `json:"number"`
	StartedAt      string          `json:"started_at"`
	DurationMS     int64           `json:"duration_ms"`
	Result         Result          `json:"result"`
	ResponseStatus *int            `json:"response_status"`
	Error          *alertErrorJSON `json:"error"`
}

type alertErrorJSON struct {
	Code   ErrorCode `json:"code"`
	Detail string    `json:"detail"`
}

// JSON returns the alert as the one event of a delivery. The query of the
// subscription's URL is omitted, since partners put credentials there.
func (a *Alert) JSON() ([]byte, error) {
	text := alertTexts[a.Name]
	j := alertJSON{
		ID: a.ID, Timestamp: FormatTime(a.At), Name: string(a.Name), Version: EventVersion,
		Message: text.message, Action: text.action, Failures: a.Failures.InARow(),
	}
	s := &a.Subscription
	j.Subscription.ID, j.Subscription.URL, j.Subscription.Description = s.ID, WithoutQuery(s.URL), s.Description
	j.Subscription.Active, j.Subscription.Status = s.Active, s.Status
	j.Subscription.DisabledReason = OrNull(s.DisabledReason)
	if !a.Failures.Since.IsZero() {
		j.FailingSince, j.FailingReason = new(FormatTime(a.Failures.Since)), &a.Failures.Reason
	}
	if !a.ResendFrom.IsZero() {
		at := FormatTime(a.ResendFrom)
		j.ResendFrom, j.Action = &at, `Events failed for good before. Resend them on the subscription's page, or with `+
			`POST /v2/webhooks/subscriptions/`+s.ID+`/replays and {"only": "failed", "from": "`+at+`"}.`
	}
	if t := a.Attempt; t != nil {
		j.LastAttempt = &alertAttemptJSON{
			DeliveryID: a.DeliveryID, Number: t.Number, StartedAt: FormatTime(t.StartedAt), DurationMS: t.Duration.Milliseconds(), Result: t.Result,
		}
		j.LastAttempt.ResponseStatus = OrNull(t.ResponseStatus)
		if t.Error != ErrorNone {
			j.LastAttempt.Error = &alertErrorJSON{t.Error, t.Error.Detail()}
		}
	}
	switch a.Name {
	case AlertFailed:
		j.FailedEvents = &a.Failed
	case AlertLost:
		j.LostEvents, j.LostBefore = &a.Lost, new(FormatTime(a.LostBefore))
	}
	return json.Marshal(j)
}

// page returns the URL of the admin page to open, "" for a test alert and if baseURL is "".
func (j *alertJSON) page(baseURL string) string {
	if baseURL == "" || j.Subscription.ID == "" {
		return ""
	}
	return baseURL + "/subscriptions/" + j.Subscription.ID
}

// LinkAlert adds html_url, the URL of the admin page to open, to the JSON of an alert. baseURL
// is the URL of the admin UI, "" for no link. An alert is stored without the link, since it may
// move to another installation.
func LinkAlert(raw []byte, baseURL string) ([]byte, error) {
	var j alertJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return nil, err
	}
	page := j.page(baseURL)
	if page == "" {
		return raw, nil
	}
	link, err := json.Marshal(page)
	return fmt.Appendf(nil, `%s,"html_url":%s}`, bytes.TrimSuffix(raw, []byte("}")), link), err
}

// Summary describes the alert in a few words, for a log and a list.
func (a *Alert) Summary() string {
	switch a.Name {
	case AlertFailing:
		if a.Failures.Reason == FailingRejecting {
			return "subscription is failing: its endpoint rejects deliveries"
		}
		return "subscription is failing: its endpoint responds with 5xx or not at all"
	case AlertRecovered:
		return "subscription has recovered"
	case AlertDisabled:
		return "subscription was disabled"
	case AlertFailed:
		return "events of a subscription that is not failing failed for good: " + strconv.FormatInt(a.Failed, 10)
	}
	return "subscription lost " + strconv.FormatInt(a.Lost, 10) + " events to retention so far"
}

// WithoutQuery returns a URL without its query, fragment and user, which may be
// secret.
func WithoutQuery(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return u.String()
}

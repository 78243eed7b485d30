package web

import (
	"strconv"
	"time"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// alertState returns the state that sets an alert's color and symbol, and its name for display.
func alertState(a *record.Alert) (state webhook.Status, label string) {
	switch a.Name {
	case webhook.AlertFailing:
		return webhook.StatusRetryable, "Failing"
	case webhook.AlertRecovered:
		return webhook.StatusSuccess, "Recovered"
	case webhook.AlertDisabled:
		return webhook.StatusFailed, "Disabled"
	case webhook.AlertFailed:
		return webhook.StatusFailed, "Events failed"
	case webhook.AlertLost:
		return webhook.StatusFailed, "Events lost"
	}
	return webhook.StatusPending, ui.Words(string(a.Name))
}

// alertPath returns the path of the page that an alert is about.
func alertPath(a *record.Alert) string {
	if a.IncidentID != "" {
		return incidentPath(a.IncidentID)
	}
	return subscriptionPath(a.SubscriptionID)
}

// alertResponse describes an alert's subject in a few words: the response of the attempt before it,
// or how many events were lost; "" for neither.
func alertResponse(a *record.Alert) string {
	switch {
	case a.Name == webhook.AlertLost:
		return eventCount(a.LostEvents)
	case a.Error == webhook.ErrorNone && a.ResponseStatus == 0:
		return ""
	}
	return attemptOutcome(&webhook.Attempt{ResponseStatus: a.ResponseStatus, Error: a.Error})
}

// alertSent says to how many channels an alert was sent.
func alertSent(a *record.Alert, now time.Time) string {
	channels := webhook.Count(a.Channels, "channel")
	switch {
	case a.Channels == 0:
		return "no channel"
	case a.Sent == a.Channels:
		return "sent to " + channels
	case a.Sent > 0:
		return "sent to " + strconv.Itoa(a.Sent) + " of " + channels
	case a.Status == webhook.StatusFailed:
		return "not sent to " + channels
	case a.Status == webhook.StatusRetryable && !a.NextAttemptAt.IsZero():
		return "retrying, next " + ui.Until(a.NextAttemptAt, now)
	}
	return "sending to " + channels
}

// sentWord says whether an alert was sent.
func sentWord(s webhook.Status) string {
	switch s {
	case webhook.StatusSuccess:
		return "sent"
	case webhook.StatusFailed, record.AlertUnsent:
		return "not sent"
	case webhook.StatusRetryable:
		return "retrying"
	}
	return "sending"
}

// alertBadge is the state that sets the color and symbol of an alert's sending.
func alertBadge(s webhook.Status) string {
	if s == record.AlertUnsent {
		return string(webhook.StatusPending)
	}
	return string(s)
}

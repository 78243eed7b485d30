package web

import (
	"strconv"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// alertState returns the state whose color and symbol an alert has, and its name for display.
func alertState(a *store.Alert) (state webhook.Status, label string) {
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

// alertDelivery gives details of the sending of an alert that its status does not show.
func alertDelivery(a *store.Alert, now time.Time) string {
	made := strconv.Itoa(a.AttemptsMade) + "/" + strconv.Itoa(webhook.MaxAttempts)
	switch a.Status {
	case webhook.StatusFailed:
		return "after " + made + " attempts"
	case webhook.StatusRetryable:
		return made + " attempts, next " + ui.Until(a.NextAttemptAt, now)
	case store.AlertUnsent:
		return "no channel"
	}
	return ""
}

// sentWord says whether an alert was sent.
func sentWord(s webhook.Status) string {
	switch s {
	case webhook.StatusSuccess:
		return "sent"
	case webhook.StatusFailed, store.AlertUnsent:
		return "not sent"
	case webhook.StatusRetryable:
		return "retrying"
	}
	return "sending"
}

// alertBadge is the state whose color and symbol the sending of an alert has.
func alertBadge(s webhook.Status) string {
	if s == store.AlertUnsent {
		return string(webhook.StatusPending)
	}
	return string(s)
}

package web

import (
	"strconv"

	"service/web/ui"
	"service/webhook"
)

// deliveryRow is a delivery with the data of its subscription and last attempt, as lists show it.
type deliveryRow struct {
	webhook.Delivery
	url  string           // of its subscription
	name string           // its description, "" for none
	last *webhook.Attempt // the last attempt with a result, nil for none
}

// stateOf returns the state that sets a delivery's color, symbol and word. A failed delivery whose
// events are being sent again counts as retrying.
func stateOf(d *webhook.Delivery) string {
	if d.Splitting {
		return string(webhook.StatusRetryable)
	}
	return string(d.Status)
}

// deliveryNoteOf adds a word or two to the status of a delivery, and details for a title; "" if the
// status says everything.
func deliveryNoteOf(d *webhook.Delivery, forPartner bool) (short, long string) {
	switch {
	case d.Splitting:
		return "events sent one by one", splittingText
	case !d.RecoveredAt.IsZero():
		return "recovered", recoveredText
	case d.FailureReason == webhook.FailureAttemptsExhausted:
		return "no attempts left", failureText(d.FailureReason, forPartner)
	case d.FailureReason != webhook.FailureNone:
		return ui.Words(string(d.FailureReason)), failureText(d.FailureReason, forPartner)
	case d.Status != webhook.StatusPending:
		return "", ""
	case d.NextAttemptAt.IsZero():
		return "being sent", ""
	default:
		return "not sent yet", ""
	}
}

const (
	splittingText = "Its events are being sent again one by one, so that an event that the endpoint refuses takes no others with it."
	recoveredText = "All of its events have been delivered another way."
)

// failureText says why a delivery failed permanently, "" for a reason that needs no
// explanation.
func failureText(r webhook.FailureReason, forPartner bool) string {
	switch r {
	case webhook.FailureAttemptsExhausted:
		return "All " + strconv.Itoa(webhook.MaxAttempts) + " attempts failed. The delivery is not retried automatically."
	case webhook.FailureRejected:
		return "The endpoint rejected the delivery. Of the error statuses, only 5xx is retried."
	case webhook.FailureBlocked:
		if forPartner {
			return "The URL resolves to an address that is not allowed, such as a private one."
		}
		return "The URL resolves to an address that is not allowed. Permit it with --allow-destination."
	case webhook.FailureSubscriptionDeleted:
		return "The subscription was deleted before it could be delivered."
	case webhook.FailureUnsubscribed:
		return "The subscription no longer requests one of its event types. Its other events are sent again."
	case webhook.FailureExpired:
		return "Its events became older than the retention period before they could be delivered."
	}
	return ""
}

// names returns the name of the first event, and text about the others.
func (d *deliveryRow) names() (first, rest string) {
	if len(d.Events) == 0 {
		return "", ""
	}
	first = d.Events[0].Name
	if len(d.Events) == 1 {
		return first, ""
	}
	return first, "and " + strconv.Itoa(len(d.Events)-1) + " more"
}

// eventTypes returns the distinct event types, each with its count, in the order of the delivery.
func (d *deliveryRow) eventTypes() []string {
	var names []string
	count := make(map[string]int)
	for _, e := range d.Events {
		if count[e.Name]++; count[e.Name] == 1 {
			names = append(names, e.Name)
		}
	}
	for i, name := range names {
		if n := count[name]; n > 1 {
			names[i] = name + " ×" + strconv.Itoa(n)
		}
	}
	return names
}

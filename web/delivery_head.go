package web

import (
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"service/web/ui"
	"service/webhook"
)

// reason explains in a few words why an attempt failed: 401 Unauthorized, or the details of its
// error.
func reason(a *webhook.Attempt) string {
	host, text := hostOf(a.URL), ""
	switch a.Error {
	case webhook.ErrorNone:
		return outcomeText(a)
	case webhook.ErrorDNS:
		text = "DNS lookup of " + host + " failed"
	case webhook.ErrorConnect:
		text = "connection to " + host + " failed"
	case webhook.ErrorTLS:
		text = "TLS handshake with " + host + " failed"
	case webhook.ErrorTimeout:
		text = "timeout"
	case webhook.ErrorBlocked:
		text = "delivery to " + host + " is blocked"
	case webhook.ErrorProtocol:
		text = "invalid HTTP response"
	case webhook.ErrorInterrupted:
		text = "interrupted by the service"
	}
	if a.ErrorFact != "" {
		text += " (" + a.ErrorFact + ")"
	}
	return text
}

// host returns the host of the subscription's URL, without its port.
func (d *deliveryRecord) host() string { return hostOf(d.Subscription.URL) }

// hostOf returns the host of a URL, without its port.
func hostOf(raw string) string {
	if u, err := url.Parse(raw); err == nil && u.Hostname() != "" {
		return u.Hostname()
	}
	return "the host"
}

// sentence describes the result of the delivery so far, and why. It escapes text from outside.
func (d *deliveryRecord) sentence() string {
	of := strconv.Itoa(webhook.MaxAttempts)
	why := ""
	if n := len(d.attempts); n > 0 {
		why = ui.Visible(reason(&d.attempts[n-1].Attempt))
	}
	attempts := strconv.Itoa(d.AttemptsMade) + " of " + of + " attempts"
	switch {
	case d.Status == webhook.StatusSuccess:
		return "Delivered: " + why + " on attempt " + strconv.Itoa(d.AttemptsMade) + " of " + of
	case d.Splitting:
		return "Retrying: " + why + ", its events are sent one by one, " + d.deliveredOrErased()
	case d.Status.Final():
		switch d.FailureReason {
		case webhook.FailureCancelled:
			return "Cancelled after " + webhook.Count(d.AttemptsMade, "attempt")
		case webhook.FailureSubscriptionDeleted:
			return "Failed: the subscription was deleted, " + attempts
		case webhook.FailureExpired:
			return "Failed: older than the retention period, " + attempts
		}
		return "Failed: " + why + ", " + attempts
	case !d.ClaimedAt.IsZero():
		return "Sending: attempt " + strconv.Itoa(d.AttemptsMade) + " of " + of + " is in flight"
	case d.AttemptsMade == 0:
		return "Waiting for the first attempt"
	}
	return "Retrying: " + why + ", " + attempts
}

// ladderStep is a step of the ladder of attempts: an attempt, or the last of several consecutive
// attempts with the same outcome.
type ladderStep struct {
	*attemptRecord
	first int // number of the step's first attempt
}

// numbers are the numbers of the attempts of a step: 3, or 1–3.
func (s *ladderStep) numbers() string {
	if s.first == s.Number {
		return strconv.Itoa(s.Number)
	}
	return strconv.Itoa(s.first) + "–" + strconv.Itoa(s.Number)
}

// ladder returns the attempts, the oldest first. Consecutive attempts with the same outcome form
// one step, unless the visitor has selected one of them.
func (d *deliveryRecord) ladder() (steps []ladderStep) {
	for i := 0; i < len(d.attempts); {
		next := i + 1
		for next < len(d.attempts) && sameOutcome(&d.attempts[next-1].Attempt, &d.attempts[next].Attempt) {
			next++
		}
		group := d.attempts[i:next]
		first, last := group[0].Number, &group[len(group)-1]
		if d.chosen && first <= d.selected.Number && d.selected.Number <= last.Number {
			for k := range group {
				steps = append(steps, ladderStep{&group[k], group[k].Number})
			}
		} else {
			steps = append(steps, ladderStep{last, first})
		}
		i = next
	}
	return steps
}

// inFlight reports whether an attempt is in flight.
func (d *deliveryRecord) inFlight() bool { return !d.ClaimedAt.IsZero() }

// selectAttempt selects the attempt to show, by its number; "" selects the last one. Its error is a
// *webhook.Error.
func (d *deliveryRecord) selectAttempt(number string) error {
	if n := len(d.attempts); number == "" && n > 0 {
		d.selected = &d.attempts[n-1]
	}
	for i := range d.attempts {
		if strconv.Itoa(d.attempts[i].Number) == number {
			d.selected, d.chosen = &d.attempts[i], true
		}
	}
	if number != "" && !d.chosen {
		return webhook.NotFound("attempt")
	}
	return nil
}

// recoveredBy returns the ID of the delivery that recovered this one, "" if it is unknown or if
// several deliveries did.
func (d *deliveryRecord) recoveredBy() string {
	for i := len(d.Redeliveries) - 1; i >= 0; i-- {
		if d.Redeliveries[i].Status == webhook.StatusSuccess {
			return d.Redeliveries[i].ID
		}
	}
	return d.RecoveredBy
}

// sameOutcome reports whether two attempts have the same outcome. The detail of an error may name
// a time, which differs: only the text before its first digit is compared.
func sameOutcome(a, b *webhook.Attempt) bool {
	kind := func(fact string) string {
		if i := strings.IndexFunc(fact, unicode.IsDigit); i >= 0 {
			return fact[:i]
		}
		return fact
	}
	return outcomeText(a) == outcomeText(b) && kind(a.ErrorFact) == kind(b.ErrorFact)
}

// bodyChange describes how the body of a response differs from the previous one.
func bodyChange(before, after *webhook.Attempt) string {
	switch a, b := string(before.ResponseBody), string(after.ResponseBody); {
	case a == b && before.ResponseTruncated == after.ResponseTruncated:
		return ""
	case a == "":
		return "The body was empty and now has " + ui.ByteSize(int64(len(b))) + "."
	case b == "":
		return "The body had " + ui.ByteSize(int64(len(a))) + " and is now empty."
	default:
		return "The body differs: " + ui.ByteSize(int64(len(a))) + " before, " + ui.ByteSize(int64(len(b))) + " now."
	}
}

// lastAdvice returns the advice for the last attempt, the zero value if there is none or it
// succeeded.
func (d *deliveryRecord) lastAdvice() advice {
	if n := len(d.attempts); n > 0 && d.attempts[n-1].Result != webhook.ResultSuccess {
		return d.attempts[n-1].advice
	}
	return advice{}
}

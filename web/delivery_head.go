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
		return "Retrying: " + why + ", its events are sent one by one, " + d.delivered()
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

// attemptGroup are consecutive attempts with the same outcome.
type attemptGroup struct {
	newest *attemptRecord
	older  []*attemptRecord // the newest first
}

// groups groups consecutive attempts with the same outcome, the newest first.
func (d *deliveryRecord) groups() []attemptGroup {
	var all []attemptGroup
	for i := len(d.attempts) - 1; i >= 0; i-- {
		a := &d.attempts[i]
		if n := len(all); n > 0 && sameOutcome(&all[n-1].newest.Attempt, &a.Attempt) {
			all[n-1].older = append(all[n-1].older, a)
			continue
		}
		all = append(all, attemptGroup{newest: a})
	}
	return all
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

// lastResponse returns the last attempt with a response. The caller checks that d.last is not 0.
func (d *deliveryRecord) lastResponse() *attemptRecord {
	for i := range d.attempts {
		if d.attempts[i].Number == d.last {
			return &d.attempts[i]
		}
	}
	return nil
}

// lastAdvice returns the advice for the last attempt, the zero value when there was none or it
// succeeded.
func (d *deliveryRecord) lastAdvice() advice {
	if n := len(d.attempts); n > 0 && d.attempts[n-1].Result != webhook.ResultSuccess {
		return d.attempts[n-1].advice
	}
	return advice{}
}

package web

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"service/web/ui"
	"service/webhook"
)

// errorChecks describes what a partner should check when an attempt had no usable response.
var errorChecks = map[webhook.ErrorCode]string{
	webhook.ErrorTimeout: "Does the endpoint respond before it processes the request? A response must come within a few seconds.",
	webhook.ErrorDNS:     "Does the host name of the URL resolve in public DNS, to public addresses only?",
	webhook.ErrorConnect: "Is the server running, and do its firewall and its port accept connections from the internet?",
	webhook.ErrorTLS: "Does the endpoint send its intermediate certificate? Is the certificate valid and issued for this host name? " +
		"Does the endpoint accept requests without a client certificate?",
	webhook.ErrorBlocked:  "Does the URL have a public address? Private addresses are not called.",
	webhook.ErrorProtocol: "Does the URL lead to a web server that speaks HTTP/1.1?",
}

// statusChecks describes what a partner should check after a response with a status.
var statusChecks = map[int]string{
	http.StatusUnauthorized: "Does the endpoint use the current signing secret? If you gave us an Authorization header: was the " +
		"credential changed, or did it expire?",
	http.StatusForbidden:        "Do the endpoint's signature check and its firewall accept the request? Was the signing secret changed?",
	http.StatusNotFound:         "Is the path of the URL right, and is the application behind it deployed?",
	http.StatusMethodNotAllowed: "Does the endpoint accept POST at this path?",
	http.StatusGone:             "Was the endpoint moved? Then change the subscription URL.",
	http.StatusRequestEntityTooLarge: "Does the endpoint accept bodies of 100 KB? A single event can have up to 256 KiB. A lower limit " +
		"of events per delivery can be set in the subscription.",
	http.StatusUnsupportedMediaType: "Does the endpoint accept application/json?",
	http.StatusUnprocessableEntity:  "Does the endpoint accept the payload? Its log says what it did not expect.",
	http.StatusTooManyRequests: "Is the rate limit of the endpoint high enough? A lower limit of requests per second can be set in the " +
		"subscription.",
}

// partnerCheck returns what a partner should check after the last failure of an incident.
func partnerCheck(i *webhook.Incident) string { return partnerCheckOf(i.Error, i.ResponseStatus) }

// partnerCheckOf returns what a partner should check after an attempt with an error or a status.
func partnerCheckOf(code webhook.ErrorCode, status int) string {
	if code != webhook.ErrorNone {
		return errorChecks[code]
	}
	if check, ok := statusChecks[status]; ok {
		return check
	}
	switch status / 100 {
	case 3:
		return "Set the subscription URL to the final address."
	case 5:
		return "What does the log of your endpoint say at that time?"
	}
	return "What does the log of your endpoint say at that time? Only a status of 2xx counts as received."
}

// portalAccess is a portal link in a message for a partner.
type portalAccess struct {
	link  string
	role  webhook.PortalRole
	until time.Time
}

// may describes what the partner may do in the portal.
func (a *portalAccess) may() string {
	if a.role == webhook.PortalWrite {
		return "view, change and resend them"
	}
	return "view them"
}

// partnerMessage returns a message from an operator to the partner about an incident, with a portal
// link unless access is nil. Times are UTC. An operator reads and sends it, so it states the cause
// of an error, which the API does not show to partners (docs/decisions/0078).
func partnerMessage(i *webhook.Incident, access *portalAccess) string {
	_, _, whole := webhook.Endpoint(i.URL)
	whole = ui.Visible(strings.TrimSuffix(whole, "?…"))
	var b strings.Builder
	line := func(texts ...string) {
		for _, text := range texts {
			b.WriteString(text)
		}
		b.WriteByte('\n')
	}
	verb := " are failing: "
	if !i.Open() {
		verb = " failed: "
	}
	line("Webhook deliveries to ", whole, verb, incidentResult(i))
	line()
	line("Endpoint:      ", whole)
	line("Subscription:  ", i.SubscriptionID)
	line("Failing since: ", messageTime(i.FirstFailure))
	if !i.LastSuccess.IsZero() {
		line("Last success:  ", messageTime(i.LastSuccess))
	}
	if !i.Open() {
		line("Resolved:      ", messageTime(i.ClosedAt))
	}
	if !i.LastFailure.IsZero() {
		line()
		line("Example:")
		line("  POST ", whole)
		line("  Content-Type: application/json")
		if i.DeliveryID != "" {
			line("  webhook-id: ", i.DeliveryID)
		}
		line("  Time: ", messageTime(i.LastFailure))
		if i.Error != webhook.ErrorNone {
			line("  Result: ", incidentResult(i))
		} else {
			line("  Response: ", incidentResult(i))
		}
		if i.FailedEvent != "" {
			line("  First failed event: ", i.FailedEvent)
		}
	}
	if check := partnerCheck(i); check != "" {
		line()
		line("What to check:")
		line("  ", check)
	}
	line()
	switch {
	case i.Open() && i.Health == webhook.HealthDisabled:
		line("The subscription is disabled: events published since then are not delivered automatically. Tell us when the endpoint " +
			"works again.")
	case isSevere(i):
		line("New events wait. Delivery resumes automatically when the endpoint responds with a status of 2xx.")
	}
	if i.WaitingEvents > 0 {
		n := atLeast(i.WaitingEvents, i.WaitingMore)
		if i.Open() && i.Health == webhook.HealthDisabled {
			line("Events published before and still waiting: ", n, ". They are delivered after the subscription is resumed.")
		} else {
			line("Events waiting: ", n)
		}
	}
	if i.Failed > 0 && i.Undelivered == 0 {
		line("Deliveries failed: ", strconv.FormatInt(i.Failed, 10), ". Their events have been delivered since.")
	} else if i.Failed > 0 {
		line("Deliveries failed permanently: ", strconv.FormatInt(i.Failed, 10),
			". They are not retried automatically; tell us when to resend them.")
	}
	if access != nil {
		line()
		line("Your subscriptions and deliveries: ", access.link)
		line("The link works once, until ", messageTime(access.until), ". With it you can ", access.may(), ".")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func messageTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// mailOf returns the address that opens a message as mail. Its first line is the subject.
func mailOf(message string) string {
	subject, _, _ := strings.Cut(message, "\n")
	escape := func(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
	return "mailto:?subject=" + escape(subject) + "&body=" + escape(strings.ReplaceAll(message, "\n", "\r\n"))
}

package web

import (
	"net/http"
	"strconv"
	"strings"

	"service/webhook"
)

// advice describes the result of an attempt in one sentence, and what to do about it; "" for
// nothing.
type advice struct{ what, todo string }

// errorAdvice describes what to do about an attempt without a usable response. The detail of the
// error code says what happened.
var errorAdvice = map[webhook.ErrorCode]string{
	webhook.ErrorTimeout: "Ask the partner to respond before processing the events. --attempt-timeout limits the time of an attempt.",
	webhook.ErrorDNS: "Resolve the host name on the machine that runs the service, and check the URL for a typo. If it has a private " +
		"address that is intended, permit that with --allow-destination, then resend.",
	webhook.ErrorConnect: "Check that the endpoint's server is running, that the port is right, and that no firewall blocks the service.",
	webhook.ErrorTLS:     "Ask the partner to check the certificate and its chain: openssl s_client shows what the endpoint presents.",
	webhook.ErrorBlocked: "If the address is intended, permit it with --allow-destination, then resend. Otherwise correct the URL of " +
		"the subscription.",
	webhook.ErrorProtocol: "Check that the URL and its port lead to a web server that supports HTTP/1.1.",
	webhook.ErrorInterrupted: "No action is needed: the delivery is retried automatically. The receiver recognizes a repetition " +
		"by its delivery ID.",
}

// statusAdvice is the advice for statuses that have their own.
var statusAdvice = map[int]advice{
	400: {"The endpoint rejected the request as malformed (400).", "Check its response for details. Resend it once the endpoint works."},
	401: {"The endpoint requires credentials, or rejected those it received (401).",
		"Compare the Authorization header of the subscription with what the partner expects, then resend."},
	403: {"The endpoint refused the request (403).", "Its signature check or a firewall may be the cause: compare the signing secret with " +
		"the partner's, then resend."},
	404: {"No endpoint exists at this path (404).", "Check the path of the URL with the partner, then resend."},
	405: {"The endpoint does not accept POST (405).", "Check the path of the URL with the partner, then resend."},
	408: {"The endpoint timed out while reading the request (408).", "A 4xx status is not retried: resend once the endpoint is healthy."},
	410: {"The endpoint is permanently gone (410).", "Ask the partner for the new URL, or delete the subscription."},
	413: {"The endpoint rejected the body as too large (413).", "Ask the partner to raise the limit, then resend. If the limit " +
		"stays low, set fewer events per delivery in the subscription."},
	415: {"The endpoint does not accept JSON (415).", "Check the path of the URL with the partner, then resend."},
	422: {"The endpoint rejected the payload (422).", "Check its response for details. Resend it once the endpoint works."},
	429: {"The endpoint is rate limiting (429). Like any 4xx, a 429 is not retried.",
		"Requests are slowed down automatically. Set the requests per second of the subscription to what the partner allows, then resend."},
	500: {"The endpoint failed while processing the request (500).", "Ask the partner to check the endpoint's log for this time."},
	502: {"A proxy received no valid response from the server behind it (502).",
		"Tell the partner: the server behind the proxy is down or broken."},
	503: {"The endpoint is overloaded or in maintenance (503).", "No action is needed unless it continues. A Retry-After header is " +
		"respected."},
	504: {"A proxy timed out waiting for the server behind it (504).", "Tell the partner: the server behind the proxy is too slow."},
}

// classAdvice is the advice for other statuses, by their first digit.
var classAdvice = map[int]advice{
	2: {"The endpoint accepted the delivery.", ""},
	3: {"The endpoint redirected the request. Redirects are not followed.",
		"Set the subscription URL to the target of the redirect, then resend."},
	4: {"The endpoint rejected the request. A 4xx status is not retried.", "Check its response. Resend once the cause is fixed."},
	5: {"The endpoint failed.", "Ask the partner to check the endpoint's log for this time."},
}

func adviceOf(a *webhook.Attempt) advice {
	if a.Error != webhook.ErrorNone {
		return advice{a.Error.Detail(), errorAdvice[a.Error]}
	}
	if s, ok := statusAdvice[a.ResponseStatus]; ok {
		return s
	}
	if a.ResponseStatus >= 600 {
		return advice{"HTTP does not define this status.", "Ask the partner what their endpoint means by it. Only a 2xx counts as a success."}
	}
	return classAdvice[a.ResponseStatus/100]
}

// partnerAdvice is advice for the partner, who runs the endpoint.
func partnerAdvice(a *webhook.Attempt) advice {
	of := advice{adviceOf(a).what, partnerCheckOf(a.Error, a.ResponseStatus)}
	if a.Result == webhook.ResultSuccess {
		of.todo = ""
	}
	return of
}

// outcomeText is the result of an attempt in full: 503 Service Unavailable, or its error.
func outcomeText(a *webhook.Attempt) string {
	if a.Error != webhook.ErrorNone {
		return errorName(a.Error)
	}
	return strings.TrimSpace(strconv.Itoa(a.ResponseStatus) + " " + http.StatusText(a.ResponseStatus))
}

// headerLines splits the stored header of a response into names and values.
func headerLines(text string) [][2]string {
	var lines [][2]string
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" {
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		lines = append(lines, [2]string{name, strings.TrimPrefix(value, " ")})
	}
	return lines
}

// headerValue is the first value of a header, "" for none.
func headerValue(lines [][2]string, name string) string {
	for _, l := range lines {
		if strings.EqualFold(l[0], name) {
			return l[1]
		}
	}
	return ""
}

// change is a header that differs between two responses.
type change struct{ name, before, after string }

// changesOf compares the headers of two responses, sorted by name, except for Date.
func changesOf(before, after [][2]string) []change {
	joined := func(lines [][2]string) (names []string, values map[string]string) {
		values = make(map[string]string)
		for _, l := range lines {
			name := http.CanonicalHeaderKey(l[0])
			if old, ok := values[name]; ok {
				values[name] = old + ", " + l[1]
				continue
			}
			names, values[name] = append(names, name), l[1]
		}
		return names, values
	}
	names, old := joined(before)
	more, now := joined(after)
	for _, name := range more {
		if _, ok := old[name]; !ok {
			names = append(names, name)
		}
	}
	var all []change
	for _, name := range names {
		if name != "Date" && old[name] != now[name] {
			all = append(all, change{name, old[name], now[name]})
		}
	}
	return all
}

package web

import (
	"net/http"
	"strconv"
	"strings"

	"service/webhook"
)

// advice says of an attempt what happened, in one sentence, and what to do
// about it, "" when there is nothing to do.
type advice struct{ what, todo string }

// errorAdvice is what to do about an attempt that had no usable answer. What
// happened is the detail of the code.
var errorAdvice = map[webhook.ErrorCode]string{
	webhook.ErrorTimeout:     "Ask the partner to answer first and do the work afterwards; --attempt-timeout says how long an attempt may take.",
	webhook.ErrorDNS:         "Look the name up from this machine, and check the URL for a typing mistake.",
	webhook.ErrorConnect:     "Check that the server runs, that its port is right, and that a firewall lets this machine through.",
	webhook.ErrorTLS:         "Ask the partner to look at the certificate and its chain: openssl s_client shows what the server presents.",
	webhook.ErrorBlocked:     "If the address is meant, name it with --allow-destination, then redeliver. If not, correct the URL of the subscription.",
	webhook.ErrorProtocol:    "Check that the URL leads to a web server that speaks HTTP/1.1, and to the right port of it.",
	webhook.ErrorInterrupted: "There is nothing to do: it is tried again by itself. The receiver knows a repetition by its delivery id.",
}

// statusAdvice is what statuses mean that have a meaning of their own here.
var statusAdvice = map[int]advice{
	400: {"The server says that the request is not valid.", "Its answer may say what it misses; when the receiver is corrected, redeliver."},
	401: {"The server asks for credentials, or does not take those it was sent.", "Compare the Authorization header of the subscription with what the partner expects, then redeliver."},
	403: {"The server refuses the request.", "Its signature check or a firewall may be the cause: compare the signing secret with the partner's, then redeliver."},
	404: {"The server knows nothing at this path.", "Check the path of the URL with the partner, then redeliver."},
	405: {"The server takes no POST at this path.", "Check the path of the URL with the partner, then redeliver."},
	408: {"The server says that the request took it too long.", "A status of 4xx is final: redeliver when the server is well."},
	410: {"The server says that this address is gone for good.", "Ask the partner for the new URL, or delete the subscription."},
	413: {"The server takes no body of this size.", "Ask the partner to allow more, or let fewer events ride together, with --batch-size, then redeliver."},
	415: {"The server takes no JSON at this path.", "Check the path of the URL with the partner, then redeliver."},
	422: {"The server could read the request, and does not accept what it says.", "Its answer may say what it misses; when the receiver is corrected, redeliver."},
	429: {"The server says that it is sent too much; as any 4xx, that is final.", "Requests are slowed down automatically. Set max_per_second of the subscription to what the partner allows, then resend what failed."},
	500: {"The server failed while it worked on the request.", "Tell the partner; their log at this time says more."},
	502: {"A proxy in front of the server had no usable answer from it.", "Tell the partner: the server behind the proxy is down or broken."},
	503: {"The server says that it is overloaded or being worked on.", "There is nothing to do unless it goes on; Retry-After in its answer is heeded."},
	504: {"A proxy in front of the server waited for it in vain.", "Tell the partner: the server behind the proxy is too slow."},
}

// classAdvice is what the other statuses mean, by their first digit.
var classAdvice = map[int]advice{
	2: {"The server has taken the delivery.", ""},
	3: {"The server says that this is to be had elsewhere; redirects are not followed.", "Set the URL of the subscription to where it leads, then redeliver."},
	4: {"The server does not accept the request, and a repetition would not change that.", "Look at its answer, and redeliver when the cause is gone."},
	5: {"The server had a fault of its own.", "Tell the partner; their log at this time says more."},
}

func adviceOf(a *webhook.Attempt) advice {
	if a.Error != webhook.ErrorNone {
		return advice{a.Error.Detail(), errorAdvice[a.Error]}
	}
	if s, ok := statusAdvice[a.ResponseStatus]; ok {
		return s
	}
	if a.ResponseStatus >= 600 {
		return advice{"HTTP does not define this status.", "Ask the partner what their server means by it. Only a 2xx counts as received."}
	}
	return classAdvice[a.ResponseStatus/100]
}

// outcomeText is what an attempt came to in full: 503 Service Unavailable, or its
// error.
func outcomeText(a *webhook.Attempt) string {
	if a.Error != webhook.ErrorNone {
		return errorName(a.Error)
	}
	return strings.TrimSpace(strconv.Itoa(a.ResponseStatus) + " " + http.StatusText(a.ResponseStatus))
}

// headerLines divides the header of an answer as it is kept into names and
// values.
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

// change is a header that two answers do not have alike.
type change struct{ name, before, after string }

// changesOf compares the headers of two answers, in the order of their names.
// Date, which every answer has of its own, is left out.
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

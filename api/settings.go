package api

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"service/webhook"
)

// settings are the values of this installation that the pages of the reference show.
type settings struct {
	webhook.Receiving
	rateLimit, platformRateLimit, maxSubscriptions int // 0 for no limit
	timeout                                        time.Duration
}

// A phrase is text in openapi.yaml about a setting with its default, and its replacement on the
// pages.
type phrase struct{ general, here string }

// phrases returns what the pages say about each setting. The OpenAPI document itself is the same
// for every installation.
func (s settings) phrases() []phrase {
	const other = ", unless the operator configured another limit"
	orNone := func(limit int, some string) string {
		if limit == 0 {
			return "no limit"
		}
		return fmt.Sprintf(some, limit)
	}
	delivered := s.Retention
	if s.RetentionDelivered > 0 {
		delivered = min(delivered, s.RetentionDelivered)
	}
	timeout, batch := webhook.InWords(s.Timeout), strconv.Itoa(s.BatchSize)
	requests := orNone(s.rateLimit, "%d requests in any 60 seconds")
	if s.rateLimit == 0 {
		requests = "any number of requests"
	}
	return []phrase{
		{"A program can make 1,000 requests in any 60 seconds" + other + ", in general or for this program.",
			"A program can make " + requests + ", unless it has a limit of its own."},
		{"has a limit only if the operator configured one; the name of its policy is `platform`.",
			"has " + orNone(s.platformRateLimit, "a limit of %d requests in any 60 seconds; the name of its policy is `platform`") + "."},
		{"| Subscriptions of a program | 100" + other + " |",
			"| Subscriptions of a program | " + orNone(s.maxSubscriptions, "%d") + ", unless the program has a limit of its own |"},
		{"program can have 100 subscriptions" + other + "; beyond that",
			"program can have " + strings.Replace(orNone(s.maxSubscriptions, "%d subscriptions"), "no limit", "any number of subscriptions", 1) +
				", unless it has a limit of its own; beyond that"},
		{"| 100" + other + "; a subscription can lower it", "| " + batch + "; a subscription can lower it"},
		{"by default at most 100 and 64 KiB", "at most " + batch + " and 64 KiB"},
		{"30 seconds" + other + "; then 504", webhook.InWords(s.timeout) + "; then 504"},
		{"30 days, unless the operator configured another time", webhook.InWords(s.Retention)},
		{"the same time, or less if the operator configured it; their events", webhook.InWords(delivered) + "; their events"},
		{"with a 2xx status within 10 seconds.", "with a 2xx status within " + timeout + "."},
		{"Respond with any 2xx status within 10 seconds" + other + ".", "Respond with any 2xx status within " + timeout + "."},
		{"The waits between attempts are 5 seconds, 5 minutes, 30 minutes and 2 hours, each varied at random by up to 20 %, " +
			"unless the operator configured others.", "The waits between attempts are " + s.Waits() + "."},
		{"the operator's default (8 unless configured)", fmt.Sprintf("the default (%d)", s.MaxInFlight)},
		{"the operator's limit (100 unless configured)", "the limit of the service (" + batch + ")"},
	}
}

// fill replaces the phrases in the OpenAPI document, which is JSON. It keeps them if the settings
// are unknown.
func (s settings) fill(document []byte) []byte {
	if s.Timeout == 0 {
		return document
	}
	for _, p := range s.phrases() {
		document = p.pattern().ReplaceAllLiteral(document, []byte(p.here))
	}
	return document
}

// pattern matches the phrase in JSON, even across line breaks.
func (p phrase) pattern() *regexp.Regexp {
	words := strings.Fields(p.general)
	for i, word := range words {
		words[i] = regexp.QuoteMeta(word)
	}
	return regexp.MustCompile(strings.Join(words, `(?: |\\n)+`))
}

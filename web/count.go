package web

import (
	"strconv"
	"strings"

	"service/store/record"
	"service/web/ui"
)

// counted formats a count of [record.Totals], which may have stopped at its limit.
func counted(n int) string {
	if n >= record.CountLimit {
		return ui.Number(record.CountLimit) + "+"
	}
	return ui.Number(int64(n))
}

// shownOf formats a count and, unless all are shown, the number shown.
func shownOf(shown, total int, noun string) string {
	if shown < total {
		return strconv.Itoa(shown) + " of " + countedOf(total, noun)
	}
	return countedOf(total, noun)
}

// countedOf formats a count of [record.Totals] with its noun.
func countedOf(n int, noun string) string {
	return countWord(n, counted(n), noun)
}

// countWord formats a number with its noun.
func countWord(n int, written, noun string) string {
	if n != 1 {
		if stem, ok := strings.CutSuffix(noun, "y"); ok {
			noun = stem + "ie"
		}
		noun += "s"
	}
	return written + " " + noun
}

// numbered formats an exact number with its noun.
func numbered[T int | int64](n T, noun string) string {
	return countWord(int(n), ui.Number(int64(n)), noun)
}

// deliveriesOf formats a number of deliveries.
func deliveriesOf(n int) string { return numbered(n, "delivery") }

// eventCount formats a number of events.
func eventCount(n int64) string { return numbered(n, "event") }

// atLeast formats a number that may be a lower bound.
func atLeast(n int, more bool) string {
	switch {
	case more && n == 0:
		return "0 or more"
	case more:
		return "at least " + ui.Number(int64(n))
	}
	return ui.Number(int64(n))
}

// newEvents formats how many events that are in no delivery yet wait for a subscription, "" for none.
func newEvents(s *record.SubscriptionSummary) string {
	if s.WaitingEvents == 0 && !s.WaitingMore {
		return ""
	}
	return countWord(s.WaitingEvents, atLeast(s.WaitingEvents, s.WaitingMore), "new event")
}

// capitalized returns a text with its first letter in upper case.
func capitalized(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// lossSummary describes how many events were lost.
func lossSummary(t record.LossTotals) string {
	return eventCount(t.Events) + " of " + countedOf(t.Subscriptions, "subscription")
}

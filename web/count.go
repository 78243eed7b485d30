package web

import (
	"strconv"
	"strings"

	"service/store"
	"service/web/ui"
)

// counted renders a number of [store.Totals], which stops at a limit.
func counted(n int) string {
	if n >= store.CountLimit {
		return ui.Number(store.CountLimit) + "+"
	}
	return ui.Number(int64(n))
}

// shownOf says how many there are, and when those are not all, how many are shown.
func shownOf(shown, total int, noun string) string {
	if shown < total {
		return strconv.Itoa(shown) + " of " + countedOf(total, noun)
	}
	return countedOf(total, noun)
}

// countedOf is a number of [store.Totals] and what there is that many of.
func countedOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "ry"); ok {
		noun = stem + "rie" // deliveries
	}
	return counted(n) + " " + noun + "s"
}

// atLeast renders a number, which may be one that stands for more.
func atLeast(n int, more bool) string {
	if more {
		return "at least " + ui.Number(int64(n))
	}
	return ui.Number(int64(n))
}

// andDeliveries counts deliveries that wait in addition to events.
func andDeliveries(n int) string {
	if n == 1 {
		return "and 1 delivery"
	}
	return "and " + counted(n) + " deliveries"
}

// capitalized returns a text with its first letter in upper case, for the beginning of
// a cell or a sentence.
func capitalized(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

package web

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"service/store"
)

// span renders a length of time in its largest unit, rounded down.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0 s"
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d/time.Hour)) + " h"
	default:
		return strconv.Itoa(int(d/(24*time.Hour))) + " d"
	}
}

// uptime renders a length of time in its two largest units.
func uptime(d time.Duration) string {
	switch {
	case d < time.Hour:
		return span(d)
	case d < 24*time.Hour:
		return span(d) + " " + strconv.Itoa(int(d%time.Hour/time.Minute)) + " min"
	default:
		return strconv.Itoa(int(d/(24*time.Hour))) + " d " + strconv.Itoa(int(d%(24*time.Hour)/time.Hour)) + " h"
	}
}

// until renders how far ahead a time is.
func until(t, now time.Time) string {
	if !t.After(now) {
		return "now"
	}
	return "in " + span(t.Sub(now))
}

// latency renders how long an attempt took.
func latency(d time.Duration) string {
	if d < time.Second {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
}

// grouped renders a number with its thousands apart.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, c := range digits {
		if i > 0 && digits[i-1] != '-' && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// counted renders a number of [store.Totals], which stops at a limit.
func counted(n int) string {
	if n >= store.CountLimit {
		return grouped(store.CountLimit) + "+"
	}
	return grouped(int64(n))
}

// size renders a number of bytes, in units of 1,024.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 || v >= 100 {
		return strconv.FormatInt(int64(v), 10) + " " + units[i]
	}
	// Cut off, not rounded: what is short of a limit must not look like it.
	return strconv.FormatFloat(float64(int64(v*10))/10, 'f', 1, 64) + " " + units[i]
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
	return counted(n) + " " + noun + "s"
}

// words renders a name of the API, such as attempts_exhausted, for reading.
func words(name string) string { return strings.ReplaceAll(name, "_", " ") }

// idTail is how much of an id is shown at once: the end, since the first
// characters of a UUIDv7 are the time.
const idTail = 8

// splitID returns the part of an id that is folded away and the one shown.
func splitID(id string) (head, tail string) {
	i := max(0, len(id)-idTail)
	return id[:i], id[i:]
}

// endpoint returns the host and the path of a subscription's URL, and the whole
// of it for a title. Of a query, which may hold a secret of the subscriber, it
// says only that there is one.
func endpoint(raw string) (host, path, whole string) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return raw, "", raw
	}
	if path = u.EscapedPath(); path == "/" {
		path = ""
	}
	whole = u.Scheme + "://" + u.Host + u.EscapedPath()
	if u.RawQuery != "" {
		whole += "?…"
	}
	return u.Host, path, whole
}

// shell quotes an argument for a POSIX shell.
func shell(arg string) string {
	plain := func(c rune) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("_-./:@%+=,", c)
	}
	if arg != "" && strings.IndexFunc(arg, func(c rune) bool { return !plain(c) }) < 0 {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

package ui

import (
	"strconv"
	"strings"
	"time"

	"service/webhook"
)

// Duration formats d in its largest unit, rounded down.
func Duration(d time.Duration) string {
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

// Uptime formats d in its two largest units.
func Uptime(d time.Duration) string {
	switch {
	case d < time.Hour:
		return Duration(d)
	case d < 24*time.Hour:
		return Duration(d) + " " + strconv.Itoa(int(d%time.Hour/time.Minute)) + " min"
	default:
		return strconv.Itoa(int(d/(24*time.Hour))) + " d " + strconv.Itoa(int(d%(24*time.Hour)/time.Hour)) + " h"
	}
}

// Until formats the time until t.
func Until(t, now time.Time) string {
	if !t.After(now) {
		return "now"
	}
	return "in " + Duration(t.Sub(now))
}

// Latency formats the duration of an attempt, which is stored in milliseconds.
func Latency(d time.Duration) string {
	if d < time.Millisecond {
		return "< 1 ms"
	}
	if d < time.Second {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
}

// Number formats n with commas between thousands.
func Number(n int64) string {
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

// ByteSize formats a number of bytes in units of 1,024.
func ByteSize(n int64) string { return webhook.ByteSize(n) }

// Words returns an API name, such as attempts_exhausted, with spaces.
func Words(name string) string { return strings.ReplaceAll(name, "_", " ") }

// idTail is the length of the shown end of an ID. The first characters of a UUIDv7 are its time, so
// that recent IDs begin alike.
const idTail = 8

// splitID returns the hidden and the shown part of an ID.
func splitID(id string) (head, tail string) {
	if len(id) != len("0195f2c0-1111-7222-8333-0123456789ab") || strings.Count(id, "-") != 4 {
		return "", id // the end of a name, such as a program ID, says nothing
	}
	i := len(id) - idTail
	return id[:i], id[i:]
}

// Label returns an API name as the label of a field.
func Label(name string) string {
	if name == "at" {
		name = "time"
	}
	s := Words(strings.ReplaceAll(name, ".", " "))
	if s == "url" || s == "" {
		return strings.ToUpper(s)
	}
	if stem, ok := strings.CutSuffix(s, " url"); ok {
		s = stem + " URL"
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

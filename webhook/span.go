package webhook

import "time"

// parseSpan reads one end of a span of time, as ranges in lists and replays
// have them: a timestamp as RFC 3339 profiles ISO 8601, or a datestamp, which
// is read as UTC. Both ends of a span are included, and a datestamp is the
// whole of its day: first is the moment to begin from, next the first moment
// after the end. Records show milliseconds, so what is finer is rounded into
// the span.
func parseSpan(s []byte) (first, next time.Time, ok bool) {
	if day, err := time.Parse(time.DateOnly, string(s)); err == nil {
		return day, day.AddDate(0, 0, 1), day.Year() >= 1000
	}
	t, err := time.Parse(time.RFC3339Nano, string(s)) // which would take T8:00:00Z and a comma too
	local := s
	if end := len(s) - len("+00:00"); end > 0 && (s[end] == '+' || s[end] == '-') {
		local = append(s[:end:end], 'Z')
	}
	if err != nil || !isTimestamp(local) {
		return first, next, false
	}
	t = t.UTC()
	first = t.Add(time.Millisecond - 1).Truncate(time.Millisecond)
	next = t.Truncate(time.Millisecond).Add(time.Millisecond)
	// Whatever the offset and the rounding: a year of four digits.
	return first, next, first.Year() >= 1000 && first.Year() < 10000 && next.Add(-1).Year() < 10000
}

package webhook

import "time"

// parseSpan parses one end of a time range, as in lists and replays: a timestamp
// (RFC 3339) or a date, which is read as UTC. Both ends are inclusive, and a date
// stands for its whole day: first is its start, next the first moment after it.
// Records have milliseconds, so finer timestamps are rounded into the range.
func parseRangeEnd(s []byte) (first, next time.Time, ok bool) {
	if day, err := time.Parse(time.DateOnly, string(s)); err == nil {
		return day, day.AddDate(0, 0, 1), day.Year() >= 1000
	}
	t, err := time.Parse(time.RFC3339Nano, string(s)) // also accepts T8:00:00Z and a decimal comma
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
	// The year has four digits after the offset and the rounding.
	return first, next, first.Year() >= 1000 && first.Year() < 10000 && next.Add(-1).Year() < 10000
}

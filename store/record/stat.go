package record

import "time"

// Statistics are kept per minute and per hour.
const (
	StatMinute = time.Minute
	StatHour   = time.Hour
)

// LastHour returns the 60 minutes up to and including the minute of now.
func LastHour(now time.Time) (from, to time.Time) {
	to = now.Truncate(StatMinute).Add(StatMinute)
	return to.Add(-time.Hour), to
}

package webhook

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// parseRangeEnd parses one end of a time range, as in lists and replays: a date in any form of
// ISO 8601, which is read as UTC, or a date and time with Z or an offset. Both ends are inclusive, and
// a date stands for its whole day, week, month or year: first is its start, next the first moment
// after it. Records have milliseconds, so finer times are rounded into the range.
func parseRangeEnd(s string) (first, next time.Time, ok bool) {
	date, clock, isTime := strings.Cut(s, "T")
	first, next, isDay := parseDate(date)
	if !isTime {
		return first, next, first.Year() >= 1000
	}
	since, ok := parseClock(clock)
	if !isDay || !ok {
		return time.Time{}, time.Time{}, false
	}
	t := first.Add(since)
	first = t.Add(time.Millisecond - 1).Truncate(time.Millisecond)
	next = t.Truncate(time.Millisecond).Add(time.Millisecond)
	// The year has four digits after the offset and the rounding.
	return first, next, first.Year() >= 1000 && first.Year() < 10000 && next.Add(-1).Year() < 10000
}

// isoDate matches the forms of a date: calendar (2026-03-14, 20260314), ordinal (2026-073),
// week (2026-W11-6), and those of a month, a week and a year. [parseDate] checks the
// separators.
var isoDate = regexp.MustCompile(`^(\d{4})(?:-?W(\d\d)(?:-?([1-7]))?|-?(\d{3})|-(\d\d)|(?:-(\d\d)-|(\d\d))(\d\d))?$`)

// parseDate parses a date in a form of ISO 8601. isDay is false for a week, month or year. first is
// the zero time if the date is invalid.
func parseDate(s string) (first, next time.Time, isDay bool) {
	m := isoDate.FindStringSubmatch(s)
	if m == nil {
		return time.Time{}, time.Time{}, false
	}
	number := func(s string) int { n, _ := strconv.Atoi(s); return n }
	year := number(m[1])
	day := func(month, day int) time.Time { return time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC) }
	switch {
	case m[2] != "":
		if m[3] != "" && strings.Count(s, "-") == 1 { // neither 2026W11-6 nor 2026-W116
			return time.Time{}, time.Time{}, false
		}
		start := day(1, 4) // is in the first week
		start = start.AddDate(0, 0, -(int(start.Weekday())+6)%7+7*(number(m[2])-1))
		if _, week := start.ISOWeek(); week != number(m[2]) {
			return time.Time{}, time.Time{}, false
		}
		if m[3] == "" {
			return start, start.AddDate(0, 0, 7), false
		}
		first, isDay = start.AddDate(0, 0, number(m[3])-1), true
	case m[4] != "":
		if first, isDay = day(1, number(m[4])), true; first.YearDay() != number(m[4]) {
			return time.Time{}, time.Time{}, false
		}
	case m[5] != "":
		first = day(number(m[5]), 1)
		if int(first.Month()) != number(m[5]) {
			return time.Time{}, time.Time{}, false
		}
		return first, first.AddDate(0, 1, 0), false
	case m[8] != "":
		month := number(m[6] + m[7])
		if first, isDay = day(month, number(m[8])), true; int(first.Month()) != month || first.Day() != number(m[8]) {
			return time.Time{}, time.Time{}, false
		}
	default:
		return day(1, 1), day(1, 1).AddDate(1, 0, 0), false
	}
	return first, first.AddDate(0, 0, 1), isDay
}

// isoClock matches the forms of a time of day with Z or an offset: hours, minutes and seconds,
// the smallest with a fraction.
var isoClock = regexp.MustCompile(`^(\d\d)(?::?(\d\d)(?::?(\d\d))?)?(?:[.,](\d{1,9}))?(?:Z|([+-])(\d\d)(?::?(\d\d))?)$`)

// parseClock parses a time of day with Z or an offset, and returns its distance from the start of the
// same day in UTC.
func parseClock(s string) (since time.Duration, ok bool) {
	m := isoClock.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	number := func(s string) time.Duration { n, _ := strconv.Atoi(s); return time.Duration(n) }
	hour, minute, second := number(m[1]), number(m[2]), number(m[3])
	since = hour*time.Hour + minute*time.Minute + second*time.Second
	unit := time.Hour
	switch {
	case m[3] != "":
		unit = time.Second
	case m[2] != "":
		unit = time.Minute
	}
	since += number((m[4] + "000000000")[:9]) * (unit / time.Second)
	// 24:00 is the end of the day, and 23:59:60 a leap second.
	if since > 24*time.Hour+time.Second || hour > 24 || hour == 24 && since > 24*time.Hour || minute > 59 || second > 60 {
		return 0, false
	}
	offset := number(m[6])*time.Hour + number(m[7])*time.Minute
	if number(m[6]) > 23 || number(m[7]) > 59 {
		return 0, false
	}
	if m[5] == "-" {
		offset = -offset
	}
	return since - offset, true
}

package web

import (
	"strings"
	"time"
)

// clock tells the times of a page: how long ago they are from when it was asked
// for, and what they are in the visitor's zone. The zero clock tells UTC.
type clock struct {
	now  time.Time
	zone *time.Location // nil is UTC
}

func (c clock) location() *time.Location {
	if c.zone == nil {
		return time.UTC
	}
	return c.zone
}

// exact renders a time to the millisecond, with its zone.
func (c clock) exact(t time.Time) string {
	return t.In(c.location()).Format("2006-01-02 15:04:05.000 MST")
}

// short renders a time to the second, without the day when it is today's.
func (c clock) short(t time.Time) string {
	t, now := t.In(c.location()), c.now.In(c.location())
	if t.Year() == now.Year() && t.YearDay() == now.YearDay() {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05")
}

// The forms that a browser's field for a date and a time gives.
var fieldTimes = []string{"2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02T15:04:05.999"}

// absolute gives a time without a zone the zone of the clock. Whatever else is
// given comes back as it is, for the list to judge.
func (c clock) absolute(s string) string {
	s = strings.TrimSpace(s)
	for _, form := range fieldTimes {
		if t, err := time.ParseInLocation(form, s, c.location()); err == nil {
			return t.UTC().Format("2006-01-02T15:04:05.000Z")
		}
	}
	return s
}

// field renders a time for a browser's field for a date and a time; the zero
// time is an empty field.
func (c clock) field(t time.Time) string {
	switch t = t.In(c.location()); {
	case t.IsZero():
		return ""
	case t.Nanosecond() > 0:
		return t.Format("2006-01-02T15:04:05.000")
	case t.Second() > 0:
		return t.Format("2006-01-02T15:04:05")
	default:
		return t.Format("2006-01-02T15:04")
	}
}

// abbreviation is how the visitor's zone is called beside a time of the page.
func (c clock) abbreviation() string { return c.now.In(c.location()).Format("MST") }

// zoneName is how the visitor's zone is called beside a field.
func (c clock) zoneName() string { return c.location().String() }

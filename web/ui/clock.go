package ui

import (
	"strings"
	"time"
)

// Clock renders the times of a page, relative to Now and in the visitor's time zone. The zero Clock
// renders UTC.
type Clock struct {
	Now  time.Time
	Zone *time.Location // nil is UTC
}

// Location returns the time zone, never nil.
func (c Clock) Location() *time.Location {
	if c.Zone == nil {
		return time.UTC
	}
	return c.Zone
}

// Exact formats a time to the millisecond, with its zone.
func (c Clock) Exact(t time.Time) string {
	return t.In(c.Location()).Format("2006-01-02 15:04:05.000 MST")
}

// short formats a time to the second, without the day if that is today.
func (c Clock) short(t time.Time) string {
	t, now := t.In(c.Location()), c.Now.In(c.Location())
	if t.Year() == now.Year() && t.YearDay() == now.YearDay() {
		return t.Format("15:04:05")
	}
	return t.Format(time.DateTime)
}

// shortRange formats a range as short does, but with both days unless both are today. It omits a
// zero bound.
func (c Clock) shortRange(from, to time.Time) (text string) {
	first, last := c.short(from), c.short(to)
	if !from.IsZero() && !to.IsZero() && len(first) != len(last) {
		first, last = from.In(c.Location()).Format(time.DateTime), to.In(c.Location()).Format(time.DateTime)
	}
	if !from.IsZero() {
		text = " from " + first
	}
	if !to.IsZero() {
		text += " to " + last
	}
	return text
}

// The formats of a browser's datetime-local field.
var fieldTimes = []string{"2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02T15:04:05.999"}

// WithZone adds the clock's zone to a time of a form field, which has none. It returns any other
// string unchanged.
func (c Clock) WithZone(s string) string {
	s = strings.TrimSpace(s)
	for _, form := range fieldTimes {
		if t, err := time.ParseInLocation(form, s, c.Location()); err == nil {
			return t.UTC().Format("2006-01-02T15:04:05.000Z")
		}
	}
	return s
}

// FieldValue formats a time for an input of type datetime-local; "" for the zero
// time.
func (c Clock) FieldValue(t time.Time) string {
	switch t = t.In(c.Location()); {
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

// ZoneAbbreviation returns the abbreviation of the visitor's zone, such as CET.
func (c Clock) ZoneAbbreviation() string { return c.Now.In(c.Location()).Format("MST") }

// ZoneName returns the name of the visitor's zone, such as Europe/Berlin.
func (c Clock) ZoneName() string { return c.Location().String() }

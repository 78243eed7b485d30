package store

import (
	"slices"
	"testing"
	"time"

	"service/store/doctor"
	"service/webhook"
)

// Measurements are correct for logs with gaps and several programs, at a bounded cost.
func TestMeasureUsage(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		s.retention = webhook.Retention{All: 10 * day}
		measured := func() doctor.Usage {
			reads := 0
			u, err := doctor.MeasureUsage(func(query string, args []any, dest ...any) error {
				reads++
				return s.scanNow(query, args, dest...)
			}, "", s.clock.Now(), s.retention)
			must(t, err)
			if reads > 4+2*10 { // a log of 2^10 events
				t.Errorf("read %d rows", reads)
			}
			return u
		}
		if u := measured(); !u.Empty || u.Events != 0 || u.Used == 0 || !u.Shrinks {
			t.Errorf("empty database: got %+v", u)
		}
		program(t, s, "q")
		publish(t, s, "q", "content_updated")
		began := time.Now().Truncate(time.Millisecond)
		if u := measured(); !u.Begun.Equal(began) || !u.Oldest.Equal(began) || u.Events != 1 || u.Recent != 1 {
			t.Errorf("one event: got %+v", u)
		}
		for range 20 * 24 {
			publish(t, s, "p", "content_updated", "content_updated")
			time.Sleep(time.Hour)
		}
		if u := measured(); u.Events != 2*10*24 || u.Recent != 2*24 || u.At.Sub(u.Oldest) != 10*day || !u.Begun.Equal(began) {
			t.Errorf("20 days: got %+v", u)
		}
		sweepAt(t, s, time.Now().Add(-10*day))
		// The newest event of the other program stays, and is now the oldest row.
		if u := measured(); u.Events != 2*10*24 || u.Recent != 2*24 || u.At.Sub(u.Oldest) != 10*day {
			t.Errorf("after a sweep: got %+v", u)
		}
		time.Sleep(30 * day)
		if u := measured(); u.Empty || u.Events != 0 || u.Recent != 0 || !u.Oldest.IsZero() {
			t.Errorf("30 days later: got %+v", u)
		}
	})
}

// The estimated size of an event without its deliveries is close: it separates the records
// that --retention-delivered removes from the rest.
func TestForecastEventBytes(t *testing.T) {
	s := openProgram(t)
	before, err := doctor.MeasureUsage(s.scanNow, "", time.Now(), webhook.Retention{All: day})
	must(t, err)
	const n = 20_000
	for range n / 1000 {
		names := slices.Repeat([]string{"content_updated"}, 1000)
		publish(t, s, "p", names...)
	}
	after, err := doctor.MeasureUsage(s.scanNow, "", time.Now(), webhook.Retention{All: day})
	must(t, err)
	if got, want := after.EventBytes, (after.Used-before.Used)/n; got < want*2/3 || got > want*3/2 {
		t.Errorf("estimated %d bytes per event, want about %d", got, want)
	} else {
		t.Logf("estimated %d bytes per event, actual %d; empty database %d", got, want, before.Used)
	}
}

package doctor

import (
	"strings"
	"testing"
	"time"

	"service/store/replica"
	"service/webhook"
)

func TestNewEnough(t *testing.T) {
	for v, want := range map[string]bool{"3.51.3": true, "3.51.4": true, "3.52.0": true, "4.0.0": true, "3.51.2": false, "3.50.9": false,
		"2.99.99": false, "": false, "3.x": false} {
		if got := newEnough(v); got != want {
			t.Errorf("newEnough(%q) = %v, want %v", v, got, want)
		}
	}
}

// TestReplica checks the levels of all states of a replica.
func TestReplica(t *testing.T) {
	for _, test := range []struct {
		y    *replica.Status
		want Level
	}{
		{nil, LevelWarn},
		{&replica.Status{State: replica.StateOpening, Target: "s3://b"}, LevelWarn},
		{&replica.Status{State: replica.StateRunning, Target: "s3://b"}, LevelOK},
		{&replica.Status{State: replica.StateRunning, Target: "s3://b", Lag: replicaBehind + 1}, LevelWarn},
		{&replica.Status{State: replica.StateFailing, Target: "s3://b", Err: "no bucket"}, LevelFail},
	} {
		var x examination
		x.replica(test.y)
		if x[0].Level != test.want || test.y != nil && !strings.Contains(x[0].Detail, test.y.Err) {
			t.Errorf("%+v: got %v, want %s", test.y, x, test.want)
		}
	}
}

// Free pages of the database count as free space, as long as the WAL has space as well.
func TestTooFull(t *testing.T) {
	for _, c := range []struct {
		room, unused, least int64
		want                bool
	}{
		{100, 0, 100, false}, {99, 0, 100, true}, {99, 1, 100, false}, {25, 75, 100, false}, {25, 74, 100, true}, {24, 1000, 100, true},
	} {
		if got := tooFull(c.room, c.unused, c.least); got != c.want {
			t.Errorf("%d free, %d unused, minimum %d: got %v, want %v", c.room, c.unused, c.least, got, c.want)
		}
	}
}

// TestForecast covers databases of different ages on disks of different sizes.
func TestForecast(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	const (
		mib  = 1 << 20
		gib  = 1 << 30
		base = emptyDatabase
	)
	thirty := webhook.Retention{All: 30 * day}
	three := webhook.Retention{All: 30 * day, Delivered: 3 * day}
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	// A million events per day, of 1,000 bytes including deliveries and 600 without.
	of := func(age time.Duration, events, used int64) Usage {
		return Usage{At: now, Oldest: ago(age), Events: events, Recent: 1_000_000, File: used, Used: used, EventBytes: 600}
	}
	large := Disk{Free: 1 << 40, Size: 1 << 41, MinFree: 256 * mib}
	for _, c := range []struct {
		name string
		u    Usage
		d    Disk
		keep webhook.Retention
		want Forecast
	}{
		{"nothing was ever accepted", Usage{At: now, Empty: true, File: base, Used: base}, large, thirty, Forecast{Copy: base}},
		{"an hour old", Usage{At: now, Begun: ago(time.Hour), Oldest: ago(time.Hour), Events: 10, Recent: 10, File: base, Used: base}, large,
			thirty,
			Forecast{KnownAt: now.Add(23 * time.Hour), Copy: base}},
		{"no retention is known", of(10*day, 1, base), large, webhook.Retention{}, Forecast{Copy: base}},
		{"ten days old", of(10*day, 10_000_000, base+10_000_000_000), large, thirty,
			Forecast{Known: true, EventsPerDay: 1_000_000, EventBytes: 1000, Size: base + 30_000_000_000, DayBytes: 1_000_000_000,
				Copy: base + 10_000_000_000}},
		{"as old as it becomes", of(30*day, 30_000_000, base+30_000_000_000), large, thirty,
			Forecast{Known: true, EventsPerDay: 1_000_000, EventBytes: 1000, Size: base + 30_000_000_000, DayBytes: 1_000_000_000,
				Copy: base + 30_000_000_000}},
		{"room for ten days more", of(10*day, 10_000_000, base+10_000_000_000), Disk{Free: 10_000_000_000 + gib, MinFree: gib}, thirty,
			Forecast{Known: true, EventsPerDay: 1_000_000, EventBytes: 1000, Size: base + 30_000_000_000, DayBytes: 1_000_000_000,
				Copy: base + 10_000_000_000, FullAt: now.Add(10 * day)}},
		{"twice as much as before: what goes makes room for half of what comes", func() Usage {
			u := of(30*day, 15_000_000, base+15_000_000_000)
			return u
		}(), Disk{Free: 5_000_000_000}, thirty,
			Forecast{Known: true, EventsPerDay: 1_000_000, EventBytes: 1000, Size: base + 30_000_000_000, DayBytes: 1_000_000_000,
				Copy: base + 15_000_000_000, FullAt: now.Add(10 * day)}},
		{"deliveries go after three days", of(10*day, 10_000_000, base+6_000_000_000+3*400_000_000), large, three,
			Forecast{Known: true, EventsPerDay: 1_000_000, EventBytes: 1000, Size: base + 30*600_000_000 + 3*400_000_000, DayBytes: 600_000_000,
				Copy: base + 7_200_000_000}},
		{"nothing came yesterday", func() Usage { u := of(20*day, 10_000_000, base+10_000_000_000); u.Recent = 0; return u }(), large, thirty,
			Forecast{Known: true, EventBytes: 1000, Size: base, Copy: base + 10_000_000_000}},
		{"all of it is older than the retention", Usage{At: now, File: base + gib, Used: base}, large, thirty,
			Forecast{Known: true, Size: base, Copy: base, Stuck: gib}},
		{"a full disk", of(10*day, 10_000_000, base+10_000_000_000), Disk{Free: mib, MinFree: 256 * mib, Low: true}, thirty,
			Forecast{Known: true, EventsPerDay: 1_000_000, EventBytes: 1000, Size: base + 30_000_000_000, DayBytes: 1_000_000_000,
				Copy: base + 10_000_000_000, Full: true}},
		{"a retention of an hour", Usage{At: now, Oldest: ago(59 * time.Minute), Events: 59_000, Recent: 60_000, File: base + 59_000_000,
			Used: base + 59_000_000}, large, webhook.Retention{All: time.Hour},
			Forecast{Known: true, EventsPerDay: 1_440_000, EventBytes: 1000, Size: base + 60_000_000, DayBytes: 1_440_000_000,
				Copy: base + 59_000_000}},
		{"free pages are used first", func() Usage {
			u := of(10*day, 10_000_000, base+10_000_000_000)
			u.File += 20_000_000_000
			return u
		}(),
			Disk{Free: mib, MinFree: mib}, thirty,
			Forecast{Known: true, EventsPerDay: 1_000_000, EventBytes: 1000, Size: base + 30_000_000_000, DayBytes: 1_000_000_000,
				Copy: base + 10_000_000_000, Stuck: 20_000_000_000}},
	} {
		got := Predict(c.u, c.d, c.keep)
		near := func(a, b int64) bool { return max(a-b, b-a) <= 2+b/1_000_000 }
		if got.Known != c.want.Known || !got.KnownAt.Equal(c.want.KnownAt) || got.Full != c.want.Full ||
			got.FullAt.Sub(c.want.FullAt).Abs() > time.Minute ||
			!near(got.EventsPerDay, c.want.EventsPerDay) || !near(got.EventBytes, c.want.EventBytes) || !near(got.Size, c.want.Size) ||
			!near(got.DayBytes, c.want.DayBytes) ||
			!near(got.Copy, c.want.Copy) || got.Stuck != c.want.Stuck {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

func TestForecastString(t *testing.T) {
	full := time.Date(2027, 3, 4, 5, 6, 0, 0, time.UTC)
	growing := Forecast{Copy: 1 << 20, Known: true, EventsPerDay: 5, Size: 2 << 20, DayBytes: 5 << 10}
	filling, filled := growing, growing
	filling.FullAt, filled.Full = full, true
	for _, c := range []struct {
		f    Forecast
		want string
	}{
		{Forecast{Copy: 1 << 20}, "available a day after the first event; a full copy takes 1.0 MiB"},
		{Forecast{Copy: 1 << 20, KnownAt: full}, "available from 2027-03-04T05:06:00.000Z; a full copy takes 1.0 MiB"},
		{Forecast{Copy: 1 << 20, Known: true}, "no events in the last day, so the database is not growing; a full copy takes 1.0 MiB"},
		{growing, "at 5 events per day the database grows to 2.0 MiB, and the disk does not fill up; " +
			"each additional day of retention costs 5.0 KiB; a full copy takes 1.0 MiB"},
		{filling, "at 5 events per day the database grows to 2.0 MiB, and the disk will be full on 4 March 2027; " +
			"each additional day of retention costs 5.0 KiB; a full copy takes 1.0 MiB"},
		{filled, "at 5 events per day the database grows to 2.0 MiB, and the disk is full; " +
			"each additional day of retention costs 5.0 KiB; a full copy takes 1.0 MiB"},
	} {
		if got := c.f.String(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

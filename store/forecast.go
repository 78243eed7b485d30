package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"service/webhook"
)

// Usage is what a forecast is made from. It is measured without reading the log
// through.
type Usage struct {
	At     time.Time
	Empty  bool      // no event was ever accepted
	Begun  time.Time // when the first event was accepted; zero when it was removed since, or Empty
	Oldest time.Time // when the oldest event was accepted that is not older than the retention; zero when there is none
	Events int64     // stored since then
	Recent int64     // accepted in the last day, or in a retention shorter than that

	File       int64 // bytes of the database
	Used       int64 // bytes of it that hold something
	EventBytes int64 // bytes of an event with its indexes, without its deliveries, about
	Shrinks    bool  // the file becomes smaller when most of it is free
}

// Forecast is what the database comes to when events go on as in the last day.
type Forecast struct {
	// Known is false while the service has accepted events for less than a day; it is
	// to be known at KnownAt, which is zero before the first event.
	Known   bool
	KnownAt time.Time

	EventsPerDay int64
	EventBytes   int64     // bytes of an event with its deliveries
	Size         int64     // bytes of the database when it is as old as the retention
	DayBytes     int64     // bytes that a day more of retention costs
	Full         bool      // the disk has no room for events now
	FullAt       time.Time // when it has none; zero for never
	Copy         int64     // bytes that a whole copy takes now: a backup, an upgrade of the schema, a compaction
	Stuck        int64     // free bytes of the file, most of it, which only service compact gives back
}

// emptyDatabase is about how many bytes a database takes that holds nothing.
const emptyDatabase = 400 << 10

const day = 24 * time.Hour

// rateSpan is the time in which events are counted to tell their rate.
func (r Retention) rateSpan() time.Duration { return min(r.All, day) }

// forecast says what the database comes to by what is measured of it. An event costs
// its own bytes until it is as old as keep.All, and those of its deliveries until
// they are as old as keep.Delivered. Events that are stored have come evenly since
// the oldest; those to come do so at today's rate.
func forecast(u Usage, d Disk, keep Retention) Forecast {
	f := Forecast{Copy: u.Used, Full: d.Low}
	if free := u.File - u.Used; !u.Shrinks && free > u.File/shrinkAbove && free >= shrinkLeast {
		f.Stuck = free
	}
	span := keep.rateSpan()
	switch {
	case u.Empty || keep.All <= 0:
		return f
	case !u.Begun.IsZero() && u.At.Sub(u.Begun) < span:
		f.KnownAt = u.Begun.Add(span)
		return f
	}
	f.Known = true
	perDay := float64(u.Recent) * float64(day) / float64(span)
	all, delivered, age := days(keep.All), days(keep.delivered()), days(max(u.At.Sub(u.Oldest), time.Minute))
	age = min(age, all)
	// What is stored is split into events and deliveries by the size of an event.
	base := float64(min(emptyDatabase, u.Used))
	stored := float64(max(u.Events, 1))
	ofEvent := min(float64(u.EventBytes), (float64(u.Used)-base)/stored)
	ofDeliveries := (float64(u.Used) - base - ofEvent*stored) / (stored * min(1, delivered/age))
	f.EventsPerDay, f.EventBytes = int64(math.Round(perDay)), int64(ofEvent+ofDeliveries)

	kept := func(after, keep float64) float64 {
		return perDay*min(after, keep) + stored/age*max(0, min(age, keep-after))
	}
	size := func(after float64) float64 {
		return base + ofEvent*kept(after, all) + ofDeliveries*kept(after, delivered)
	}
	f.Size = int64(size(all))
	f.DayBytes = int64(perDay * ofEvent)
	if delivered == all {
		f.DayBytes = int64(perDay * (ofEvent + ofDeliveries))
	}
	if after, ok := reached(size, float64(u.File+max(d.Free-d.Least, 0)), []float64{0, delivered - age, delivered, all - age, all}); ok && !f.Full {
		f.FullAt = u.At.Add(time.Duration(min(after, 36500) * float64(day))).Truncate(time.Minute)
	}
	return f
}

func days(d time.Duration) float64 { return float64(d) / float64(day) }

// reached returns when a size passes a limit, if it does; it is linear between the
// corners.
func reached(size func(float64) float64, limit float64, corners []float64) (float64, bool) {
	slices.Sort(corners)
	from := 0.0
	for _, to := range corners {
		if to < from {
			continue
		}
		if before, after := size(from), size(to); after > limit {
			if before >= limit {
				return from, true
			}
			return from + (to-from)*(limit-before)/(after-before), true
		}
		from = to
	}
	return 0, false
}

// String says it in words.
func (f Forecast) String() string {
	copied := "a whole copy takes " + webhook.ByteSize(f.Copy)
	switch {
	case !f.Known && f.KnownAt.IsZero():
		return "too little is known until a day after the first event; " + copied
	case !f.Known:
		return "too little is known until " + webhook.FormatTime(f.KnownAt) + "; " + copied
	case f.EventsPerDay == 0:
		return "no event in the last day: the database does not grow; " + copied
	}
	return fmt.Sprintf("at %d events a day the database comes to %s, and %s; one more day of retention costs %s; %s",
		f.EventsPerDay, webhook.ByteSize(f.Size), f.DiskFull(), webhook.ByteSize(f.DayBytes), copied)
}

// DiskFull says when the disk is full.
func (f Forecast) DiskFull() string {
	switch {
	case f.Full:
		return "the disk is full"
	case f.FullAt.IsZero():
		return "the disk does not become full"
	}
	return "the disk is full on " + f.FullAt.UTC().Format("2 January 2006")
}

const (
	// Rows of the log are only appended: a rowid stands for a time in it.
	selectNewestRow = "SELECT coalesce(max(rowid), 0) FROM events"
	selectEventFrom = "SELECT rowid, received_at FROM events WHERE rowid >= ? ORDER BY rowid LIMIT 1"
	// With its row, its entries in three indexes, and pages that are not full.
	selectEventBytes = `SELECT coalesce(CAST(avg(octet_length(json) + 2 * length(id) + 4 * length(program_id) + 2 * length(name) + 40) * 1.1 AS INTEGER), 0)
		FROM (SELECT json, id, program_id, name FROM events ORDER BY rowid DESC LIMIT 200)`
)

// scanRow reads the one row of a query.
type scanRow = func(query string, args []any, dest ...any) error

// measureUsage measures a database. Its cost does not depend on how much is stored.
func measureUsage(scan scanRow, path string, now time.Time, keep Retention) (u Usage, err error) {
	u.At = now
	p, err := scanPages(scan)
	if err != nil {
		return u, err
	}
	u.File, u.Used, u.Shrinks = p.all*p.size, (p.all-p.free)*p.size, p.vacuum == incrementalVacuum
	if info, err := os.Stat(path); err == nil {
		u.File = max(u.File, info.Size())
	}
	var newest, oldest, received int64
	if err := scan(selectNewestRow, nil, &newest); err != nil || newest == 0 {
		u.Empty = err == nil
		return u, err
	}
	if err := scan(selectEventBytes, nil, &u.EventBytes); err != nil {
		return u, err
	}
	if err := scan(selectEventFrom, []any{1}, &oldest, &received); err != nil {
		return u, err
	}
	if oldest == 1 {
		u.Begun = time.UnixMilli(received).UTC()
	}
	from, at, err := rowAt(scan, oldest, newest, now.Add(-keep.All))
	if err != nil {
		return u, err
	}
	u.Oldest, u.Events = at, newest-from+1
	from, _, err = rowAt(scan, oldest, newest, now.Add(-keep.rateSpan()))
	u.Recent = newest - from + 1
	return u, err
}

// rowAt returns the first row of the log that was accepted at a time or later, and
// when: newest+1 for none.
func rowAt(scan scanRow, oldest, newest int64, at time.Time) (row int64, accepted time.Time, err error) {
	low, high := oldest, newest+1 // between them there is a gap, or the row
	for row = high; low < high; {
		middle := low + (high-low)/2
		var found, received int64
		err := scan(selectEventFrom, []any{middle}, &found, &received)
		if errors.Is(err, sql.ErrNoRows) {
			high = middle
			continue
		} else if err != nil {
			return 0, time.Time{}, err
		}
		if received < at.UnixMilli() {
			low = found + 1
		} else {
			row, high, accepted = found, middle, time.UnixMilli(received).UTC()
		}
	}
	return row, accepted, nil
}

// warnFull is how long before the disk is full an examination warns of it.
const warnFull = 30 * day

// forecast says what the database comes to.
func (x *examination) forecast(f Forecast, now time.Time) {
	switch {
	case f.Stuck > 0:
		x.add(LevelWarn, checkForecast, "Stop the service and run service compact.", "%s of the database's file are free, and it does not become smaller by itself; %s", webhook.ByteSize(f.Stuck), f)
	case f.Full || !f.FullAt.IsZero() && f.FullAt.Sub(now) < warnFull:
		x.add(LevelWarn, checkForecast, "A shorter --retention or --retention-delivered, or a larger disk.", "%s", f)
	default:
		x.ok(checkForecast, "%s", f)
	}
}

// Forecast says what the database comes to when events go on as in the last day.
func (s *Store) Forecast(ctx context.Context) (Forecast, error) { return s.core.forecast(ctx) }

func (s *core) forecast(ctx context.Context) (Forecast, error) {
	scan := func(query string, args []any, dest ...any) error { return s.db.Scan(ctx, query, args, dest...) }
	u, err := measureUsage(scan, filepath.Join(s.dir, databaseFile), s.clock.now(), s.retention)
	if err != nil {
		return Forecast{}, err
	}
	return forecast(u, diskOf(s.dir, s.disk.least, scan), s.retention), nil
}

package doctor

import (
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// Usage is the measured input of a forecast.
type Usage struct {
	At     time.Time
	Empty  bool      // no event has been accepted yet
	Begun  time.Time // when the first event was accepted; zero if it has been removed, or Empty
	Oldest time.Time // when the oldest event within the retention was accepted; zero if there is none
	Events int64     // stored events since Oldest
	Recent int64     // events accepted in the last day, or in the retention if that is shorter

	File       int64 // bytes of the database
	Used       int64 // bytes of the pages in use
	EventBytes int64 // approximate bytes of an event with its indexes, without its deliveries
	Shrinks    bool  // the file shrinks when most of it is free (incremental vacuum)
}

// Forecast predicts the size of the database if events keep arriving as in the last day.
type Forecast struct {
	// Known is false until the service has accepted events for a day, at KnownAt, which
	// is zero before the first event.
	Known   bool
	KnownAt time.Time

	EventsPerDay int64
	EventBytes   int64     // bytes of an event with its deliveries
	Size         int64     // bytes of the database once it covers the whole retention
	DayBytes     int64     // bytes per additional day of retention
	Full         bool      // the disk is too full for events now
	FullAt       time.Time // when the disk will be too full; zero for never
	Copy         int64     // bytes of a full copy now: a backup, a schema upgrade, a compaction
	Stuck        int64     // free bytes in a mostly free file that only service compact returns to the disk
}

// emptyDatabase is the approximate size of an empty database in bytes.
const emptyDatabase = 400 << 10

const day = 24 * time.Hour

// rateSpan is the period over which the rate of events is measured.
func rateSpan(keep webhook.Retention) time.Duration { return min(keep.All, day) }

// Predict computes a forecast from measured usage. An event takes its own bytes until
// keep.All, and those of its deliveries until keep.Delivered. Predict assumes that stored
// events arrived evenly since the oldest, and that new ones arrive at today's rate.
func Predict(u Usage, d Disk, keep webhook.Retention) Forecast {
	f := Forecast{Copy: u.Used, Full: d.Low}
	if free := u.File - u.Used; !u.Shrinks && sqlite.MostlyFree(u.File, free) {
		f.Stuck = free
	}
	span := rateSpan(keep)
	switch {
	case u.Empty || keep.All <= 0:
		return f
	case !u.Begun.IsZero() && u.At.Sub(u.Begun) < span:
		f.KnownAt = u.Begun.Add(span)
		return f
	}
	f.Known = true
	perDay := float64(u.Recent) * float64(day) / float64(span)
	all, delivered, age := days(keep.All), days(keep.DeliveredFor()), days(max(u.At.Sub(u.Oldest), time.Minute))
	age = min(age, all)
	// Split the stored bytes into events and deliveries by the size of an event.
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
	if after, ok := reached(size, float64(u.File+max(d.Free-d.MinFree, 0)), []float64{0, delivered - age, delivered, all - age, all}); ok &&
		!f.Full {
		f.FullAt = u.At.Add(time.Duration(min(after, 36500) * float64(day))).Truncate(time.Minute)
	}
	return f
}

func days(d time.Duration) float64 { return float64(d) / float64(day) }

// reached returns when size, which is linear between the corners, exceeds a limit, and false if
// it never does.
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

// String describes the forecast in one sentence.
func (f Forecast) String() string {
	copied := "a full copy takes " + webhook.ByteSize(f.Copy)
	switch {
	case !f.Known && f.KnownAt.IsZero():
		return "available a day after the first event; " + copied
	case !f.Known:
		return "available from " + webhook.FormatTime(f.KnownAt) + "; " + copied
	case f.EventsPerDay == 0:
		return "no events in the last day, so the database is not growing; " + copied
	}
	return fmt.Sprintf("at %d events per day the database grows to %s, and %s; each additional day of retention costs %s; %s",
		f.EventsPerDay, webhook.ByteSize(f.Size), f.DiskFull(), webhook.ByteSize(f.DayBytes), copied)
}

// DiskFull describes when the disk will be full.
func (f Forecast) DiskFull() string {
	switch {
	case f.Full:
		return "the disk is full"
	case f.FullAt.IsZero():
		return "the disk does not fill up"
	}
	return "the disk will be full on " + f.FullAt.UTC().Format("2 January 2006")
}

// The row, its entries in three indexes, and 10 % for partly filled pages.
const selectEventBytes = `SELECT coalesce(CAST(
		avg(octet_length(json) + 2 * length(id) + 4 * length(program_id) + 2 * length(name) + 40) * 1.1 AS INTEGER), 0)
	FROM (SELECT json, id, program_id, name FROM events ORDER BY rowid DESC LIMIT 200)`

// MeasureUsage measures a database. Its cost does not depend on the number of stored records.
func MeasureUsage(scan sqlite.ScanRow, path string, now time.Time, keep webhook.Retention) (u Usage, err error) {
	u.At = now
	p, err := sqlite.ScanPages(scan)
	if err != nil {
		return u, err
	}
	u.File, u.Used, u.Shrinks = p.All*p.Size, (p.All-p.Free)*p.Size, p.Vacuum == sqlite.IncrementalVacuum
	if info, err := os.Stat(path); err == nil {
		u.File = max(u.File, info.Size())
	}
	var newest, oldest, received int64
	if err := scan(record.SelectNewestRow, nil, &newest); err != nil || newest == 0 {
		u.Empty = err == nil
		return u, err
	}
	if err := scan(selectEventBytes, nil, &u.EventBytes); err != nil {
		return u, err
	}
	if err := scan(record.SelectEventFrom, []any{1}, &oldest, &received); err != nil {
		return u, err
	}
	if oldest == 1 {
		u.Begun = time.UnixMilli(received).UTC()
	}
	from, at, err := record.RowAt(scan, oldest, newest, now.Add(-keep.All))
	if err != nil {
		return u, err
	}
	u.Oldest, u.Events = at, newest-from+1
	from, _, err = record.RowAt(scan, oldest, newest, now.Add(-rateSpan(keep)))
	u.Recent = newest - from + 1
	return u, err
}

// warnFull is how early an examination warns before the disk is full.
const warnFull = 30 * day

// forecast adds the forecast of the database's size.
func (x *examination) forecast(f Forecast, now time.Time) {
	switch {
	case f.Stuck > 0:
		x.add(LevelWarn, checkForecast, "Stop the service and run service compact.",
			"%s of the database file are free, but it does not shrink by itself; %s", webhook.ByteSize(f.Stuck), f)
	case f.Full || !f.FullAt.IsZero() && f.FullAt.Sub(now) < warnFull:
		x.add(LevelWarn, checkForecast, "Shorten --retention or --retention-delivered, or enlarge the disk.", "%s", f)
	default:
		x.ok(checkForecast, "%s", f)
	}
}

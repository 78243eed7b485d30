package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// clockJump is the least by which the wall clock must leave the course of
	// time to have jumped. Less is the everyday work of keeping it right.
	clockJump = time.Second
	// clockSaved is how often the time is written down, at most: a clock that
	// was set back between two runs is found out by it.
	clockSaved = time.Second
	// clockDoubt is how long nothing is removed for its age after the clock was
	// set forward, so that a mistake can be put right.
	clockDoubt = 24 * time.Hour
)

// clock is the wall clock, held against the course of time, which no one can
// set. Times that are stored are the wall clock's. Times that something waits
// for in memory are the process's: [time.Time] with a monotonic reading, so
// that a wait takes as long as it was meant to, whatever the wall clock does
// meanwhile.
//
// A time that something waits for is stored by the wait clock: the wall clock
// less all that it has ever jumped. So a jump is one number to store, however
// much waits, and from that moment on nothing is sent before its time because
// the clock was set forward, nor held up because it was set back.
type clock struct {
	now   func() time.Time // the wall clock
	set   bool             // now is not time.Now
	start time.Time        // of the process

	course  atomic.Pointer[course]    // replaced by the leader of the writer
	saved   time.Time                 // when the time was last written down, by the process's; owned by the leader of the writer
	doubted atomic.Pointer[time.Time] // when the clock was last set forward, by the process's; nil for never
}

// course is what the wall clock is held against. It is not changed.
type course struct {
	wall   time.Time     // the wall clock at the process's start, as if it had been right
	offset time.Duration // by how much the wait clock is behind the wall clock, in whole milliseconds; as stored
}

func newClock(now func() time.Time) *clock {
	c := &clock{now: now, set: now != nil, start: time.Now()}
	if now == nil {
		c.now = time.Now
	}
	c.course.Store(&course{wall: c.now().Round(0)})
	return c
}

// jump returns by how much the wall clock is off the course of time since it
// was last heeded, 0 when that is no jump.
func (c *clock) jump() time.Duration { return c.jumpFrom(c.course.Load()) }

func (c *clock) jumpFrom(of *course) time.Duration {
	d := c.now().Round(0).Sub(of.wall) - time.Since(c.start)
	if d.Abs() < clockJump {
		return 0
	}
	return d.Round(time.Millisecond)
}

// offset is by how much the wait clock is behind the wall clock, a jump that
// was not heeded yet included.
func (c *clock) offset() time.Duration {
	of := c.course.Load()
	return of.offset + c.jumpFrom(of)
}

// moved returns the course after a jump.
func (c *course) moved(jump time.Duration) *course {
	return &course{wall: c.wall.Add(jump), offset: c.offset + jump}
}

// wait is a time of the wall clock as the wait clock has it, in Unix
// milliseconds.
func (c *clock) wait(wall time.Time) int64 { return wall.Add(-c.offset()).UnixMilli() }

// waitOrNull is wait; nil, which is NULL, for zero.
func (c *clock) waitOrNull(wall time.Time) any {
	if wall.IsZero() {
		return nil
	}
	return c.wait(wall)
}

// shown is a time of the wait clock as the wall clock has it; zero for NULL.
func (c *clock) shown(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMilli(n.Int64).Add(c.offset()).UTC()
}

// stored is a time of the process as the wait clock will show it, in Unix
// milliseconds; nil, which is NULL, for zero.
func (c *clock) stored(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return c.wait(c.now().Add(time.Until(t)))
}

// process is the time of the process at which the wait clock will show a
// stored time; zero for NULL.
func (c *clock) process(n sql.NullInt64) time.Time { return c.processAt(c.shown(n)) }

// processAt is the time of the process at which the wall clock will show a time;
// zero for zero.
func (c *clock) processAt(wall time.Time) time.Time {
	if wall.IsZero() {
		return time.Time{}
	}
	now := time.Now()
	shows := now
	if c.set {
		shows = c.now()
	}
	return now.Add(wall.Sub(shows.Round(0)))
}

// due says whether the next commit has to heed the clock.
func (c *clock) due() bool { return c.jump() != 0 || time.Since(c.saved) >= clockSaved }

// heedClock heeds a jump of the wall clock, and writes the time down.
func (s *core) heedClock(t *tx) error {
	c := s.clock
	jump, now := c.jump(), time.Now()
	if jump != 0 {
		if err := s.moveWaits(t, jump); err != nil {
			return err
		}
	}
	t.AfterCommit(func() {
		c.saved = now
		if jump == 0 {
			return
		}
		if jump > 0 {
			c.doubted.Store(&now)
		}
		s.logger.Warn("the clock was set; what waits was moved with it", "by", jump.Round(time.Millisecond))
	})
	return s.saveClock(t)
}

// saveClock writes the time down.
func (s *core) saveClock(t *tx) error { return t.setNumber("clock", s.clock.now().UnixMilli()) }

func (t *tx) setNumber(setting string, n int64) error {
	return t.Exec("INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2", setting, strconv.AppendInt(nil, n, 10))
}

// number reads a setting that is a number, 0 when there is none, with the Scan of
// a transaction or of a reader.
func number(scan func(query string, args []any, dest ...any) error, setting string) (int64, error) {
	var text []byte
	err := scan("SELECT value FROM settings WHERE name = ?", []any{setting}, &text)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// openClock reads by how much the wait clock is behind the wall clock. It is
// called before anything else is read.
func (s *core) openClock(ctx context.Context) error {
	ms, err := number(func(query string, args []any, dest ...any) error { return s.db.Scan(ctx, query, args, dest...) }, waitOffset)
	s.clock.course.Store(&course{wall: s.clock.course.Load().wall, offset: time.Duration(ms) * time.Millisecond})
	return err
}

// recoverClock finds out, at the start, whether the clock was set back since
// the last run, and moves the stored waits if so. Forward it may have gone by
// itself, while nothing ran: then what waits is due, but the pause is not held
// against a subscriber. From then on commits heed the clock. It does nothing
// once it has been done.
func (s *core) recoverClock(t *tx) error {
	if t.w.running {
		return nil
	}
	t.AfterCommit(func() { t.w.running = true })
	last, err := number(t.Scan, "clock")
	if err != nil || last == 0 {
		return err
	}
	gap := s.clock.now().Sub(time.UnixMilli(last)).Round(time.Millisecond)
	// Written down at once: another start before the next commit must not move it all again.
	if err := s.saveClock(t); err != nil {
		return err
	}
	switch {
	case gap >= clockJump:
		return t.Exec(moveFailures, gap.Milliseconds())
	case gap > -clockJump:
		return nil
	}
	s.logger.Warn("the clock was set back since the last run; what waits was moved with it", "by", gap.Round(time.Millisecond))
	of := s.clock.course.Load()
	t.AfterCommit(func() { s.clock.course.Store(&course{wall: of.wall, offset: of.offset + gap}) })
	return s.storeJump(t, of.offset+gap, gap)
}

const moveFailures = "UPDATE failures SET first_at = first_at + ?1, failing_since = failing_since + ?1, next_probe_at = next_probe_at + ?1"

// waitOffset is the setting that has by how much the wait clock is behind the
// wall clock, in milliseconds.
const waitOffset = "wait_offset"

// moveWaits moves all that waits by a jump of the wall clock.
func (s *core) moveWaits(t *tx, jump time.Duration) error {
	to := s.clock.course.Load().moved(jump)
	t.AfterCommit(func() { s.clock.course.Store(to) })
	return s.storeJump(t, to.offset, jump)
}

// storeJump stores the wait clock's offset, and moves the few stored times that
// are the wall clock's: a row for each subscription that fails, and some for each
// admin.
func (s *core) storeJump(t *tx, offset, jump time.Duration) error {
	for _, query := range []string{
		moveFailures,
		"UPDATE sessions SET seen_at = seen_at + ?1, expires_at = expires_at + ?1",
	} {
		if err := t.Exec(query, jump.Milliseconds()); err != nil {
			return err
		}
	}
	// A queue that is read while this is committed may take the time of its probe for
	// another.
	err := t.Each("SELECT subscription_id FROM failures WHERE failing_since IS NOT NULL", nil, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		t.AfterCommit(func() { s.watchers.subscriptionChanged(id) })
		return err
	})
	if err != nil {
		return err
	}
	return t.setNumber(waitOffset, offset.Milliseconds())
}

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
	// clockJump is the smallest deviation of the wall clock from the monotonic clock that
	// counts as a jump. Less is normal adjustment.
	clockJump = time.Second
	// clockSaveInterval is the shortest interval between saves of the time. The saved time
	// reveals a clock that was set back between two runs.
	clockSaveInterval = time.Second
)

// clock compares the wall clock with the monotonic clock. Timestamps are stored in wall clock
// time. In memory, deadlines are [time.Time] with a monotonic reading, so a wait takes as long
// as intended even if the wall clock is set.
//
// In the database, deadlines are stored in wait clock time: the wall clock minus all its jumps.
// A jump therefore changes one stored number, however many deadlines there are, and makes
// nothing due too early or too late.
//
// Retention counts time of its own, which never decreases: the time that the service has run, plus
// what of each jump is new, up to maxStep. New is what takes the wall clock beyond where its highest
// time and the running time since then have led. See docs/decisions/0062-counted-time.md.
type clock struct {
	now     func() time.Time // the wall clock
	fake    bool             // now is not time.Now
	start   time.Time        // of the process, with a monotonic reading
	maxStep time.Duration    // the most that counts of one jump

	base  atomic.Pointer[clockBase] // replaced by the leader of the writer
	saved time.Time                 // monotonic time of the last save; owned by the leader of the writer
}

// clockBase is what the wall clock is compared with. It is immutable.
type clockBase struct {
	wall    time.Time     // wall clock at the start of the process, corrected by all jumps since
	offset  time.Duration // wall clock minus wait clock, in whole milliseconds, as stored
	behind  time.Duration // how far the wall clock is behind where it has been; not negative
	counted time.Duration // what retention had counted at the start of the process, corrected by all jumps since
}

// newClock returns a clock that reads now, or time.Now if that is nil.
func newClock(now func() time.Time, maxStep time.Duration) *clock {
	c := &clock{now: now, fake: now != nil, start: time.Now(), maxStep: maxStep}
	if now == nil {
		c.now = time.Now
	}
	c.base.Store(&clockBase{wall: c.now().Round(0)})
	return c
}

// jump returns by how far the wall clock has jumped since the last jump that was recorded, 0 if
// it has not.
func (c *clock) jump() time.Duration { return c.jumpFrom(c.base.Load()) }

// jumpFrom returns how far the wall clock is from where base expects it, 0 below clockJump.
func (c *clock) jumpFrom(base *clockBase) time.Duration {
	d := c.now().Round(0).Sub(base.wall) - time.Since(c.start)
	if d.Abs() < clockJump {
		return 0
	}
	return d.Round(time.Millisecond)
}

// current returns the base, including a jump that has not been recorded yet.
func (c *clock) current() *clockBase {
	base := c.base.Load()
	jump := c.jumpFrom(base)
	if jump == 0 {
		return base
	}
	moved := c.step(base, jump)
	moved.wall, moved.offset = base.wall.Add(jump), base.offset+jump
	return &moved
}

// step returns the base after a jump, as far as retention is concerned.
func (c *clock) step(base *clockBase, jump time.Duration) clockBase {
	after := *base
	after.behind = max(base.behind-jump, 0)
	after.counted += min(max(jump-base.behind, 0), c.maxStep)
	return after
}

// offset returns wall clock minus wait clock.
func (c *clock) offset() time.Duration { return c.current().offset }

// counted returns the time that retention counts.
func (c *clock) counted() time.Duration { return c.current().counted + time.Since(c.start) }

// wholeSeconds converts counted time to a counted_at. It rounds up, since retention must not remove
// anything early.
func wholeSeconds(counted time.Duration) int64 {
	seconds := int64(counted / time.Second)
	if counted%time.Second > 0 {
		seconds++
	}
	return seconds
}

// wait converts wall clock time to wait clock time in Unix milliseconds.
func (c *clock) wait(wall time.Time) int64 { return wall.Add(-c.offset()).UnixMilli() }

// waitOrNull is like wait, but returns nil, which is NULL, for the zero time.
func (c *clock) waitOrNull(wall time.Time) any {
	if wall.IsZero() {
		return nil
	}
	return c.wait(wall)
}

// shown converts stored wait clock time to wall clock time; NULL to the zero time.
func (c *clock) shown(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMilli(n.Int64).Add(c.offset()).UTC()
}

// stored converts a time with a monotonic reading to wait clock time in Unix milliseconds; the
// zero time to nil, which is NULL.
func (c *clock) stored(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return c.wait(c.now().Add(time.Until(t)))
}

// process converts stored wait clock time to a time with a monotonic reading; NULL to the zero
// time.
func (c *clock) process(n sql.NullInt64) time.Time { return c.processAt(c.shown(n)) }

// processAt converts wall clock time to a time with a monotonic reading; the zero time to
// itself.
func (c *clock) processAt(wall time.Time) time.Time {
	if wall.IsZero() {
		return time.Time{}
	}
	now := time.Now()
	wallNow := now
	if c.fake {
		wallNow = c.now()
	}
	return now.Add(wall.Sub(wallNow.Round(0)))
}

// due reports whether the next commit must record the clock.
func (c *clock) due() bool { return c.jump() != 0 || time.Since(c.saved) >= clockSaveInterval }

// recordClock records a jump of the wall clock, and saves the time.
func (s *core) recordClock(t *tx) error {
	c, now := s.clock, time.Now()
	before, to := c.base.Load(), c.current()
	jump := to.offset - before.offset
	t.AfterCommit(func() { // before the queues read the shifted deadlines
		c.saved = now
		if jump != 0 {
			c.base.Store(to)
			s.logger.Warn("system clock jumped; shifted pending deadlines by the same amount", "by", jump)
		}
	})
	if jump != 0 {
		if err := s.storeJump(t, to, jump); err != nil {
			return err
		}
	}
	return s.saveClock(t, to)
}

// The settings of the clock, in milliseconds.
const (
	waitOffset  = "wait_offset"  // wall clock minus wait clock
	clockBehind = "clock_behind" // how far the wall clock is behind where it has been
	savedClock  = "clock"        // the wall clock when it was last saved
	countedTime = "counted"      // what retention had counted then
)

// saveClock saves the time, according to a base.
func (s *core) saveClock(t *tx, base *clockBase) error {
	return errors.Join(t.setNumber(savedClock, s.clock.now().UnixMilli()),
		t.setNumber(countedTime, (base.counted+time.Since(s.clock.start)).Milliseconds()))
}

// setNumber stores a setting that is a number.
func (t *tx) setNumber(setting string, n int64) error {
	return t.Exec("INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE "+
		"SET value = ?2", setting, strconv.AppendInt(nil, n, 10))
}

// number reads a setting that is a number, 0 if it is not set. Scan is that of a transaction or
// a reader.
func number(scan scanRow, setting string) (int64, error) {
	var text []byte
	err := scan("SELECT value FROM settings WHERE name = ?", []any{setting}, &text)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// openClock reads the settings of the clock. It is called before anything else is read.
func (s *core) openClock(ctx context.Context) error {
	scan, _ := s.reads(ctx)
	read := func(setting string) (time.Duration, error) {
		ms, err := number(scan, setting)
		return time.Duration(ms) * time.Millisecond, err
	}
	offset, err1 := read(waitOffset)
	behind, err2 := read(clockBehind)
	counted, err3 := read(countedTime)
	base := s.clock.base.Load()
	s.clock.base.Store(&clockBase{wall: base.wall, offset: offset, behind: behind, counted: counted - time.Since(s.clock.start)})
	return errors.Join(err1, err2, err3)
}

// recoverClock compares the clock with the last saved time, once per process. If the clock was
// set back while the process was not running, it shifts the stored deadlines. If time has
// passed, deadlines may be due, and failures are shifted so that the downtime does not count
// against a subscriber. For retention, either is a jump. From then on commits record the clock.
func (s *core) recoverClock(t *tx) error {
	if t.w.running {
		return nil
	}
	t.AfterCommit(func() { t.w.running = true })
	last, err := number(t.Scan, savedClock)
	if err != nil || last == 0 {
		return err
	}
	counted, err := number(t.Scan, countedTime)
	if err != nil {
		return err
	}
	now, running := s.clock.now().Round(0), time.Since(s.clock.start)
	gap := now.Sub(time.UnixMilli(last)).Round(time.Millisecond)
	before := *s.clock.base.Load()
	before.wall, before.counted = now.Add(-running), time.Duration(counted)*time.Millisecond-running // the gap has the time since
	to := s.clock.step(&before, gap)
	if gap <= -clockJump {
		to.offset += gap
	}
	t.AfterCommit(func() { s.clock.base.Store(&to) })
	// Saved immediately: another start before the next commit must not shift everything again.
	if err := s.saveClock(t, &to); err != nil {
		return err
	}
	switch {
	case gap >= clockJump:
		return errors.Join(t.setNumber(clockBehind, to.behind.Milliseconds()), t.Exec(moveFailures, gap.Milliseconds()))
	case gap > -clockJump:
		return nil
	}
	s.logger.Warn("system clock was set back since the last run; shifted pending deadlines by the same "+
		"amount", "by", gap)
	return s.storeJump(t, &to, gap)
}

const moveFailures = "UPDATE failures SET first_at = first_at + ?1, failing_since = failing_since + ?1, next_probe_at = next_probe_at + ?1"

// storeJump stores the base after a jump, and shifts the few deadlines that are stored in wall
// clock time: one row for each failing subscription, the sessions of admins and partners, and the
// links to deliveries.
func (s *core) storeJump(t *tx, to *clockBase, jump time.Duration) error {
	for _, query := range []string{
		moveFailures,
		"UPDATE sessions SET seen_at = seen_at + ?1, expires_at = expires_at + ?1",
		"UPDATE portal_links SET expires_at = expires_at + ?1",
		"UPDATE portal_sessions SET expires_at = expires_at + ?1",
		"UPDATE shares SET expires_at = expires_at + ?1",
	} {
		if err := t.Exec(query, jump.Milliseconds()); err != nil {
			return err
		}
	}
	// A queue that is read during this commit may have the old time of its probe.
	err := t.Each("SELECT subscription_id FROM failures WHERE failing_since IS NOT NULL", nil, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		t.AfterCommit(func() { s.watchers.subscriptionChanged(id) })
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(t.setNumber(waitOffset, to.offset.Milliseconds()), t.setNumber(clockBehind, to.behind.Milliseconds()))
}

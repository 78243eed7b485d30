// Package clock tells the time that the service stores: it notices when the wall clock is set, shifts
// the deadlines in the database, and counts the time that retention uses.
package clock

import (
	"database/sql"
	"errors"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"service/store/schema"
	"service/store/sqlite"
)

const (
	// minJump is the smallest deviation of the wall clock from the monotonic clock that
	// counts as a jump. Less is normal adjustment.
	minJump = time.Second
	// saveInterval is the shortest interval between saves of the time. The saved time
	// reveals a clock that was set back between two runs.
	saveInterval = time.Second
)

// Clock compares the wall clock with the monotonic clock. Timestamps are stored in wall clock
// time. In memory, deadlines are [time.Time] with a monotonic reading, so a wait takes as long
// as intended even if the wall clock is set.
//
// In the database, deadlines are stored in wait clock time: the wall clock minus all its jumps.
// A jump therefore changes one stored number, however many deadlines there are, and makes
// nothing due too early or too late.
//
// Retention counts its own time, which never decreases: the time that the service has run, plus the
// new part of each jump, up to maxStep. The new part is what takes the wall clock beyond its highest
// time plus the running time since then. See docs/decisions/0062-counted-time.md.
type Clock struct {
	Now     func() time.Time // the wall clock
	fake    bool             // Now is not time.Now
	start   time.Time        // of the process, with a monotonic reading
	maxStep time.Duration    // the maximum that counts of one jump

	base  atomic.Pointer[reference] // replaced by the leader of the writer
	saved time.Time                 // monotonic time of the last save; owned by the leader of the writer

	logger *slog.Logger
	moved  func(subscriptionID string) // called after a commit has shifted the next probe of a subscription
}

// reference is what the wall clock is compared with. It is immutable.
type reference struct {
	wall    time.Time     // wall clock at the start of the process, corrected by all jumps since
	offset  time.Duration // wall clock minus wait clock, in whole milliseconds, as stored
	behind  time.Duration // how far the wall clock is behind its highest time; not negative
	counted time.Duration // counted time at the start of the process, corrected by all jumps since
}

// New returns a clock that reads now, or time.Now if that is nil. It calls moved after a commit has
// shifted the next probe of a subscription.
func New(now func() time.Time, maxStep time.Duration, logger *slog.Logger, moved func(subscriptionID string)) *Clock {
	c := &Clock{Now: now, fake: now != nil, start: time.Now(), maxStep: maxStep, logger: logger, moved: moved}
	if now == nil {
		c.Now = time.Now
	}
	c.base.Store(&reference{wall: c.Now().Round(0)})
	return c
}

// Jump returns by how far the wall clock has jumped since the last jump that was recorded, 0 if
// it has not.
func (c *Clock) Jump() time.Duration { return c.jumpFrom(c.base.Load()) }

// jumpFrom returns how far the wall clock is from where base expects it, 0 below minJump.
func (c *Clock) jumpFrom(base *reference) time.Duration {
	d := c.Now().Round(0).Sub(base.wall) - time.Since(c.start)
	if d.Abs() < minJump {
		return 0
	}
	return d.Round(time.Millisecond)
}

// current returns the base, including a jump that has not been recorded yet.
func (c *Clock) current() *reference {
	base := c.base.Load()
	jump := c.jumpFrom(base)
	if jump == 0 {
		return base
	}
	moved := c.step(base, jump)
	moved.wall, moved.offset = base.wall.Add(jump), base.offset+jump
	return &moved
}

// step returns the base after a jump, with the retention part alone updated.
func (c *Clock) step(base *reference, jump time.Duration) reference {
	after := *base
	after.behind = max(base.behind-jump, 0)
	after.counted += min(max(jump-base.behind, 0), c.maxStep)
	return after
}

// Offset returns wall clock minus wait clock.
func (c *Clock) Offset() time.Duration { return c.current().offset }

// Counted returns the time that retention counts.
func (c *Clock) Counted() time.Duration { return c.current().counted + time.Since(c.start) }

// WholeSeconds converts counted time to a counted_at. It rounds up, since retention must not remove
// anything early.
func WholeSeconds(counted time.Duration) int64 {
	seconds := int64(counted / time.Second)
	if counted%time.Second > 0 {
		seconds++
	}
	return seconds
}

// Wait converts wall clock time to wait clock time in Unix milliseconds.
func (c *Clock) Wait(wall time.Time) int64 { return wall.Add(-c.Offset()).UnixMilli() }

// WaitOrNull is like Wait, but returns nil, which is NULL, for the zero time.
func (c *Clock) WaitOrNull(wall time.Time) any {
	if wall.IsZero() {
		return nil
	}
	return c.Wait(wall)
}

// Shown converts stored wait clock time to wall clock time; NULL to the zero time.
func (c *Clock) Shown(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMilli(n.Int64).Add(c.Offset()).UTC()
}

// Stored converts a time with a monotonic reading to wait clock time in Unix milliseconds; the
// zero time to nil, which is NULL.
func (c *Clock) Stored(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return c.Wait(c.Now().Add(time.Until(t)))
}

// Process converts stored wait clock time to a time with a monotonic reading; NULL to the zero
// time.
func (c *Clock) Process(n sql.NullInt64) time.Time { return c.ProcessAt(c.Shown(n)) }

// ProcessAt converts wall clock time to a time with a monotonic reading; the zero time to
// itself.
func (c *Clock) ProcessAt(wall time.Time) time.Time {
	if wall.IsZero() {
		return time.Time{}
	}
	now := time.Now()
	wallNow := now
	if c.fake {
		wallNow = c.Now()
	}
	return now.Add(wall.Sub(wallNow.Round(0)))
}

// Due reports whether the next commit must record the clock.
func (c *Clock) Due() bool { return c.Jump() != 0 || time.Since(c.saved) >= saveInterval }

// Record records a jump of the wall clock, and saves the time.
func (c *Clock) Record(t *sqlite.Tx) error {
	now := time.Now()
	before, to := c.base.Load(), c.current()
	jump := to.offset - before.offset
	t.AfterCommit(func() { // before the queues read the shifted deadlines
		c.saved = now
		if jump != 0 {
			c.base.Store(to)
			c.logger.Warn("system clock jumped; shifted pending deadlines by the same amount", "by", jump)
		}
	})
	if jump != 0 {
		if err := c.storeJump(t, to, jump); err != nil {
			return err
		}
	}
	return c.save(t, to)
}

// The settings of the clock, in milliseconds.
const (
	WaitOffset  = "wait_offset"  // wall clock minus wait clock
	clockBehind = "clock_behind" // how far the wall clock is behind its highest time
	SavedClock  = "clock"        // the wall clock when it was last saved
	CountedTime = "counted"      // the counted time at that moment
)

// save saves the time, according to a base.
func (c *Clock) save(t *sqlite.Tx, base *reference) error {
	return errors.Join(setNumber(t, SavedClock, c.Now().UnixMilli()),
		setNumber(t, CountedTime, (base.counted+time.Since(c.start)).Milliseconds()))
}

// setNumber stores a setting that is a number.
func setNumber(t *sqlite.Tx, setting string, n int64) error {
	return t.Exec(schema.Set, setting, strconv.AppendInt(nil, n, 10))
}

// ReadNumber reads a setting that is a number, 0 if it is not set. Scan is that of a transaction or
// a reader.
func ReadNumber(scan sqlite.ScanRow, setting string) (int64, error) {
	text, err := schema.Get(scan, setting)
	if err != nil || text == nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// Open reads the settings of the clock. Call it before anything else is read.
func (c *Clock) Open(scan sqlite.ScanRow) error {
	read := func(setting string) (time.Duration, error) {
		ms, err := ReadNumber(scan, setting)
		return time.Duration(ms) * time.Millisecond, err
	}
	offset, err1 := read(WaitOffset)
	behind, err2 := read(clockBehind)
	counted, err3 := read(CountedTime)
	base := c.base.Load()
	c.base.Store(&reference{wall: base.wall, offset: offset, behind: behind, counted: counted - time.Since(c.start)})
	return errors.Join(err1, err2, err3)
}

// Recover compares the clock with the last saved time, once per process. If the clock was
// set back while the process was not running, it shifts the stored deadlines. If time has
// passed, deadlines may be due, and failures are shifted so that the downtime does not count
// against a subscriber. For retention, either is a jump. After that, commits record the clock.
func (c *Clock) Recover(t *sqlite.Tx) error {
	last, err := ReadNumber(t.Scan, SavedClock)
	if err != nil || last == 0 {
		return err
	}
	counted, err := ReadNumber(t.Scan, CountedTime)
	if err != nil {
		return err
	}
	now, running := c.Now().Round(0), time.Since(c.start)
	gap := now.Sub(time.UnixMilli(last)).Round(time.Millisecond)
	before := *c.base.Load()
	before.wall, before.counted = now.Add(-running), time.Duration(counted)*time.Millisecond-running // the gap includes the time since
	to := c.step(&before, gap)
	if gap <= -minJump {
		to.offset += gap
	}
	t.AfterCommit(func() { c.base.Store(&to) })
	// Saved immediately: another start before the next commit must not shift everything again.
	if err := c.save(t, &to); err != nil {
		return err
	}
	switch {
	case gap >= minJump:
		return errors.Join(setNumber(t, clockBehind, to.behind.Milliseconds()), t.Exec(moveFailures, gap.Milliseconds()))
	case gap > -minJump:
		return nil
	}
	c.logger.Warn("system clock was set back since the last run; shifted pending deadlines by the same "+
		"amount", "by", gap)
	return c.storeJump(t, &to, gap)
}

const moveFailures = "UPDATE failures SET first_at = first_at + ?1, failing_since = failing_since + ?1, next_probe_at = next_probe_at + ?1"

// storeJump stores the base after a jump, and shifts the few deadlines that are stored in wall
// clock time: one row per failing subscription, the sessions of admins and partners, and the links
// to deliveries.
func (c *Clock) storeJump(t *sqlite.Tx, to *reference, jump time.Duration) error {
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
	// A queue that is read during this commit may contain the old time of its probe.
	err := t.Each("SELECT subscription_id FROM failures WHERE failing_since IS NOT NULL", nil, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		t.AfterCommit(func() { c.moved(id) })
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(setNumber(t, WaitOffset, to.offset.Milliseconds()), setNumber(t, clockBehind, to.behind.Milliseconds()))
}

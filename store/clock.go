package store

import (
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
// When the wall clock has jumped, stored waits are moved with it, in the first
// commit after: nothing is sent before its time because the clock was set
// forward, nor held up because it was set back.
type clock struct {
	now   func() time.Time // the wall clock
	start time.Time        // of the process
	wall  time.Time        // at the start, as if it had been right; owned by the leader of the writer

	saved   time.Time                 // when the time was last written down, by the process's; owned by the leader of the writer
	doubted atomic.Pointer[time.Time] // when the clock was last set forward, by the process's; nil for never
}

func newClock(now func() time.Time) *clock {
	if now == nil {
		now = time.Now
	}
	return &clock{now: now, start: time.Now(), wall: now().Round(0)}
}

// jump returns by how much the wall clock is off the course of time since it
// was last heeded, 0 when that is no jump.
func (c *clock) jump() time.Duration {
	d := c.now().Round(0).Sub(c.wall) - time.Since(c.start)
	if d.Abs() < clockJump {
		return 0
	}
	return d
}

// stored is a time of the process as the wall clock will show it, in Unix
// milliseconds; nil, which is NULL, for zero.
func (c *clock) stored(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return c.now().Add(time.Until(t)).UnixMilli()
}

// process is the time of the process at which the wall clock will show a
// stored time; zero for NULL.
func (c *clock) process(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.Now().Add(time.UnixMilli(n.Int64).Sub(c.now()))
}

// due says whether the next commit has to heed the clock.
func (c *clock) due() bool { return c.jump() != 0 || time.Since(c.saved) >= clockSaved }

// heedClock moves the stored waits if the clock has jumped, and writes the time
// down.
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
		c.wall = c.wall.Add(jump)
		if jump > 0 {
			c.doubted.Store(&now)
		}
		s.logger.Warn("the clock was set; what waits was moved with it", "by", jump.Round(time.Millisecond))
	})
	return s.saveClock(t)
}

// saveClock writes the time down.
func (s *core) saveClock(t *tx) error {
	return t.Exec("INSERT INTO settings (name, value) VALUES ('clock', ?1) ON CONFLICT DO UPDATE SET value = ?1", strconv.AppendInt(nil, s.clock.now().UnixMilli(), 10))
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
	var text []byte
	err := t.Scan("SELECT value FROM settings WHERE name = 'clock'", nil, &text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	last, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return err
	}
	gap := s.clock.now().Sub(time.UnixMilli(last))
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
	return s.moveWaits(t, gap)
}

const moveFailures = "UPDATE failures SET first_at = first_at + ?1, failing_since = failing_since + ?1"

// moveWaits moves every stored time that something waits for, or counts from.
func (s *core) moveWaits(t *tx, by time.Duration) error {
	ms := by.Milliseconds()
	for _, query := range []string{
		"UPDATE deliveries SET next_attempt_at = next_attempt_at + ? WHERE next_attempt_at IS NOT NULL",
		"UPDATE alerts SET next_attempt_at = next_attempt_at + ? WHERE next_attempt_at IS NOT NULL",
		moveFailures,
		"UPDATE idempotency_keys SET expires_at = expires_at + ?",
		"UPDATE sessions SET seen_at = seen_at + ?1, expires_at = expires_at + ?1",
		// In two steps, since the time is part of the key: below zero there is none to meet.
		"UPDATE old_signing_secrets SET expires_at = -(expires_at + ?)",
		"UPDATE old_signing_secrets SET expires_at = -expires_at WHERE expires_at < 0 AND ? <> 0",
	} {
		if err := t.Exec(query, ms); err != nil {
			return err
		}
	}
	// The queues know when their old secrets expire.
	return t.Each("SELECT DISTINCT subscription_id FROM old_signing_secrets", nil, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		t.AfterCommit(func() { s.watchers.subscriptionChanged(id) })
		return err
	})
}

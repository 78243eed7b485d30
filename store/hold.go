package store

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"service/store/datadir"
	"service/store/record"
	"service/store/schema"
	"service/webhook"
)

// Hold is the pause after service restore in which nothing but pings is delivered, until an
// operator has checked the data and releases it.
type Hold struct {
	From  string    // the replica or backup that was restored
	State time.Time // the time of the restored state
	Repeats
}

// Repeats counts the deliveries and events that may be delivered a second time, since
// deliveries made after the restored state are unknown.
type Repeats struct {
	Deliveries int  // deliveries that have not completed in the restored state
	Events     int  // events that are not in a delivery yet
	More       bool // one of the counts is a lower bound
}

// hold is the state of the store's Hold.
type hold struct {
	mu       sync.Mutex
	info     Hold
	released chan struct{} // closed when there is no hold
}

const (
	// maxRepeats bounds how far deliveries and events are counted.
	maxRepeats = 10_000

	selectIncomplete = `SELECT count(*) FROM (
		SELECT 1 FROM deliveries INDEXED BY deliveries_by_status WHERE status <> 'success' AND status IN ('pending', 'retryable')
		AND ping IS NULL LIMIT ?)`
	// fromActive joins events of the log with the active subscriptions x, their cursors c and interests i.
	fromActive = `FROM cursors c CROSS JOIN subscriptions x ON x.id = c.subscription_id AND x.active = 1 AND x.deleted_at IS NULL
		CROSS JOIN interests i ON i.subscription_id = x.id CROSS JOIN events e ON `
	selectWaitingEvents = "SELECT (SELECT count(*) FROM (SELECT 1 " + fromActive + record.WaitingEvents + " LIMIT ?)), EXISTS (SELECT 1 " +
		fromActive + record.UnexaminedEvents + ")"
)

// newHold returns a hold that is not in effect.
func newHold() *hold {
	h := &hold{released: make(chan struct{})}
	close(h.released)
	return h
}

// Begin pauses the deliveries of a database that service restore restored, unless the hold was
// released. It is called once after Open, before anything is delivered.
func (s Holds) Begin(ctx context.Context) error {
	scan, _ := s.db.Reads(ctx)
	text, err := schema.Get(scan, schema.Restored)
	if err != nil || text == nil {
		return err
	}
	var mark datadir.RestoreMark
	if err := json.Unmarshal(text, &mark); err != nil {
		return fmt.Errorf("parse the restore marker: %w", err)
	}
	repeats, err := s.repeats(ctx)
	if err != nil {
		return err
	}
	logged := []any{"from", mark.From, "state", webhook.FormatTime(mark.State), "deliveries", repeats.Deliveries, "events", repeats.Events}
	s.hold.mu.Lock()
	s.hold.info = Hold{From: mark.From, State: mark.State, Repeats: repeats}
	s.hold.released = make(chan struct{})
	s.hold.mu.Unlock()
	s.logger.Warn("database was restored; deliveries are paused until service release", logged...)
	return nil
}

// repeats counts the deliveries and events that may be delivered a second time.
func (s *core) repeats(ctx context.Context) (r Repeats, err error) {
	if err = s.db.Scan(ctx, selectIncomplete, []any{maxRepeats + 1}, &r.Deliveries); err != nil {
		return r, err
	}
	if err = s.db.Scan(ctx, selectWaitingEvents, []any{maxRepeats + 1}, &r.Events, &r.More); err != nil {
		return r, err
	}
	r.More = r.More || r.Deliveries > maxRepeats || r.Events > maxRepeats
	r.Deliveries, r.Events = min(r.Deliveries, maxRepeats), min(r.Events, maxRepeats)
	return r, nil
}

// Current returns the current hold, and whether one is in effect.
func (s Holds) Current() (Hold, bool) { return s.hold.current() }

func (h *hold) current() (Hold, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.released:
		return Hold{}, false
	default:
		return h.info, true
	}
}

// Released returns a channel that is closed once no hold is in effect.
func (s Holds) Released() <-chan struct{} {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	return s.hold.released
}

// Release ends the hold permanently. The error is a *webhook.Error if there is none.
func (w Write) Release(by webhook.AuditEntry) error {
	if _, held := w.t.s.hold.current(); !held {
		return webhook.NewError(webhook.CodeConflict, "Deliveries are not paused.")
	}
	w.t.AfterCommit(w.t.s.hold.end)
	if err := w.t.Exec("DELETE FROM settings WHERE name = '" + schema.Restored + "'"); err != nil {
		return err
	}
	return w.t.people.Record(by, webhook.ActionRestoreRelease, "", "", "")
}

// end ends the hold in memory; further calls have no effect.
func (h *hold) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.released:
	default:
		close(h.released)
	}
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"service/webhook"
)

// Hold is the time after a restore in which nothing is delivered, so that an
// operator can look first. Pings are sent.
type Hold struct {
	Until time.Time // then it ends by itself
	From  string    // the replica that was restored from
	State time.Time // when the newest change that was restored was copied
	Repeats
}

// Repeats says what may be delivered although it was delivered before: what was
// sent after the state that was restored is not known any more.
type Repeats struct {
	Deliveries int  // that have not ended, by what is known
	Events     int  // that wait to be put into deliveries
	More       bool // there are more of one or the other
}

// hold is the state of the store's Hold.
type hold struct {
	mu       sync.Mutex
	info     Hold
	released chan struct{} // closed when there is none
}

const (
	// maxRepeats bounds how far deliveries and events are counted.
	maxRepeats = 10_000

	selectUnended = `SELECT count(*) FROM (
		SELECT 1 FROM deliveries INDEXED BY deliveries_by_status WHERE status <> 'success' AND status IN ('pending', 'retryable') AND ping IS NULL LIMIT ?)`
	selectWaitingEvents = `SELECT count(*) FROM (
		SELECT 1 FROM cursors c CROSS JOIN subscriptions s ON s.id = c.subscription_id CROSS JOIN interests i ON i.subscription_id = s.id
			CROSS JOIN events e ON e.program_id = s.program_id AND e.name = i.name
				AND e.seq > max(c.seq, i.after_seq) AND e.seq <= coalesce(i.until_seq, 9223372036854775807)
		WHERE s.active = 1 AND s.deleted_at IS NULL LIMIT ?)`
)

func newHold() *hold {
	h := &hold{released: make(chan struct{})}
	close(h.released)
	return h
}

// BeginHold holds the deliveries of a database that was restored, for so long;
// 0 is not at all. It is called once after Open, before anything is delivered.
// Until the hold has ended the next start begins it anew.
func (s *Store) BeginHold(ctx context.Context, d time.Duration) error {
	var text []byte
	err := s.db.Scan(ctx, "SELECT value FROM settings WHERE name = '"+restoredSetting+"'", nil, &text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	var mark restoredMark
	if err := json.Unmarshal(text, &mark); err != nil {
		return fmt.Errorf("the mark of the restored database: %w", err)
	}
	repeats, err := s.repeats(ctx)
	if err != nil {
		return err
	}
	logged := []any{"from", mark.From, "state", webhook.FormatTime(mark.State), "deliveries", repeats.Deliveries, "events", repeats.Events}
	if d <= 0 {
		s.logger.Warn("the database was restored: what had not been delivered by its state is delivered, again perhaps", logged...)
		if err := s.Write(ctx, Write.release); !Unavailable(err) {
			return err
		}
		return nil // it is told again the next time
	}
	s.hold.mu.Lock()
	s.hold.info = Hold{Until: time.Now().Add(d).UTC(), From: mark.From, State: mark.State, Repeats: repeats}
	s.hold.released = make(chan struct{})
	s.hold.mu.Unlock()
	s.logger.Warn("the database was restored: deliveries are held", append(logged, "until", webhook.FormatTime(s.hold.info.Until))...)
	return nil
}

// repeats counts what may be delivered again.
func (s *core) repeats(ctx context.Context) (r Repeats, err error) {
	if err = s.db.Scan(ctx, selectUnended, []any{maxRepeats + 1}, &r.Deliveries); err != nil {
		return r, err
	}
	if err = s.db.Scan(ctx, selectWaitingEvents, []any{maxRepeats + 1}, &r.Events); err != nil {
		return r, err
	}
	r.More = r.Deliveries > maxRepeats || r.Events > maxRepeats
	r.Deliveries, r.Events = min(r.Deliveries, maxRepeats), min(r.Events, maxRepeats)
	return r, nil
}

// Held returns the hold, and whether there is one.
func (s *Store) Held() (Hold, bool) { return s.hold.current() }

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

// Released returns a channel that is closed when nothing is held any more.
func (s *Store) Released() <-chan struct{} {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	return s.hold.released
}

// Release ends the hold for good. The error is a *webhook.Error when there is
// none.
func (w Write) Release() error {
	if _, held := w.s.hold.current(); !held {
		return webhook.NewError(webhook.CodeConflict, "No deliveries are held.")
	}
	return w.release()
}

func (w Write) release() error {
	w.t.AfterCommit(w.s.hold.end)
	return w.t.Exec("DELETE FROM settings WHERE name = '" + restoredSetting + "'")
}

func (h *hold) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.released:
	default:
		close(h.released)
	}
}

// EndHold ends the hold when its time has come. It returns when there is none,
// or when ctx ends.
func (s *Store) EndHold(ctx context.Context) error {
	h, held := s.Held()
	if !held {
		return nil
	}
	timer := time.NewTimer(time.Until(h.Until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-s.Released():
		return nil
	case <-timer.C:
	}
	err := s.Write(ctx, Write.release)
	if err != nil {
		s.logger.Error("that the deliveries of the restored database are held no more cannot be remembered", "error", err)
		s.hold.end()
	}
	s.logger.Info("the deliveries of the restored database are held no more")
	return nil
}

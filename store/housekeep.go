package store

import (
	"context"
	"sync"
	"time"

	"service/webhook"
)

// housekeeping is what the store has yet to do of what was written: work that
// grows with what is stored, and is done in small steps after the write. What
// is found by looking at the database is looked for at the start.
type housekeeping struct {
	woken chan struct{} // has an element when something was noted

	mu      sync.Mutex
	deleted bool // a deleted subscription may have deliveries that wait for an attempt
}

func newHousekeeping() housekeeping {
	return housekeeping{woken: make(chan struct{}, 1), deleted: true}
}

// noteDeleted notes that a deleted subscription may have deliveries that wait.
func (h *housekeeping) noteDeleted() { h.note(func() { h.deleted = true }) }

func (h *housekeeping) note(what func()) {
	h.mu.Lock()
	what()
	h.mu.Unlock()
	select {
	case h.woken <- struct{}{}:
	default:
	}
}

// housekeepingRetry is how long housekeeping waits after a failure.
const housekeepingRetry = 10 * time.Second

// Housekeep does, in small steps and until ctx ends, what a write has left to be
// done: it ends the deliveries of deleted subscriptions that wait for an attempt.
// What one process does not come to, the next one does.
func (s *Store) Housekeep(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.housekeeping.woken:
		}
		err := s.housekeep(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.logger.Error("background write failed, will retry", "what", "housekeeping", "error", err)
			timer.Reset(housekeepingRetry)
		}
	}
}

// housekeep does all that is known to be left.
func (s *core) housekeep(ctx context.Context) error {
	h := &s.housekeeping
	h.mu.Lock()
	deleted := h.deleted
	h.deleted = false
	h.mu.Unlock()
	if deleted {
		if err := s.endAllDeleted(ctx); err != nil {
			h.mu.Lock()
			h.deleted = true
			h.mu.Unlock()
			return err
		}
	}
	return nil
}

const (
	// deletedAtOnce is how many waiting deliveries are ended together with their
	// subscription.
	deletedAtOnce = 128

	selectDeletedWaiting = `SELECT id FROM subscriptions s INDEXED BY subscriptions_deleted WHERE deleted_at IS NOT NULL AND EXISTS (
		SELECT 1 FROM deliveries d INDEXED BY deliveries_due WHERE d.subscription_id = s.id AND d.next_attempt_at IS NOT NULL)`
	endWaiting = `UPDATE deliveries SET status = 'failed', failure_reason = 'subscription_deleted', next_attempt_at = NULL, completed_at = ?2
		WHERE num IN (SELECT num FROM deliveries INDEXED BY `
	endDeletedPings = endWaiting + "deliveries_due_pings WHERE subscription_id = ?1 AND next_attempt_at IS NOT NULL AND ping IS NOT NULL LIMIT ?3) RETURNING id, TRUE"
	endDeletedRest  = endWaiting + "deliveries_due WHERE subscription_id = ?1 AND next_attempt_at IS NOT NULL LIMIT ?3) RETURNING id, ping IS NOT NULL"
)

// endAllDeleted ends the deliveries of deleted subscriptions that wait for an
// attempt.
func (s *core) endAllDeleted(ctx context.Context) error {
	var ids []string
	err := s.db.Each(ctx, selectDeletedWaiting, nil, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	if err != nil {
		return err
	}
	work := &sweep{s: s, ctx: ctx, step: firstSweep}
	for _, id := range ids {
		for more := true; more; {
			step := work.step
			err := work.write(func(t *tx) error {
				ended, err := s.endDeleted(t, id, step)
				more = ended == step
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// endDeleted ends at most limit deliveries of a deleted subscription that wait
// for an attempt, pings first, since a request may wait for those; and returns
// how many it ended.
func (s *core) endDeleted(t *tx, subscriptionID string, limit int) (ended int, err error) {
	now, err := t.now()
	if err != nil {
		return 0, err
	}
	for _, query := range []string{endDeletedPings, endDeletedRest} {
		err := t.Each(query, []any{subscriptionID, now, limit - ended}, func(scan func(...any) error) error {
			var id string
			var ping bool
			err := scan(&id, &ping)
			ended++
			if ping {
				t.AfterCommit(func() { s.watchers.dropped(id) })
			}
			return err
		})
		if err != nil {
			return ended, err
		}
	}
	t.deliveryChanged(0)
	t.AfterCommit(func() { s.metrics.ended[webhook.FailureSubscriptionDeleted].Add(float64(ended)) })
	return ended, nil
}

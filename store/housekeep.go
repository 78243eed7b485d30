package store

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"service/webhook"
)

// housekeeping is what the store has yet to do of what was written: work that
// grows with what is stored, and is done in small steps after the write. What
// is found by looking at the database is looked for at the start.
type housekeeping struct {
	// They have an element when there may be something to do.
	deletions chan struct{} // deleted subscriptions whose deliveries wait for an attempt
	responses chan struct{} // responses that are above a quota
	incidents chan struct{} // incidents that may have become quiet
	bulk      chan struct{} // bulk runs

	found bool // the responses that an earlier process has left were looked for; owned by Housekeep
	step  int  // of the last sweep of responses; owned by Housekeep

	mu        sync.Mutex
	successes map[string]stored   // by subscription, responses of successful attempts
	others    map[string]stored   // by program, of the others
	trim      map[string]struct{} // subscriptions that may be above their quota
	prune     map[string]struct{} // programs that may be
}

func newHousekeeping() housekeeping {
	return housekeeping{
		deletions: make(chan struct{}, 1), responses: make(chan struct{}, 1), incidents: make(chan struct{}, 1), bulk: make(chan struct{}, 1),
		successes: make(map[string]stored), others: make(map[string]stored), trim: make(map[string]struct{}), prune: make(map[string]struct{}),
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// housekeepingRetry is how long housekeeping waits after a failure.
const housekeepingRetry = 10 * time.Second

// Housekeep does, in small steps and until ctx ends, what a write has left to be
// done: it ends the deliveries of deleted subscriptions that wait for an attempt,
// removes the responses that are above a quota, and closes incidents of which nothing
// more fails. What one process does not come to, the next one does.
func (s *Store) Housekeep(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { s.housekeep(ctx, s.housekeeping.deletions, s.endAllDeleted) })
	all.Go(func() { s.housekeep(ctx, s.housekeeping.responses, s.removeResponses) })
	all.Go(func() { s.closeQuiet(ctx) })
	all.Wait()
	return nil
}

// housekeep does something at the start, when it is woken, and again after it has
// failed.
func (s *core) housekeep(ctx context.Context, woken <-chan struct{}, do func(context.Context) error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-woken:
		}
		if err := do(ctx); err != nil && ctx.Err() == nil {
			s.logger.Error("background write failed, will retry", "what", "housekeeping", "error", err)
			timer.Reset(housekeepingRetry)
		}
	}
}

// removeResponses removes what is above the quotas of responses.
func (s *core) removeResponses(ctx context.Context) error {
	h := &s.housekeeping
	w := &sweep{s: s, ctx: ctx, step: max(h.step/2, firstSweep)}
	defer func() { h.step = w.step }()
	if !h.found {
		if err := w.findResponses(); err != nil {
			return err
		}
		h.found = true
	}
	if err := h.each(h.trim, w.trimSuccesses); err != nil {
		return err
	}
	return h.each(h.prune, w.pruneResponses)
}

// each does what is noted as to be done for some ids. What it did not come to after
// an error is noted again.
func (h *housekeeping) each(noted map[string]struct{}, do func(id string) error) error {
	h.mu.Lock()
	ids := slices.Collect(maps.Keys(noted))
	clear(noted)
	h.mu.Unlock()
	for i, id := range ids {
		if err := do(id); err != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, left := range ids[i:] {
				noted[left] = struct{}{}
			}
			return err
		}
	}
	return nil
}

// findResponses finds at the start which responses may be above a quota.
func (w *sweep) findResponses() error {
	half, err := w.s.ids(w.ctx, selectTrimming)
	if err != nil {
		return err
	}
	unmarked, err := w.s.ids(w.ctx, selectUnmarked, w.s.quotas.successes)
	if err != nil {
		return err
	}
	for _, id := range append(half, unmarked...) {
		if err := w.trimSuccesses(id); err != nil {
			return err
		}
	}
	if len(half) > 0 { // nothing of it may have been left
		if err := w.write(func(t *tx) error { return t.noteTrimming("", false) }); err != nil {
			return err
		}
	}
	if err := w.countOld(); err != nil {
		return err
	}
	return w.pruneAll()
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
	w := &sweep{s: s, ctx: ctx, step: firstSweep}
	ids, err := s.ids(ctx, selectDeletedWaiting)
	if err != nil {
		return err
	}
	for _, id := range ids {
		for more := true; more; {
			step := w.step
			err := w.write(func(t *tx) error {
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
			err := scan((*deliveryID)(&id), &ping)
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

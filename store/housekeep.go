package store

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"service/store/people"
	"service/store/record"
	"service/webhook"
)

// housekeeping is the work that a write leaves for small steps after it, since the work grows
// with the stored records. At startup it is found in the database.
type housekeeping struct {
	// Each contains an element when there may be work.
	deletions chan struct{} // deleted subscriptions with pending deliveries
	responses chan struct{} // responses above a quota
	incidents chan struct{} // incidents that may have become quiet
	erasures  chan struct{} // programs to erase
	erased    chan struct{} // erased events that may have copies
	bulk      chan struct{} // bulk runs

	bulkTurns atomic.Int64 // looks at the running bulk runs, for tests

	found bool // leftovers of an earlier process have been looked for; owned by Housekeep
	step  int  // step size of the last sweep of responses; owned by Housekeep

	mu        sync.Mutex
	successes map[string]stored   // responses of successful attempts, by subscription
	others    map[string]stored   // other responses, by program
	trim      map[string]struct{} // subscriptions that may exceed their quota
	prune     map[string]struct{} // programs that may exceed theirs
}

func newHousekeeping() housekeeping {
	return housekeeping{
		deletions: make(chan struct{}, 1), responses: make(chan struct{}, 1), incidents: make(chan struct{}, 1), bulk: make(chan struct{}, 1),
		erasures: make(chan struct{}, 1), erased: make(chan struct{}, 1),
		successes: make(map[string]stored), others: make(map[string]stored), trim: make(map[string]struct{}), prune: make(map[string]struct{}),
	}
}

// wake puts an element into a channel of capacity 1 unless it has one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wakeAll wakes all housekeeping that works on the records of programs.
func (h *housekeeping) wakeAll() {
	for _, c := range []chan struct{}{h.deletions, h.incidents, h.erasures, h.erased, h.bulk} {
		wake(c)
	}
}

const (
	// housekeepingRetry is the delay before housekeeping retries after a failure.
	housekeepingRetry = 10 * time.Second
	// housekeepingPause is the minimum delay before housekeeping that is due.
	housekeepingPause = 5 * time.Second
)

// Housekeep works in small steps, until ctx ends, on what writes have left to be done: it ends
// the pending deliveries of deleted subscriptions, removes responses above a quota, closes quiet
// incidents, erases programs and the copies of erased events, and logs the newest hash of the audit log
// every hour. The next process continues where this one stops.
func (s *Store) Housekeep(ctx context.Context) error {
	ctx = inBackground(ctx)
	var all sync.WaitGroup
	all.Go(func() { s.housekeep(ctx, s.housekeeping.deletions, s.endAllDeleted) })
	all.Go(func() { s.housekeep(ctx, s.housekeeping.responses, s.removeResponses) })
	all.Go(func() { s.housekeepAt(ctx, s.housekeeping.incidents, s.closeQuiet) })
	all.Go(func() {
		s.housekeep(ctx, s.housekeeping.erasures, func(ctx context.Context) error { return s.eraseAll(ctx, true) })
	})
	all.Go(func() { s.housekeepAt(ctx, s.housekeeping.erased, s.clearErased) })
	all.Go(func() { s.housekeepAt(ctx, nil, s.logAudit) })
	all.Wait()
	return nil
}

// housekeep calls do at startup, whenever it is woken, and again after a failure.
func (s *core) housekeep(ctx context.Context, woken <-chan struct{}, do func(context.Context) error) {
	s.housekeepAt(ctx, woken, func(ctx context.Context) (time.Time, error) { return time.Time{}, do(ctx) })
}

// housekeepAt is housekeep that calls do at the time that do returns as well, zero for none.
func (s *core) housekeepAt(ctx context.Context, woken <-chan struct{}, do func(context.Context) (next time.Time, err error)) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		next, err := do(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.logger.Error("background write failed, will retry", "what", "housekeeping", "error", err)
			timer.Reset(housekeepingRetry)
		case !next.IsZero():
			timer.Reset(max(time.Until(next), housekeepingPause))
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-woken:
		}
	}
}

// removeResponses removes responses above the quotas.
func (s *core) removeResponses(ctx context.Context) error {
	h := &s.housekeeping
	w := s.newSteps(ctx, sweepPace)
	w.size = max(h.step/2, firstStep)
	defer func() { h.step = w.size }()
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

// pruneProgram makes housekeeping prune the responses of a program that may exceed its quota.
func (h *housekeeping) pruneProgram(programID string) {
	h.mu.Lock()
	h.prune[programID] = struct{}{}
	h.mu.Unlock()
	wake(h.responses)
}

// each calls do for the IDs in noted and removes them. After an error, the remaining IDs are
// added again.
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

// findResponses looks for responses above a quota at startup.
func (w *steps) findResponses() error {
	s, ctx := w.s, w.ctx
	half, err := s.ids(ctx, selectTrimming)
	if err != nil {
		return err
	}
	unmarked, err := s.ids(ctx, selectUnmarked, s.quotas.successes)
	if err != nil {
		return err
	}
	for _, id := range append(half, unmarked...) {
		if err := w.trimSuccesses(id); err != nil {
			return err
		}
	}
	if len(half) > 0 { // all of it may have been trimmed
		if err := w.write(func(t *tx) error { return t.noteTrimming("", false) }); err != nil {
			return err
		}
	}
	programs, err := s.ids(ctx, selectOverQuota, s.quotas.responses)
	for _, id := range programs {
		if err == nil {
			err = w.pruneResponses(id)
		}
	}
	return err
}

const (
	// deletedAtOnce is how many pending deliveries are ended in the write that deletes their
	// subscription.
	deletedAtOnce = 128

	selectDeletedWaiting = `SELECT id FROM subscriptions s INDEXED BY subscriptions_deleted WHERE counted_at IS NOT NULL AND EXISTS (
		SELECT 1 FROM deliveries d INDEXED BY deliveries_due WHERE d.subscription_id = s.id AND d.next_attempt_at IS NOT NULL)`
	endWaiting = `UPDATE deliveries SET status = 'failed', failure_reason = 'subscription_deleted', next_attempt_at = NULL,
		completed_at = ?2, counted_at = ?4 WHERE num IN (SELECT num FROM deliveries INDEXED BY `
	endDeletedPings = endWaiting + "deliveries_due_pings WHERE subscription_id = ?1 AND next_attempt_at IS NOT NULL " +
		"AND ping IS NOT NULL LIMIT ?3) RETURNING id, TRUE"
	endDeletedRest = endWaiting + "deliveries_due WHERE subscription_id = ?1 AND next_attempt_at IS NOT NULL LIMIT ?3) " +
		"RETURNING id, ping IS NOT NULL"
)

// endAllDeleted ends the pending deliveries of deleted subscriptions.
func (s *core) endAllDeleted(ctx context.Context) error {
	w := s.newSteps(ctx, sweepPace)
	ids, err := s.ids(ctx, selectDeletedWaiting)
	if err != nil {
		return err
	}
	for _, id := range ids {
		_, err := w.repeat(func(t *tx, size int) (int64, error) {
			ended, err := s.endDeleted(t, id, size)
			return int64(ended), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// endDeleted ends at most limit pending deliveries of a deleted subscription, pings first
// because a request may wait for them, and returns how many it ended.
func (s *core) endDeleted(t *tx, subscriptionID string, limit int) (ended int, err error) {
	now, err := t.now()
	if err != nil {
		return 0, err
	}
	for _, query := range []string{endDeletedPings, endDeletedRest} {
		err := t.Each(query, []any{subscriptionID, now, limit - ended, t.counted()}, func(scan func(...any) error) error {
			var id string
			var ping bool
			err := scan((*record.DeliveryID)(&id), &ping)
			ended++
			if ping {
				t.AfterCommit(func() { s.watchers.Attempts.End(id, nil) })
			}
			return err
		})
		if err != nil {
			return ended, err
		}
	}
	t.deliveryChanged(0)
	t.AfterCommit(func() { s.metrics.Ended[webhook.FailureSubscriptionDeleted].Add(float64(ended)) })
	return ended, nil
}

// auditLogInterval is the time between two log lines with the newest hash of the audit log.
const auditLogInterval = time.Hour

// logAudit logs the newest hash of the audit log, for a later [webhook.AuditVerifier].Expect,
// and returns when to log it again.
func (s *core) logAudit(ctx context.Context) (next time.Time, err error) {
	e, ok, err := people.Audit(s.people).Newest(ctx)
	if err != nil {
		return next, err
	}
	if ok {
		s.logger.Info("newest hash of the audit log", "entry", e.Num, "at", webhook.FormatTime(e.At), "hash", e.Hash.String())
	}
	return time.Now().Add(auditLogInterval), nil
}

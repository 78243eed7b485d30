package dispatcher

import (
	"context"
	"sync"
	"testing/synctest"
	"time"

	"service/store"
)

// simulatedLease is the lease of a simulation's store. It is not valid any more
// before the attempts in flight are cut off, as on a machine that was suspended.
type simulatedLease struct {
	mu    sync.Mutex
	valid bool
	held  context.Context
	cut   context.CancelFunc
	ended bool // the dispatcher has come to rest since it was valid
}

func (l *simulatedLease) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.valid, l.ended = true, false
	if l.held == nil || l.held.Err() != nil {
		l.held, l.cut = context.WithCancel(context.Background())
	}
}

// isValid is [store.Lease].Valid.
func (l *simulatedLease) isValid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.valid
}

func (l *simulatedLease) holding() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// forbids says whether nothing may be sent.
func (l *simulatedLease) forbids() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// fence makes the store that was just opened depend on the lease.
func (s *simulation) fence() error {
	if !s.plan.Lease {
		return nil
	}
	return s.d.store.Fence(1, store.Lease{Valid: s.lease.isValid, Held: s.lease.holding})
}

// lose ends the lease. What is in flight is cut off after a while, and the lease is
// valid again later, or before that.
func (s *simulation) lose(cut, renew time.Duration) {
	if !s.plan.Lease || !s.lease.isValid() {
		return
	}
	s.faults.lease(false)
	s.lease.mu.Lock()
	s.lease.valid = false
	s.lease.mu.Unlock()
	synctest.Wait()
	if s.isDown() {
		s.restart()
	}
	s.lease.mu.Lock()
	s.lease.ended = true
	s.lease.mu.Unlock()
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.crashed = true
		s.notice() // what was counted and not made
	})
	time.AfterFunc(cut, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lease.isValid() {
			return
		}
		now := time.Now()
		for _, r := range s.unsettled {
			r.cut = r.cut || r.ended.IsZero() || r.ended.Equal(now)
		}
		s.lease.cut()
	})
	time.AfterFunc(renew, func() {
		s.mu.Lock()
		s.renewed = time.Now()
		s.mu.Unlock()
		s.lease.renew()
		s.faults.lease(true)
	})
}

// checkCut checks that no attempt goes on without the lease. Owns s.mu.
func (s *simulation) checkCut() {
	if !s.plan.Lease || s.lease.holding().Err() == nil {
		return
	}
	for _, r := range s.unsettled {
		if r.hangs && r.ended.IsZero() && r.gen == s.gen && !s.down {
			s.violate(promiseLease, "subscription %d: an attempt goes on", r.by.i)
		}
	}
}

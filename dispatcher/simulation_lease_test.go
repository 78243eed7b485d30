package dispatcher

import (
	"context"
	"sync"
	"testing/synctest"
	"time"

	"service/store"
)

// simulatedLease is the lease of a simulation's store. It becomes invalid before
// the attempts in flight are cut off, as on a machine that was suspended.
type simulatedLease struct {
	mu      sync.Mutex
	valid   bool
	ctx     context.Context
	cancel  context.CancelFunc
	settled bool // the dispatcher has become idle since the lease ended
}

func (l *simulatedLease) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.valid, l.settled = true, false
	if l.ctx == nil || l.ctx.Err() != nil {
		l.ctx, l.cancel = context.WithCancel(context.Background())
	}
}

// isValid is [store.Lease].Valid.
func (l *simulatedLease) isValid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.valid
}

func (l *simulatedLease) context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx
}

// forbidsSending reports whether nothing may be sent.
func (l *simulatedLease) forbidsSending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled
}

// fenceStore makes the store that was just opened depend on the lease.
func (s *simulation) fenceStore() error {
	if !s.plan.Lease {
		return nil
	}
	return s.d.store.Replica().Fence(1, store.Lease{Valid: s.lease.isValid, Context: s.lease.context})
}

// loseLease ends the lease. Attempts in flight are cut off after cut; the lease is
// valid again after renew, which may be sooner.
func (s *simulation) loseLease(cut, renew time.Duration) {
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
	s.lease.settled = true
	s.lease.mu.Unlock()
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.crashed = true
		s.noteCrashLosses() // attempts that were counted and not made
	})
	time.AfterFunc(cut, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lease.isValid() {
			return
		}
		now := time.Now()
		for _, r := range s.unsettled {
			r.interrupted = r.interrupted || r.endedAt.IsZero() || r.endedAt.Equal(now)
		}
		s.lease.cancel()
	})
	time.AfterFunc(renew, func() {
		s.mu.Lock()
		s.leaseRenewedAt = time.Now()
		s.mu.Unlock()
		s.lease.renew()
		s.faults.lease(true)
	})
}

// checkCut checks that no attempt continues without the lease. The caller holds
// s.mu.
func (s *simulation) checkCut() {
	if !s.plan.Lease || s.lease.context().Err() == nil {
		return
	}
	for _, r := range s.unsettled {
		if r.hangs && r.endedAt.IsZero() && r.generation == s.generation && !s.down {
			s.violate(promiseLease, "subscription %d: an attempt continues", r.subscription.index)
		}
	}
}

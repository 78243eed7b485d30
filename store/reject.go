package store

import (
	"context"
	"sync"
	"time"
)

const (
	// A program gets rejectBurst rejections at once, and then one every rejectInterval.
	rejectInterval = 10 * time.Millisecond
	rejectBurst    = 200
	// maxRejectWait is the maximum wait of a rejection.
	maxRejectWait = time.Second
	// maxRejected is the maximum number of programs that are tracked.
	maxRejected = 10_000
)

// rejections paces the responses to requests that exceed a quota of their program. Otherwise a
// client that repeats them without a pause, from many connections, would take processor time from
// other programs. It is the generic cell rate algorithm (GCRA).
type rejections struct {
	mu   sync.Mutex
	next map[string]time.Time // the theoretical arrival time, by program
}

// Reject waits before a request of a program is rejected, or until ctx ends. It returns at once while
// the program has few rejections, and after maxRejectWait at the latest.
func (s *Store) Reject(ctx context.Context, programID string) {
	wait := s.rejections.wait(programID, time.Now())
	if wait <= 0 {
		return
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}

// wait counts a rejection, and returns how long it has to wait.
func (r *rejections) wait(programID string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil || len(r.next) >= maxRejected {
		r.next = make(map[string]time.Time)
	}
	at := r.next[programID]
	if at.Before(now) {
		at = now
	}
	wait := at.Sub(now) - rejectBurst*rejectInterval
	if wait > maxRejectWait {
		return maxRejectWait
	}
	r.next[programID] = at.Add(rejectInterval)
	return wait
}

package store

import (
	"context"
	"time"

	"service/internal/ratelimit"
)

const (
	// maxRejectWait is the maximum wait of a rejection.
	maxRejectWait = time.Second
	// maxRejected is the maximum number of programs whose rejections are paced.
	maxRejected = 10_000
)

// rejections are what a program gets at once and per interval.
var rejections = ratelimit.Limit{Name: "rejections", Burst: 200, Interval: 10 * time.Millisecond}

// Reject waits before a request of a program is rejected because it exceeds a quota, or until ctx
// ends. Otherwise a client that repeats such requests without a pause, from many connections, would
// take processor time from other programs. It returns at once while the program has few rejections,
// and after maxRejectWait at the latest.
func (s *Store) Reject(ctx context.Context, programID string) {
	wait := s.rejected.Pace(ratelimit.Try{Limit: rejections, Key: programID}, maxRejectWait)
	if wait == 0 {
		return
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}

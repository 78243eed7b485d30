package store

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"service/internal/ratelimit"
)

// A program gets a burst of rejections at once, and then one per interval. No rejection
// waits longer than maxRejectWait, and other programs are not affected.
func TestReject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Store
		s.core = &core{rejected: ratelimit.New(maxRejected)}
		wait := func(ctx context.Context, program string) time.Duration {
			began := time.Now()
			s.Reject(ctx, program)
			return time.Since(began)
		}
		for n := range rejections.Burst + 1 {
			if took := wait(t.Context(), "p"); took != 0 {
				t.Fatalf("rejection %d waited %s, want none", n, took)
			}
		}
		if took := wait(t.Context(), "p"); took != rejections.Interval {
			t.Errorf("the next rejection waited %s, want %s", took, rejections.Interval)
		}
		if took := wait(t.Context(), "q"); took != 0 {
			t.Errorf("a rejection of another program waited %s, want none", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var longest time.Duration
		ended := make(chan time.Duration)
		for range 1000 { // at the same time
			go func() { ended <- wait(ctx, "p") }()
		}
		for range 1000 {
			longest = max(longest, <-ended)
		}
		if longest != maxRejectWait {
			t.Errorf("of many rejections the longest waited %s, want %s", longest, maxRejectWait)
		}
		cancel()
		if took := wait(ctx, "p"); took != 0 {
			t.Errorf("a rejection whose client has left waited %s, want none", took)
		}
		time.Sleep(time.Hour)
		if took := wait(t.Context(), "p"); took != 0 {
			t.Errorf("after an hour: a rejection waited %s, want none", took)
		}
	})
}

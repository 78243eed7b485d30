package hashing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestHashingIsBounded checks that two passwords are hashed at a time, at most one for unknown
// devices, that the queue is short, and that a canceled request leaves it.
func TestHashingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New()
		var running, most, strangers atomic.Int32
		release := make(chan struct{})
		count := func() {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			<-release
			running.Add(-1)
		}
		countStranger := func() {
			if strangers.Add(1) > 1 {
				t.Error("two strangers at a time")
			}
			count()
			strangers.Add(-1)
		}
		results := make(chan error, 100)
		for range 20 {
			go func() { results <- h.Do(t.Context(), 0, countStranger) }()
		}
		synctest.Wait()
		busy := 0
		for range len(results) {
			if err := <-results; errors.Is(err, ErrBusy) {
				busy++
			} else {
				t.Errorf("got %v, want that there are too many", err)
			}
		}
		if busy != 4 || running.Load() != 1 {
			t.Errorf("of 20 strangers %d were refused and %d are hashing, want 4 and 1", busy, running.Load())
		}
		// A known device is served regardless of the number of unknown ones.
		go func() { results <- h.Do(t.Context(), KnownDevice, count) }()
		synctest.Wait()
		if running.Load() != 2 {
			t.Errorf("%d are hashing, want 2", running.Load())
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() { gone <- h.Do(ctx, KnownDevice, func() { t.Error("hashed for one who is gone") }) }()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that the visitor left", err)
		}
		close(release)
		synctest.Wait()
		if most.Load() != MaxHashes || len(results) != 17 || h.running || len(h.waiting) > 0 {
			t.Errorf("at most %d at a time, and %d were done; want %d and 17", most.Load(), len(results), MaxHashes)
		}
	})
}

// TestHashingIsInOrder checks that the lowest rank is next, and the oldest within a rank; that a
// lower rank displaces a higher one from a full queue; and that a canceled request does not lose a
// turn.
func TestHashingIsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New()
		release := make(chan struct{})
		var order []string
		enter := func(ctx context.Context, rank int, name string) <-chan error {
			result := make(chan error, 1)
			go func() {
				result <- h.Do(ctx, rank, func() {
					order = append(order, name)
					<-release
				})
			}()
			synctest.Wait()
			return result
		}
		enter(t.Context(), 0, "running")
		ctx, leave := context.WithCancel(t.Context())
		left := enter(ctx, 1, "left")
		enter(t.Context(), 2, "second of 2")
		for i := range MaxQueue - 4 {
			enter(t.Context(), 1, fmt.Sprint("1, number ", i))
		}
		displaced := enter(t.Context(), 2, "displaced")
		if err := <-enter(t.Context(), 2, "refused"); !errors.Is(err, ErrBusy) {
			t.Errorf("of the highest rank in a full queue: got %v, want that it is busy", err)
		}
		enter(t.Context(), 0, "next")
		if err := <-displaced; !errors.Is(err, ErrBusy) {
			t.Errorf("the newest of the highest rank: got %v, want that it was displaced", err)
		}
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left: got %v", err)
		}
		close(release)
		synctest.Wait()
		got := strings.Join(order, "; ")
		if !strings.HasPrefix(got, "running; next; 1, number 0; 1, number 1; ") || !strings.HasSuffix(got, "; second of 2") ||
			len(order) != MaxQueue-1 {
			t.Errorf("got %s", got)
		}
		if h.running || len(h.waiting) > 0 {
			t.Errorf("after all: running %v, %d waiting", h.running, len(h.waiting))
		}
	})
}

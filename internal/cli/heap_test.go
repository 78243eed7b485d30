package cli

import (
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	for _, c := range []struct {
		heap, roots uint64
		since       time.Duration
		want        int
	}{
		{9 << 20, 1 << 20, 80 * time.Millisecond, 310},
		{9 << 20, 1 << 20, 2 * time.Minute, 100}, // at rest
		{10 << 20, 5 << 20, 80 * time.Millisecond, 200},
		{20 << 20, 0, 80 * time.Millisecond, 100},
		{500 << 20, 1 << 20, 80 * time.Millisecond, 100},
		{0, 0, 0, 100},
	} {
		if got := gcPercent(c.heap, c.roots, c.since); got != c.want {
			t.Errorf("gcPercent(%d MB, %d MB, %s) = %d, want %d", c.heap>>20, c.roots>>20, c.since, got, c.want)
		}
	}
}

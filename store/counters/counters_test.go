package counters

import (
	"testing"
	"time"

	"service/webhook"
)

// Counting a write allocates no memory.
func TestCountingAllocatesNothing(t *testing.T) {
	m := New()
	step := webhook.Step{Status: webhook.StatusSuccess}
	if n := testing.AllocsPerRun(100, func() {
		m.Accept("p", 3)
		m.End(step)
		m.Commit(7, time.Millisecond, false)
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

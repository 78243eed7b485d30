//go:build race

package dispatcher

import (
	"runtime"
	"testing"
)

// TestMain limits the tests to one processor. Expired timers of a synctest bubble share one context
// of the race detector, whichever thread runs them, so two processors crash it (golang/go#78156): 3
// of 6 runs of TestMoves, and none of 6 with one. The detector compares the order of events, for
// which one processor is enough.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	m.Run()
}

// defaultPlans is smaller with the race detector: each bubble of testing/synctest leaks memory of
// its runtime, and a plan takes much longer.
const defaultPlans = 50

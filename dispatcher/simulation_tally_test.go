package dispatcher

import (
	"maps"
	"slices"
	"sync"
	"testing"
)

// tally counts what the plans of a series have done.
type tally struct {
	mu     sync.Mutex
	done   map[operation]int
	phases map[[2]phase]int
}

func (y *tally) count(o operation) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.done == nil {
		y.done = make(map[operation]int)
	}
	y.done[o]++
}

func (y *tally) enter(from, to phase) {
	if from == to {
		return
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.phases == nil {
		y.phases = make(map[[2]phase]int)
	}
	y.phases[[2]phase{from, to}]++
}

// phaseNames are the names of the phases in the table in queue.go, and phaseChanges its rows.
var (
	phaseNames = [...]string{phaseStale: "stale", phaseCurrent: "current", phaseOffered: "offered", phaseReading: "reading",
		phaseReloadPending: "reload pending", phaseReloading: "reloading", phaseReloadingStale: "reloading stale",
		phaseUnusable: "unusable", phaseDeleted: "deleted"}
	phaseChanges = [...][2]phase{
		{phaseCurrent, phaseOffered}, {phaseOffered, phaseCurrent}, {phaseCurrent, phaseReading}, {phaseReading, phaseCurrent},
		{phaseCurrent, phaseReloadPending}, {phaseOffered, phaseReloadPending}, {phaseUnusable, phaseReloadPending},
		{phaseCurrent, phaseStale}, {phaseOffered, phaseStale}, {phaseReading, phaseStale},
		{phaseStale, phaseReloadPending}, {phaseStale, phaseCurrent}, {phaseReloadPending, phaseReloading},
		{phaseReloading, phaseCurrent}, {phaseReloading, phaseReloadPending}, {phaseReloading, phaseUnusable},
		{phaseReloading, phaseReloadingStale}, {phaseReloadingStale, phaseReloadPending},
		{phaseReloading, phaseDeleted}, {phaseReloadingStale, phaseDeleted},
	}
)

// report logs the counts. It fails the test if a phase change is not in the table in queue.go.
func (y *tally) report(t *testing.T) {
	for _, o := range slices.Sorted(maps.Keys(y.done)) {
		t.Logf("%7d times: %s", y.done[o], o)
	}
	for _, change := range phaseChanges {
		t.Logf("%7d times: from %s to %s", y.phases[change], phaseNames[change[0]], phaseNames[change[1]])
		delete(y.phases, change)
	}
	for change, n := range y.phases {
		t.Errorf("got %d changes from %s to %s, want none", n, phaseNames[change[0]], phaseNames[change[1]])
	}
}

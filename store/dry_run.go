package store

import (
	"fmt"
	"sync"
	"time"

	"service/webhook"
)

const (
	// maxDryRuns is the maximum number of concurrent dry runs of a program.
	maxDryRuns = 2
	// dryRunTime bounds the counting of a dry run.
	dryRunTime = 2 * time.Second
)

// ErrDryRuns is a *webhook.Error: the program has the maximum number of dry runs in progress.
var ErrDryRuns = webhook.NewError(webhook.CodeConflict, fmt.Sprintf("The program has %d dry runs in progress, the maximum. "+
	"Each takes at most %d s.", maxDryRuns, int(dryRunTime.Seconds())))

// dryRuns counts the dry runs in progress per program.
type dryRuns struct {
	mu      sync.Mutex
	running map[string]int
}

// begin counts a dry run until end is called. The error is [ErrDryRuns] if the program has
// maxDryRuns.
func (d *dryRuns) begin(programID string) (end func(), err error) {
	if !d.add(programID) {
		return nil, ErrDryRuns
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.running[programID]--; d.running[programID] == 0 {
			delete(d.running, programID)
		}
	}, nil
}

// add counts a dry run, unless the program has maxDryRuns.
func (d *dryRuns) add(programID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running[programID] >= maxDryRuns {
		return false
	}
	if d.running == nil {
		d.running = make(map[string]int)
	}
	d.running[programID]++
	return true
}

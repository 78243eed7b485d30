package store

import (
	"fmt"
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

// beginDryRun counts a dry run until end is called. The error is [ErrDryRuns] if the program has
// maxDryRuns.
func (s *core) beginDryRun(programID string) (end func(), err error) {
	if !s.dryRuns.Take(programID, maxDryRuns) {
		return nil, ErrDryRuns
	}
	return func() { s.dryRuns.Leave(programID) }, nil
}

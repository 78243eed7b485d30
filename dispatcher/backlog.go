package dispatcher

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// maxBacklogs is in the logs of how many programs the oldest event is looked
// for.
const maxBacklogs = 100

// Backlog returns how many active subscriptions of a program, or of all programs
// when that is "", events wait for, and when the oldest of those events was
// accepted, the zero time for none. What is in a delivery already does not wait
// here. With events waiting in more than a hundred programs, it looks for the
// oldest in those that are furthest behind.
func (d *Dispatcher) Backlog(ctx context.Context, programID string) (behind int, oldest time.Time, err error) {
	programs, _, _, _ := d.snapshot(time.Now())
	var waiting []string
	for id, p := range programs {
		if len(p.behind) > 0 && (programID == "" || id == programID) {
			behind += len(p.behind)
			waiting = append(waiting, id)
		}
	}
	slices.SortFunc(waiting, func(a, b string) int {
		return cmp.Or(cmp.Compare(programs[b].distance, programs[a].distance), cmp.Compare(a, b))
	})
	for _, id := range waiting[:min(len(waiting), maxBacklogs)] {
		first, err := programs[id].oldest(ctx, d.store, id)
		if err != nil {
			return behind, oldest, err
		}
		if oldest.IsZero() || !first.IsZero() && first.Before(oldest) {
			oldest = first
		}
	}
	return behind, oldest, nil
}

package dispatcher

import (
	"cmp"
	"context"
	"slices"
	"time"

	"service/webhook"
)

const (
	// maxBacklogs is in the logs of how many programs the oldest event is looked
	// for.
	maxBacklogPrograms = 100
	// maxCounted is for how many subscriptions waiting events are counted, and
	// maxCountedEvents how many events.
	maxCountedSubscriptions = 1000
	maxCountedEvents        = 100_000
)

// Backlog returns what waits for the active subscriptions of a program, or of all
// programs when that is "". With events waiting in more than a hundred programs, it
// looks for the oldest in those that are furthest behind.
func (d *Dispatcher) Backlog(ctx context.Context, programID string) (b webhook.Backlog, err error) {
	programs, _, _, _ := d.snapshot(time.Now())
	var waiting, ids []string
	for id, p := range programs {
		if len(p.backlogged) > 0 && (programID == "" || id == programID) {
			b.Subscriptions += len(p.backlogged)
			waiting = append(waiting, id)
			for _, q := range p.backlogged {
				ids = append(ids, q.id)
			}
		}
	}
	slices.SortFunc(waiting, func(a, b string) int {
		return cmp.Or(cmp.Compare(programs[b].distance, programs[a].distance), cmp.Compare(a, b))
	})
	for _, id := range waiting[:min(len(waiting), maxBacklogPrograms)] {
		first, err := programs[id].oldest(ctx, d.store, id)
		if err != nil {
			return b, err
		}
		if b.Oldest.IsZero() || !first.IsZero() && first.Before(b.Oldest) {
			b.Oldest = first
		}
	}
	b.Events, err = d.store.Subscriptions().WaitingEvents(ctx, ids[:min(len(ids), maxCountedSubscriptions)], maxCountedEvents)
	b.More = len(ids) > maxCountedSubscriptions || b.Events >= maxCountedEvents
	return b, err
}

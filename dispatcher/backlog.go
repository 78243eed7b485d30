package dispatcher

import (
	"cmp"
	"context"
	"slices"
	"time"

	"service/webhook"
)

const (
	// maxBacklogPrograms bounds the programs whose logs are searched for the oldest
	// waiting event.
	maxBacklogPrograms = 100
	// maxCountedSubscriptions and maxCountedEvents bound the counting of waiting
	// events.
	maxCountedSubscriptions = 1000
	maxCountedEvents        = 100_000
)

// Backlog returns the backlog of a program's active subscriptions, or of all programs if
// programID is "". If events are waiting in more than maxBacklogPrograms programs, it looks
// for the oldest event in the programs furthest behind.
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
	b.Events, b.More, err = d.store.Subscriptions().WaitingEvents(ctx, ids[:min(len(ids), maxCountedSubscriptions)], maxCountedEvents)
	b.More = b.More || len(ids) > maxCountedSubscriptions
	return b, err
}

package replica

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"service/test/harness"
)

// ledger records the events that publishers sent and that the service acknowledged.
type ledger struct {
	mu   sync.Mutex
	acks map[string]time.Time // event ID → when its acknowledgement arrived
	sent map[string]bool
}

// load publishes single events with the given number of publishers until ctx ends.
func (l *ledger) load(ctx context.Context, in *harness.Instance, token string, publishers int) (wait func()) {
	var working sync.WaitGroup
	for range publishers {
		working.Go(func() {
			for ctx.Err() == nil {
				base, ok := in.AwaitURL(ctx)
				if !ok {
					return
				}
				id := uuid.NewString()
				l.mu.Lock()
				l.sent[id] = true
				l.mu.Unlock()
				event := map[string]any{"id": id, "name": "content_updated", "version": "1", "content_id": 7}
				status, err := in.Call(ctx, token, "POST", base+"/v2/events", event, nil)
				if err == nil && status == http.StatusCreated {
					l.mu.Lock()
					l.acks[id] = time.Now()
					l.mu.Unlock()
				}
			}
		})
	}
	return working.Wait
}

// acknowledged returns the events acknowledged so far.
func (l *ledger) acknowledged() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]bool)
	for id := range l.acks {
		all[id] = true
	}
	return all
}

// compare compares a database with the acknowledgements. It returns how long before the
// kill the oldest lost event was acknowledged, and the numbers of events lost and kept.
// It reports events that were never published.
func (l *ledger) compare(tb testing.TB, data string, killed time.Time) (behind time.Duration, lost, kept int) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	there := storedEvents(tb, data)
	for id := range there {
		if !l.sent[id] {
			tb.Errorf("event %s was never published", id)
		}
	}
	for id, at := range l.acks {
		if there[id] {
			kept++
			continue
		}
		lost++
		behind = max(behind, killed.Sub(at))
	}
	return behind, lost, kept
}

// storedEvents returns the IDs of the events in a database that no process has open.
func storedEvents(tb testing.TB, data string) map[string]bool {
	tb.Helper()
	there := make(map[string]bool)
	for row := range harness.Rows(tb, data) {
		if f := strings.Fields(row); f[0] == "event" {
			there[f[3]] = true
		}
	}
	return there
}

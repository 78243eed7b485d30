//go:build linux

package matrix

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	publishers = 2 // for each machine
	pace       = 50 * time.Millisecond
)

// ack is an acknowledgement that a publisher received.
type ack struct {
	id      string
	sent    time.Time // when the publisher started to send the event
	at      time.Time
	machine string
}

// load records what publishers sent and what the machines acknowledged.
type load struct {
	mu      sync.Mutex
	acks    []ack
	sent    map[string]bool
	refused map[string]int // by machine
}

// publish publishes single events to a machine until ctx ends, even after errors.
func (l *load) publish(ctx context.Context, m *machine, token string) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		base, ok := m.in.AwaitURL(ctx)
		if !ok {
			return
		}
		id, began := uuid.NewString(), time.Now()
		l.mu.Lock()
		l.sent[id] = true
		l.mu.Unlock()
		event := map[string]any{"id": id, "name": "content_updated", "version": "1", "content_id": 7}
		status, err := m.in.Call(ctx, token, "POST", base+"/v2/events", event, nil)
		now := time.Now()
		l.mu.Lock()
		if err == nil && status == http.StatusCreated {
			l.acks = append(l.acks, ack{id, began, now, m.name})
		} else {
			l.refused[m.name]++
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// after returns the first acknowledgement of a machine after a moment.
func (l *load) after(machine string, t time.Time) (ack, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.acks {
		if a.machine == machine && a.at.After(t) {
			return a, true
		}
	}
	return ack{}, false
}

// all returns the acknowledgements so far.
func (l *load) all() []ack {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]ack(nil), l.acks...)
}

package watch

import (
	"slices"
	"sync/atomic"

	"service/webhook"
)

// AnyName, as the name of an [EventKey], stands for the events of a program's log with any name.
const AnyName = "*"

// RecordKey returns the key of a record whose change ends or affects a wait: a subscription or a token,
// by its ID.
func RecordKey(id string) EventKey { return EventKey{Name: id} }

// ProgramKey returns the key of the changes of a program itself, such as its deletion.
func ProgramKey(id string) EventKey { return EventKey{ProgramID: id} }

// Waiter is a request that waits for events. C receives when there may be some, or when the request
// may have become invalid. Waiters are registered by key, and a commit checks only those of its own
// keys.
type Waiter struct {
	C <-chan struct{}

	c        chan struct{}
	keys     []EventKey
	watchers *Watchers
	changed  atomic.Bool
}

// Changed reports whether a program or record of the waiter's keys may have changed since the last call.
func (w *Waiter) Changed() bool { return w.changed.Swap(false) }

// Await returns a waiter for some keys. Later commits wake it.
func (ws *Watchers) Await(keys ...EventKey) *Waiter {
	c := make(chan struct{}, 1)
	w := &Waiter{C: c, c: c, keys: keys, watchers: ws}
	ws.waitMu.Lock()
	defer ws.waitMu.Unlock()
	if ws.waiters == nil {
		ws.waiters = make(map[EventKey][]*Waiter)
	}
	for _, key := range keys {
		ws.waiters[key] = append(ws.waiters[key], w)
	}
	ws.waiting.Add(1)
	return w
}

// Close ends the wait. It must be called once.
func (w *Waiter) Close() {
	ws := w.watchers
	ws.waitMu.Lock()
	defer ws.waitMu.Unlock()
	for _, key := range w.keys {
		left := slices.DeleteFunc(ws.waiters[key], func(other *Waiter) bool { return other == w })
		if ws.waiters[key] = left; len(left) == 0 {
			delete(ws.waiters, key)
		}
	}
	ws.waiting.Add(-1)
}

// Wake wakes the waiters for the key of a program or a record, which has changed.
func (ws *Watchers) Wake(key EventKey) {
	if ws.waiting.Load() == 0 {
		return
	}
	ws.waitMu.Lock()
	defer ws.waitMu.Unlock()
	for _, w := range ws.waiters[key] {
		w.changed.Store(true)
	}
	ws.wake(key)
}

// wake is Wake with waitMu held.
func (ws *Watchers) wake(key EventKey) {
	for _, w := range ws.waiters[key] {
		select {
		case w.c <- struct{}{}:
		default: // it is awake
		}
	}
}

// wakePublished wakes the waiters for events of one commit. Without waiters it costs one atomic load.
func (ws *Watchers) wakePublished(events []webhook.Event) {
	if ws.waiting.Load() == 0 {
		return
	}
	ws.waitMu.Lock()
	defer ws.waitMu.Unlock()
	var last EventKey
	for i := range events {
		key := EventKey{events[i].ProgramID, events[i].Name}
		if key == last {
			continue
		}
		if key.ProgramID != last.ProgramID {
			ws.wake(EventKey{key.ProgramID, AnyName})
		}
		ws.wake(key)
		last = key
	}
}

// Package watch notifies watchers of commits of what has changed, and waiting requests of the first
// attempt of a delivery.
package watch

import (
	"slices"
	"sync"
	"sync/atomic"

	"service/webhook"
)

// EventKey identifies the events with one name in one program's log.
type EventKey struct{ ProgramID, Name string }

// Changes are the commits since a watcher last called Take. Their size is bounded by the number
// of programs, event types and subscriptions.
type Changes struct {
	Events        map[EventKey]int64  // the newest seq for each key
	Subscriptions map[string]struct{} // IDs of subscriptions that were created, changed or deleted
	Queued        map[string]struct{} // IDs of subscriptions with a newly queued delivery, such as a ping
	Programs      map[string]struct{} // IDs of programs whose name or limits changed
	Alerts        bool                // an alert is to be sent
	AlertSends    bool                // an attempt to send an alert to a channel has ended
	Incidents     bool                // an incident was opened or closed

	// Deliveries are the nums of at most MaxChanged deliveries that were stored or
	// changed; 0 stands for any deliveries. Only for WatchDeliveries.
	Deliveries map[int64]struct{}
}

// MaxChanged bounds the number of deliveries in Changes.
const MaxChanged = 512

// Watcher receives changes. C receives when there are some; Take returns and clears them. No
// change is lost between two calls of Take.
type Watcher struct {
	C <-chan struct{}

	c          chan struct{}
	deliveries bool // it receives only changes of deliveries
	mu         sync.Mutex
	changes    Changes
	watchers   *Watchers
}

// ProbeResult is the first attempt of a probe.
type ProbeResult struct {
	DeliveryID string
	Attempt    webhook.Attempt
}

// Watchers are the goroutines that wait for changes in the store.
type Watchers struct {
	Attempts Awaited[webhook.Attempt] // the first of a delivery that is about to be stored, by its ID
	Probes   Awaited[ProbeResult]     // of a subscription, by its ID

	mu  sync.Mutex
	all []*Watcher

	deliveries atomic.Int64 // how many of all watch deliveries

	waitMu  sync.Mutex
	waiters map[EventKey][]*Waiter
	waiting atomic.Int64 // number of waiters
}

// Watch returns a watcher of all later changes: of deliveries only, or of everything else.
func (ws *Watchers) Watch(deliveries bool) *Watcher {
	c := make(chan struct{}, 1)
	w := &Watcher{C: c, c: c, deliveries: deliveries, watchers: ws}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.all = append(ws.all, w)
	if deliveries {
		ws.deliveries.Add(1)
	}
	return w
}

// Close ends the watch.
func (w *Watcher) Close() {
	ws := w.watchers
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for i, other := range ws.all {
		if other == w {
			if w.deliveries {
				ws.deliveries.Add(-1)
			}
			ws.all = append(ws.all[:i:i], ws.all[i+1:]...)
			return
		}
	}
}

// Take returns the changes since the last call.
func (w *Watcher) Take() Changes {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.changes
	w.changes = Changes{}
	return c
}

// Notify applies change to the watchers of everything but deliveries, and wakes them.
func (ws *Watchers) Notify(change func(*Changes)) { ws.notifyKind(false, change) }

// notifyKind applies change to the watchers of deliveries, or to the others.
func (ws *Watchers) notifyKind(deliveries bool, change func(*Changes)) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.all {
		if w.deliveries != deliveries {
			continue
		}
		w.mu.Lock()
		change(&w.changes)
		w.mu.Unlock()
		select {
		case w.c <- struct{}{}:
		default: // it has yet to receive the last notification
		}
	}
}

// Published notes events of one commit.
func (ws *Watchers) Published(events []webhook.Event) {
	ws.Notify(func(c *Changes) {
		if c.Events == nil {
			c.Events = make(map[EventKey]int64)
		}
		for i := range events {
			c.Events[EventKey{events[i].ProgramID, events[i].Name}] = events[i].Seq
		}
	})
	ws.wakePublished(events)
}

// SubscriptionChanged notes that a subscription was created, changed or deleted.
func (ws *Watchers) SubscriptionChanged(id string) {
	ws.Notify(func(c *Changes) { put(&c.Subscriptions, id) })
	ws.Wake(RecordKey(id))
}

// ProgramChanged notes that the name or the limits of a program changed.
func (ws *Watchers) ProgramChanged(id string) {
	ws.Notify(func(c *Changes) { put(&c.Programs, id) })
	ws.Wake(ProgramKey(id))
}

// Queued notes that a delivery was queued.
func (ws *Watchers) Queued(subscriptionID string) {
	ws.Notify(func(c *Changes) { put(&c.Queued, subscriptionID) })
}

// DeliveriesChanged notifies the watchers of deliveries, including those that started to watch
// after the writes. Without such watchers it costs one atomic load.
func (ws *Watchers) DeliveriesChanged(nums []int64) {
	if len(nums) == 0 || ws.deliveries.Load() == 0 {
		return
	}
	ws.notifyKind(true, func(c *Changes) {
		if c.Deliveries == nil {
			c.Deliveries = make(map[int64]struct{})
		}
		for _, num := range nums {
			if len(c.Deliveries) == MaxChanged {
				return
			}
			c.Deliveries[num] = struct{}{}
		}
	})
}

func put(set *map[string]struct{}, id string) {
	if *set == nil {
		*set = make(map[string]struct{})
	}
	(*set)[id] = struct{}{}
}

// Awaited are the goroutines that wait for a value, by ID. It is safe for concurrent use.
type Awaited[T any] struct {
	mu  sync.Mutex
	all map[string][]chan<- T // each buffered for one
}

// Await returns a channel that receives the next value of an ID, or is closed if there will be none,
// and a function that stops waiting.
func (a *Awaited[T]) Await(id string) (<-chan T, func()) {
	c := make(chan T, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = make(map[string][]chan<- T)
	}
	a.all[id] = append(a.all[id], c)
	return c, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		left := slices.DeleteFunc(a.all[id], func(other chan<- T) bool { return other == c })
		if a.all[id] = left; len(left) == 0 {
			delete(a.all, id)
		}
	}
}

// End sends the value of an ID to the goroutines that wait for it, and closes their channels; v is nil
// if there will be none.
func (a *Awaited[T]) End(id string, v *T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, to := range a.all[id] {
		if v != nil {
			to <- *v
		}
		close(to)
	}
	delete(a.all, id)
}

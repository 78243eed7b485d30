package store

import (
	"slices"
	"sync"
	"sync/atomic"

	"service/webhook"
)

// EventKey names a kind of event in one program's log.
type EventKey struct{ ProgramID, Name string }

// Changes are what was committed since a watcher last looked. It is bounded by
// the number of programs, event types and subscriptions, not by the time.
type Changes struct {
	Events        map[EventKey]int64  // the newest seq of each kind
	Subscriptions map[string]struct{} // ids whose subscription was created, changed or deleted
	Queued        map[string]struct{} // ids of subscriptions that were given a delivery to send, such as a ping
	Alerts        bool                // there is one to send
	Incidents     bool                // one was opened or closed

	// Deliveries are the places of deliveries that were stored or changed, 0
	// for some that are not named, at most MaxChanged: of those of WatchDeliveries
	// alone.
	Deliveries map[int64]struct{}
}

// MaxChanged bounds how many deliveries Changes names.
const MaxChanged = 512

// Watcher hears of changes. C receives when there are some; Take returns and
// forgets them. Nothing is missed between two calls of Take.
type Watcher struct {
	C <-chan struct{}

	c          chan struct{}
	deliveries bool // it hears of deliveries, and of nothing else
	mu         sync.Mutex
	changes    Changes
	store      *core
}

// watchers are those who wait for something of the store.
type watchers struct {
	mu      sync.Mutex
	all     []*Watcher
	results map[string]chan webhook.Attempt // by delivery id, buffered for one
	probes  map[string][]chan<- ProbeResult // by subscription id, each buffered for one

	deliveries atomic.Int64 // how many of them watch deliveries
}

// Watch returns a watcher of everything that is committed from now on, but
// not of what becomes of deliveries.
func (s *Store) Watch() *Watcher { return s.watch(false) }

// WatchDeliveries returns a watcher of the deliveries that are stored and
// changed from now on, whose Changes name nothing else.
func (s *Store) WatchDeliveries() *Watcher { return s.watch(true) }

func (s *core) watch(deliveries bool) *Watcher {
	c := make(chan struct{}, 1)
	w := &Watcher{C: c, c: c, deliveries: deliveries, store: s}
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	s.watchers.all = append(s.watchers.all, w)
	if deliveries {
		s.watchers.deliveries.Add(1)
	}
	return w
}

// Close ends the watch.
func (w *Watcher) Close() {
	ws := &w.store.watchers
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

// Take returns what has changed since the last call.
func (w *Watcher) Take() Changes {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.changes
	w.changes = Changes{}
	return c
}

func (ws *watchers) tell(change func(*Changes)) { ws.tellThose(false, change) }

func (ws *watchers) tellThose(ofDeliveries bool, change func(*Changes)) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.all {
		if w.deliveries != ofDeliveries {
			continue
		}
		w.mu.Lock()
		change(&w.changes)
		w.mu.Unlock()
		select {
		case w.c <- struct{}{}:
		default: // it has not yet looked at the last
		}
	}
}

func (ws *watchers) published(events []webhook.Event) {
	ws.tell(func(c *Changes) {
		if c.Events == nil {
			c.Events = make(map[EventKey]int64)
		}
		for i := range events {
			c.Events[EventKey{events[i].ProgramID, events[i].Name}] = events[i].Seq
		}
	})
}

func (ws *watchers) subscriptionChanged(id string) {
	ws.tell(func(c *Changes) { put(&c.Subscriptions, id) })
}

func (ws *watchers) queued(subscriptionID string) {
	ws.tell(func(c *Changes) { put(&c.Queued, subscriptionID) })
}

// deliveryChanged tells those who watch deliveries that the current write has
// stored or changed one, by its place, 0 for some that are not named. While
// nobody does, it costs a look at a counter.
func (t *tx) deliveryChanged(num int64) {
	ws := t.w.watchers
	if ws == nil || ws.deliveries.Load() == 0 {
		return
	}
	t.AfterCommit(func() {
		ws.tellThose(true, func(c *Changes) {
			if c.Deliveries == nil {
				c.Deliveries = make(map[int64]struct{})
			}
			if len(c.Deliveries) < MaxChanged {
				c.Deliveries[num] = struct{}{}
			}
		})
	})
}

func put(set *map[string]struct{}, id string) {
	if *set == nil {
		*set = make(map[string]struct{})
	}
	(*set)[id] = struct{}{}
}

// awaitResult returns a channel that receives the first attempt of a delivery
// that is about to be stored, or is closed when none will be made, and a
// function that ends the wait.
func (ws *watchers) awaitResult(deliveryID string) (<-chan webhook.Attempt, func()) {
	c := make(chan webhook.Attempt, 1)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.results == nil {
		ws.results = make(map[string]chan webhook.Attempt)
	}
	ws.results[deliveryID] = c
	return c, func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		delete(ws.results, deliveryID)
	}
}

// dropped ends the wait for the result of a delivery that will not be sent.
func (ws *watchers) dropped(deliveryID string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if c, ok := ws.results[deliveryID]; ok {
		delete(ws.results, deliveryID)
		close(c)
	}
}

func (ws *watchers) recorded(deliveryID string, a *webhook.Attempt) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if c, ok := ws.results[deliveryID]; ok {
		delete(ws.results, deliveryID)
		c <- *a
	}
}

// awaitProbe returns a channel that receives the next attempt which is made because
// the subscription is failing, or is closed when none will be made, and a function that ends the wait.
func (ws *watchers) awaitProbe(subscriptionID string) (<-chan ProbeResult, func()) {
	c := make(chan ProbeResult, 1)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.probes == nil {
		ws.probes = make(map[string][]chan<- ProbeResult)
	}
	ws.probes[subscriptionID] = append(ws.probes[subscriptionID], c)
	return c, func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		all := slices.DeleteFunc(ws.probes[subscriptionID], func(other chan<- ProbeResult) bool { return other == c })
		if ws.probes[subscriptionID] = all; len(all) == 0 {
			delete(ws.probes, subscriptionID)
		}
	}
}

// probed ends the waits for a probe of a subscription; r is nil when none will be made.
func (ws *watchers) probed(subscriptionID string, r *ProbeResult) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, to := range ws.probes[subscriptionID] {
		if r != nil {
			to <- *r
		}
		close(to)
	}
	delete(ws.probes, subscriptionID)
}

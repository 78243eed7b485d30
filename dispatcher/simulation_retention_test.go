package dispatcher

import (
	"context"
	"net/http"
	"time"

	"service/store"
	"service/webhook"
)

// simulatedKeeps are for how long retention keeps what is old.
var simulatedRetentions = [...]time.Duration{
	10 * time.Minute, time.Hour, 3 * time.Hour, 10 * time.Minute, 30 * time.Minute, 30 * time.Second, 10 * time.Minute, time.Minute,
}

// simulatedKeep returns for how long a retention keeps what is old: every other one
// removes deliveries that succeeded sooner than the rest.
func simulatedRetention(n int) store.Retention {
	keep := store.Retention{All: simulatedRetentions[n]}
	if n%2 == 0 {
		keep.Delivered = max(keep.All/60, time.Second)
	}
	return keep
}

// logged is an event in the log of its program.
type loggedEvent struct {
	program  string
	name     int       // in simulatedNames
	received time.Time // as it is stored; zero while it is not known
}

// simulatedChanges is what a model knows of what ends and removes deliveries beside
// the dispatcher.
type externalChanges struct {
	removedBefore          time.Time       // what retention has removed is older, by the wall clock
	deliveredRemovedBefore time.Time       // the same of deliveries that succeeded
	cancellable            map[string]bool // deliveries that may have been cancelled
	ended                  map[string]bool // those that were, or have expired
	dirty                  bool            // the store may have changed since learn
	bulkCreated            bool            // a bulk run was begun
	pending                int             // retentions that run, and requests for bulk runs
	runs                   []*bulkRun      // bulk runs of which the result is not checked
	redelivered            map[string]bool // deliveries that bulk actions have redelivered
	stop                   []context.CancelFunc
}

func newExternalChanges() externalChanges {
	return externalChanges{cancellable: make(map[string]bool), ended: make(map[string]bool), redelivered: make(map[string]bool)}
}

func (c *externalChanges) end() {
	for _, stop := range c.stop {
		stop()
	}
}

// retain has retention remove once, in a while, what is older than a time that n
// says: for some n after a subscription has lagged for that long, or the clock has
// jumped.
func (s *simulation) retain(h *modelSubscription, n int) {
	keep := simulatedRetention(n)
	if n >= 4 {
		s.mu.Lock()
		h.endpoints[h.settings.endpoint].mode = modeHang
		s.mu.Unlock()
		for range 3 {
			s.publish(h.program, n)
		}
		s.settle()
		s.sleep(keep.All)
	}
	s.settle() // it is known which deliveries there are
	if n%4 == 3 {
		s.jump(simulatedJumps[n])
	}
	delivered := keep.All
	if keep.Delivered > 0 {
		delivered = keep.Delivered
	}
	pause := max(delivered/48, time.Second)
	ctx, stop := context.WithCancel(context.Background())
	s.mu.Lock()
	s.changes.pending++
	s.changes.stop = append(s.changes.stop, stop)
	gen := s.generation
	s.mu.Unlock()
	time.AfterFunc(pause-time.Millisecond, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		now := time.Now().Add(2 * time.Millisecond)
		if s.generation != gen || !s.jumpedForwardAt.IsZero() && now.Sub(s.jumpedForwardAt) < 24*time.Hour {
			return // nothing may be removed
		}
		later := func(edge *time.Time, keep time.Duration) {
			if at := s.wall().Add(2*time.Millisecond - keep); at.After(*edge) {
				*edge = at
			}
		}
		later(&s.changes.removedBefore, keep.All)
		later(&s.changes.deliveredRemovedBefore, delivered)
	})
	st := s.d.store
	go func() {
		time.AfterFunc(pause+time.Millisecond, stop)
		err := st.Retain(ctx, keep)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unexpected(err)
		s.changes.pending--
		s.changes.dirty = true
	}()
	if keep.Delivered > 0 && !h.settings.deleted {
		s.learn() // what is about to be removed
		s.sleep(pause + 2*time.Millisecond)
		s.replay(h, 4+n/2%2) // of all that was missed, or has failed
	}
}

// learn reads which deliveries were formed by replays and bulk actions, ended or
// removed since the last time, and checks that they could be.
func (s *simulation) learn() {
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.learnReplays()
		c := &s.changes
		if c.pending == 0 && !c.dirty && len(c.runs) == 0 {
			return
		}
		s.learnRuns()
		c.dirty = c.pending > 0
		stored := make(map[string]*webhook.Delivery)
		for _, h := range s.subs {
			if h.settings.deleted || h.id == "" {
				continue
			}
			all, err := s.deliveries(h)
			if err != nil {
				s.violate(promiseOperates, "%v", err)
				return
			}
			for id, d := range all {
				stored[id] = &d
				s.learnDelivery(h, &d)
			}
			s.learnRemoved(h, all)
		}
		s.checkRuns(stored)
	})
}

// learnDelivery takes down a delivery that is stored. Owns s.mu.
func (s *simulation) learnDelivery(h *modelSubscription, d *webhook.Delivery) {
	if _, known := h.redeliveries[d.ID]; d.RedeliveryOf != "" && !known {
		h.redeliveries[d.ID] = time.Now()
		s.checkBulkRedelivery(h, d)
	}
	ended := d.FailureReason == webhook.FailureExpired || d.FailureReason == webhook.FailureCancelled
	if ended {
		s.changes.ended[d.ID] = true
		if m := h.byID[d.ID]; m != nil {
			s.checkStatus(h, m, d)
			m.ended = true
		}
	}
	if d.RedeliveryOf != "" || h.replayDeliveries[d.ID] != nil {
		return
	}
	for _, e := range d.Events {
		if e.Name == webhook.EventPing {
			continue
		}
		event := s.events[e.ID]
		h.inDelivery[event] = true
		for _, owed := range h.expected {
			owed.arrived = owed.arrived || ended && owed.event == event
		}
	}
}

// learnRemoved takes down which deliveries and events retention may have removed.
// Owns s.mu.
func (s *simulation) learnRemoved(h *modelSubscription, stored map[string]webhook.Delivery) {
	for id, m := range h.byID {
		if _, ok := stored[id]; !ok && !m.removed {
			s.learnGone(h, m)
		}
	}
	for _, owed := range h.expected {
		if received := s.log[owed.event].received; received.Before(s.changes.removedBefore) && (!received.IsZero() || owed.uncertain) {
			owed.mayBeRemoved = true
		}
	}
}

// learnGone takes down that a delivery is not stored. Owns s.mu.
func (s *simulation) learnGone(h *modelSubscription, m *modelDelivery) {
	last, edge := m.last(), s.changes.removedBefore
	early := !last.arrivedWall.Before(edge) && last.status == http.StatusOK && !s.changes.ended[m.id]
	switch {
	case early:
		edge = s.changes.deliveredRemovedBefore
	case m.ended && !last.arrivedWall.Before(edge):
		return
	}
	if m.unfinished() && !s.crashed || !last.arrivedWall.Before(edge) {
		s.violate(promiseCounted, "subscription %d: a delivery was removed that was sent at %s by the wall clock; it removes what is older than %s", h.index, sinceStart(last.arrivedWall), sinceStart(edge))
	}
	m.ended, m.removed = true, true
	if !early {
		return
	}
	_, copied := h.redeliveries[m.id]
	for _, event := range m.events {
		h.accepted[event] = true
		if !copied && h.replayDeliveries[m.id] == nil {
			h.inDelivery[event] = true
		}
	}
}

// mayEnd says whether a delivery with these final answers could be ended by
// somebody else: no attempt was in flight, and it was not at its end. Owns s.mu.
func (s *simulation) mayEnd(m *modelDelivery, final []int) bool {
	if m == nil {
		return true
	}
	l := m.last()
	open := l.endedAt.IsZero() && l.generation == s.generation && !l.interrupted && time.Since(l.arrivedAt) < attemptTimeout
	return !open && (len(final) == 0 || s.crashed)
}

// auditLosses checks that each event that is owed to a subscription and in no
// delivery is counted as lost. Owns s.mu.
func (s *simulation) auditLosses(h *modelSubscription) {
	least, most := int64(0), int64(0)
	for _, owed := range h.expected {
		if h.inDelivery[owed.event] || !owed.mayBeRemoved {
			continue
		}
		most++
		if !owed.uncertain {
			least++
		}
	}
	lost, err := s.d.store.Subscriptions().LostEvents(context.Background(), h.id)
	if err != nil {
		s.violate(promiseOperates, "%v", err)
	} else if lost < least || lost > most {
		s.violate(promiseLost, "subscription %d: %d events are counted as lost, and %d to %d are in no delivery", h.index, lost, least, most)
	}
}

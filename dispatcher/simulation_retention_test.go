package dispatcher

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"service/store/storetest"
	"service/webhook"
)

// simulatedRetentions are the retention periods.
var simulatedRetentions = [...]time.Duration{
	10 * time.Minute, time.Hour, 3 * time.Hour, 10 * time.Minute, 30 * time.Minute, 30 * time.Second, 10 * time.Minute, time.Minute,
}

// simulatedRetention returns a retention. Every other one removes successful deliveries
// sooner than other records.
func simulatedRetention(n int) webhook.Retention {
	keep := webhook.Retention{All: simulatedRetentions[n]}
	if n%2 == 0 {
		keep.Delivered = max(keep.All/60, time.Second)
	}
	return keep
}

// loggedEvent is an event in the log of its program.
type loggedEvent struct {
	program  string
	name     int       // index in simulatedNames
	n        int       // field of the event, for filters
	at       time.Time // when it was published
	received time.Time // as stored; zero while unknown
	counted  time.Time // when it was published, as retention counts; zero while unknown
	pulled   bool      // a request has got it
	refused  bool      // its publication failed, so it is not stored
	erasing  bool      // it may have been erased
	erasure  *modelErasure
}

// externalChanges is the model's knowledge of changes by retention, cancellations and bulk
// runs.
type externalChanges struct {
	removedBefore          time.Time       // retention has removed only older records, by the time that it counts
	deliveredRemovedBefore time.Time       // the same for successful deliveries
	cancellable            map[string]bool // deliveries that may have been cancelled
	ended                  map[string]bool // deliveries that were cancelled or have expired
	dirty                  bool            // the store may have changed since learn
	bulkCreated            bool            // a bulk run was created
	erased                 bool            // an event may have been erased
	pending                int             // running retentions and requests for bulk runs
	runs                   []*bulkRun      // bulk runs whose result is not checked yet
	redelivered            map[string]bool // deliveries redelivered by bulk runs
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

// retain runs retention once, with a period given by n. For some n the subscription
// first lags for that long, or the clock jumps.
func (s *simulation) retain(sub *modelSubscription, n int) {
	keep := simulatedRetention(n)
	if n < 4 {
		s.settle() // so that the model knows all deliveries
		if n == 3 {
			s.jump(simulatedJumps[n])
		}
		pause := s.runRetention(keep)
		if keep.Delivered > 0 && !sub.settings.deleted {
			s.sleep(pause)
			s.replay(sub, 4+n/2%2) // of all missed, or all failed events
		}
		return
	}
	s.mu.Lock()
	sub.endpoints[sub.settings.endpoint].mode = modeHang
	s.mu.Unlock()
	for range 3 {
		s.publish(sub.program, n)
	}
	s.settle()
	old, gen, quiet := time.Now(), s.generation, s.quiet()
	s.sleep(keep.All / 50)        // more than between two marks
	s.sleep(s.runRetention(keep)) // which stores a mark
	s.sleep(keep.All)
	s.settle()
	if n == 7 {
		s.jump(simulatedJumps[n])
	}
	s.sleep(s.runRetention(keep))
	s.settle()
	if quiet && s.quiet() && s.generation == gen {
		s.faults.without(func() { s.checkGone(old) })
	}
	if keep.Delivered > 0 && !sub.settings.deleted {
		s.replay(sub, 4+n/2%2)
	}
}

// quiet reports whether the store works and no fault is armed.
func (s *simulation) quiet() bool {
	_, may := s.faults.active()
	return !may && s.faults.recovered() && s.lease.isValid()
}

// runRetention starts one run of retention, and returns when it will have ended.
func (s *simulation) runRetention(keep webhook.Retention) time.Duration {
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
		if s.generation != gen {
			return // retention removes nothing
		}
		later := func(edge *time.Time, keep time.Duration) {
			if at := s.counted().Add(2*time.Millisecond - keep); at.After(*edge) {
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
	s.learn() // the deliveries about to be removed
	return pause + 2*time.Millisecond
}

// checkGone checks the oldest events after a run of retention: events that no delivery carries
// and that were published before old are gone.
func (s *simulation) checkGone(old time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, program := range simulatedPrograms[:s.plan.Programs] {
		carried, known := s.carriedEvents(program)
		if !known {
			continue
		}
		query, _ := webhook.EventList.Parse(url.Values{"sort": {"received_at"}, "page[size]": {"100"}})
		events, _, err := s.d.store.Events().Page(context.Background(), program, &query)
		if err != nil {
			s.violate(promiseOperates, "%v", err)
			return
		}
		for _, e := range events[:max(len(events)-1, 0)] { // the newest one stays
			if at := s.log[s.events[e.ID]].at; !at.After(old) && !carried[e.ID] {
				s.violate(promiseGone, "event %d of %s is stored, and was published at %s", s.events[e.ID], program, sinceStart(at))
			}
		}
	}
}

// carriedEvents returns the IDs of a program's events that deliveries carry. They are unknown if a
// subscription is deleted, since its deliveries cannot be read. The caller holds s.mu.
func (s *simulation) carriedEvents(program string) (carried map[string]bool, known bool) {
	carried = make(map[string]bool)
	for _, sub := range s.subs {
		if sub.program != program {
			continue
		}
		stored, err := s.deliveries(sub.program, sub.id)
		if err != nil {
			return nil, false
		}
		for _, d := range stored {
			for _, e := range d.Events {
				carried[e.ID] = true
			}
		}
	}
	return carried, true
}

// learn reads which deliveries replays and bulk runs have formed, and which were
// completed or removed since the last call, and checks that this was allowed.
func (s *simulation) learn() {
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.learnReplays()
		c := &s.changes
		if c.pending == 0 && !c.dirty && !c.erased && len(c.runs) == 0 {
			return
		}
		s.learnRuns()
		c.dirty = c.pending > 0
		stored := make(map[string]*webhook.Delivery)
		for _, sub := range s.subs {
			if sub.settings.deleted || sub.id == "" {
				continue
			}
			all, err := s.deliveries(sub.program, sub.id)
			if err != nil {
				s.violate(promiseOperates, "%v", err)
				return
			}
			for id, d := range all {
				stored[id] = &d
				s.learnDelivery(sub, &d)
			}
			s.learnRemoved(sub, all)
		}
		s.checkRuns(stored)
	})
}

// learnDelivery updates the model for a stored delivery. The caller holds s.mu.
func (s *simulation) learnDelivery(sub *modelSubscription, d *webhook.Delivery) {
	if _, known := sub.redeliveries[d.ID]; d.RedeliveryOf != "" && !known {
		sub.redeliveries[d.ID] = time.Now()
		s.checkBulkRedelivery(sub, d)
	}
	ended := d.FailureReason == webhook.FailureExpired || d.FailureReason == webhook.FailureCancelled
	if ended {
		s.changes.ended[d.ID] = true
		if m := sub.byID[d.ID]; m != nil {
			s.checkStatus(sub, m, d)
			if !m.ended && sub.settings.ordered {
				sub.changedAt = time.Now() // only now may the next delivery be sent
			}
			m.ended = true
		}
	}
	if d.RedeliveryOf != "" || sub.replayDeliveries[d.ID] != nil {
		return
	}
	for _, e := range d.Events {
		if e.Name == webhook.EventPing {
			continue
		}
		event := s.events[e.ID]
		sub.inDelivery[event] = true
		for _, want := range sub.expected {
			want.arrived = want.arrived || ended && want.event == event
		}
	}
}

// learnRemoved updates the model for deliveries and events that retention may have
// removed. The caller holds s.mu.
func (s *simulation) learnRemoved(sub *modelSubscription, stored map[string]webhook.Delivery) {
	for id, m := range sub.byID {
		if _, ok := stored[id]; !ok && !m.removed {
			s.learnGone(sub, m)
		}
	}
	for _, want := range sub.expected {
		if at := s.log[want.event].counted; at.Before(s.changes.removedBefore) && (!at.IsZero() || want.uncertain) {
			want.mayBeRemoved = true
		}
	}
}

// learnGone updates the model for a delivery that is no longer stored. The caller
// holds s.mu.
func (s *simulation) learnGone(sub *modelSubscription, m *modelDelivery) {
	last, edge := m.last(), s.changes.removedBefore
	early := !last.arrivedCounted.Before(edge) && last.status == http.StatusOK && !s.changes.ended[m.id]
	switch {
	case early:
		edge = s.changes.deliveredRemovedBefore
	case m.ended && !last.arrivedCounted.Before(edge):
		return
	}
	if m.unfinished() && !s.crashed || !last.arrivedCounted.Before(edge) {
		s.violate(promiseCounted, "subscription %d: retention removed a delivery sent at %s as it counts, want only older than %s",
			sub.index, sinceStart(last.arrivedCounted), sinceStart(edge))
	}
	m.ended, m.removed = true, true
	if !early {
		return
	}
	_, copied := sub.redeliveries[m.id]
	for _, event := range m.events {
		sub.accepted[event] = true
		if !copied && sub.replayDeliveries[m.id] == nil {
			sub.inDelivery[event] = true
		}
	}
}

// mayEnd reports whether a delivery with these final responses may have been
// cancelled or expired: no attempt was in flight, and it was not completed. The
// caller holds s.mu.
func (s *simulation) mayEnd(m *modelDelivery, final []int) bool {
	if m == nil {
		return true
	}
	l := m.last()
	open := l.endedAt.IsZero() && l.generation == s.generation && !l.interrupted && time.Since(l.arrivedAt) < attemptTimeout
	return !open && (len(final) == 0 || s.crashed)
}

// auditLosses checks that each selected event that is in no delivery is counted as lost, and
// in addition at most those that a split has not sent. The caller holds s.mu.
func (s *simulation) auditLosses(sub *modelSubscription) {
	least, most := int64(0), int64(0)
	for _, want := range sub.expected {
		if sub.inDelivery[want.event] || !want.mayBeRemoved {
			continue
		}
		most++
		if !want.uncertain {
			least++
		}
	}
	for _, m := range sub.byID { // a split that is removed with its delivery loses what it has not sent
		if m.removed && len(m.events) > 1 && m.last().status != http.StatusOK {
			most += int64(len(m.events))
		}
	}
	lost, err := storetest.LostEvents(context.Background(), s.d.store, sub.id)
	if err != nil {
		s.violate(promiseOperates, "%v", err)
	} else if lost < least || lost > most {
		s.violate(promiseLost, "subscription %d: got %d lost events, want %d to %d: those in no delivery", sub.index, lost, least, most)
	}
}

package dispatcher

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"service/webhook"
)

// check compares the requests received with the promises. The caller holds s.mu.
func (s *simulation) check() {
	now, recovered := time.Now(), s.faults.recovered()
	for _, sub := range s.subs {
		s.checkNewDeliveries(sub)
		t := &sub.settings
		if !recovered || s.dial > 0 || t.deleted || !now.After(sub.changedAt.Add(slack)) || !now.After(s.startedAt.Add(slack)) {
			continue
		}
		open, slotFree, throttled := s.inFlight(sub, false), s.slotFree(sub), sub.throttled || t.rate > 0
		s.checkShare(sub, now)
		waits := s.checkLate(sub, now, t.active && open == 0 && slotFree && !sub.failing && !throttled)
		if !t.active || throttled || !slotFree || open > 0 && (s.plan.hasBreaker() || sub.successesNeeded > 0) {
			continue
		}
		if open == 0 && !s.uncertain && !sub.failing && sub.dropped == 0 {
			s.checkRedeliveries(sub, now)
		}
		if open == 0 {
			s.checkProbes(sub, now)
		}
		if t.ordered && waits || open >= s.limit(t) || !sub.noFailures && s.plan.hasBreaker() {
			continue
		}
		if !s.uncertain {
			s.checkExpected(sub, now)
		}
	}
}

// slack is how late something may happen, and quickSlack how late a quick subscription with nothing
// in flight gets its event.
const (
	slack      = time.Second
	quickSlack = 200 * time.Millisecond
)

// slotFree reports whether a subscription must get a slot if it needs one: as far as the model
// knows, other programs are always waiting. The caller holds s.mu.
func (s *simulation) slotFree(sub *modelSubscription) bool {
	own, free := s.programInFlight(sub.program), s.plan.Connections-s.inFlight(nil, false)
	if !s.limits[sub.program].allows(own + 1) {
		return false
	}
	if s.quick(sub) && (free > max(1, s.plan.Connections/32) || own == 0 && free > 0) {
		return true
	}
	return free > max(1, s.plan.Connections/8) && (s.plan.Programs == 1 || own < free)
}

// quick reports whether the last request to a subscription took less than a second, and no delivery
// is in flight. The caller holds s.mu.
func (s *simulation) quick(sub *modelSubscription) bool {
	return sub.quickAt.After(sub.slowAt) && sub.quickAt.After(s.startedAt) && s.inFlight(sub, false) == 0
}

// checkLate checks that no delivery is overdue; free says whether a slot is free
// for one that is no ping. It reports whether a delivery is waiting, excluding pings.
func (s *simulation) checkLate(sub *modelSubscription, now time.Time, free bool) (waits bool) {
	for _, d := range sub.received {
		last := d.last()
		if !d.unfinished() || d.uncertain || d.anyTime || last.endedAt.IsZero() && last.generation == s.generation {
			waits = waits || !d.ping && d.mayWait()
			continue
		}
		waits = waits || !d.ping
		may := free
		if d.ping { // they have slots of their own
			may = !s.crowded()
		}
		if due := d.due(s.plan, s.startedAt, s.leaseRenewedAt); may && now.After(due.Add(slack)) {
			s.violate(promiseLate, "subscription %d: a delivery was due at %s, and now it is %s", sub.index, sinceStart(due), sinceStart(now))
		}
	}
	return waits
}

// checkRedeliveries checks that every redelivery was sent.
func (s *simulation) checkRedeliveries(sub *modelSubscription, now time.Time) {
	for id, at := range sub.redeliveries {
		if sub.byID[id] == nil && !s.changes.ended[id] && now.After(at.Add(slack)) {
			s.violate(promiseServed, "subscription %d: a redelivery requested at %s was not sent by %s", sub.index, sinceStart(at), sinceStart(now))
		}
	}
}

// checkExpected checks that every selected event was sent.
func (s *simulation) checkExpected(sub *modelSubscription, now time.Time) {
	within := s.plan.Window + slack
	if s.quick(sub) {
		within = s.plan.Window + quickSlack
	}
	for _, want := range sub.expected {
		if !want.arrived && !want.uncertain && !want.mayBeRemoved && now.After(want.at.Add(within)) {
			s.violate(promiseServed, "subscription %d: event %d, accepted at %s, was not sent by %s; its queue: %s",
				sub.index, want.event, sinceStart(want.at), sinceStart(now), s.queueOf(sub))
		}
	}
}

// queueOf describes the queue of a subscription.
func (s *simulation) queueOf(sub *modelSubscription) string {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	q := s.d.queues[sub.id]
	if q == nil {
		return "none"
	}
	return fmt.Sprintf("%s, read %d of %d, %d in flight, failing %t, ramp %d, suspended until %s, claims paused until %s", phaseNames[q.phase],
		q.readSeq, q.wantedSeq, q.inFlight, q.Failing, q.ramp, sinceStart(q.suspendedUntil), sinceStart(s.d.pausedUntil))
}

// checkNewDeliveries checks the deliveries of a subscription that were received
// since the last call. The caller holds s.mu.
func (s *simulation) checkNewDeliveries(sub *modelSubscription) {
	for i, d := range sub.received {
		if d.checked {
			continue
		}
		d.checked = true
		if sub.isRedelivery(d) || d.ping || sub.unknownReplay || sub.replayDeliveries[d.id] != nil {
			continue
		}
		if sub.settings.deleted && (len(sub.replays) > 0 || s.changes.bulkCreated) {
			continue // the origin of a removed delivery, such as a replay or a bulk run, cannot be read
		}
		s.checkEvents(sub, i, d)
		if !d.uncertain && !sub.agreed(func(t *settings) bool { return t.maxEvents == 0 || len(d.events) <= t.maxEvents }) {
			s.violate(promiseMax, "subscription %d got %d events in one delivery", sub.index, len(d.events))
		}
		wasUnordered := slices.ContainsFunc(sub.previous, func(t settings) bool { return !t.ordered })
		if sub.settings.ordered && !wasUnordered && !s.uncertain && slices.ContainsFunc(d.unfinishedBefore, func(o *modelDelivery) bool {
			// The delivery of a deleted subscription may have expired, but cannot be read.
			mayHaveExpired := sub.settings.deleted && o.attempts[0].arrivedCounted.Add(-slack).Before(s.changes.removedBefore)
			return !sub.isRedelivery(o) && !o.ended && !o.uncertain && !mayHaveExpired
		}) {
			s.violate(promiseOrdered, "subscription %d: a delivery came before the previous one was completed", sub.index)
		}
		if sub.settings.ordered && !wasUnordered {
			s.checkOvertaken(sub, i, d)
		}
	}
}

// checkOvertaken checks that the i-th delivery to an ordered subscription, if it contains a new event,
// did not overtake the events of a failed delivery that are sent again one by one.
func (s *simulation) checkOvertaken(sub *modelSubscription, i int, d *modelDelivery) {
	if s.uncertain || sub.dropped != 0 || s.changes.bulkCreated || len(sub.replays) > 0 || !s.changes.removedBefore.IsZero() {
		return
	}
	sent := func(after int, event int) bool {
		return slices.ContainsFunc(sub.received[after:i], func(o *modelDelivery) bool { return slices.Contains(o.events, event) })
	}
	if sent(0, d.events[0]) {
		return
	}
	for n, o := range sub.received[:i] {
		last := o.last()
		failed := last.settled && !last.interrupted && last.status != http.StatusOK && (last.final() || len(o.attempts) == webhook.MaxAttempts)
		if !failed || len(o.events) < 2 || o.uncertain || o.ended || sub.isRedelivery(o) || s.changes.cancellable[o.id] {
			continue
		}
		if at := slices.IndexFunc(o.events, func(event int) bool { return !s.log[event].erasing && !sent(n+1, event) }); at >= 0 {
			s.violate(promiseOrdered, "subscription %d: event %d came before event %d was sent again", sub.index, d.events[0], o.events[at])
		}
	}
}

// checkEvents checks the events of the i-th delivery: each is selected, in order, and in no
// earlier delivery.
func (s *simulation) checkEvents(sub *modelSubscription, i int, d *modelDelivery) {
	var newest int64 // 0 while unknown
	for _, e := range d.events {
		if e >= 0 {
			seq := s.published[e]
			if seq != 0 && seq <= newest {
				s.violate(promiseOrdered, "subscription %d: seq %d comes after seq %d", sub.index, seq, newest)
			}
			newest = seq
		}
		if wasSplit(sub.received[:i], e) { // perhaps in a delivery of a replay, which may send unselected events
			continue
		}
		if e < 0 || !slices.ContainsFunc(sub.expected, func(o *expectedEvent) bool { return o.event == e }) {
			s.violate(promiseOwed, "subscription %d got the unwanted event %d", sub.index, e)
		}
		for _, other := range sub.received[:i] {
			if !sub.isRedelivery(other) && sub.replayDeliveries[other.id] == nil && !other.ping && slices.Contains(other.events, e) {
				s.violate(promiseOnce, "subscription %d got event %d in two deliveries", sub.index, e)
			}
		}
	}
}

// wasSplit reports whether an event was in a delivery of several events that failed, as far as its
// receiver can know, so that it may be sent again alone.
func wasSplit(received []*modelDelivery, event int) bool {
	return slices.ContainsFunc(received, func(d *modelDelivery) bool {
		if len(d.events) < 2 || !slices.Contains(d.events, event) {
			return false
		}
		last := d.last()
		return last.final() && last.status != http.StatusOK || len(d.attempts) == webhook.MaxAttempts || d.uncertain || d.dropped
	})
}

// checkSettings checks that a received delivery agrees with the subscription's
// settings, or with previous settings that the dispatcher may still use.
func (s *simulation) checkSettings(at *endpoint, d *modelDelivery) {
	sub := at.owner
	agreed := sub.agreed
	if !agreed(func(t *settings) bool { return !t.deleted }) {
		s.violate(promiseDeleted, "subscription %d", sub.index)
	} else if !agreed(func(t *settings) bool { return d.ping || t.active }) {
		s.violate(promisePaused, "subscription %d", sub.index)
	}
	if !agreed(func(t *settings) bool { return d.ping || s.requested(d, t.names) }) {
		s.violate(promiseNames, "subscription %d got a delivery with an event type that it had removed", sub.index)
	}
	if !agreed(func(t *settings) bool { return t.endpoint == at.n }) {
		s.violate(promiseURL, "subscription %d", sub.index)
	}
	open := s.inFlight(sub, d.ping)
	if !agreed(func(t *settings) bool { return open <= s.limit(t) || d.ping && open <= maxPingsPerQueue }) {
		s.violate(promiseSlots, "subscription %d has %d in flight", sub.index, open)
	}
	if n := s.inFlight(nil, false); n > s.plan.Connections {
		s.violate(promiseSlots, "%d are in flight in total", n)
	}
}

// agreed reports whether ok holds for the settings of a subscription, or for previous ones that
// the dispatcher may still use.
func (sub *modelSubscription) agreed(ok func(*settings) bool) bool {
	for i := range sub.previous {
		if ok(&sub.previous[i]) {
			return true
		}
	}
	return ok(&sub.settings)
}

// requested reports whether the names of all events of a delivery are among names, which are bits.
func (s *simulation) requested(d *modelDelivery, names int) bool {
	return !slices.ContainsFunc(d.events, func(e int) bool { return e >= 0 && names&(1<<s.log[e].name) == 0 })
}

// checkRepeat checks that a delivery may be sent again now. The caller holds s.mu.
func (s *simulation) checkRepeat(sub *modelSubscription, d *modelDelivery, now time.Time) {
	last := d.last()
	lost := last.generation != s.generation && !last.settled || last.interrupted // a crash may have lost its result
	loose := d.anyTime
	d.anyTime = false
	switch {
	case d.ended:
		s.violate(promiseFinal, "subscription %d: sent again after it was completed", sub.index)
	case lost || loose && !last.final():
	case last.final():
		s.violate(promiseFinal, "subscription %d: sent again after status %d", sub.index, last.status)
	case last.endedAt.IsZero() && now.Sub(last.arrivedAt) < attemptTimeout:
		s.violate(promiseEarly, "subscription %d: sent again while an attempt is in flight", sub.index)
	case s.plan.hasBreaker() && (d.ping || sub.failing || s.isFailing(sub)): // a probe may send it ahead of schedule
	case len(d.attempts) < webhook.MaxAttempts:
		ended := last.endedAt
		if ended.IsZero() {
			ended = last.arrivedAt.Add(attemptTimeout)
		}
		wait := time.Duration(float64(s.plan.policy().Waits[len(d.attempts)-1]) * (1 - s.plan.Jitter))
		if due := ended.Add(max(wait, last.retryAfter)); due.Sub(now) > time.Millisecond { // stored in milliseconds
			s.violate(promiseEarly, "subscription %d: attempt %d at %s, due at %s", sub.index, len(d.attempts)+1, sinceStart(now), sinceStart(due))
		}
	}
}

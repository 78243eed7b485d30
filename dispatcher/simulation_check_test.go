package dispatcher

import (
	"slices"
	"time"

	"service/webhook"
)

// check holds what has arrived against what was promised. Owns s.mu.
func (s *simulation) check() {
	now, calm := time.Now(), s.faults.recovered()
	room := s.inFlight(nil, false) < s.plan.Connections-s.plan.Connections/8
	for _, h := range s.subs {
		s.checkNewDeliveries(h)
		t := &h.settings
		if !calm || s.dial > 0 || t.deleted || !now.After(h.changedAt.Add(slack)) || !now.After(s.startedAt.Add(slack)) {
			continue
		}
		open := s.inFlight(h, false)
		waits := s.checkLate(h, now, t.active && open == 0 && room && !h.failing && !h.throttled)
		if !t.active || h.throttled || !room || open > 0 && (s.plan.hasBreaker() || h.successesNeeded > 0) {
			continue
		}
		if open == 0 && !s.uncertain && !h.failing {
			s.checkRedeliveries(h, now)
		}
		if open == 0 {
			s.checkProbes(h, now)
		}
		if t.ordered && waits || open >= s.limit(t) || !h.noFailures && s.plan.hasBreaker() {
			continue
		}
		if !s.uncertain {
			s.checkExpected(h, now)
		}
	}
}

// slack is how much later than it could something may happen.
const slack = time.Second

// checkLate checks that no delivery is later than it may be; free says whether
// there is a slot for one. It reports whether a delivery waits, pings aside.
func (s *simulation) checkLate(h *modelSubscription, now time.Time, free bool) (waits bool) {
	for _, d := range h.received {
		last := d.last()
		if !d.unfinished() || d.uncertain || d.anyTime || last.endedAt.IsZero() && last.generation == s.generation {
			waits = waits || !d.ping && d.unfinished()
			continue
		}
		waits = waits || !d.ping
		if due := d.due(s.plan, s.startedAt, s.leaseRenewedAt); (d.ping || free) && now.After(due.Add(slack)) {
			s.violate(promiseLate, "subscription %d: a delivery was due at %s, and it is %s", h.index, sinceStart(due), sinceStart(now))
		}
	}
	return waits
}

// checkCopies checks that every redelivery has been sent.
func (s *simulation) checkRedeliveries(h *modelSubscription, now time.Time) {
	for id, at := range h.redeliveries {
		if h.byID[id] == nil && !s.changes.ended[id] && now.After(at.Add(slack)) {
			s.violate(promiseServed, "subscription %d: a redelivery that was asked for at %s has not left at %s", h.index, sinceStart(at), sinceStart(now))
		}
	}
}

// checkDebts checks that every event that is owed has been sent.
func (s *simulation) checkExpected(h *modelSubscription, now time.Time) {
	for _, owed := range h.expected {
		if !owed.arrived && !owed.uncertain && !owed.mayBeRemoved && now.After(owed.at.Add(s.plan.Window+slack)) {
			s.violate(promiseServed, "subscription %d: event %d, accepted at %s, has not left at %s", h.index, owed.event, sinceStart(owed.at), sinceStart(now))
		}
	}
}

// judge looks at the deliveries that are new to a subscription. Owns s.mu.
func (s *simulation) checkNewDeliveries(h *modelSubscription) {
	for i, d := range h.received {
		if d.checked {
			continue
		}
		d.checked = true
		if h.isRedelivery(d) || d.ping || h.unknownReplay || h.replayDeliveries[d.id] != nil {
			continue
		}
		if h.settings.deleted && (len(h.replays) > 0 || s.changes.bulkCreated) {
			continue // what has formed it cannot be read any more
		}
		s.checkEvents(h, i, d)
		if h.settings.ordered && !slices.ContainsFunc(h.previous, func(t settings) bool { return !t.ordered }) && !s.uncertain && slices.ContainsFunc(d.unfinishedBefore, func(o *modelDelivery) bool {
			return !h.isRedelivery(o) && !o.ended && !o.uncertain && !(h.settings.deleted && o.attempts[0].arrivedWall.Add(-slack).Before(s.changes.removedBefore)) // which may have expired, and cannot be read
		}) {
			s.violate(promiseOrdered, "subscription %d: a delivery came before the last was at its end", h.index)
		}
	}
}

// judgeEvents checks the events of the delivery that came first as the i-th: each
// is owed, in order, and in no delivery before.
func (s *simulation) checkEvents(h *modelSubscription, i int, d *modelDelivery) {
	var newest int64 // 0 where it is not known
	for _, e := range d.events {
		if e >= 0 {
			seq := s.published[e]
			if seq != 0 && seq <= newest {
				s.violate(promiseOrdered, "subscription %d: event %d of the log stands after event %d", h.index, seq, newest)
			}
			newest = seq
		}
		if e < 0 || !slices.ContainsFunc(h.expected, func(o *expectedEvent) bool { return o.event == e }) {
			s.violate(promiseOwed, "subscription %d got event %d", h.index, e)
		}
		for _, other := range h.received[:i] {
			if !h.isRedelivery(other) && h.replayDeliveries[other.id] == nil && !other.ping && slices.Contains(other.events, e) {
				s.violate(promiseOnce, "subscription %d got event %d in two deliveries", h.index, e)
			}
		}
	}
}

// checkTerms checks that a delivery that has come was agreed on: by the terms of
// its subscription, or by those before while the dispatcher may not know better.
func (s *simulation) checkSettings(at *endpoint, d *modelDelivery) {
	h := at.owner
	agreed := func(ok func(*settings) bool) bool {
		for i := range h.previous {
			if ok(&h.previous[i]) {
				return true
			}
		}
		return ok(&h.settings)
	}
	if !agreed(func(t *settings) bool { return !t.deleted }) {
		s.violate(promiseDeleted, "subscription %d", h.index)
	} else if !agreed(func(t *settings) bool { return d.ping || t.active }) {
		s.violate(promisePaused, "subscription %d", h.index)
	}
	if !agreed(func(t *settings) bool { return t.endpoint == at.n }) {
		s.violate(promiseURL, "subscription %d", h.index)
	}
	open := s.inFlight(h, d.ping)
	if !agreed(func(t *settings) bool { return open <= s.limit(t) || d.ping && open <= maxPingsPerQueue }) {
		s.violate(promiseSlots, "subscription %d has %d open", h.index, open)
	}
	if n := s.inFlight(nil, false); n > s.plan.Connections {
		s.violate(promiseSlots, "%d are open in all", n)
	}
}

// again checks that a delivery may be sent once more now. Owns s.mu.
func (s *simulation) checkRepeat(h *modelSubscription, d *modelDelivery, now time.Time) {
	last := d.last()
	lost := last.generation != s.generation && !last.settled || last.interrupted // the crash may have taken its result
	loose := d.anyTime
	d.anyTime = false
	switch {
	case d.ended:
		s.violate(promiseFinal, "subscription %d: again after it was ended", h.index)
	case lost || loose && !last.final():
	case last.final():
		s.violate(promiseFinal, "subscription %d: again after %d", h.index, last.status)
	case last.endedAt.IsZero() && now.Sub(last.arrivedAt) < attemptTimeout:
		s.violate(promiseEarly, "subscription %d: again while the last is open", h.index)
	case s.plan.hasBreaker() && (d.ping || h.failing || s.isFailing(h)): // a probe may repeat it before its time
	case len(d.attempts) < webhook.MaxAttempts:
		ended := last.endedAt
		if ended.IsZero() {
			ended = last.arrivedAt.Add(attemptTimeout)
		}
		wait := time.Duration(float64(s.plan.policy().Waits[len(d.attempts)-1]) * (1 - s.plan.Jitter))
		if due := ended.Add(max(wait, last.retryAfter)); due.Sub(now) > time.Millisecond { // stored in milliseconds
			s.violate(promiseEarly, "subscription %d: attempt %d at %s, due at %s", h.index, len(d.attempts)+1, sinceStart(now), sinceStart(due))
		}
	}
}

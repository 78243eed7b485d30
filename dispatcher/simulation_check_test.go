package dispatcher

import (
	"slices"
	"time"

	"service/webhook"
)

// check holds what has arrived against what was promised. Owns s.mu.
func (s *simulation) check() {
	now, calm := time.Now(), s.faults.calm()
	room := s.inFlight(nil, false) < s.plan.Connections-s.plan.Connections/8
	for _, h := range s.subs {
		s.judge(h)
		t := &h.now
		if !calm || s.dial > 0 || t.deleted || !now.After(h.changed.Add(slack)) || !now.After(s.begun.Add(slack)) {
			continue
		}
		open := s.inFlight(h, false)
		waits := s.checkLate(h, now, t.active && open == 0 && room && !h.failing && !h.paced)
		if !t.active || h.paced || !room || open > 0 && (s.plan.breaks() || h.caution > 0) {
			continue
		}
		if open == 0 && !s.trapped && !h.failing {
			s.checkCopies(h, now)
		}
		if open == 0 {
			s.checkProbes(h, now)
		}
		if t.ordered && waits || open >= s.limit(t) || !h.clean && s.plan.breaks() {
			continue
		}
		if !s.trapped {
			s.checkDebts(h, now)
		}
	}
}

// slack is how much later than it could something may happen.
const slack = time.Second

// checkLate checks that no delivery is later than it may be; free says whether
// there is a slot for one. It reports whether a delivery waits, pings aside.
func (s *simulation) checkLate(h *subject, now time.Time, free bool) (waits bool) {
	for _, d := range h.order {
		last := d.last()
		if !d.unfinished() || d.vague || d.anytime || last.ended.IsZero() && last.gen == s.gen {
			waits = waits || !d.ping && d.unfinished()
			continue
		}
		waits = waits || !d.ping
		if due := d.due(s.plan, s.begun, s.renewed); (d.ping || free) && now.After(due.Add(slack)) {
			s.violate(promiseLate, "subscription %d: a delivery was due at %s, and it is %s", h.i, stamp(due), stamp(now))
		}
	}
	return waits
}

// checkCopies checks that every redelivery has been sent.
func (s *simulation) checkCopies(h *subject, now time.Time) {
	for id, at := range h.copies {
		if h.sent[id] == nil && !s.changes.ended[id] && now.After(at.Add(slack)) {
			s.violate(promiseServed, "subscription %d: a redelivery that was asked for at %s has not left at %s", h.i, stamp(at), stamp(now))
		}
	}
}

// checkDebts checks that every event that is owed has been sent.
func (s *simulation) checkDebts(h *subject, now time.Time) {
	for _, owed := range h.debts {
		if !owed.arrived && !owed.doubt && !owed.old && now.After(owed.at.Add(s.plan.Window+slack)) {
			s.violate(promiseServed, "subscription %d: event %d, accepted at %s, has not left at %s", h.i, owed.event, stamp(owed.at), stamp(now))
		}
	}
}

// judge looks at the deliveries that are new to a subscription. Owns s.mu.
func (s *simulation) judge(h *subject) {
	for i, d := range h.order {
		if d.judged {
			continue
		}
		d.judged = true
		if h.copied(d) || d.ping || h.replayed || h.again[d.id] != nil {
			continue
		}
		if h.now.deleted && (len(h.replays) > 0 || s.changes.bulk) {
			continue // what has formed it cannot be read any more
		}
		s.judgeEvents(h, i, d)
		if h.now.ordered && !slices.ContainsFunc(h.was, func(t terms) bool { return !t.ordered }) && !s.trapped && slices.ContainsFunc(d.behind, func(o *sending) bool {
			return !h.copied(o) && !o.over && !o.vague && !(h.now.deleted && o.came[0].wall.Add(-slack).Before(s.changes.edge)) // which may have expired, and cannot be read
		}) {
			s.violate(promiseOrdered, "subscription %d: a delivery came before the last was at its end", h.i)
		}
	}
}

// judgeEvents checks the events of the delivery that came first as the i-th: each
// is owed, in order, and in no delivery before.
func (s *simulation) judgeEvents(h *subject, i int, d *sending) {
	var newest int64 // 0 where it is not known
	for _, e := range d.events {
		if e >= 0 {
			seq := s.published[e]
			if seq != 0 && seq <= newest {
				s.violate(promiseOrdered, "subscription %d: event %d of the log stands after event %d", h.i, seq, newest)
			}
			newest = seq
		}
		if e < 0 || !slices.ContainsFunc(h.debts, func(o *debt) bool { return o.event == e }) {
			s.violate(promiseOwed, "subscription %d got event %d", h.i, e)
		}
		for _, other := range h.order[:i] {
			if !h.copied(other) && h.again[other.id] == nil && !other.ping && slices.Contains(other.events, e) {
				s.violate(promiseOnce, "subscription %d got event %d in two deliveries", h.i, e)
			}
		}
	}
}

// checkTerms checks that a delivery that has come was agreed on: by the terms of
// its subscription, or by those before while the dispatcher may not know better.
func (s *simulation) checkTerms(at *place, d *sending) {
	h := at.owner
	agreed := func(ok func(*terms) bool) bool {
		for i := range h.was {
			if ok(&h.was[i]) {
				return true
			}
		}
		return ok(&h.now)
	}
	if !agreed(func(t *terms) bool { return !t.deleted }) {
		s.violate(promiseDeleted, "subscription %d", h.i)
	} else if !agreed(func(t *terms) bool { return d.ping || t.active }) {
		s.violate(promisePaused, "subscription %d", h.i)
	}
	if !agreed(func(t *terms) bool { return t.place == at.n }) {
		s.violate(promiseURL, "subscription %d", h.i)
	}
	open := s.inFlight(h, d.ping)
	if !agreed(func(t *terms) bool { return open <= s.limit(t) || d.ping && open <= maxPingsPerQueue }) {
		s.violate(promiseSlots, "subscription %d has %d open", h.i, open)
	}
	if n := s.inFlight(nil, false); n > s.plan.Connections {
		s.violate(promiseSlots, "%d are open in all", n)
	}
}

// again checks that a delivery may be sent once more now. Owns s.mu.
func (s *simulation) again(h *subject, d *sending, now time.Time) {
	last := d.last()
	lost := last.gen != s.gen && !last.settled || last.cut // the crash may have taken its result
	loose := d.anytime
	d.anytime = false
	switch {
	case d.over:
		s.violate(promiseFinal, "subscription %d: again after it was ended", h.i)
	case lost || loose && !last.final():
	case last.final():
		s.violate(promiseFinal, "subscription %d: again after %d", h.i, last.status)
	case last.ended.IsZero() && now.Sub(last.at) < attemptTimeout:
		s.violate(promiseEarly, "subscription %d: again while the last is open", h.i)
	case s.plan.breaks() && (d.ping || h.failing || s.isFailing(h)): // a probe may repeat it before its time
	case len(d.came) < webhook.MaxAttempts:
		ended := last.ended
		if ended.IsZero() {
			ended = last.at.Add(attemptTimeout)
		}
		wait := time.Duration(float64(s.plan.policy().Waits[len(d.came)-1]) * (1 - s.plan.Jitter))
		if due := ended.Add(max(wait, last.wait)); due.Sub(now) > time.Millisecond { // stored in milliseconds
			s.violate(promiseEarly, "subscription %d: attempt %d at %s, due at %s", h.i, len(d.came)+1, stamp(now), stamp(due))
		}
	}
}

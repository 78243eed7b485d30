package dispatcher

import (
	"slices"
	"time"

	"service/webhook"
)

// recovery is what a model knows of a subscription that is failing, or has
// recovered from that.
type recovery struct {
	since     time.Time // it was seen to be failing; zero while it is not known to have been
	successes int       // since then: the slots it may use double with each
	probes    int       // that have failed since then, pings aside
	probed    time.Time // when the last of them ended, or the zero time
	rejected  bool      // it was rejected
	pinged    time.Time // when a ping succeeded last
	came      time.Time // when an attempt came last, of a ping too
}

// breaks says whether subscriptions can be failing.
func (p *plan) breaks() bool { return p.FailingAfter > 0 || p.RejectingAfter > 0 }

// observeHealth takes down which subscriptions are failing or disabled. Owns s.mu.
func (s *simulation) observeHealth(calm bool) {
	if !s.plan.breaks() {
		return
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, h := range s.subs {
		q := s.d.queues[h.id]
		if q == nil || q.Queue.ProgramID == "" {
			continue
		}
		if h.failing = q.Failing; h.failing && calm && q.current() && (h.recovery.since.IsZero() || h.recovery.successes > 0) {
			h.recovery = recovery{since: time.Now()}
		}
		if h.failing && calm && q.current() && h.last.status == 200 && h.last.ended.Before(time.Now()) && h.last.gen == s.gen && h.last.settled {
			s.violate(promiseCloses, "subscription %d", h.i)
		}
		if q.Status == webhook.HealthDisabled && h.now.active && q.current() {
			h.was = append(h.was, h.now)
			h.now.active = false
			for _, owed := range h.debts { // before it was disabled or after
				owed.doubt = owed.doubt || !owed.at.Before(s.lastRest)
			}
		}
	}
}

// isFailing says whether the dispatcher takes a subscription to be failing. Owns s.mu.
func (s *simulation) isFailing(h *subject) bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	q := s.d.queues[h.id]
	return q != nil && q.Failing
}

// checkRecovery checks an attempt that has come against the state of its
// subscription: while that is failing it has one slot, and each attempt is a probe;
// then its slots double with each success. Owns s.mu.
func (s *simulation) checkRecovery(h *subject, r *reception) {
	rec := &h.recovery
	if rec.since.IsZero() {
		return
	}
	if rec.came = r.at; r.of.ping {
		return
	}
	if n := s.inFlight(h, false); rec.successes < 5 && n > 1<<rec.successes {
		s.violate(promiseRamp, "subscription %d has %d open after %d successes", h.i, n, rec.successes)
	}
	if rec.successes > 0 || r.of.vague {
		return
	}
	r.probe = true
	pinged := !rec.pinged.Before(rec.probed) && !rec.pinged.IsZero()
	wait := webhook.MaxProbeWait
	if rec.probes < 6 {
		wait = min(webhook.MinProbeWait<<rec.probes, wait)
	}
	if due := rec.probed.Add(wait); rec.probes > 0 && due.Sub(r.at) > time.Millisecond && !pinged {
		s.violate(promiseProbes, "subscription %d: one came at %s, due at %s", h.i, stamp(r.at), stamp(due))
	}
	if rec.rejected && !pinged {
		s.violate(promiseRejected, "subscription %d: a delivery came at %s, and no ping has succeeded since %s", h.i, stamp(r.at), stamp(rec.probed))
	}
	switch {
	case len(r.of.came) == 1 && len(r.of.events) > 1 && !h.copied(r.of) && len(s.changes.runs) == 0:
		s.violate(promiseSpared, "subscription %d: a probe took %d events", h.i, len(r.of.events))
	case len(r.of.came) == webhook.MaxAttempts && !pinged && !rec.rejected:
		s.violate(promiseSpared, "subscription %d: a probe took the last attempt of a delivery", h.i)
	}
}

// endRecovery takes down the end of an attempt.
func (s *simulation) endRecovery(r *reception) {
	h := r.by
	if !r.of.ping {
		h.last = r
		switch {
		case r.status == 200:
			h.caution = max(h.caution-1, 0)
		case r.final():
			h.caution = 4
		}
	}
	rec := &h.recovery
	switch {
	case rec.since.IsZero():
	case r.of.ping:
		if r.status == 200 {
			rec.pinged = r.ended
		}
	case r.status == 200:
		rec.successes++
	case r.cut:
		*rec = recovery{} // its result is unknown
	case r.probe:
		rec.probes++
		rec.probed = r.ended
		rec.rejected = r.final() && s.plan.RejectingAfter > 0
	}
	r.probe = false
}

// checkProbes checks that a subscription which is failing, and has a slot, is
// probed. Owns s.mu.
func (s *simulation) checkProbes(h *subject, now time.Time) {
	rec := &h.recovery
	if rec.since.IsZero() || rec.successes > 0 || !slices.ContainsFunc(h.debts, func(o *debt) bool {
		return !o.arrived && !o.doubt && !o.old && now.After(o.at.Add(s.plan.Window+slack))
	}) {
		return
	}
	last := rec.since
	if rec.came.After(last) {
		last = rec.came
	}
	if !h.paced && now.After(last.Add(webhook.MaxProbeWait+attemptTimeout+s.plan.Window+slack)) {
		s.violate(promiseProbes, "subscription %d was probed at %s, and it is %s", h.i, stamp(last), stamp(now))
	}
}

// recoverSlowly has a subscription's server fail until it is known to be failing,
// lets events wait for it, and has it come back slow. For some n it rejects.
func (s *simulation) recoverSlowly(h *subject, n int) {
	set := func(m mode) {
		s.mu.Lock()
		defer s.mu.Unlock()
		h.places[h.now.place].mode = m
	}
	if !s.plan.breaks() {
		set(modeSlow)
		return
	}
	set([]mode{modeBusy, modeRefuse, modeBusy, modeReject}[n%4])
	for range 3 {
		s.publish(h.program, n)
		s.rest()
		s.sleep(webhook.FailingOver)
	}
	for range 4 {
		s.publish(h.program, n)
	}
	s.rest()
	set(modeSlow)
	s.sleep(webhook.MaxProbeWait)
}

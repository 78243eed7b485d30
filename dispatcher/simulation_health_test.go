package dispatcher

import (
	"slices"
	"time"

	"service/webhook"
)

// recovery is what a model knows of a subscription that is failing, or has
// recovered from that.
type recovery struct {
	failingSince time.Time // it was seen to be failing; zero while it is not known to have been
	successes    int       // since then: the slots it may use double with each
	probes       int       // that have failed since then, pings aside
	probedAt     time.Time // when the last of them ended, or the zero time
	rejected     bool      // it was rejected
	pingedAt     time.Time // when a ping succeeded last
	arrivedAt    time.Time // when an attempt came last, of a ping too
}

// breaks says whether subscriptions can be failing.
func (p *plan) hasBreaker() bool { return p.FailingAfter > 0 || p.RejectingAfter > 0 }

// observeHealth takes down which subscriptions are failing or disabled. Owns s.mu.
func (s *simulation) observeHealth(calm bool) {
	if !s.plan.hasBreaker() {
		return
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, h := range s.subs {
		q := s.d.queues[h.id]
		if q == nil || q.Queue.ProgramID == "" {
			continue
		}
		if h.failing = q.Failing; h.failing && calm && q.current() && (h.recovery.failingSince.IsZero() || h.recovery.successes > 0) {
			h.recovery = recovery{failingSince: time.Now()}
		}
		if h.failing && calm && q.current() && h.last.status == 200 && h.last.endedAt.Before(time.Now()) && h.last.generation == s.generation && h.last.settled {
			s.violate(promiseCloses, "subscription %d", h.index)
		}
		if q.Status == webhook.HealthDisabled && h.settings.active && q.current() {
			h.previous = append(h.previous, h.settings)
			h.settings.active = false
			for _, owed := range h.expected { // before it was disabled or after
				owed.uncertain = owed.uncertain || !owed.at.Before(s.lastSettled)
			}
		}
	}
}

// isFailing says whether the dispatcher takes a subscription to be failing. Owns s.mu.
func (s *simulation) isFailing(h *modelSubscription) bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	q := s.d.queues[h.id]
	return q != nil && q.Failing
}

// checkRecovery checks an attempt that has come against the state of its
// subscription: while that is failing it has one slot, and each attempt is a probe;
// then its slots double with each success. Owns s.mu.
func (s *simulation) checkRecovery(h *modelSubscription, r *modelAttempt) {
	rec := &h.recovery
	if rec.failingSince.IsZero() {
		return
	}
	if rec.arrivedAt = r.arrivedAt; r.delivery.ping {
		return
	}
	if n := s.inFlight(h, false); rec.successes < 5 && n > 1<<rec.successes {
		s.violate(promiseRamp, "subscription %d has %d open after %d successes", h.index, n, rec.successes)
	}
	if rec.successes > 0 || r.delivery.uncertain {
		return
	}
	r.probe = true
	pinged := !rec.pingedAt.Before(rec.probedAt) && !rec.pingedAt.IsZero()
	wait := webhook.MaxProbeWait
	if rec.probes < 6 {
		wait = min(webhook.MinProbeWait<<rec.probes, wait)
	}
	if due := rec.probedAt.Add(wait); rec.probes > 0 && due.Sub(r.arrivedAt) > time.Millisecond && !pinged {
		s.violate(promiseProbes, "subscription %d: one came at %s, due at %s", h.index, sinceStart(r.arrivedAt), sinceStart(due))
	}
	if rec.rejected && !pinged {
		s.violate(promiseRejected, "subscription %d: a delivery came at %s, and no ping has succeeded since %s", h.index, sinceStart(r.arrivedAt), sinceStart(rec.probedAt))
	}
	switch {
	case len(r.delivery.attempts) == 1 && len(r.delivery.events) > 1 && !h.isRedelivery(r.delivery) && len(s.changes.runs) == 0:
		s.violate(promiseSpared, "subscription %d: a probe took %d events", h.index, len(r.delivery.events))
	case len(r.delivery.attempts) == webhook.MaxAttempts && !pinged && !rec.rejected:
		s.violate(promiseSpared, "subscription %d: a probe took the last attempt of a delivery", h.index)
	}
}

// endRecovery takes down the end of an attempt.
func (s *simulation) endRecovery(r *modelAttempt) {
	h := r.subscription
	if !r.delivery.ping {
		h.last = r
		switch {
		case r.status == 200:
			h.successesNeeded = max(h.successesNeeded-1, 0)
		case r.final():
			h.successesNeeded = 4
		}
	}
	rec := &h.recovery
	switch {
	case rec.failingSince.IsZero():
	case r.delivery.ping:
		if r.status == 200 {
			rec.pingedAt = r.endedAt
		}
	case r.status == 200:
		rec.successes++
	case r.interrupted:
		*rec = recovery{} // its result is unknown
	case r.probe:
		rec.probes++
		rec.probedAt = r.endedAt
		rec.rejected = r.final() && s.plan.RejectingAfter > 0
	}
	r.probe = false
}

// checkProbes checks that a subscription which is failing, and has a slot, is
// probed. Owns s.mu.
func (s *simulation) checkProbes(h *modelSubscription, now time.Time) {
	rec := &h.recovery
	if rec.failingSince.IsZero() || rec.successes > 0 || !slices.ContainsFunc(h.expected, func(o *expectedEvent) bool {
		return !o.arrived && !o.uncertain && !o.mayBeRemoved && now.After(o.at.Add(s.plan.Window+slack))
	}) {
		return
	}
	last := rec.failingSince
	if rec.arrivedAt.After(last) {
		last = rec.arrivedAt
	}
	if !h.throttled && now.After(last.Add(webhook.MaxProbeWait+attemptTimeout+s.plan.Window+slack)) {
		s.violate(promiseProbes, "subscription %d was probed at %s, and it is %s", h.index, sinceStart(last), sinceStart(now))
	}
}

// recoverSlowly has a subscription's server fail until it is known to be failing,
// lets events wait for it, and has it come back slow. For some n it rejects.
func (s *simulation) recoverSlowly(h *modelSubscription, n int) {
	set := func(m mode) {
		s.mu.Lock()
		defer s.mu.Unlock()
		h.endpoints[h.settings.endpoint].mode = m
	}
	if !s.plan.hasBreaker() {
		set(modeSlow)
		return
	}
	set([]mode{modeBusy, modeRefuse, modeBusy, modeReject}[n%4])
	for range 3 {
		s.publish(h.program, n)
		s.settle()
		s.sleep(webhook.FailingOver)
	}
	for range 4 {
		s.publish(h.program, n)
	}
	s.settle()
	set(modeSlow)
	s.sleep(webhook.MaxProbeWait)
}

package dispatcher

import (
	"slices"
	"time"

	"service/webhook"
)

// recovery is the model of a subscription that is failing or has just recovered.
type recovery struct {
	failingSince time.Time // zero while it is not known to have been failing
	successes    int       // since then; the usable slots double with each
	probes       int       // failed since then, excluding pings
	probedAt     time.Time // end of the last failed probe, or the zero time
	rejected     bool      // it was rejecting deliveries
	pingedAt     time.Time // time of the last successful ping
	arrivedAt    time.Time // time of the last attempt, including pings
}

// hasBreaker reports whether the plan has a circuit breaker.
func (p *plan) hasBreaker() bool { return p.FailingAfter > 0 || p.RejectingAfter > 0 }

// observeHealth records which subscriptions are failing or disabled. The caller
// holds s.mu.
func (s *simulation) observeHealth(recovered bool) {
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
		if h.failing = q.Failing; h.failing && recovered && q.current() && (h.recovery.failingSince.IsZero() || h.recovery.successes > 0) {
			h.recovery = recovery{failingSince: time.Now()}
		}
		if h.failing && recovered && q.current() && h.last.status == 200 && h.last.endedAt.Before(time.Now()) &&
			h.last.generation == s.generation && h.last.settled {
			s.violate(promiseCloses, "subscription %d", h.index)
		}
		if q.Status == webhook.HealthDisabled && h.settings.active && q.current() {
			h.previous = append(h.previous, h.settings)
			h.settings.active = false
			for _, want := range h.expected { // it is unknown whether before or after it was disabled
				want.uncertain = want.uncertain || !want.at.Before(s.lastSettled)
			}
		}
	}
}

// isFailing reports whether the dispatcher considers a subscription failing. The
// caller holds s.mu.
func (s *simulation) isFailing(h *modelSubscription) bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	q := s.d.queues[h.id]
	return q != nil && q.Failing
}

// checkRecovery checks a received attempt of a failing or recovering subscription.
// While it is failing it has one slot and each attempt is a probe; then its slots
// double with each success. The caller holds s.mu.
func (s *simulation) checkRecovery(h *modelSubscription, r *modelAttempt) {
	rec := &h.recovery
	if rec.failingSince.IsZero() {
		return
	}
	if rec.arrivedAt = r.arrivedAt; r.delivery.ping {
		return
	}
	if n := s.inFlight(h, false); rec.successes < 5 && n > 1<<rec.successes {
		s.violate(promiseRamp, "subscription %d has %d in flight after %d successes", h.index, n, rec.successes)
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
		s.violate(promiseProbes, "subscription %d: a probe came at %s, due at %s", h.index, sinceStart(r.arrivedAt), sinceStart(due))
	}
	if rec.rejected && !pinged {
		s.violate(promiseRejected, "subscription %d: a delivery came at %s without a successful ping since %s",
			h.index, sinceStart(r.arrivedAt), sinceStart(rec.probedAt))
	}
	switch {
	case len(r.delivery.attempts) == 1 && len(r.delivery.events) > 1 && !h.isRedelivery(r.delivery) && len(s.changes.runs) == 0:
		s.violate(promiseSpared, "subscription %d: a probe sent %d events", h.index, len(r.delivery.events))
	case len(r.delivery.attempts) == webhook.MaxAttempts && !pinged && !rec.rejected:
		s.violate(promiseSpared, "subscription %d: a probe used the last attempt of a delivery", h.index)
	}
}

// endRecovery updates the model at the end of an attempt.
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
		*rec = recovery{} // the result is unknown
	case r.probe:
		rec.probes++
		rec.probedAt = r.endedAt
		rec.rejected = r.final() && s.plan.RejectingAfter > 0
	}
	r.probe = false
}

// checkProbes checks that a failing subscription that has a slot is probed. The
// caller holds s.mu.
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
		s.violate(promiseProbes, "subscription %d was last probed at %s, and now it is %s", h.index, sinceStart(last), sinceStart(now))
	}
}

// recoverSlowly makes a subscription's server fail until the subscription is
// failing, publishes a backlog, and makes the server respond slowly. For some n it
// rejects.
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

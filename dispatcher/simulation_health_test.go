package dispatcher

import (
	"net/http"
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
	for _, sub := range s.subs {
		q := s.d.queues[sub.id]
		if q == nil || q.Queue.ProgramID == "" {
			continue
		}
		if sub.failing = q.Failing; sub.failing && recovered && q.current() &&
			(sub.recovery.failingSince.IsZero() || sub.recovery.successes > 0) {
			sub.recovery = recovery{failingSince: time.Now()}
		}
		if sub.failing && recovered && q.current() && sub.last.status == 200 && sub.last.probe && sub.last.endedAt.Before(time.Now()) &&
			sub.last.generation == s.generation && sub.last.settled {
			s.violate(promiseCloses, "subscription %d", sub.index)
		}
		if q.Status == webhook.HealthDisabled && sub.settings.active && q.current() {
			sub.previous = append(sub.previous, sub.settings)
			sub.settings.active = false
			for _, want := range sub.expected { // it is unknown whether before or after it was disabled
				want.uncertain = want.uncertain || !want.at.Before(s.lastSettled)
			}
		}
	}
}

// isFailing reports whether the dispatcher considers a subscription failing. The
// caller holds s.mu.
func (s *simulation) isFailing(sub *modelSubscription) bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	q := s.d.queues[sub.id]
	return q != nil && q.Failing
}

// isDisabled reports whether a subscription was disabled, of which the model may not know yet. The
// caller holds s.mu.
func (s *simulation) isDisabled(sub *modelSubscription) bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	q := s.d.queues[sub.id]
	return q != nil && q.Status == webhook.HealthDisabled
}

// checkRecovery checks a received attempt of a failing or recovering subscription. While
// failing, the subscription has one slot and each attempt is a probe; after that its slots
// double with each success. The caller holds s.mu.
func (s *simulation) checkRecovery(sub *modelSubscription, r *modelAttempt) {
	rec := &sub.recovery
	if rec.failingSince.IsZero() {
		r.unsure = !r.delivery.ping && s.isFailing(sub)
		return
	}
	if rec.arrivedAt = r.arrivedAt; r.delivery.ping {
		return
	}
	if n := s.inFlight(sub, false); rec.successes < 5 && n > 1<<rec.successes {
		s.violate(promiseRamp, "subscription %d has %d in flight after %d successes", sub.index, n, rec.successes)
	}
	if rec.successes > 0 {
		return
	}
	if r.probe = true; r.delivery.uncertain {
		return // its success counts
	}
	pinged := !rec.pingedAt.Before(rec.probedAt) && !rec.pingedAt.IsZero()
	wait := webhook.MaxProbeWait
	if rec.probes < 6 {
		wait = min(webhook.MinProbeWait<<rec.probes, wait)
	}
	if due := rec.probedAt.Add(wait); rec.probes > 0 && due.Sub(r.arrivedAt) > time.Millisecond && !pinged {
		s.violate(promiseProbes, "subscription %d: a probe came at %s, due at %s", sub.index, sinceStart(r.arrivedAt), sinceStart(due))
	}
	if rec.rejected && !pinged {
		s.violate(promiseRejected, "subscription %d: a delivery came at %s without a successful ping since %s",
			sub.index, sinceStart(r.arrivedAt), sinceStart(rec.probedAt))
	}
	switch {
	case len(r.delivery.attempts) == 1 && len(r.delivery.events) > 1 && !sub.isRedelivery(r.delivery) && len(s.changes.runs) == 0:
		s.violate(promiseSpared, "subscription %d: a probe sent %d events", sub.index, len(r.delivery.events))
	case len(r.delivery.attempts) == webhook.MaxAttempts && !pinged && !rec.rejected:
		s.violate(promiseSpared, "subscription %d: a probe used the last attempt of a delivery", sub.index)
	}
}

// endRecovery updates the model at the end of an attempt.
func (s *simulation) endRecovery(r *modelAttempt) {
	sub := r.subscription
	if !r.delivery.ping {
		sub.last = r
		switch {
		case r.status == 200:
			sub.successesNeeded = max(sub.successesNeeded-1, 0)
		case r.final():
			sub.successesNeeded = 4
		}
	}
	rec := &sub.recovery
	switch {
	case rec.failingSince.IsZero():
	case r.unsure:
		*rec = recovery{} // its result may count
	case r.delivery.ping:
		if r.status == 200 {
			rec.pingedAt = r.endedAt
		}
	case r.status == 200 && !r.probe && rec.successes == 0: // it was sent before the breaker opened
	case r.status == 200:
		rec.successes++
	case r.interrupted:
		*rec = recovery{} // the result is unknown
	case r.probe && !r.delivery.uncertain:
		rec.probes++
		rec.probedAt = r.endedAt
		if r.status != http.StatusRequestEntityTooLarge || len(r.delivery.events) == 1 { // otherwise the 413 says nothing about the events
			rec.rejected = r.final() && s.plan.RejectingAfter > 0
		}
	}
}

// checkProbes checks that a failing subscription that has a slot is probed. The
// caller holds s.mu.
func (s *simulation) checkProbes(sub *modelSubscription, now time.Time) {
	rec := &sub.recovery
	if rec.failingSince.IsZero() || rec.successes > 0 || !slices.ContainsFunc(sub.expected, func(o *expectedEvent) bool {
		return !o.arrived && !o.uncertain && !o.mayBeRemoved && now.After(o.at.Add(s.plan.Window+slack))
	}) {
		return
	}
	last := rec.failingSince
	if rec.arrivedAt.After(last) {
		last = rec.arrivedAt
	}
	if !sub.throttled && now.After(last.Add(webhook.MaxProbeWait+attemptTimeout+s.plan.Window+slack)) {
		s.violate(promiseProbes, "subscription %d was last probed at %s, and now it is %s", sub.index, sinceStart(last), sinceStart(now))
	}
}

// recoverSlowly makes a subscription's server fail until the subscription is
// failing, publishes a backlog, and makes the server respond slowly. For some n it
// rejects.
func (s *simulation) recoverSlowly(sub *modelSubscription, n int) {
	set := func(m mode) {
		s.mu.Lock()
		defer s.mu.Unlock()
		sub.endpoints[sub.settings.endpoint].mode = m
	}
	if !s.plan.hasBreaker() {
		set(modeSlow)
		return
	}
	set([]mode{modeBusy, modeRefuse, modeBusy, modeReject}[n%4])
	for range 3 {
		s.publish(sub.program, n)
		s.settle()
		s.sleep(webhook.FailingOver)
	}
	for range 4 {
		s.publish(sub.program, n)
	}
	s.settle()
	set(modeSlow)
	s.sleep(webhook.MaxProbeWait)
}

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
	probed    time.Time // when the last probe ended, or the zero time
	wait      time.Duration
}

// observeHealth takes down which subscriptions are failing or disabled. Owns s.mu.
func (s *simulation) observeHealth(calm bool) {
	if s.plan.FailingAfter == 0 {
		return
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, h := range s.subs {
		q := s.d.queues[h.id]
		if q == nil || q.Queue.ProgramID == "" {
			continue
		}
		if q.Failing && calm && (h.recovery.since.IsZero() || h.recovery.successes > 0) {
			h.recovery = recovery{since: time.Now()}
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

// checkRecovery checks an attempt that has come against the state of its
// subscription: while that is failing it has one slot, and a delivery from the log
// is a probe; then its slots double with each success. Owns s.mu.
func (s *simulation) checkRecovery(h *subject, r *reception) {
	rec := &h.recovery
	if rec.since.IsZero() || r.of.ping {
		return
	}
	if n := s.inFlight(h, false); rec.successes < 5 && n > 1<<rec.successes {
		s.violate(promiseRamp, "subscription %d has %d open after %d successes", h.i, n, rec.successes)
	}
	if len(s.changes.runs) > 0 { // it may be a redelivery
		*rec = recovery{}
		return
	}
	if h.copied(r.of) || len(r.of.came) > 1 || rec.successes > 0 || r.of.vague {
		return
	}
	r.probe = true
	if due := rec.probed.Add(rec.wait); !rec.probed.IsZero() && due.Sub(r.at) > time.Millisecond {
		s.violate(promiseProbes, "subscription %d: one came at %s, due at %s", h.i, stamp(r.at), stamp(due))
	}
}

// endRecovery takes down the end of an attempt.
func (h *subject) endRecovery(r *reception) {
	rec := &h.recovery
	if rec.since.IsZero() || r.of.ping {
		return
	}
	if r.status == 200 {
		rec.successes++
	}
	if r.probe {
		r.probe = false
		rec.probed = r.ended
		rec.wait = min(max(2*rec.wait, webhook.MinProbeWait), webhook.MaxProbeWait)
	}
}

// checkProbes checks that a subscription which is failing, and has a slot, is
// probed. Owns s.mu.
func (s *simulation) checkProbes(h *subject, now time.Time) {
	rec := &h.recovery
	if rec.since.IsZero() || rec.successes > 0 || h.now.ordered || !slices.ContainsFunc(h.debts, func(o *debt) bool {
		return !o.arrived && !o.doubt && !o.old && now.After(o.at.Add(s.plan.Window+slack))
	}) {
		return
	}
	last := rec.since
	if rec.probed.After(last) {
		last = rec.probed
	}
	if now.After(last.Add(webhook.MaxProbeWait + s.plan.Window + slack)) {
		s.violate(promiseProbes, "subscription %d was probed at %s, and it is %s", h.i, stamp(last), stamp(now))
	}
}

// recoverSlowly has a subscription's server fail until it is known to be failing,
// lets events wait for it, and has it come back slow.
func (s *simulation) recoverSlowly(h *subject, n int) {
	set := func(m mode) {
		s.mu.Lock()
		defer s.mu.Unlock()
		h.places[h.now.place].mode = m
	}
	if s.plan.FailingAfter == 0 {
		set(modeSlow)
		return
	}
	set(modeBusy)
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

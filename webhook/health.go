package webhook

import "time"

// Health says how a subscription's server has been doing.
type Health string

const (
	HealthHealthy  Health = "healthy"
	HealthFailing  Health = "failing"  // the circuit breaker is open: only probes are sent, and its events wait in the log
	HealthDisabled Health = "disabled" // it was failing for so long that it was switched off
)

// HealthDegraded is the health of an active, healthy subscription that had a failed
// attempt in the last hour. Only the admin UI shows it; no record has it.
const HealthDegraded Health = "degraded"

// FailingReason says why a subscription is failing.
type FailingReason string

const (
	FailingUnreachable FailingReason = "unreachable" // its attempts are retryable: no response, or a 5xx
	FailingRejecting   FailingReason = "rejecting"   // its server responds, with another final status than 2xx
)

// The bounds of failing.
const (
	// FailingOver is the least time that the retryable attempts in a row must
	// span: a burst of failures within a moment is one failure.
	FailingOver = time.Minute
	// MinProbeWait and MaxProbeWait are the first and the longest wait between
	// two probes of a failing subscription; each is twice the last.
	MinProbeWait = 5 * time.Second
	MaxProbeWait = 5 * time.Minute
)

// HealthPolicy is the operator's choice of when a subscription is failing, and
// when it is switched off.
type HealthPolicy struct {
	FailingAfter   int           // retryable attempts in a row; 0 is never
	RejectingAfter int           // final responses other than 2xx in a row; 0 is never
	DisableAfter   time.Duration // of failing; 0 is never
}

// Failures are what is remembered of a subscription's attempts since the last
// that succeeded, pings aside. The zero value is none.
type Failures struct {
	Count    int       // retryable attempts
	Rejected int       // attempts with a final response other than 2xx, or a blocked destination
	First    time.Time // when the first of all of them ended

	RejectedName string    // the event type that was rejected last
	RejectedFrom time.Time // when the oldest event of a rejected delivery was accepted; zero if none is known

	// While the subscription is failing, and once it is disabled:
	Reason    FailingReason
	Since     time.Time
	NextProbe time.Time
	Probes    int  // that have failed
	Pinged    bool // a ping has succeeded since the last probe: the next is a delivery
}

// InARow is how many attempts have failed since the last that succeeded.
func (f *Failures) InARow() int { return f.Count + f.Rejected }

// After decides how a subscription is doing after an attempt that ended now,
// pings aside. A success ends the state of failing and both counts. An attempt
// that the service itself interrupted says nothing. With probe the attempt was
// made because the subscription was failing.
func (p HealthPolicy) After(h Health, f Failures, a *Attempt, probe bool, now time.Time) (Health, Failures) {
	switch {
	case h == HealthDisabled || a.Error == ErrorInterrupted:
		return h, f
	case a.Result == ResultSuccess:
		return HealthHealthy, Failures{}
	}
	if f.InARow() == 0 {
		f.First = now
	}
	var reason FailingReason
	switch {
	case a.Result == ResultRetryable:
		f.Count++
		if p.FailingAfter > 0 && (h == HealthFailing || f.Count >= p.FailingAfter && now.Sub(f.First) >= FailingOver) {
			reason = FailingUnreachable
		}
	default:
		f.Rejected++
		if p.RejectingAfter > 0 && (h == HealthFailing || f.Rejected >= p.RejectingAfter) {
			reason = FailingRejecting
		}
	}
	switch {
	case h == HealthFailing && probe:
		if reason != "" {
			f.Reason = reason // what its server does now
		}
		return p.afterProbe(h, f, now)
	case h == HealthHealthy && reason != "":
		h, f.Reason, f.Since, f.NextProbe = HealthFailing, reason, now, now.Add(MinProbeWait)
	}
	return h, f
}

// AfterPing decides the same after an attempt of a ping. It neither opens nor
// closes the circuit breaker: a success has the next probe made now, with a
// delivery. With probe the ping was the probe itself.
func (p HealthPolicy) AfterPing(h Health, f Failures, a *Attempt, probe bool, now time.Time) (Health, Failures) {
	switch {
	case h != HealthFailing || a.Error == ErrorInterrupted:
	case a.Result != ResultSuccess && probe:
		return p.afterProbe(h, f, now)
	case a.Result == ResultSuccess && !f.Pinged:
		f.Pinged = true
		if f.NextProbe.After(now) {
			f.NextProbe = now
		}
	}
	return h, f
}

// afterProbe decides what follows a probe that has failed.
func (p HealthPolicy) afterProbe(h Health, f Failures, now time.Time) (Health, Failures) {
	f.Pinged = false
	f.Probes++
	wait := MaxProbeWait
	if f.Probes < 6 {
		wait = min(MinProbeWait<<f.Probes, MaxProbeWait)
	}
	f.NextProbe = now.Add(wait)
	if p.DisableAfter > 0 && now.Sub(f.Since) >= p.DisableAfter {
		h = HealthDisabled
	}
	return h, f
}

package webhook

import "time"

// Health is the state of a subscription's receiver, as seen by its circuit breaker.
type Health string

const (
	HealthHealthy  Health = "healthy"
	HealthFailing  Health = "failing"  // the circuit breaker is open: events wait in the log and only probes are sent
	HealthDisabled Health = "disabled" // it was failing for too long (DisableAfter)
)

// HealthDegraded is an active, healthy subscription that had a failed attempt in
// the last hour. Only the admin UI shows it; no record stores it.
const HealthDegraded Health = "degraded"

// FailingReason is why a subscription is failing.
type FailingReason string

const (
	FailingUnreachable FailingReason = "unreachable" // attempts are retryable: no response, or a 5xx
	FailingRejecting   FailingReason = "rejecting"   // the receiver responds with a final status other than 2xx
)

// Limits of the circuit breaker.
const (
	// FailingOver is the minimum time that consecutive retryable attempts must span
	// to open the breaker, so a burst of failures counts as one.
	FailingOver = time.Minute
	// MinProbeWait and MaxProbeWait are the first and the longest wait between two
	// probes; each is twice the last.
	MinProbeWait = 5 * time.Second
	MaxProbeWait = 5 * time.Minute
)

// HealthPolicy is the operator's choice of when the circuit breaker opens and when
// a subscription is disabled.
type HealthPolicy struct {
	FailingAfter   int           // consecutive retryable attempts; 0 for never
	RejectingAfter int           // consecutive final responses other than 2xx; 0 for never
	DisableAfter   time.Duration // time of failing; 0 for never
}

// Failures summarizes a subscription's failed attempts since the last success,
// excluding pings. The zero value means none.
type Failures struct {
	Count    int       // retryable attempts
	Rejected int       // attempts with a final response other than 2xx, or a blocked address
	First    time.Time // end of the first one

	RejectedName string // event type of the last rejection

	// While the subscription is failing or disabled:
	Reason    FailingReason
	Since     time.Time
	NextProbe time.Time
	Probes    int  // failed probes
	Pinged    bool // a ping has succeeded since the last probe: the next probe is a delivery
}

// InARow returns the number of failed attempts since the last success.
func (f *Failures) InARow() int { return f.Count + f.Rejected }

// After returns the health of a subscription after an attempt that ended now and was not a ping.
// A success resets the counts. It closes the breaker only if the attempt was a probe: an attempt
// sent before the breaker opened says nothing about the receiver's state since. An attempt that
// the service itself interrupted changes nothing. probe means that the attempt was made while
// the subscription was failing.
func (p HealthPolicy) After(h Health, f Failures, a *Attempt, probe bool, now time.Time) (Health, Failures) {
	switch {
	case h == HealthDisabled || a.Error == ErrorInterrupted:
		return h, f
	case a.Result == ResultSuccess && h == HealthFailing && !probe:
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
			f.Reason = reason // the receiver's current behavior
		}
		return p.afterProbe(h, f, now)
	case h == HealthHealthy && reason != "":
		h, f.Reason, f.Since, f.NextProbe = HealthFailing, reason, now, now.Add(MinProbeWait)
	}
	return h, f
}

// AfterPing is After for a ping, which neither opens nor closes the breaker. A success
// triggers the next probe immediately, with a delivery. probe means that the ping was the
// probe itself.
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

// afterProbe returns the health after a failed probe.
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

package webhook

import "time"

// Health says how a subscription's server has been doing.
type Health string

const (
	HealthHealthy  Health = "healthy"
	HealthFailing  Health = "failing"  // nothing is formed for it but a probe now and then; its events wait in the log
	HealthDisabled Health = "disabled" // it was failing for so long that it was switched off
)

// The bounds of failing.
const (
	// FailingOver is the least time that the failures in a row must span: a
	// burst of failures within a moment is one failure.
	FailingOver = time.Minute
	// MinProbeWait and MaxProbeWait are the first and the longest wait between
	// two probes of a failing subscription; each is twice the last.
	MinProbeWait = 5 * time.Second
	MaxProbeWait = 5 * time.Minute
)

// HealthPolicy is the operator's choice of when a subscription is failing, and
// when it is switched off.
type HealthPolicy struct {
	FailingAfter int           // retryable attempts in a row; 0 is never
	DisableAfter time.Duration // of failing; 0 is never
}

// Failures are what is remembered of a subscription's last attempts.
type Failures struct {
	Count int       // retryable ones in a row
	First time.Time // when the first of them ended; zero without one
	Since time.Time // since when the subscription has been failing; zero while it is not
}

// After decides how a subscription is doing after an attempt that ended now,
// pings aside. Only a success ends the state of failing. An answer that is
// final but no success ends a row of failures: the server is there, and
// answers. An attempt that the service itself interrupted says nothing.
func (p HealthPolicy) After(h Health, f Failures, a *Attempt, now time.Time) (Health, Failures) {
	switch {
	case h == HealthDisabled || a.Error == ErrorInterrupted:
		return h, f
	case a.Result == ResultSuccess:
		return HealthHealthy, Failures{}
	case a.Result != ResultRetryable:
		if h == HealthFailing {
			return h, f
		}
		return h, Failures{}
	}
	if f.Count == 0 {
		f.First = now
	}
	f.Count++
	if h == HealthHealthy && p.FailingAfter > 0 && f.Count >= p.FailingAfter && now.Sub(f.First) >= FailingOver {
		h, f.Since = HealthFailing, now
	}
	if h == HealthFailing && p.DisableAfter > 0 && now.Sub(f.Since) >= p.DisableAfter {
		h = HealthDisabled
	}
	return h, f
}

package webhook

import "time"

const (
	// MaxAttempts is how often one delivery is sent at the most (spec, section 8).
	MaxAttempts = 5
	// MaxRetryAfter bounds the wait that a subscriber can ask for.
	MaxRetryAfter = 24 * time.Hour
)

// RetryPolicy says how long to wait between the attempts of a delivery.
type RetryPolicy struct {
	Waits  [MaxAttempts - 1]time.Duration // after attempt 1, 2, 3, 4
	Jitter float64                        // 0 to 1: each wait is lengthened or shortened by up to this share
}

// DefaultRetryPolicy returns 5 s, 5 min, 30 min, 2 h, jittered by 20 %.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{
		Waits:  [...]time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour},
		Jitter: 0.2,
	}
}

// Longest is how long a delivery may take from its first attempt to its end by
// the policy, when each of its attempts takes no longer than timeout and its
// subscriber asks for no longer waits.
func (p RetryPolicy) Longest(timeout time.Duration) time.Duration {
	all := MaxAttempts * timeout
	for _, wait := range p.Waits {
		all += wait + time.Duration(float64(wait)*p.Jitter)
	}
	return all
}

// Step is where a delivery stands after an attempt.
type Step struct {
	Status        Status
	FailureReason FailureReason // only when Status is failed
	NextAttemptAt time.Time     // only when Status is retryable
}

// After decides what follows an attempt that has just ended. The attempt's
// number is the count of attempts made; now is when it ended; roll is a random
// number in [0, 1) that places the wait within the jitter.
//
// An attempt that the service itself interrupted is repeated at once: the
// subscriber gave no reason to wait. It counts all the same, so that the limit
// of MaxAttempts holds across crashes.
func (p RetryPolicy) After(a *Attempt, now time.Time, roll float64) Step {
	switch {
	case a.Result == ResultSuccess:
		return Step{Status: StatusSuccess}
	case a.Error == ErrorBlocked:
		return Step{Status: StatusFailed, FailureReason: FailureBlocked}
	case a.Result == ResultFailed:
		return Step{Status: StatusFailed, FailureReason: FailureRejected}
	case a.Number >= MaxAttempts:
		return Step{Status: StatusFailed, FailureReason: FailureAttemptsExhausted}
	case a.Error == ErrorInterrupted:
		return Step{Status: StatusRetryable, NextAttemptAt: now}
	}
	wait := p.Waits[a.Number-1]
	wait += time.Duration(float64(wait) * p.Jitter * (2*roll - 1))
	wait = max(wait, min(a.RetryAfter, MaxRetryAfter))
	return Step{Status: StatusRetryable, NextAttemptAt: now.Add(wait)}
}

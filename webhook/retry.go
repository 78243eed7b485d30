package webhook

import "time"

const (
	// MaxAttempts is the maximum number of attempts of a delivery (spec, section
	// 8).
	MaxAttempts = 5
	// MaxRetryAfter is the longest wait that a receiver can ask for.
	MaxRetryAfter = 24 * time.Hour
)

// RetryPolicy is the schedule of a delivery's attempts.
type RetryPolicy struct {
	Waits  [MaxAttempts - 1]time.Duration // backoff after attempts 1, 2, 3 and 4
	Jitter float64                        // 0 to 1: fraction by which each wait may vary in both directions
}

// DefaultRetryPolicy returns waits of 5 s, 5 min, 30 min and 2 h, with 20% jitter.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{
		Waits:  [...]time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour},
		Jitter: 0.2,
	}
}

// Longest returns the longest time from a delivery's first attempt to its
// completion, if each attempt takes up to timeout and the receiver asks for no
// longer waits.
func (p RetryPolicy) Longest(timeout time.Duration) time.Duration {
	all := MaxAttempts * timeout
	for _, wait := range p.Waits {
		all += wait + time.Duration(float64(wait)*p.Jitter)
	}
	return all
}

// Step is the state of a delivery after an attempt.
type Step struct {
	Status        Status
	FailureReason FailureReason // only if Status is failed
	NextAttemptAt time.Time     // only if Status is retryable
}

// After returns the state of a delivery after an attempt that ended now, if no attempt
// before it was interrupted. roll is a random number in [0, 1) for the jitter.
func (p RetryPolicy) After(a *Attempt, now time.Time, roll float64) Step {
	return p.AfterInterruptions(a, 0, now, roll)
}

// AfterInterruptions is After for a delivery with interrupted attempts before this one;
// earlier is their number.
//
// The first attempt that the service itself interrupted is retried immediately, since
// the receiver gave no reason to wait. It counts nevertheless, so MaxAttempts holds
// across crashes. From the second on the delivery waits as after a failure: a service
// that crashes every few seconds would otherwise use up all attempts.
func (p RetryPolicy) AfterInterruptions(a *Attempt, earlier int, now time.Time, roll float64) Step {
	switch {
	case a.Result == ResultSuccess:
		return Step{Status: StatusSuccess}
	case a.Error == ErrorBlocked:
		return Step{Status: StatusFailed, FailureReason: FailureBlocked}
	case a.Result == ResultFailed:
		return Step{Status: StatusFailed, FailureReason: FailureRejected}
	case a.Number >= MaxAttempts:
		return Step{Status: StatusFailed, FailureReason: FailureAttemptsExhausted}
	case a.Error == ErrorInterrupted && earlier == 0:
		return Step{Status: StatusRetryable, NextAttemptAt: now}
	}
	wait := p.Waits[a.Number-1]
	wait += time.Duration(float64(wait) * p.Jitter * (2*roll - 1))
	wait = max(wait, min(a.RetryAfter, MaxRetryAfter))
	return Step{Status: StatusRetryable, NextAttemptAt: now.Add(wait)}
}

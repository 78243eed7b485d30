// Package pace limits the requests per second of a subscription to what its receiver accepts. See
// docs/decisions/0036-a-breaker-and-a-pace.md.
package pace

import (
	"net/http"
	"time"

	"service/webhook"
)

// Limits of a Pace.
const (
	minRate       = 0.5  // requests per second; a 429 does not lower the rate below this
	backoffFactor = 0.95 // a first 429 lowers the rate to this fraction of the accepted rate
	// A rate is raised by the fraction minRaise once it has been stable for minRaiseAfter. Each
	// further raise is twice as large, up to maxRaise. After a refused raise, the rate stays for
	// twice as long, up to maxRaiseAfter.
	minRaise, maxRaise           = 0.05, 1.0
	minRaiseAfter, maxRaiseAfter = 15 * time.Second, 5 * time.Minute
	// A raise is on trial for minTrial, or for as long as the new rate needs for this
	// number of requests (trialRequests), whichever is longer.
	minTrial, trialRequests = 2 * time.Second, 5
	// Each 429 pauses the subscription for at least minPause, doubled for each 429 or 503
	// since the last success, up to maxPause. A longer Retry-After applies instead.
	minPause, maxPause = time.Second, time.Minute
	// maxRetryPause is the longest pause of a subscription by Retry-After. The wait of the
	// retried delivery has its own limit, webhook.MaxRetryAfter.
	maxRetryPause = time.Hour
	// LateTolerance is how late a request may be, whatever the rate is, without
	// delaying the requests after it.
	LateTolerance = 2 * time.Millisecond
	// forgetRateAfter is how long after the last 429 or 503 the rate stays limited.
	forgetRateAfter = time.Hour
)

// Pace limits the requests per second of a subscription, excluding pings, to its
// max_per_second and to a rate that the receiver has accepted. A 429 or 503 lowers the rate
// to a little less than the requests accepted in the last second. While there is a backlog
// the rate is raised now and then, first on trial: each delivery then carries one event, so
// a rate that is too high costs no batch.
//
// A 503 is often unrelated to the rate. Until the first 429 or refused trial, the rate is
// therefore doubled every minRaiseAfter, up to the next 503.
type Pace struct {
	rate        float64   // requests per second; 0 for no limit
	nextAt      time.Time // time of the next request at this rate
	PausedUntil time.Time // the receiver asked for a pause

	Backlogged      bool          // the last claim left events, a retry or a replay to send
	rateChangedAt   time.Time     // when the rate was lowered, or a trial ended
	throttledAt     time.Time     // time of the last 429 or 503
	throttledInARow int           // 429s and 503s since the last success
	limited         bool          // a 429 came or a trial was refused since the rate was set
	cut             float64       // fraction of the last cut, see slowDown; the next is at most twice as large
	raise           float64       // fraction of the next raise
	raiseAfter      time.Duration // how long the rate must be stable before the next raise
	trialEnd        time.Time     // zero for no trial
	rateBeforeTrial float64       // the rate to restore if the trial fails

	// Successes in the current second and the one before.
	secondStart            time.Time
	thisSecond, lastSecond int
}

// perSecond returns the effective limit in requests per second, 0 for none. limit
// is max_per_second, 0 for none.
func (p *Pace) perSecond(limit float64) float64 {
	if p.rate > 0 && (limit == 0 || p.rate < limit) {
		return p.rate
	}
	return limit
}

// ReadyAt returns when the next request may be sent; it may be in the past.
func (p *Pace) ReadyAt() time.Time {
	if p.PausedUntil.After(p.nextAt) {
		return p.PausedUntil
	}
	return p.nextAt
}

// Limited reports whether a receiver has asked for fewer requests and it may still have an effect.
func (p *Pace) Limited() bool {
	return p.rate != 0 || !p.PausedUntil.IsZero() || p.throttledInARow != 0
}

// Take counts a request that is about to be sent. While there is a backlog, a late request
// shortens the wait of the next ones by at most a fifth of the interval or LateTolerance,
// whichever is longer. After a quiet time it shortens nothing, since the first two requests
// would be too close.
func (p *Pace) Take(limit float64, now time.Time) {
	p.adapt(now)
	r := p.perSecond(limit)
	if r == 0 {
		return
	}
	interval := time.Duration(float64(time.Second) / r)
	switch late := now.Add(-max(interval/5, LateTolerance)); {
	case !p.nextAt.Before(late): // late by at most the tolerance
	case p.Backlogged:
		p.nextAt = late
	default:
		p.nextAt = now
	}
	p.nextAt = p.nextAt.Add(interval)
}

// Refund undoes Take if there was nothing to send.
func (p *Pace) Refund(limit float64) {
	if r := p.perSecond(limit); r > 0 {
		p.nextAt = p.nextAt.Add(-time.Duration(float64(time.Second) / r))
	}
}

// adapt raises the rate when it is stable for long enough, and ends trials.
func (p *Pace) adapt(now time.Time) {
	switch {
	case p.rate == 0:
	case now.Sub(p.throttledAt) >= forgetRateAfter && (!p.limited || p.trialEnd.IsZero()):
		p.rate, p.trialEnd = 0, time.Time{}
	case !p.limited:
		p.double(now)
	case p.OnTrial():
		if !now.Before(p.trialEnd) {
			p.trialEnd, p.rateChangedAt, p.raiseAfter, p.raise = time.Time{}, now, minRaiseAfter, min(2*p.raise, maxRaise)
		}
	case p.Backlogged && p.throttledInARow == 0 && now.Sub(p.rateChangedAt) >= p.raiseAfter:
		p.startTrial(1+p.raise, now)
	}
}

// double doubles the rate once per minRaiseAfter since a 503. It waits while the receiver
// responds only with 503s.
func (p *Pace) double(now time.Time) {
	for p.throttledInARow <= 1 {
		if !now.Before(p.trialEnd) {
			p.trialEnd = time.Time{}
		}
		if p.OnTrial() || now.Sub(p.rateChangedAt) < minRaiseAfter {
			return
		}
		p.rateChangedAt = p.rateChangedAt.Add(minRaiseAfter)
		if p.startTrial(2, p.rateChangedAt); !p.Backlogged {
			p.trialEnd = time.Time{}
		}
		if p.rate > webhook.MaxPerSecondLimit { // no limit any more
			p.rate, p.trialEnd = 0, time.Time{}
			return
		}
	}
}

// startTrial multiplies the rate by factor, on trial.
func (p *Pace) startTrial(factor float64, now time.Time) {
	p.rateBeforeTrial = p.rate
	p.rate *= factor
	p.trialEnd = now.Add(max(minTrial, time.Duration(trialRequests*float64(time.Second)/p.rate)))
}

// OnTrial reports whether the rate is higher than the receiver has accepted so far.
func (p *Pace) OnTrial() bool { return !p.trialEnd.IsZero() }

// Record updates the pace after a response, and reports whether the receiver asked
// for fewer requests.
func (p *Pace) Record(a *webhook.Attempt, now time.Time) (slower bool) {
	switch {
	case a.Result == webhook.ResultSuccess:
		p.rotate(now)
		p.thisSecond++
		p.throttledInARow = 0
		return false
	case a.ResponseStatus != http.StatusTooManyRequests && a.ResponseStatus != http.StatusServiceUnavailable:
		return false
	}
	pause := min(a.RetryAfter, maxRetryPause)
	if a.ResponseStatus == http.StatusTooManyRequests {
		pause = max(pause, min(minPause<<min(p.throttledInARow, 16), maxPause))
	}
	if until := now.Add(pause); until.After(p.PausedUntil) {
		p.PausedUntil = until
	}
	if a.StartedAt.Before(p.throttledAt) {
		return false // sent before the rate was last lowered
	}
	p.slowDown(a.ResponseStatus, now)
	p.throttledAt = now
	p.throttledInARow++
	return true
}

// slowDown lowers the rate. The best estimate of the receiver's limit is the rate it accepted in the
// last second.
//
//   - A refused trial restores the rate before it.
//   - A 503 while nothing is accepted, or without a success since the last 429 or 503,
//     is an outage and does not lower the rate.
//   - Without a rate so far, or after one that was doubled, it becomes backoffFactor of
//     what was accepted.
//   - A 429 without a success since the last 429 or 503 halves the rate.
//   - Any other 429 or 503 cuts the rate by 1-backoffFactor. If the last one was less
//     than minRaiseAfter ago, the cut is twice the last one, up to one half: the
//     receiver's limit may have dropped a lot. At least backoffFactor of what was
//     accepted remains.
func (p *Pace) slowDown(status int, now time.Time) {
	accepted := p.acceptedPerSecond(now)
	doubled := !p.limited && p.rateChangedAt.After(p.throttledAt)
	p.limited = status == http.StatusTooManyRequests || p.OnTrial() || p.limited && p.rate > 0
	switch {
	case p.OnTrial():
		p.rate, p.trialEnd, p.raise, p.raiseAfter = p.rateBeforeTrial, time.Time{}, minRaise, min(2*p.raiseAfter, maxRaiseAfter)
		p.rateChangedAt = now
		return
	case status == http.StatusServiceUnavailable && (accepted == 0 || p.throttledInARow > 0):
		if !p.limited {
			p.rateChangedAt = now
		}
		return
	case p.rate == 0, doubled && p.throttledInARow == 0:
		// The next cut is twice p.cut, and so 1-backoffFactor.
		p.rate, p.cut = max(backoffFactor*accepted, 2*minRate), (1-backoffFactor)/2
	case p.throttledInARow > 0:
		p.rate = max(p.rate/2, minRate)
	default:
		p.cut = min(2*p.cut, 0.5)
		if now.Sub(p.throttledAt) >= minRaiseAfter {
			p.cut = 1 - backoffFactor
		}
		p.rate = max((1-p.cut)*p.rate, backoffFactor*min(accepted, p.rate), minRate)
	}
	p.raise, p.raiseAfter, p.rateChangedAt = minRaise, max(p.raiseAfter, minRaiseAfter), now
}

// acceptedPerSecond returns how many requests were accepted in the last second.
func (p *Pace) acceptedPerSecond(now time.Time) float64 {
	p.rotate(now)
	return float64(p.thisSecond) + float64(p.lastSecond)*(1-now.Sub(p.secondStart).Seconds())
}

// rotate starts a new second if the current one is over.
func (p *Pace) rotate(now time.Time) {
	switch d := now.Sub(p.secondStart); {
	case d >= 2*time.Second:
		p.secondStart, p.lastSecond, p.thisSecond = now, 0, 0
	case d >= time.Second:
		p.secondStart, p.lastSecond, p.thisSecond = p.secondStart.Add(time.Second), p.thisSecond, 0
	}
}

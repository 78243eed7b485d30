package dispatcher

import (
	"net/http"
	"time"

	"service/webhook"
)

// The bounds of a pace.
const (
	minRate       = 0.5 // requests per second that a 429 leaves
	backoffFactor = 0.95
	// A rate is raised by minStep after it has held for minHold, and by twice as
	// much each time, up to maxStep; after a raise that was too much, it is held
	// for twice as long, up to maxHold.
	minRaise, maxRaise           = 0.05, 1.0
	minRaiseAfter, maxRaiseAfter = 15 * time.Second, 5 * time.Minute
	// minTrial is how long a raise is on trial, or the time of trialRequests.
	minTrial, trialRequests = 2 * time.Second, 5
	// A 429 without Retry-After pauses for minPause, and twice as long after each
	// that follows, up to maxPause.
	minPause, maxPause = time.Second, time.Minute
	// maxRetryPause bounds the pause that Retry-After asks for.
	maxRetryPause = time.Hour
	// catchUp is by how much a request may be late, whatever the rate, without
	// delaying those after it.
	lateTolerance = 2 * time.Millisecond
	// forgetRate is for how long a rate is known after the last 429 or 503.
	forgetRateAfter = time.Hour
)

// pace is how many requests per second a subscription is sent, pings aside. It is
// max_per_second and what its server has shown to take. A 429 or 503 sets the rate
// to a little less than what was accepted in the last seconds. While more waits
// than is sent, the rate is raised now and then, at first on trial: each delivery
// then carries one event, so that a rate that is too high costs no batch.
type pace struct {
	rate        float64   // 0: no limit is known
	nextAt      time.Time // of the next request, by the rate
	pausedUntil time.Time // nothing is sent before: the server asked for a pause

	backlogged      bool      // the last delivery left events waiting
	rateChangedAt   time.Time // the rate was; or a raise proved too much
	throttledAt     time.Time // the last 429 or 503
	throttledInARow int       // 429s and 503s since the last success
	cut             float64   // by what part a 429 has lowered the rate
	raise           float64   // by what part the next raise is
	raiseAfter      time.Duration
	trialEnd        time.Time // the end of a trial; zero without one
	rateBeforeTrial float64   // the rate before the trial

	// Successes within the current second and the one before.
	secondStart            time.Time
	thisSecond, lastSecond int
}

// perSecond is the limit in force, 0 for none.
func (p *pace) perSecond(limit float64) float64 {
	if p.rate > 0 && (limit == 0 || p.rate < limit) {
		return p.rate
	}
	return limit
}

// at returns when the next request may be made; it may be past.
func (p *pace) readyAt() time.Time {
	if p.pausedUntil.After(p.nextAt) {
		return p.pausedUntil
	}
	return p.nextAt
}

// take counts a request that is about to be made. One that is late does not
// delay those after it, unless by more than a fifth of the time between two.
func (p *pace) take(limit float64, now time.Time) {
	p.adapt(now)
	r := p.perSecond(limit)
	if r == 0 {
		return
	}
	interval := time.Duration(float64(time.Second) / r)
	if late := now.Add(-max(interval/5, lateTolerance)); p.nextAt.Before(late) {
		p.nextAt = late
	}
	p.nextAt = p.nextAt.Add(interval)
}

// giveBack undoes take: there was nothing to send.
func (p *pace) refund(limit float64) {
	if r := p.perSecond(limit); r > 0 {
		p.nextAt = p.nextAt.Add(-time.Duration(float64(time.Second) / r))
	}
}

// adapt raises the rate when it is time to, and ends trials.
func (p *pace) adapt(now time.Time) {
	switch {
	case p.rate == 0:
	case !p.trialEnd.IsZero():
		if !now.Before(p.trialEnd) {
			p.trialEnd, p.rateChangedAt, p.raiseAfter, p.raise = time.Time{}, now, minRaiseAfter, min(2*p.raise, maxRaise)
		}
	case now.Sub(p.throttledAt) >= forgetRateAfter:
		p.rate = 0
	case p.backlogged && p.throttledInARow == 0 && now.Sub(p.rateChangedAt) >= p.raiseAfter:
		p.rateBeforeTrial = p.rate
		p.rate *= 1 + p.raise
		p.trialEnd = now.Add(max(minTrial, time.Duration(trialRequests*float64(time.Second)/p.rate)))
	}
}

// onTrial reports whether the rate is higher than the server has shown to take.
func (p *pace) onTrial() bool { return !p.trialEnd.IsZero() }

// record learns from the response to a request, and reports whether the server
// asked for fewer.
func (p *pace) record(a *webhook.Attempt, now time.Time) (slower bool) {
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
	if until := now.Add(pause); until.After(p.pausedUntil) {
		p.pausedUntil = until
	}
	if a.StartedAt.Before(p.throttledAt) {
		return false // it was sent before what is known already
	}
	p.slowDown(a.ResponseStatus, now)
	p.throttledAt = now
	p.throttledInARow++
	return true
}

// slowDown lowers the rate. What was accepted in the last second is the best that is
// known of what the server takes; a 503 where nothing was accepted is an outage, and
// says nothing of a rate. A rate that is refused again before it could be raised falls by
// twice as much each time, down to the half, but not below what was accepted: a limit may
// have become much lower.
func (p *pace) slowDown(status int, now time.Time) {
	accepted := p.acceptedPerSecond(now)
	switch {
	case p.onTrial():
		p.rate, p.trialEnd, p.raise, p.raiseAfter = p.rateBeforeTrial, time.Time{}, minRaise, min(2*p.raiseAfter, maxRaiseAfter)
		p.rateChangedAt = now
		return
	case status == http.StatusServiceUnavailable && (accepted == 0 || p.throttledInARow > 0):
		return
	case p.rate == 0:
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

// accepted returns how many requests were accepted in the last second.
func (p *pace) acceptedPerSecond(now time.Time) float64 {
	p.rotate(now)
	return float64(p.thisSecond) + float64(p.lastSecond)*(1-now.Sub(p.secondStart).Seconds())
}

// roll begins a new second if it is time to.
func (p *pace) rotate(now time.Time) {
	switch d := now.Sub(p.secondStart); {
	case d >= 2*time.Second:
		p.secondStart, p.lastSecond, p.thisSecond = now, 0, 0
	case d >= time.Second:
		p.secondStart, p.lastSecond, p.thisSecond = p.secondStart.Add(time.Second), p.thisSecond, 0
	}
}

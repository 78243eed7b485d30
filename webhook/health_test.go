package webhook

import (
	"testing"
	"time"
)

const probe, notProbe = true, false

// healthNow is the time of the tests.
var healthNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) time.Time { return healthNow.Add(-d) }

// Common values of the tests.
var (
	healthPolicy = HealthPolicy{FailingAfter: 10, RejectingAfter: 5, DisableAfter: time.Hour}

	success, retryable, rejected = Attempt{Result: ResultSuccess}, Attempt{Result: ResultRetryable}, Attempt{Result: ResultFailed}

	unreachable = Failures{
		Count: 10, First: ago(time.Hour), Reason: FailingUnreachable, Since: ago(time.Minute), NextProbe: ago(time.Second),
	}
	rejecting = Failures{
		Rejected: 5, First: ago(time.Hour), Reason: FailingRejecting, Since: ago(time.Minute), NextProbe: ago(time.Second), Probes: 3,
	}
	pinged = with(rejecting, func(f *Failures) { f.Pinged = true })
)

// with returns f changed by edit.
func with(f Failures, edit func(*Failures)) Failures {
	edit(&f)
	return f
}

func TestHealth(t *testing.T) {
	now, policy, none := healthNow, healthPolicy, Failures{}
	for _, c := range []struct {
		name   string
		policy HealthPolicy
		health Health
		before Failures
		a      Attempt
		probe  bool
		want   Health
		after  Failures
	}{
		{"a success changes nothing", policy, HealthHealthy, none, success, notProbe, HealthHealthy, none},
		{"the first failure", policy, HealthHealthy, none, retryable, notProbe, HealthHealthy, Failures{Count: 1, First: now}},
		{"a success resets both counts", policy, HealthHealthy, Failures{Count: 9, Rejected: 4, First: ago(time.Hour)}, success, notProbe,
			HealthHealthy, none},
		{"a rejection resets no count", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}, rejected, notProbe, HealthHealthy,
			Failures{Count: 9, Rejected: 1, First: ago(time.Hour)}},
		{"an interruption changes nothing", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)},
			Attempt{Result: ResultRetryable, Error: ErrorInterrupted}, notProbe, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}},
		{"ninth failure in a row", policy, HealthHealthy, Failures{Count: 8, First: ago(time.Hour)}, retryable, notProbe, HealthHealthy,
			Failures{Count: 9, First: ago(time.Hour)}},
		{"tenth failure after a minute", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Minute)}, retryable, notProbe,
			HealthFailing, Failures{Count: 10, First: ago(time.Minute), Reason: FailingUnreachable, Since: now, NextProbe: now.Add(MinProbeWait)}},
		{"tenth failure within a minute", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Minute - 1)}, retryable, notProbe,
			HealthHealthy, Failures{Count: 10, First: ago(time.Minute - 1)}},
		{"fifth rejection", policy, HealthHealthy, Failures{Rejected: 4, First: ago(time.Second)}, rejected, notProbe, HealthFailing,
			Failures{Rejected: 5, First: ago(time.Second), Reason: FailingRejecting, Since: now, NextProbe: now.Add(MinProbeWait)}},
		{"a blocked destination is a rejection", policy, HealthHealthy, Failures{Rejected: 4, First: now},
			Attempt{Result: ResultFailed, Error: ErrorBlocked}, notProbe, HealthFailing, Failures{Rejected: 5, First: now,
				Reason: FailingRejecting, Since: now, NextProbe: now.Add(MinProbeWait)}},
		{"breaker disabled", HealthPolicy{}, HealthHealthy, Failures{Count: 99, Rejected: 99, First: ago(time.Hour)}, retryable, notProbe,
			HealthHealthy, Failures{Count: 100, Rejected: 99, First: ago(time.Hour)}},
		{"breaker disabled for rejections", HealthPolicy{FailingAfter: 10}, HealthHealthy, Failures{Rejected: 99, First: ago(time.Hour)},
			rejected, notProbe, HealthHealthy, Failures{Rejected: 100, First: ago(time.Hour)}},
		{"an attempt sent before the breaker opened is no probe", policy, HealthFailing, unreachable, retryable, notProbe, HealthFailing,
			with(unreachable, func(f *Failures) { f.Count++ })},
		{"a probe that fails", policy, HealthFailing, unreachable, retryable, probe, HealthFailing,
			with(unreachable, func(f *Failures) { f.Count, f.Probes, f.NextProbe = 11, 1, now.Add(2*MinProbeWait) })},
		{"receiver is back and rejects", policy, HealthFailing, unreachable, rejected, probe, HealthFailing, with(unreachable, func(f *Failures) {
			f.Rejected, f.Probes, f.NextProbe, f.Reason = 1, 1, now.Add(2*MinProbeWait), FailingRejecting
		})},
		{"the delivery of a probe is rejected", policy, HealthFailing, pinged, rejected, probe, HealthFailing,
			with(rejecting, func(f *Failures) { f.Rejected, f.Probes, f.NextProbe = 6, 4, now.Add(16*MinProbeWait) })},
		{"probe wait at its maximum", policy, HealthFailing, with(unreachable, func(f *Failures) { f.Probes = 99 }), retryable, probe,
			HealthFailing, with(unreachable, func(f *Failures) { f.Count, f.Probes, f.NextProbe = 11, 100, now.Add(MaxProbeWait) })},
		{"the success of a probe closes the breaker", policy, HealthFailing, unreachable, success, probe, HealthHealthy, none},
		{"a success of before the breaker opened", policy, HealthFailing, unreachable, success, notProbe, HealthFailing, unreachable},
		{"failing for too long", policy, HealthFailing, with(unreachable, func(f *Failures) { f.Since = ago(time.Hour) }), retryable, probe,
			HealthDisabled, with(unreachable, func(f *Failures) {
				f.Since, f.Count, f.Probes, f.NextProbe = ago(time.Hour), 11, 1, now.Add(2*MinProbeWait)
			})},
		{"disabled stays disabled", policy, HealthDisabled, none, success, notProbe, HealthDisabled, none},
	} {
		if got, after := c.policy.After(c.health, c.before, &c.a, c.probe, now); got != c.want || after != c.after {
			t.Errorf("%s: got %s %+v, want %s %+v", c.name, got, after, c.want, c.after)
		}
	}
}

func TestHealthAfterPing(t *testing.T) {
	now := healthNow
	early := with(rejecting, func(f *Failures) { f.NextProbe = now.Add(time.Minute) })
	for _, c := range []struct {
		name   string
		health Health
		before Failures
		a      Attempt
		probe  bool
		want   Health
		after  Failures
	}{
		{"healthy subscription", HealthHealthy, Failures{Rejected: 4, First: now}, rejected, notProbe, HealthHealthy,
			Failures{Rejected: 4, First: now}},
		{"a success does not close the breaker", HealthFailing, rejecting, success, probe, HealthFailing, pinged},
		{"a success triggers the next probe immediately", HealthFailing, early, success, notProbe, HealthFailing,
			with(pinged, func(f *Failures) { f.NextProbe = now })},
		{"a ping that is no probe", HealthFailing, rejecting, rejected, notProbe, HealthFailing, rejecting},
		{"a probe that fails", HealthFailing, rejecting, rejected, probe, HealthFailing,
			with(rejecting, func(f *Failures) { f.Probes, f.NextProbe = 4, now.Add(16*MinProbeWait) })},
		{"a probe that is interrupted", HealthFailing, rejecting, Attempt{Result: ResultRetryable, Error: ErrorInterrupted}, probe,
			HealthFailing, rejecting},
		{"failing for too long", HealthFailing, with(rejecting, func(f *Failures) { f.Since = ago(time.Hour) }), retryable, probe,
			HealthDisabled, with(rejecting, func(f *Failures) {
				f.Since, f.Probes, f.NextProbe = ago(time.Hour), 4, now.Add(16*MinProbeWait)
			})},
	} {
		if got, after := healthPolicy.AfterPing(c.health, c.before, &c.a, c.probe, now); got != c.want || after != c.after {
			t.Errorf("%s: got %s %+v, want %s %+v", c.name, got, after, c.want, c.after)
		}
	}
}

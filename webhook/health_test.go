package webhook

import (
	"testing"
	"time"
)

func TestHealth(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	policy := HealthPolicy{FailingAfter: 10, RejectingAfter: 5, DisableAfter: time.Hour}
	none := Failures{}
	const probe, unasked = true, false
	success, retryable, rejected := Attempt{Result: ResultSuccess}, Attempt{Result: ResultRetryable}, Attempt{Result: ResultFailed}
	unreachable := Failures{Count: 10, First: ago(time.Hour), Reason: FailingUnreachable, Since: ago(time.Minute), NextProbe: ago(time.Second)}
	rejecting := Failures{Rejected: 5, First: ago(time.Hour), Reason: FailingRejecting, Since: ago(time.Minute), NextProbe: ago(time.Second), Probes: 3}
	pinged := rejecting
	pinged.Pinged = true
	with := func(f Failures, edit func(*Failures)) Failures {
		edit(&f)
		return f
	}
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
		{"a success changes nothing", policy, HealthHealthy, none, success, unasked, HealthHealthy, none},
		{"the first failure", policy, HealthHealthy, none, retryable, unasked, HealthHealthy, Failures{Count: 1, First: now}},
		{"a success ends both rows", policy, HealthHealthy, Failures{Count: 9, Rejected: 4, First: ago(time.Hour)}, success, unasked, HealthHealthy, none},
		{"a final response ends no row", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}, rejected, unasked, HealthHealthy, Failures{Count: 9, Rejected: 1, First: ago(time.Hour)}},
		{"an interruption says nothing", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}, Attempt{Result: ResultRetryable, Error: ErrorInterrupted}, unasked, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}},
		{"the ninth of a long row", policy, HealthHealthy, Failures{Count: 8, First: ago(time.Hour)}, retryable, unasked, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}},
		{"the tenth after a minute", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Minute)}, retryable, unasked, HealthFailing, Failures{Count: 10, First: ago(time.Minute), Reason: FailingUnreachable, Since: now, NextProbe: now.Add(MinProbeWait)}},
		{"the tenth within a minute", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Minute - 1)}, retryable, unasked, HealthHealthy, Failures{Count: 10, First: ago(time.Minute - 1)}},
		{"the fifth rejection", policy, HealthHealthy, Failures{Rejected: 4, First: ago(time.Second)}, rejected, unasked, HealthFailing, Failures{Rejected: 5, First: ago(time.Second), Reason: FailingRejecting, Since: now, NextProbe: now.Add(MinProbeWait)}},
		{"a blocked destination is one", policy, HealthHealthy, Failures{Rejected: 4, First: now}, Attempt{Result: ResultFailed, Error: ErrorBlocked}, unasked, HealthFailing, Failures{Rejected: 5, First: now, Reason: FailingRejecting, Since: now, NextProbe: now.Add(MinProbeWait)}},
		{"never, by the policy", HealthPolicy{}, HealthHealthy, Failures{Count: 99, Rejected: 99, First: ago(time.Hour)}, retryable, unasked, HealthHealthy, Failures{Count: 100, Rejected: 99, First: ago(time.Hour)}},
		{"rejections never, by the policy", HealthPolicy{FailingAfter: 10}, HealthHealthy, Failures{Rejected: 99, First: ago(time.Hour)}, rejected, unasked, HealthHealthy, Failures{Rejected: 100, First: ago(time.Hour)}},
		{"what was sent before it was failing is no probe", policy, HealthFailing, unreachable, retryable, unasked, HealthFailing, with(unreachable, func(f *Failures) { f.Count++ })},
		{"a probe that fails", policy, HealthFailing, unreachable, retryable, probe, HealthFailing, with(unreachable, func(f *Failures) { f.Count, f.Probes, f.NextProbe = 11, 1, now.Add(2*MinProbeWait) })},
		{"a server that is back, and rejects", policy, HealthFailing, unreachable, rejected, probe, HealthFailing, with(unreachable, func(f *Failures) {
			f.Rejected, f.Probes, f.NextProbe, f.Reason = 1, 1, now.Add(2*MinProbeWait), FailingRejecting
		})},
		{"the delivery of a probe is rejected", policy, HealthFailing, pinged, rejected, probe, HealthFailing, with(rejecting, func(f *Failures) { f.Rejected, f.Probes, f.NextProbe = 6, 4, now.Add(16*MinProbeWait) })},
		{"the waits end at the longest", policy, HealthFailing, with(unreachable, func(f *Failures) { f.Probes = 99 }), retryable, probe, HealthFailing, with(unreachable, func(f *Failures) { f.Count, f.Probes, f.NextProbe = 11, 100, now.Add(MaxProbeWait) })},
		{"one success closes it", policy, HealthFailing, unreachable, success, unasked, HealthHealthy, none},
		{"failing for too long", policy, HealthFailing, with(unreachable, func(f *Failures) { f.Since = ago(time.Hour) }), retryable, probe, HealthDisabled, with(unreachable, func(f *Failures) {
			f.Since, f.Count, f.Probes, f.NextProbe = ago(time.Hour), 11, 1, now.Add(2*MinProbeWait)
		})},
		{"what is off stays off", policy, HealthDisabled, none, success, unasked, HealthDisabled, none},
	} {
		if got, after := c.policy.After(c.health, c.before, &c.a, c.probe, now); got != c.want || after != c.after {
			t.Errorf("%s: got %s %+v, want %s %+v", c.name, got, after, c.want, c.after)
		}
	}
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
		{"a healthy one's", HealthHealthy, Failures{Rejected: 4, First: now}, rejected, unasked, HealthHealthy, Failures{Rejected: 4, First: now}},
		{"a success does not close it", HealthFailing, rejecting, success, probe, HealthFailing, pinged},
		{"the probe is made at once", HealthFailing, early, success, unasked, HealthFailing, with(pinged, func(f *Failures) { f.NextProbe = now })},
		{"one that nobody waits for", HealthFailing, rejecting, rejected, unasked, HealthFailing, rejecting},
		{"a probe that fails", HealthFailing, rejecting, rejected, probe, HealthFailing, with(rejecting, func(f *Failures) { f.Probes, f.NextProbe = 4, now.Add(16*MinProbeWait) })},
		{"a probe that is interrupted", HealthFailing, rejecting, Attempt{Result: ResultRetryable, Error: ErrorInterrupted}, probe, HealthFailing, rejecting},
		{"failing for too long", HealthFailing, with(rejecting, func(f *Failures) { f.Since = ago(time.Hour) }), retryable, probe, HealthDisabled, with(rejecting, func(f *Failures) {
			f.Since, f.Probes, f.NextProbe = ago(time.Hour), 4, now.Add(16*MinProbeWait)
		})},
	} {
		if got, after := policy.AfterPing(c.health, c.before, &c.a, c.probe, now); got != c.want || after != c.after {
			t.Errorf("ping, %s: got %s %+v, want %s %+v", c.name, got, after, c.want, c.after)
		}
	}
}

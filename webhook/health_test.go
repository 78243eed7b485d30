package webhook

import (
	"testing"
	"time"
)

func TestHealth(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	policy := HealthPolicy{FailingAfter: 10, DisableAfter: time.Hour}
	none := Failures{}
	for _, c := range []struct {
		name   string
		policy HealthPolicy
		health Health
		before Failures
		a      Attempt
		want   Health
		after  Failures
	}{
		{"a success changes nothing", policy, HealthHealthy, none, Attempt{Result: ResultSuccess}, HealthHealthy, none},
		{"the first failure", policy, HealthHealthy, none, Attempt{Result: ResultRetryable}, HealthHealthy, Failures{Count: 1, First: now}},
		{"a success ends the row", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}, Attempt{Result: ResultSuccess}, HealthHealthy, none},
		{"so does a final answer", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}, Attempt{Result: ResultFailed}, HealthHealthy, none},
		{"an interruption says nothing", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}, Attempt{Result: ResultRetryable, Error: ErrorInterrupted}, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}},
		{"the ninth of a long row", policy, HealthHealthy, Failures{Count: 8, First: ago(time.Hour)}, Attempt{Result: ResultRetryable}, HealthHealthy, Failures{Count: 9, First: ago(time.Hour)}},
		{"the tenth after a minute", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Minute)}, Attempt{Result: ResultRetryable}, HealthFailing, Failures{Count: 10, First: ago(time.Minute), Since: now}},
		{"the tenth within a minute", policy, HealthHealthy, Failures{Count: 9, First: ago(time.Minute - 1)}, Attempt{Result: ResultRetryable}, HealthHealthy, Failures{Count: 10, First: ago(time.Minute - 1)}},
		{"never, by the policy", HealthPolicy{}, HealthHealthy, Failures{Count: 99, First: ago(time.Hour)}, Attempt{Result: ResultRetryable}, HealthHealthy, Failures{Count: 100, First: ago(time.Hour)}},
		{"failing goes on", policy, HealthFailing, Failures{Count: 10, First: ago(time.Hour), Since: ago(time.Minute)}, Attempt{Result: ResultRetryable}, HealthFailing, Failures{Count: 11, First: ago(time.Hour), Since: ago(time.Minute)}},
		{"a final answer is no recovery", policy, HealthFailing, Failures{Count: 10, First: ago(time.Hour), Since: ago(time.Minute)}, Attempt{Result: ResultFailed}, HealthFailing, Failures{Count: 10, First: ago(time.Hour), Since: ago(time.Minute)}},
		{"one success is", policy, HealthFailing, Failures{Count: 10, First: ago(time.Hour), Since: ago(time.Minute)}, Attempt{Result: ResultSuccess}, HealthHealthy, none},
		{"failing for too long", policy, HealthFailing, Failures{Count: 10, First: ago(2 * time.Hour), Since: ago(time.Hour)}, Attempt{Result: ResultRetryable}, HealthDisabled, Failures{Count: 11, First: ago(2 * time.Hour), Since: ago(time.Hour)}},
		{"never too long, by the policy", HealthPolicy{FailingAfter: 1}, HealthFailing, Failures{Count: 10, First: ago(2 * time.Hour), Since: ago(time.Hour)}, Attempt{Result: ResultRetryable}, HealthFailing, Failures{Count: 11, First: ago(2 * time.Hour), Since: ago(time.Hour)}},
		{"what is off stays off", policy, HealthDisabled, none, Attempt{Result: ResultSuccess}, HealthDisabled, none},
	} {
		if got, after := c.policy.After(c.health, c.before, &c.a, now); got != c.want || after != c.after {
			t.Errorf("%s: got %s %+v, want %s %+v", c.name, got, after, c.want, c.after)
		}
	}
}

package ui

import (
	"service/webhook"
)

// SubscriptionState is the state of a subscription as pages show it.
type SubscriptionState struct {
	deleted, active bool
	stored          webhook.Health
	recent          webhook.Stat
}

// NewSubscriptionState returns the state of a subscription. Recent is what its attempts
// of the last hour came to, excluding pings.
func NewSubscriptionState(s *webhook.Subscription, recent webhook.Stat) SubscriptionState {
	return SubscriptionState{!s.DeletedAt.IsZero(), s.Active, s.Status, recent}
}

// Health is the health that pages show: the stored one, or degraded.
func (s *SubscriptionState) Health() webhook.Health {
	if s.stored == webhook.HealthHealthy && s.active && !s.deleted && s.recent.FailedAttempts() > 0 {
		return webhook.HealthDegraded
	}
	return s.stored
}

// Reason says how many attempts did not succeed in the last hour, retried or not.
func (s *SubscriptionState) Reason() string {
	noun := " attempts"
	if s.recent.Total() == 1 {
		noun = " attempt"
	}
	return Number(s.recent.FailedAttempts()) + " of " + Number(s.recent.Total()) + noun + " did not succeed in the last hour"
}

// badge returns the state whose color and symbol the badge has, and its word.
func (s *SubscriptionState) badge() (state, word string) {
	switch health := s.Health(); {
	case s.deleted:
		return "pending", "deleted"
	case health == webhook.HealthDisabled:
		return "failed", "disabled"
	case !s.active:
		return "pending", "paused"
	case health == webhook.HealthFailing:
		return "failed", "failing"
	case health == webhook.HealthDegraded:
		return "retryable", "degraded"
	}
	return "success", "healthy"
}

// FailingReason is why a subscription is failing, for reading.
func FailingReason(r webhook.FailingReason) string {
	if r == webhook.FailingUnreachable {
		return "no response or 5xx"
	}
	return string(r)
}

// StateWord is the word for a state or a status: that of a delivery that is retried is
// retryable in the API, and retrying on pages.
func StateWord(state string) string {
	if state == string(webhook.StatusRetryable) {
		return "retrying"
	}
	return Words(state)
}

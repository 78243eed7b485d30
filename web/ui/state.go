package ui

import (
	"service/webhook"
)

// SubscriptionState is the state of a subscription for pages.
type SubscriptionState struct {
	deleted, active bool
	stored          webhook.Health
	recent          webhook.Stat
}

// NewSubscriptionState returns the state of a subscription. recent contains the results of its
// attempts in the last hour, excluding pings.
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

// Reason describes how many attempts failed in the last hour, whether retried or not.
func (s *SubscriptionState) Reason() string {
	noun := " attempts"
	if s.recent.Total() == 1 {
		noun = " attempt"
	}
	return Number(s.recent.FailedAttempts()) + " of " + Number(s.recent.Total()) + noun + " did not succeed in the last hour"
}

// badge returns the state that sets the badge's color and symbol, and its word.
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

// FailingReason explains why a subscription is failing.
func FailingReason(r webhook.FailingReason) string {
	if r == webhook.FailingUnreachable {
		return "no response or 5xx"
	}
	return string(r)
}

// StateWord is the display name of a state or a status: a delivery that is retryable in the API is
// retrying on pages.
func StateWord(state string) string {
	if state == string(webhook.StatusRetryable) {
		return "retrying"
	}
	return Words(state)
}

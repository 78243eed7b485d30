package web

import (
	"context"
	"time"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// subscriptionStates maps subscription IDs to states.
type subscriptionStates map[string]ui.SubscriptionState

// subscriptionStates reads the results of the subscriptions' attempts in the last hour. It takes
// one read, regardless of the number of subscriptions.
func (h *site) subscriptionStates(ctx context.Context, now time.Time, subs []webhook.Subscription) (subscriptionStates, error) {
	if len(subs) == 0 {
		return nil, nil
	}
	from, to := record.LastHour(now)
	stats, err := h.store.Subscriptions().Stats(ctx, subs, record.StatMinute, from, to)
	if err != nil {
		return nil, err
	}
	states := make(subscriptionStates, len(subs))
	for i := range subs {
		states[subs[i].ID] = ui.NewSubscriptionState(&subs[i], statSum(stats[subs[i].ID]))
	}
	return states, nil
}

// subscriptionState is subscriptionStates for one subscription.
func (h *site) subscriptionState(ctx context.Context, now time.Time, s *webhook.Subscription) (ui.SubscriptionState, error) {
	states, err := h.subscriptionStates(ctx, now, []webhook.Subscription{*s})
	return states[s.ID], err
}

// lastResult returns the last known attempt of a subscription, zero for none.
func lastResult(s *record.SubscriptionView) *record.DeliveryEnd {
	if s.Success.Attempt.StartedAt.After(s.Failure.Attempt.StartedAt) {
		return &s.Success
	}
	return &s.Failure
}

// subscriptionsOf returns the subscriptions of summaries.
func subscriptionsOf(all []record.SubscriptionSummary) []webhook.Subscription {
	subs := make([]webhook.Subscription, len(all))
	for i := range all {
		subs[i] = all[i].Subscription
	}
	return subs
}

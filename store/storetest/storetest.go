// Package storetest prepares stores for tests. Each function is a write of its own, without the
// entry in the audit log that the service adds to every change.
package storetest

import (
	"context"

	"service/store"
	"service/store/record"
	"service/webhook"
)

// write runs fn in a write of its own and returns its result.
func write[T any](ctx context.Context, s *store.Store, fn func(store.Write) (T, error)) (result T, err error) {
	err = s.Write(ctx, func(w store.Write) (err error) {
		result, err = fn(w)
		return err
	})
	return result, err
}

// CreateToken calls [store.TokenWrites.Create].
func CreateToken(ctx context.Context, s *store.Store, n webhook.NewToken) (token webhook.Token, secret string, err error) {
	token, err = write(ctx, s, func(w store.Write) (token webhook.Token, err error) {
		token, secret, err = w.Tokens().Create(n, webhook.AuditEntry{})
		return token, err
	})
	return token, secret, err
}

// RevokeToken calls [store.TokenWrites.Revoke].
func RevokeToken(ctx context.Context, s *store.Store, id string) (webhook.Token, error) {
	return write(ctx, s, func(w store.Write) (webhook.Token, error) { return w.Tokens().Revoke(id, webhook.AuditEntry{}) })
}

// CreateSubscription calls [store.SubscriptionWrites.Create] without a limit.
func CreateSubscription(ctx context.Context, s *store.Store, programID, userID string,
	f *webhook.SubscriptionFields) (sub webhook.Subscription, secret webhook.SigningSecret, err error) {
	sub, err = write(ctx, s, func(w store.Write) (sub webhook.Subscription, err error) {
		sub, secret, err = w.Subscriptions().Create(programID, userID, f, 0, webhook.AuditEntry{})
		return sub, err
	})
	return sub, secret, err
}

// UpdateSubscription calls [store.SubscriptionWrites.Update].
func UpdateSubscription(ctx context.Context, s *store.Store, programID, id string,
	f *webhook.SubscriptionFields) (webhook.Subscription, error) {
	return write(ctx, s, func(w store.Write) (webhook.Subscription, error) {
		return w.Subscriptions().Update(programID, id, f, webhook.AuditEntry{})
	})
}

// DeleteSubscription calls [store.SubscriptionWrites.Delete].
func DeleteSubscription(ctx context.Context, s *store.Store, programID, id string) (webhook.Subscription, error) {
	return write(ctx, s, func(w store.Write) (webhook.Subscription, error) {
		return w.Subscriptions().Delete(programID, id, webhook.AuditEntry{})
	})
}

// RotateSecret calls [store.SubscriptionWrites.RotateSecret].
func RotateSecret(ctx context.Context, s *store.Store, programID, id string) (webhook.SigningSecret, error) {
	return write(ctx, s, func(w store.Write) (webhook.SigningSecret, error) {
		_, secret, _, err := w.Subscriptions().RotateSecret(programID, id, webhook.Rotation{}, webhook.AuditEntry{})
		return secret, err
	})
}

// Redeliver calls [store.DeliveryWrites.Redeliver].
func Redeliver(ctx context.Context, s *store.Store, programID, subscriptionID, id string) (webhook.Delivery, error) {
	return write(ctx, s, func(w store.Write) (webhook.Delivery, error) {
		return w.Deliveries().Redeliver(programID, subscriptionID, id, webhook.AuditEntry{})
	})
}

// Cancel calls [store.DeliveryWrites.Cancel].
func Cancel(ctx context.Context, s *store.Store, programID, subscriptionID, id string) error {
	_, err := write(ctx, s, func(w store.Write) (struct{}, error) {
		return struct{}{}, w.Deliveries().Cancel(programID, subscriptionID, id, webhook.AuditEntry{})
	})
	return err
}

// CreateReplay plans and starts a replay.
func CreateReplay(ctx context.Context, s *store.Store, programID, subscriptionID string,
	f *webhook.ReplayFields) (webhook.Replay, error) {
	plan, err := s.Replays().Plan(ctx, programID, subscriptionID, f)
	if err != nil {
		return webhook.Replay{}, err
	}
	return write(ctx, s, func(w store.Write) (webhook.Replay, error) { return w.Replays().Create(plan, webhook.AuditEntry{}) })
}

// CancelReplay calls [store.ReplayWrites.Cancel].
func CancelReplay(ctx context.Context, s *store.Store, programID, subscriptionID, id string) (webhook.Replay, error) {
	return write(ctx, s, func(w store.Write) (webhook.Replay, error) {
		return w.Replays().Cancel(programID, subscriptionID, id, webhook.AuditEntry{})
	})
}

// LostEvents returns the number of events that a subscription has lost to retention.
func LostEvents(ctx context.Context, s *store.Store, subscriptionID string) (int64, error) {
	losses, _, err := s.Subscriptions().Losses(ctx, record.CountLimit)
	for _, l := range losses {
		if l.SubscriptionID == subscriptionID {
			return l.Events, err
		}
	}
	return 0, err
}

// ClaimPing claims the ping of a subscription that is due, nil for none.
func ClaimPing(ctx context.Context, s *store.Store, subscriptionID string) (*store.Claim, error) {
	return Claim(ctx, s, subscriptionID, store.CreditPing)
}

// Claim claims what is due for a subscription, nil for nothing.
func Claim(ctx context.Context, s *store.Store, subscriptionID string, kind store.CreditKind) (*store.Claim, error) {
	q, err := s.Queues().Get(ctx, subscriptionID)
	if err != nil {
		return nil, err
	}
	return s.Queues().Spend(ctx, &store.Credit{Queue: q, Kind: kind}).Wait()
}

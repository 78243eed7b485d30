package store

import (
	"context"

	"service/webhook"
)

// These are the functions of store/storetest, which the tests of this package cannot import.

// inWrite runs fn in a write of its own and returns its result.
func inWrite[T any](ctx context.Context, s *core, fn func(Write) (T, error)) (result T, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		result, err = fn(w)
		return err
	})
	return result, err
}

func (s Subscriptions) Create(ctx context.Context, programID, userID string, f *webhook.SubscriptionFields,
	limit int) (sub webhook.Subscription, secret webhook.SigningSecret, err error) {
	sub, err = inWrite(ctx, s.core, func(w Write) (sub webhook.Subscription, err error) {
		sub, secret, err = w.Subscriptions().Create(programID, userID, f, limit, webhook.AuditEntry{})
		return sub, err
	})
	return sub, secret, err
}

func (s Subscriptions) Update(ctx context.Context, programID, id string, f *webhook.SubscriptionFields) (webhook.Subscription, error) {
	return inWrite(ctx, s.core, func(w Write) (webhook.Subscription, error) {
		return w.Subscriptions().Update(programID, id, f, webhook.AuditEntry{})
	})
}

func (s Subscriptions) Delete(ctx context.Context, programID, id string) (webhook.Subscription, error) {
	return inWrite(ctx, s.core, func(w Write) (webhook.Subscription, error) {
		return w.Subscriptions().Delete(programID, id, webhook.AuditEntry{})
	})
}

func (s Subscriptions) RotateSecret(ctx context.Context, programID,
	id string) (sub webhook.Subscription, secret webhook.SigningSecret, err error) {
	sub, err = inWrite(ctx, s.core, func(w Write) (sub webhook.Subscription, err error) {
		sub, secret, _, err = w.Subscriptions().RotateSecret(programID, id, webhook.Rotation{}, webhook.AuditEntry{})
		return sub, err
	})
	return sub, secret, err
}

func (s Deliveries) Redeliver(ctx context.Context, programID, subscriptionID, id string) (webhook.Delivery, error) {
	return inWrite(ctx, s.core, func(w Write) (webhook.Delivery, error) {
		return w.Deliveries().Redeliver(programID, subscriptionID, id, webhook.AuditEntry{})
	})
}

func (s Replays) Create(ctx context.Context, programID, subscriptionID string, f *webhook.ReplayFields) (webhook.Replay, error) {
	plan, err := s.Plan(ctx, programID, subscriptionID, f)
	if err != nil {
		return webhook.Replay{}, err
	}
	return inWrite(ctx, s.core, func(w Write) (webhook.Replay, error) { return w.Replays().Create(plan, webhook.AuditEntry{}) })
}

func (s Replays) Cancel(ctx context.Context, programID, subscriptionID, id string) (webhook.Replay, error) {
	return inWrite(ctx, s.core, func(w Write) (webhook.Replay, error) {
		return w.Replays().Cancel(programID, subscriptionID, id, webhook.AuditEntry{})
	})
}

func (s Tokens) Create(ctx context.Context, n webhook.NewToken) (token webhook.Token, secret string, err error) {
	token, err = inWrite(ctx, s.core, func(w Write) (token webhook.Token, err error) {
		token, secret, err = w.Tokens().Create(n, webhook.AuditEntry{})
		return token, err
	})
	return token, secret, err
}

func (s Tokens) Revoke(ctx context.Context, id string) (webhook.Token, error) {
	return inWrite(ctx, s.core, func(w Write) (webhook.Token, error) { return w.Tokens().Revoke(id, webhook.AuditEntry{}) })
}

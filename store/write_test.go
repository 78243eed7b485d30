package store

import (
	"context"

	"service/webhook"
)

// The methods that store/storetest has for the tests of other packages; the tests of this package
// cannot import it.

// Create is [SubscriptionWrites.Create].
func (s Subscriptions) Create(ctx context.Context, programID, userID string, f *webhook.SubscriptionFields,
	limit int) (sub webhook.Subscription, secret webhook.SigningSecret, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		sub, secret, err = w.Subscriptions().Create(programID, userID, f, limit)
		return err
	})
	return sub, secret, err
}

// Update is [SubscriptionWrites.Update].
func (s Subscriptions) Update(ctx context.Context, programID, id string,
	f *webhook.SubscriptionFields) (sub webhook.Subscription, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		sub, err = w.Subscriptions().Update(programID, id, f)
		return err
	})
	return sub, err
}

// Delete is [SubscriptionWrites.Delete].
func (s Subscriptions) Delete(ctx context.Context, programID, id string) (sub webhook.Subscription, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		sub, err = w.Subscriptions().Delete(programID, id)
		return err
	})
	return sub, err
}

// RotateSecret is [SubscriptionWrites.RotateSecret].
func (s Subscriptions) RotateSecret(ctx context.Context, programID,
	id string) (sub webhook.Subscription, secret webhook.SigningSecret, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		sub, secret, _, err = w.Subscriptions().RotateSecret(programID, id)
		return err
	})
	return sub, secret, err
}

// Redeliver is [DeliveryWrites.Redeliver].
func (s Deliveries) Redeliver(ctx context.Context, programID, subscriptionID, id string) (d webhook.Delivery, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		d, err = w.Deliveries().Redeliver(programID, subscriptionID, id)
		return err
	})
	return d, err
}

// Create plans and starts a replay.
func (s Replays) Create(ctx context.Context, programID, subscriptionID string, f *webhook.ReplayFields) (r webhook.Replay, err error) {
	p, err := s.Plan(ctx, programID, subscriptionID, f)
	if err != nil {
		return r, err
	}
	err = s.write(ctx, func(w Write) (err error) {
		r, err = w.Replays().Create(p)
		return err
	})
	return r, err
}

// Cancel is [ReplayWrites.Cancel].
func (s Replays) Cancel(ctx context.Context, programID, subscriptionID, id string) (r webhook.Replay, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		r, err = w.Replays().Cancel(programID, subscriptionID, id)
		return err
	})
	return r, err
}

// Create is [TokenWrites.Create].
func (s Tokens) Create(ctx context.Context, n webhook.NewToken) (token webhook.Token, secret string, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		token, secret, err = w.Tokens().Create(n)
		return err
	})
	return token, secret, err
}

// Revoke is [TokenWrites.Revoke].
func (s Tokens) Revoke(ctx context.Context, id string) (token webhook.Token, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		token, err = w.Tokens().Revoke(id)
		return err
	})
	return token, err
}

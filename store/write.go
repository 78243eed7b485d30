package store

import (
	"context"

	"service/store/sqlite"
	"service/webhook"
)

// Write is one write under way: its methods read and write in its transaction,
// so that what is read is as it is, and all of it is stored or nothing. It is
// valid until the function that it was given to returns. After an error of one
// of its methods that function must return an error.
type Write struct {
	s *core
	t *tx
}

// Write runs fn in the next commit. When it returns nil, what fn wrote is on
// disk (fsynced); otherwise none of it is. Other writes wait for fn: it must be
// quick, and use the Store for nothing but reading. It runs on a goroutine of
// another's choice, while the caller waits. ctx is heeded before the write
// begins alone, so that nobody is left in doubt.
func (s *Store) Write(ctx context.Context, fn func(Write) error) error { return s.write(ctx, fn) }

func (s *core) write(ctx context.Context, fn func(Write) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.writer.Do(func(*sqlite.Tx) error { return fn(Write{s, &s.writer.tx}) })
}

// WriteAgain is [Store.Write] for an fn that may be called a second time, when
// all that it wrote was undone because another write of the same commit has
// failed. It costs less.
func (s *Store) WriteAgain(ctx context.Context, fn func(Write) error) error {
	return s.writeAgain(ctx, fn)
}

func (s *core) writeAgain(ctx context.Context, fn func(Write) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.writer.DoRepeatable(func(*sqlite.Tx) error { return fn(Write{s, &s.writer.tx}) })
}

// Subscription returns one subscription of a program as it is in this write.
func (w Write) Subscription(programID, id string) (webhook.Subscription, error) {
	return w.t.subscription(programID, id)
}

// Each of the following is a write of its own.

// Create is [Write.CreateSubscription].
func (s Subscriptions) Create(ctx context.Context, programID, userID string, f *webhook.SubscriptionFields, limit int) (sub webhook.Subscription, secret webhook.SigningSecret, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		sub, secret, err = w.CreateSubscription(programID, userID, f, limit)
		return err
	})
	return sub, secret, err
}

// Update is [Write.UpdateSubscription].
func (s Subscriptions) Update(ctx context.Context, programID, id string, f *webhook.SubscriptionFields) (sub webhook.Subscription, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		sub, err = w.UpdateSubscription(programID, id, f)
		return err
	})
	return sub, err
}

// Delete is [Write.DeleteSubscription].
func (s Subscriptions) Delete(ctx context.Context, programID, id string) (sub webhook.Subscription, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		sub, err = w.DeleteSubscription(programID, id)
		return err
	})
	return sub, err
}

// RotateSecret is [Write.RotateSecret].
func (s Subscriptions) RotateSecret(ctx context.Context, programID, id string) (sub webhook.Subscription, secret webhook.SigningSecret, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		sub, secret, _, err = w.RotateSecret(programID, id)
		return err
	})
	return sub, secret, err
}

// Redeliver is [Write.Redeliver].
func (s Deliveries) Redeliver(ctx context.Context, programID, subscriptionID, id string) (d webhook.Delivery, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		d, err = w.Redeliver(programID, subscriptionID, id)
		return err
	})
	return d, err
}

// Create plans a replay and begins it.
func (s Replays) Create(ctx context.Context, programID, subscriptionID string, f *webhook.ReplayFields) (r webhook.Replay, err error) {
	p, err := s.Plan(ctx, programID, subscriptionID, f)
	if err != nil {
		return r, err
	}
	err = s.write(ctx, func(w Write) (err error) {
		r, err = w.CreateReplay(p)
		return err
	})
	return r, err
}

// Cancel is [Write.CancelReplay].
func (s Replays) Cancel(ctx context.Context, programID, subscriptionID, id string) (r webhook.Replay, err error) {
	err = s.write(ctx, func(w Write) (err error) {
		r, err = w.CancelReplay(programID, subscriptionID, id)
		return err
	})
	return r, err
}

// Publish is [Write.Publish].
func (s Events) Publish(ctx context.Context, programID string, events []webhook.Event) (added int, err error) {
	err = s.writeAgain(ctx, func(w Write) (err error) {
		added, err = w.Publish(programID, events)
		return err
	})
	return added, err
}

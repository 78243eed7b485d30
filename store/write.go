package store

import (
	"context"

	"service/store/sqlite"
	"service/webhook"
)

// Write is a transaction in progress. Its methods read the current state, and either
// everything they write is stored or nothing. It is valid until the function that it was
// passed to returns. After one of its methods fails, that function must return an error.
type Write struct{ t *tx }

// Write runs fn in the next commit. If it returns nil, the writes of fn are on disk
// (fsynced); otherwise nothing is stored. Other writes wait for fn, so fn must be fast, and
// may use the Store only for reading. fn may run on another goroutine while the caller waits.
// ctx is checked only before the write begins, so that the outcome is never unknown.
func (s *Store) Write(ctx context.Context, fn func(Write) error) error { return s.write(ctx, fn) }

// write is [Store.Write] for the handles.
func (s *core) write(ctx context.Context, fn func(Write) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.writer.Do(func(*sqlite.Tx) error { return fn(Write{&s.writer.tx}) })
}

// WriteAgain is [Store.Write] for an fn that may be called a second time, after its first write
// was rolled back because another write of the same commit failed. It is cheaper.
func (s *Store) WriteAgain(ctx context.Context, fn func(Write) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.writer.DoRepeatable(func(*sqlite.Tx) error { return fn(Write{&s.writer.tx}) })
}

// Get returns a subscription of a program as of this write.
func (w SubscriptionWrites) Get(programID, id string) (webhook.Subscription, error) {
	return w.t.subscription(programID, id)
}

// Publish is [Write.Publish] in a write of its own.
func (s Events) Publish(ctx context.Context, programID string, events []webhook.Event) (added int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	err = s.writer.doRepeatable(func(t *tx) (err error) {
		added, err = Write{t}.Publish(programID, events)
		return err
	})
	return added, err
}

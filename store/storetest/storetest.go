// Package storetest prepares stores for tests. Each function that changes a store is a write of its
// own, without the entry in the audit log that the service adds to every change.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"service/store"
	"service/store/record"
	"service/test/harness"
	"service/webhook"
)

// Open opens a new store with some programs in a new directory, see [MemoryDir].
func Open(t testing.TB, programIDs ...string) *store.Store {
	t.Helper()
	s := OpenDir(t, harness.MemoryDir(t))
	for _, id := range programIDs {
		Program(t, s, id)
	}
	return s
}

// OpenDir opens a data directory until the end of the test.
func OpenDir(t testing.TB, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// WantCode checks that err is a *webhook.Error with a code.
func WantCode(t testing.TB, err error, code webhook.Code) {
	t.Helper()
	var e *webhook.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("got error %v, want one with code %s", err, code)
	}
}

// Query parses the parameters of a list.
func Query(t testing.TB, l *webhook.List, raw string) *webhook.ListQuery {
	t.Helper()
	values, err := url.ParseQuery(raw)
	if err != nil {
		t.Fatal(err)
	}
	q, problem := l.Parse(values)
	if problem != nil {
		t.Fatalf("%s: %v", raw, problem)
	}
	return &q
}

// Program creates a program with a token.
func Program(t testing.TB, s *store.Store, id string) {
	t.Helper()
	_, _, err := CreateToken(t.Context(), s, webhook.NewToken{ProgramID: id, UserID: "u", Scopes: webhook.Scopes()})
	if err != nil {
		t.Fatal(err)
	}
}

// Subscribe creates a subscription of a program to events.
func Subscribe(t testing.TB, s *store.Store, programID string, names ...string) webhook.Subscription {
	t.Helper()
	url := "https://partner.example/hook"
	sub, _, err := CreateSubscription(t.Context(), s, programID, "u", &webhook.SubscriptionFields{URL: &url, Events: &names})
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// Event returns an event with a new ID.
func Event(name string) webhook.Event {
	id := webhook.NewID()
	return webhook.Event{
		ID: id, Name: name, Version: "1", ReceivedAt: time.Now(), TimestampGiven: true,
		JSON: fmt.Appendf(nil, `{"id":%q,"timestamp":"2026-01-02T03:04:05.000Z","name":%q,"version":"1","content_id":7}`, id, name),
	}
}

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

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"service/webhook"
)

const subscriptionColumns = "id, program_id, url, active, description, events, ordered, max_in_flight, " +
	"authorization_header IS NOT NULL, created_at, updated_at, deleted_at"

// CreateSubscription makes a subscription from fields that have passed their
// rules, and queues the ping that the spec's 4.1 asks for. The signing secret
// is returned for showing it once. At most limit subscriptions can exist in a
// program; 0 is no limit. It hears of what is published from now on.
func (s *Store) CreateSubscription(ctx context.Context, programID, userID string, f *webhook.SubscriptionFields, limit int) (webhook.Subscription, webhook.SigningSecret, error) {
	if err := ctx.Err(); err != nil {
		return webhook.Subscription{}, nil, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	sub := webhook.Subscription{ID: webhook.NewID(), ProgramID: programID, Active: true, CreatedAt: now, UpdatedAt: now}
	apply(&sub, f)
	secret := webhook.NewSigningSecret()
	var authorization []byte
	if f.AuthorizationHeader != nil && *f.AuthorizationHeader != nil {
		authorization = s.seal.seal([]byte(**f.AuthorizationHeader), "authorization_header of "+sub.ID)
		sub.HasAuthorizationHeader = true
	}
	names, err := json.Marshal(sub.Events)
	if err != nil {
		return sub, nil, err
	}
	err = s.writer.do(func(t *tx) error {
		var count int
		if err := t.scan("SELECT count(*) FROM subscriptions WHERE program_id = ? AND deleted_at IS NULL", []any{programID}, &count); err != nil {
			return err
		}
		if limit > 0 && count >= limit {
			return webhook.Invalid(webhook.Validation{
				Code: webhook.InvalidTooMany, Parameter: "subscriptions",
				Detail: fmt.Sprintf("the program has %d subscriptions, and may have %d; delete one first", count, limit),
			})
		}
		err := t.exec("INSERT INTO subscriptions (id, program_id, url, active, description, events, ordered, max_in_flight, authorization_header, signing_secret, created_by, revision, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)",
			sub.ID, programID, sub.URL, sub.Active, sub.Description, string(names), sub.Ordered, sub.MaxInFlight, blob(authorization),
			s.seal.seal(secret, "signing_secret of "+sub.ID), userID, now.UnixMilli(), now.UnixMilli())
		if err != nil {
			return err
		}
		head, err := t.head(programID)
		if err != nil {
			return err
		}
		if err := t.exec("INSERT INTO cursors (subscription_id, seq) VALUES (?, ?)", sub.ID, head.seq); err != nil {
			return err
		}
		if sub.Active {
			if err := t.openInterests(sub.ID, sub.Events, head.seq); err != nil {
				return err
			}
		}
		t.afterCommit(func() { s.watchers.subscriptionChanged(sub.ID) })
		_, err = s.queuePing(t, &sub, webhook.NewID())
		return err
	})
	return sub, secret, err
}

// Subscription returns one subscription of a program.
func (s *Store) Subscription(ctx context.Context, programID, id string) (webhook.Subscription, error) {
	sub, err := scanSubscription(func(dest ...any) error {
		return s.scan(ctx, selectSubscription, []any{id, programID}, dest...)
	})
	return sub, notFound(err, "subscription")
}

const selectSubscription = "SELECT " + subscriptionColumns + " FROM subscriptions WHERE id = ? AND program_id = ? AND deleted_at IS NULL"

// Subscriptions returns a page of a program's subscriptions in the order of
// their creation, and how many there are in all.
func (s *Store) Subscriptions(ctx context.Context, programID string, page Page) (subs []webhook.Subscription, total int, err error) {
	err = s.scan(ctx, "SELECT count(*) FROM subscriptions WHERE program_id = ? AND deleted_at IS NULL", []any{programID}, &total)
	if err != nil || page.Number > total/page.Size+1 {
		return nil, total, err
	}
	err = s.each(ctx, "SELECT "+subscriptionColumns+" FROM subscriptions WHERE program_id = ? AND deleted_at IS NULL ORDER BY created_at, id LIMIT ? OFFSET ?",
		[]any{programID, page.Size, (page.Number - 1) * page.Size}, func(scan func(...any) error) error {
			sub, err := scanSubscription(scan)
			subs = append(subs, sub)
			return err
		})
	return subs, total, err
}

// UpdateSubscription changes the fields that are not nil. What was accepted
// while the subscription asked for it is still owed afterwards; what a paused
// one missed is not.
func (s *Store) UpdateSubscription(ctx context.Context, programID, id string, f *webhook.SubscriptionFields) (webhook.Subscription, error) {
	if err := ctx.Err(); err != nil {
		return webhook.Subscription{}, err
	}
	var sub webhook.Subscription
	err := s.writer.do(func(t *tx) error {
		var err error
		if sub, err = t.subscription(programID, id); err != nil {
			return err
		}
		before := sub
		apply(&sub, f)
		if f.AuthorizationHeader != nil {
			var sealed []byte
			if h := *f.AuthorizationHeader; h != nil {
				sealed = s.seal.seal([]byte(*h), "authorization_header of "+id)
			}
			sub.HasAuthorizationHeader = sealed != nil
			if err := t.exec("UPDATE subscriptions SET authorization_header = ? WHERE id = ?", blob(sealed), id); err != nil {
				return err
			}
		}
		names, err := json.Marshal(sub.Events)
		if err != nil {
			return err
		}
		sub.UpdatedAt = time.Now().UTC().Truncate(time.Millisecond)
		err = t.exec("UPDATE subscriptions SET url = ?, active = ?, description = ?, events = ?, ordered = ?, max_in_flight = ?, revision = revision + 1, updated_at = ? WHERE id = ?",
			sub.URL, sub.Active, sub.Description, string(names), sub.Ordered, sub.MaxInFlight, sub.UpdatedAt.UnixMilli(), id)
		if err != nil {
			return err
		}
		t.afterCommit(func() { s.watchers.subscriptionChanged(id) })
		return t.moveInterests(&before, &sub)
	})
	return sub, err
}

const (
	// SecretOverlap is how long a replaced signing secret signs beside the new one.
	SecretOverlap = 24 * time.Hour
	// maxOldSecrets bounds how many replaced secrets sign at a time: each makes
	// the header of every delivery longer.
	maxOldSecrets = 4
)

// RotateSecret gives a subscription a new signing secret, returned for showing
// it once. The old one signs too for SecretOverlap.
func (s *Store) RotateSecret(ctx context.Context, programID, id string) (webhook.Subscription, webhook.SigningSecret, error) {
	if err := ctx.Err(); err != nil {
		return webhook.Subscription{}, nil, err
	}
	secret := webhook.NewSigningSecret()
	var sub webhook.Subscription
	err := s.writer.do(func(t *tx) error {
		var err error
		if sub, err = t.subscription(programID, id); err != nil {
			return err
		}
		now := time.Now().UTC().Truncate(time.Millisecond)
		if err := t.exec("DELETE FROM old_signing_secrets WHERE subscription_id = ? AND expires_at <= ?", id, now.UnixMilli()); err != nil {
			return err
		}
		var old int
		if err := t.scan("SELECT count(*) FROM old_signing_secrets WHERE subscription_id = ?", []any{id}, &old); err != nil {
			return err
		}
		if old >= maxOldSecrets {
			return webhook.NewError(webhook.CodeConflict, "The signing secret was replaced "+webhook.Count(old, "time")+" within 24 hours, and the old ones still sign; wait for the first to expire.")
		}
		// Two rotations within a millisecond still have an expiry of their own.
		err = t.exec("INSERT INTO old_signing_secrets (subscription_id, expires_at, secret) SELECT id, max(?, 1 + coalesce((SELECT max(expires_at) FROM old_signing_secrets WHERE subscription_id = s.id), 0)), signing_secret FROM subscriptions s WHERE id = ?",
			now.Add(SecretOverlap).UnixMilli(), id)
		if err != nil {
			return err
		}
		sub.UpdatedAt = now
		t.afterCommit(func() { s.watchers.subscriptionChanged(id) })
		return t.exec("UPDATE subscriptions SET signing_secret = ?, revision = revision + 1, updated_at = ? WHERE id = ?",
			s.seal.seal(secret, "signing_secret of "+id), now.UnixMilli(), id)
	})
	return sub, secret, err
}

// DeleteSubscription removes a subscription and returns it as it was. Nothing
// more is sent: what waited for an attempt has failed, and an attempt in flight
// is the last. Its deliveries stay.
func (s *Store) DeleteSubscription(ctx context.Context, programID, id string) (webhook.Subscription, error) {
	if err := ctx.Err(); err != nil {
		return webhook.Subscription{}, err
	}
	var sub webhook.Subscription
	err := s.writer.do(func(t *tx) error {
		var err error
		if sub, err = t.subscription(programID, id); err != nil {
			return err
		}
		now := time.Now().UTC().Truncate(time.Millisecond)
		sub.DeletedAt = now
		// The secrets go with it: nothing will be signed or sent any more.
		err = t.exec("UPDATE subscriptions SET deleted_at = ?, updated_at = ?, active = 0, authorization_header = NULL, signing_secret = x'', revision = revision + 1 WHERE id = ?",
			now.UnixMilli(), now.UnixMilli(), id)
		if err != nil {
			return err
		}
		if err := t.exec("DELETE FROM interests WHERE subscription_id = ?", id); err != nil {
			return err
		}
		if err := t.exec("DELETE FROM cursors WHERE subscription_id = ?", id); err != nil {
			return err
		}
		if err := t.exec("DELETE FROM old_signing_secrets WHERE subscription_id = ?", id); err != nil {
			return err
		}
		if err := t.exec("UPDATE replays SET status = 'cancelled', completed_at = ? WHERE subscription_id = ? AND status = 'running'", now.UnixMilli(), id); err != nil {
			return err
		}
		t.afterCommit(func() { s.watchers.subscriptionChanged(id) })
		return t.exec("UPDATE deliveries SET status = 'failed', failure_reason = 'subscription_deleted', next_attempt_at = NULL, completed_at = ? WHERE subscription_id = ? AND next_attempt_at IS NOT NULL",
			now.UnixMilli(), id)
	})
	return sub, err
}

func (t *tx) subscription(programID, id string) (webhook.Subscription, error) {
	sub, err := scanSubscription(func(dest ...any) error {
		return t.scan(selectSubscription, []any{id, programID}, dest...)
	})
	return sub, notFound(err, "subscription")
}

func apply(sub *webhook.Subscription, f *webhook.SubscriptionFields) {
	set(&sub.URL, f.URL)
	set(&sub.Events, f.Events)
	set(&sub.Description, f.Description)
	set(&sub.Active, f.Active)
	set(&sub.Ordered, f.Ordered)
	set(&sub.MaxInFlight, f.MaxInFlight)
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

func scanSubscription(scan func(...any) error) (sub webhook.Subscription, err error) {
	var names string
	var created, updated int64
	var deleted sql.NullInt64
	err = scan(&sub.ID, &sub.ProgramID, &sub.URL, &sub.Active, &sub.Description, &names, &sub.Ordered, &sub.MaxInFlight,
		&sub.HasAuthorizationHeader, &created, &updated, &deleted)
	if err != nil {
		return sub, err
	}
	sub.CreatedAt, sub.UpdatedAt, sub.DeletedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC(), fromMillis(deleted)
	return sub, json.Unmarshal([]byte(names), &sub.Events)
}

// openInterests asks for the events of these names that come after the head.
func (t *tx) openInterests(id string, names []string, head int64) error {
	for _, name := range names {
		if err := t.exec("INSERT INTO interests (subscription_id, name, after_seq) VALUES (?, ?, ?)", id, name, head); err != nil {
			return err
		}
	}
	return nil
}

// moveInterests closes the spans of names that are no longer asked for, and
// opens those of new ones, at the head of the log.
func (t *tx) moveInterests(before, after *webhook.Subscription) error {
	var had, has []string
	if before.Active {
		had = before.Events
	}
	if after.Active {
		has = after.Events
	}
	head, err := t.head(after.ProgramID)
	if err != nil {
		return err
	}
	var opened []string
	for _, name := range has {
		if !slices.Contains(had, name) {
			opened = append(opened, name)
		}
	}
	for _, name := range had {
		if slices.Contains(has, name) {
			continue
		}
		if err := t.exec("DELETE FROM interests WHERE subscription_id = ? AND name = ? AND until_seq IS NULL AND after_seq >= ?", after.ID, name, head.seq); err != nil {
			return err
		}
		if err := t.exec("UPDATE interests SET until_seq = ? WHERE subscription_id = ? AND name = ? AND until_seq IS NULL", head.seq, after.ID, name); err != nil {
			return err
		}
	}
	// What the cursor has passed is of no more use.
	err = t.exec("DELETE FROM interests WHERE subscription_id = ? AND until_seq <= (SELECT seq FROM cursors WHERE subscription_id = ?)", after.ID, after.ID)
	if err != nil {
		return err
	}
	return t.openInterests(after.ID, opened, head.seq)
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"service/webhook"
)

const subscriptionColumns = "id, program_id, url, active, description, events, ordered, max_in_flight, " +
	"authorization_header IS NOT NULL, status, disabled_reason, revision, created_at, updated_at, deleted_at, max_per_second, resend_from, " +
	"(SELECT failing_reason FROM failures f WHERE f.subscription_id = subscriptions.id), (SELECT failing_since FROM failures f WHERE f.subscription_id = subscriptions.id), " +
	"(SELECT next_probe_at FROM failures f WHERE f.subscription_id = subscriptions.id)"

// CreateSubscription makes a subscription from fields that have passed their
// rules, and queues the ping that the spec's 4.1 asks for. The signing secret
// is returned for showing it once. At most limit subscriptions can exist in a
// program; 0 is no limit. It hears of what is published from now on.
func (w Write) CreateSubscription(programID, userID string, f *webhook.SubscriptionFields, limit int) (webhook.Subscription, webhook.SigningSecret, error) {
	s, t := w.s, w.t
	now := s.clock.now().UTC().Truncate(time.Millisecond)
	sub := webhook.Subscription{ID: webhook.NewID(), ProgramID: programID, Active: true, Status: webhook.HealthHealthy, Revision: 1, CreatedAt: now, UpdatedAt: now}
	apply(&sub, f)
	secret := f.SigningSecret
	if secret == nil {
		secret = webhook.NewSigningSecret()
	}
	var authorization []byte
	if f.AuthorizationHeader != nil && *f.AuthorizationHeader != nil {
		authorization = s.keys.Encrypt([]byte(**f.AuthorizationHeader), "authorization_header of "+sub.ID)
		sub.HasAuthorizationHeader = true
	}
	names, err := json.Marshal(sub.Events)
	if err != nil {
		return sub, nil, err
	}
	if err := t.limitSubscriptions(programID, limit); err != nil {
		return sub, nil, err
	}
	err = t.Exec("INSERT INTO subscriptions (num, id, program_id, url, active, description, events, ordered, max_in_flight, authorization_header, signing_secret, created_by, revision, created_at, updated_at, max_per_second) VALUES ((SELECT coalesce(max(num), 0) + 1 FROM subscriptions), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?)",
		sub.ID, programID, sub.URL, sub.Active, sub.Description, string(names), sub.Ordered, sub.MaxInFlight, blob(authorization),
		s.keys.Encrypt(secret, "signing_secret of "+sub.ID), userID, now.UnixMilli(), now.UnixMilli(), orNull(sub.MaxPerSecond))
	if err != nil {
		return sub, nil, err
	}
	head, err := t.head(programID)
	if err != nil {
		return sub, nil, err
	}
	if err := t.Exec("INSERT INTO cursors (subscription_id, seq) VALUES (?, ?)", sub.ID, head.seq); err != nil {
		return sub, nil, err
	}
	if sub.Active {
		if err := t.openInterests(sub.ID, sub.Events, head.seq); err != nil {
			return sub, nil, err
		}
	}
	t.AfterCommit(func() { s.watchers.subscriptionChanged(sub.ID) })
	_, err = s.queuePing(t, &sub, webhook.NewID())
	return sub, secret, err
}

// limitSubscriptions refuses one more subscription than a program may have. It
// looks at no more than limit of them, so that making the next does not cost
// the more the more there are.
func (t *tx) limitSubscriptions(programID string, limit int) error {
	const listed = "FROM subscriptions WHERE program_id = ? AND deleted_at IS NULL"
	var count int
	if limit > 0 {
		if err := t.Scan("SELECT count(*) FROM (SELECT 1 "+listed+" LIMIT ?)", []any{programID, limit}, &count); err != nil {
			return err
		}
	}
	if count < limit || limit == 0 {
		return nil
	}
	if err := t.Scan("SELECT count(*) "+listed, []any{programID}, &count); err != nil {
		return err
	}
	return webhook.Invalid(webhook.Validation{
		Code: webhook.InvalidTooMany, Parameter: "subscriptions",
		Detail: fmt.Sprintf("the program has %d subscriptions, and may have %d; delete one first", count, limit),
	})
}

// Get returns one subscription of a program.
func (s Subscriptions) Get(ctx context.Context, programID, id string) (webhook.Subscription, error) {
	sub, err := scanSubscription(func(dest ...any) error {
		return s.db.Scan(ctx, selectSubscription, []any{id, programID}, dest...)
	})
	return sub, notFound(err, "subscription")
}

const selectSubscription = "SELECT " + subscriptionColumns + " FROM subscriptions WHERE id = ? AND program_id = ? AND deleted_at IS NULL"

// maxClosedInterests bounds what must be remembered of a subscription that is
// changed again and again while its events wait.
const maxClosedInterests = 1000

// UpdateSubscription changes the fields that are not nil; a request that changes
// none leaves the record as it is, updated_at too. What was accepted
// while the subscription asked for it is still owed afterwards; what a paused
// one missed is not.
func (w Write) UpdateSubscription(programID, id string, f *webhook.SubscriptionFields) (webhook.Subscription, error) {
	s, t := w.s, w.t
	sub, err := t.subscription(programID, id)
	if err != nil {
		return sub, err
	}
	before := sub
	apply(&sub, f)
	if f.AuthorizationHeader == nil && reflect.DeepEqual(sub, before) {
		return sub, nil // nobody's tag of the record is to become void over it
	}
	if f.AuthorizationHeader != nil {
		if err := w.setAuthorization(&sub, *f.AuthorizationHeader); err != nil {
			return sub, err
		}
	}
	names, err := json.Marshal(sub.Events)
	if err != nil {
		return sub, err
	}
	sub.UpdatedAt = s.clock.now().UTC().Truncate(time.Millisecond)
	sub.Revision++
	if sub.URL != before.URL || sub.Active && !before.Active {
		// Another server, or a fresh start: what was known of it counts no more.
		sub.Status, sub.DisabledReason = webhook.HealthHealthy, ""
		sub.FailingReason, sub.FailingSince, sub.NextProbeAt = "", time.Time{}, time.Time{}
		if err := t.endIncident(id, webhook.IncidentChanged); err != nil {
			return sub, err
		}
		if err := t.setHealth(id, sub.Status, "", webhook.Failures{}, incident{}); err != nil {
			return sub, err
		}
	}
	err = t.Exec("UPDATE subscriptions SET url = ?, active = ?, description = ?, events = ?, ordered = ?, max_in_flight = ?, max_per_second = ?, revision = revision + 1, updated_at = ? WHERE id = ?",
		sub.URL, sub.Active, sub.Description, string(names), sub.Ordered, sub.MaxInFlight, orNull(sub.MaxPerSecond), sub.UpdatedAt.UnixMilli(), id)
	if err != nil {
		return sub, err
	}
	t.AfterCommit(func() {
		s.watchers.subscriptionChanged(id)
		if !sub.Active || sub.Status != webhook.HealthFailing {
			s.watchers.probed(id, nil)
		}
	})
	if err := t.moveInterests(&before, &sub); err != nil {
		return sub, err
	}
	var closed int
	if err := t.Scan("SELECT count(*) FROM interests WHERE subscription_id = ? AND until_seq IS NOT NULL", []any{id}, &closed); err != nil {
		return sub, err
	}
	if closed > maxClosedInterests {
		return sub, webhook.NewError(webhook.CodeConflict, "The subscription was changed too often while events waited for it; wait until they are delivered.")
	}
	return sub, nil
}

// setAuthorization changes the authorization header of a subscription, nil for none.
// Another credential is a reason to probe now.
func (w Write) setAuthorization(sub *webhook.Subscription, header *string) error {
	s, t := w.s, w.t
	var encrypted []byte
	if header != nil {
		encrypted = s.keys.Encrypt([]byte(*header), "authorization_header of "+sub.ID)
	}
	sub.HasAuthorizationHeader = encrypted != nil
	if err := t.Exec("UPDATE subscriptions SET authorization_header = ? WHERE id = ?", blob(encrypted), sub.ID); err != nil {
		return err
	}
	at := s.clock.now().UTC().Truncate(time.Millisecond)
	if !at.Before(sub.NextProbeAt) {
		return nil
	}
	sub.NextProbeAt = at
	return t.Exec("UPDATE failures SET next_probe_at = ? WHERE subscription_id = ?", at.UnixMilli(), sub.ID)
}

const (
	// SecretOverlap is how long a replaced signing secret signs beside the new one.
	SecretOverlap = 24 * time.Hour
	// maxOldSecrets bounds how many replaced secrets sign at a time: each makes
	// the header of every delivery longer.
	maxOldSecrets = 4
)

// SigningSecret returns the secret that signs now, for the answer that shows it
// beside the one that replaces it. The error is a *webhook.Error when there is no
// such subscription.
func (w Write) SigningSecret(programID, id string) (webhook.SigningSecret, error) {
	if _, err := w.t.subscription(programID, id); err != nil {
		return nil, err
	}
	var encrypted []byte
	if err := w.t.Scan("SELECT signing_secret FROM subscriptions WHERE id = ?", []any{id}, &encrypted); err != nil {
		return nil, err
	}
	plain, err := w.s.keys.Decrypt(encrypted, "signing_secret of "+id)
	return plain, err
}

// RotateSecret gives a subscription a new signing secret, returned for showing
// it once. The old one signs too for SecretOverlap, until the time that is
// returned.
func (w Write) RotateSecret(programID, id string) (sub webhook.Subscription, secret webhook.SigningSecret, until time.Time, err error) {
	s, t := w.s, w.t
	if sub, err = t.subscription(programID, id); err != nil {
		return sub, nil, until, err
	}
	secret = webhook.NewSigningSecret()
	now := s.clock.now().UTC().Truncate(time.Millisecond)
	if err := t.Exec("DELETE FROM old_signing_secrets WHERE subscription_id = ? AND expires_at <= ?", id, s.clock.wait(now)); err != nil {
		return sub, nil, until, err
	}
	var old int
	if err := t.Scan("SELECT count(*) FROM old_signing_secrets WHERE subscription_id = ?", []any{id}, &old); err != nil {
		return sub, nil, until, err
	}
	if old >= maxOldSecrets {
		return sub, nil, until, webhook.NewError(webhook.CodeConflict, "The signing secret was replaced "+webhook.Count(old, "time")+" within 24 hours, and the old ones are still valid. Wait for the first to expire.")
	}
	// Two rotations within a millisecond still have an expiry of their own.
	var expires sql.NullInt64
	err = t.Scan("INSERT INTO old_signing_secrets (subscription_id, expires_at, secret) SELECT id, max(?, 1 + coalesce((SELECT max(expires_at) FROM old_signing_secrets WHERE subscription_id = s.id), 0)), signing_secret FROM subscriptions s WHERE id = ? RETURNING expires_at",
		[]any{s.clock.wait(now.Add(SecretOverlap)), id}, &expires)
	if err != nil {
		return sub, nil, until, err
	}
	sub.UpdatedAt = now
	sub.Revision++
	t.AfterCommit(func() { s.watchers.subscriptionChanged(id) })
	return sub, secret, s.clock.shown(expires), t.Exec("UPDATE subscriptions SET signing_secret = ?, revision = revision + 1, updated_at = ? WHERE id = ?",
		s.keys.Encrypt(secret, "signing_secret of "+id), now.UnixMilli(), id)
}

// DeleteSubscription removes a subscription and returns it as it was. Nothing
// more is sent: what waited for an attempt has failed, and an attempt in flight
// is the last. Its deliveries stay. What this write does not come to is ended by
// [Store.Housekeep], and is shown as failed until then.
func (w Write) DeleteSubscription(programID, id string) (webhook.Subscription, error) {
	s, t := w.s, w.t
	sub, err := t.subscription(programID, id)
	if err != nil {
		return sub, err
	}
	now := s.clock.now().UTC().Truncate(time.Millisecond)
	sub.DeletedAt = now
	sub.Revision++
	// The secrets go with it: nothing will be signed or sent any more.
	err = t.Exec("UPDATE subscriptions SET deleted_at = ?, updated_at = ?, active = 0, authorization_header = NULL, signing_secret = x'', revision = revision + 1 WHERE id = ?",
		now.UnixMilli(), now.UnixMilli(), id)
	if err != nil {
		return sub, err
	}
	if err := t.Exec("DELETE FROM interests WHERE subscription_id = ?", id); err != nil {
		return sub, err
	}
	if err := t.Exec("DELETE FROM cursors WHERE subscription_id = ?", id); err != nil {
		return sub, err
	}
	if err := t.endIncident(id, webhook.IncidentDeleted); err != nil {
		return sub, err
	}
	if err := t.Exec("DELETE FROM failures WHERE subscription_id = ?", id); err != nil {
		return sub, err
	}
	if err := t.Exec("DELETE FROM old_signing_secrets WHERE subscription_id = ?", id); err != nil {
		return sub, err
	}
	if err := t.Exec("UPDATE replays SET status = 'cancelled', completed_at = ? WHERE subscription_id = ? AND status = 'running'", now.UnixMilli(), id); err != nil {
		return sub, err
	}
	t.AfterCommit(func() { s.watchers.probed(id, nil) })
	t.AfterCommit(func() { s.housekeeping.forget(id) })
	t.AfterCommit(func() { s.watchers.subscriptionChanged(id) })
	ended, err := s.endDeleted(t, id, deletedAtOnce)
	if ended == deletedAtOnce {
		t.AfterCommit(func() { wake(s.housekeeping.deletions) })
	}
	return sub, err
}

func (t *tx) subscription(programID, id string) (webhook.Subscription, error) {
	sub, err := scanSubscription(func(dest ...any) error {
		return t.Scan(selectSubscription, []any{id, programID}, dest...)
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
	set(&sub.MaxPerSecond, f.MaxPerSecond)
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

func scanSubscription(scan func(...any) error) (sub webhook.Subscription, err error) {
	var names string
	var created, updated int64
	var deleted, resend, since, probe sql.NullInt64
	var reason, failing sql.NullString
	var rate sql.NullFloat64
	err = scan(&sub.ID, &sub.ProgramID, &sub.URL, &sub.Active, &sub.Description, &names, &sub.Ordered, &sub.MaxInFlight,
		&sub.HasAuthorizationHeader, &sub.Status, &reason, &sub.Revision, &created, &updated, &deleted, &rate, &resend, &failing, &since, &probe)
	if err != nil {
		return sub, err
	}
	sub.CreatedAt, sub.UpdatedAt, sub.DeletedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC(), fromMillis(deleted)
	sub.DisabledReason, sub.MaxPerSecond, sub.ResendFrom = reason.String, rate.Float64, fromMillis(resend)
	if sub.Status == webhook.HealthFailing {
		sub.FailingReason, sub.FailingSince, sub.NextProbeAt = webhook.FailingReason(failing.String), fromMillis(since), fromMillis(probe)
	}
	return sub, json.Unmarshal([]byte(names), &sub.Events)
}

// openInterests asks for the events of these names that come after the head.
func (t *tx) openInterests(id string, names []string, head int64) error {
	for _, name := range names {
		if err := t.Exec("INSERT INTO interests (subscription_id, name, after_seq) VALUES (?, ?, ?)", id, name, head); err != nil {
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
		// A span that holds no event is of no use, and spans must not add up.
		if err := t.Exec("DELETE FROM interests WHERE subscription_id = ? AND name = ? AND until_seq IS NULL AND NOT EXISTS (SELECT 1 FROM events e WHERE e.program_id = ? AND e.name = interests.name AND e.seq > interests.after_seq)", after.ID, name, after.ProgramID); err != nil {
			return err
		}
		if err := t.Exec("UPDATE interests SET until_seq = ? WHERE subscription_id = ? AND name = ? AND until_seq IS NULL", head.seq, after.ID, name); err != nil {
			return err
		}
	}
	// What the cursor has passed is of no more use.
	err = t.Exec("DELETE FROM interests WHERE subscription_id = ? AND until_seq <= (SELECT seq FROM cursors WHERE subscription_id = ?)", after.ID, after.ID)
	if err != nil {
		return err
	}
	return t.openInterests(after.ID, opened, head.seq)
}

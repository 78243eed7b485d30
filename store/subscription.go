package store

import (
	"bytes"
	"context"
	"crypto/subtle"
	"database/sql"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

const insertSubscription = `INSERT INTO subscriptions (num, id, program_id, url, active, description, events, ordered, max_in_flight,
		authorization_header, signing_secret, created_by, revision, created_at, updated_at, max_per_second, max_events, header_names, headers,
		filters)
	VALUES ((SELECT coalesce(max(num), 0) + 1 FROM subscriptions), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?)`

// Create creates a subscription from valid fields and queues its first ping. It
// returns the signing secret, which is shown only once. The subscription receives events that are
// published from now on. limit is the maximum number of subscriptions in a program without a limit
// of its own, 0 for no limit.
func (w SubscriptionWrites) Create(programID, userID string, f *webhook.SubscriptionFields, limit int,
	by webhook.AuditEntry) (webhook.Subscription, webhook.SigningSecret, error) {
	s, t := w.t.s, w.t
	if err := t.use(programID, ""); err != nil {
		return webhook.Subscription{}, nil, err
	}
	now := s.clock.Now().UTC().Truncate(time.Millisecond)
	sub := webhook.Subscription{
		ID: webhook.NewID(), ProgramID: programID, Active: true, Status: webhook.HealthHealthy, Revision: 1, CreatedAt: now, UpdatedAt: now,
	}
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
	var headers []webhook.Header
	if f.Headers != nil {
		headers = *f.Headers
	}
	sub.HeaderNames = webhook.HeaderNames(headers)
	encrypted := s.encryptHeaders(sub.ID, headers)
	if err := t.limitSubscriptions(programID, limit); err != nil {
		return sub, nil, err
	}
	if err := t.useTypes(s.catalog, sub.Events, nil); err != nil {
		return sub, nil, err
	}
	err := t.Exec(insertSubscription,
		sub.ID, programID, sub.URL, sub.Active, sub.Description, sqlite.JSONText(sub.Events), sub.Ordered, sub.MaxInFlight,
		sqlite.Blob(authorization),
		s.keys.Encrypt(secret, "signing_secret of "+sub.ID), userID, now.UnixMilli(), now.UnixMilli(), sqlite.OrNull(sub.MaxPerSecond),
		sqlite.OrNull(sub.MaxEvents), sqlite.JSONText(sub.HeaderNames), sqlite.Blob(encrypted), sqlite.OrNull(sub.Filters.String()))
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
		if err := t.openInterests(&sub, sub.Events, head.seq); err != nil {
			return sub, nil, err
		}
	}
	t.AfterCommit(func() { s.watchers.SubscriptionChanged(sub.ID) })
	if _, err := s.queuePing(t, &sub, webhook.NewID()); err != nil {
		return sub, nil, err
	}
	return sub, secret, w.Record(by, webhook.ActionSubscriptionCreate, &sub, strings.Join(sub.Events, ", "))
}

// Record records an action on a subscription in the audit log, with its URL.
func (w SubscriptionWrites) Record(by webhook.AuditEntry, action webhook.Action, sub *webhook.Subscription, detail string) error {
	_, _, endpoint := webhook.Endpoint(sub.URL)
	if detail != "" {
		endpoint += "; " + detail
	}
	return w.t.people.Record(by, action, sub.ProgramID, sub.ID, endpoint)
}

// inProgram are the subscriptions of a program. The index contains no deleted ones.
const inProgram = "FROM subscriptions INDEXED BY subscriptions_by_program WHERE program_id = ? AND deleted_at IS NULL"

// limitSubscriptions returns an error if the program has reached its own limit of subscriptions, or
// without one the limit given here. It counts only up to the limit, which bounds the cost of creating
// one.
func (t *tx) limitSubscriptions(programID string, limit int) error {
	var own sql.NullInt64
	if err := t.Scan("SELECT max_subscriptions FROM programs WHERE id = ?", []any{programID}, &own); sqlite.NoRows(err, nil) != nil {
		return err
	}
	if own.Valid {
		limit = int(own.Int64)
	}
	var count int
	if limit > 0 {
		if err := t.Scan("SELECT count(*) FROM (SELECT 1 "+inProgram+" LIMIT ?)", []any{programID, limit}, &count); err != nil {
			return err
		}
	}
	if count < limit || limit == 0 {
		return nil
	}
	if err := t.Scan("SELECT count(*) "+inProgram, []any{programID}, &count); err != nil {
		return err
	}
	return webhook.Invalid(webhook.Validation{
		Code: webhook.InvalidTooMany, Parameter: webhook.WholeBody,
		Detail: fmt.Sprintf("the program has %d subscriptions; at most %d are allowed: delete one first", count, limit),
	})
}

// maxClosedInterests is the maximum number of closed ranges of a subscription, see moveInterests.
// It bounds what repeated changes can store while events are waiting.
const maxClosedInterests = 1000

// Update changes the fields that are not nil. If none of them differs, the record and its
// updated_at do not change. Events that were accepted while the subscription selected them are
// still delivered after the change. Events that were accepted while it was paused are not.
func (w SubscriptionWrites) Update(programID, id string, f *webhook.SubscriptionFields,
	by webhook.AuditEntry) (webhook.Subscription, error) {
	s, t := w.t.s, w.t
	sub, err := t.subscription(programID, id)
	if err != nil {
		return sub, err
	}
	if f.SigningSecret != nil {
		if secret, err := w.SigningSecret(programID, id); err != nil {
			return sub, err
		} else if subtle.ConstantTimeCompare(secret, f.SigningSecret) == 0 {
			return sub, webhook.Invalid(webhook.SecretNotRotated())
		}
	}
	before := sub
	apply(&sub, f)
	credentials := f.AuthorizationHeader != nil || f.Headers != nil
	if !credentials && reflect.DeepEqual(sub, before) {
		return sub, nil // keeps the revision, and so the ETag
	}
	if credentials {
		if err := w.setCredentials(&sub, f); err != nil {
			return sub, err
		}
	}
	if f.Events != nil {
		if err := t.useTypes(s.catalog, sub.Events, before.Events); err != nil {
			return sub, err
		}
	}
	sub.UpdatedAt = s.clock.Now().UTC().Truncate(time.Millisecond)
	sub.Revision++
	if err := t.replaceURL(&before, &sub); err != nil {
		return sub, err
	}
	if err := t.forgetHealth(&before, &sub); err != nil {
		return sub, err
	}
	err = t.Exec("UPDATE subscriptions SET url = ?, active = ?, description = ?, events = ?, filters = ?, ordered = ?, max_in_flight = ?, "+
		"max_per_second = ?, max_events = ?, revision = revision + 1, updated_at = ? WHERE id = ?",
		sub.URL, sub.Active, sub.Description, sqlite.JSONText(sub.Events), sqlite.OrNull(sub.Filters.String()), sub.Ordered, sub.MaxInFlight,
		sqlite.OrNull(sub.MaxPerSecond), sqlite.OrNull(sub.MaxEvents), sub.UpdatedAt.UnixMilli(), id)
	if err != nil {
		return sub, err
	}
	t.AfterCommit(func() {
		s.watchers.SubscriptionChanged(id)
		if !sub.Active || sub.Status != webhook.HealthFailing {
			s.watchers.Probes.End(id, nil)
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
		return sub, webhook.NewError(webhook.CodeConflict,
			fmt.Sprintf("active, events or a filter changed more than %d times while earlier events wait for the subscription, the maximum. "+
				"Try again when these events are delivered.", maxClosedInterests))
	}
	action, detail := webhook.SubscriptionChanges(&before, &sub, f)
	return sub, w.Record(by, action, &sub, detail)
}

// forgetHealth discards the knowledge about a subscription's server after a change of the
// subscription: the failures if its URL changes or it is activated, and the size that the server
// accepts if its URL or its maximum of events changes.
func (t *tx) forgetHealth(before, sub *webhook.Subscription) error {
	if sub.URL != before.URL || sub.Active && !before.Active {
		sub.Status, sub.DisabledReason = webhook.HealthHealthy, ""
		sub.FailingReason, sub.FailingSince, sub.NextProbeAt = "", time.Time{}, time.Time{}
		if err := t.endIncident(sub.ID, webhook.IncidentChanged); err != nil {
			return err
		}
		if err := t.setHealth(sub.ID, sub.Status, "", webhook.Failures{}, incident{}); err != nil {
			return err
		}
	}
	if sub.URL != before.URL || sub.MaxEvents != before.MaxEvents {
		return t.Exec(dropSizeBound, sub.ID)
	}
	return nil
}

// maxOldURLs is the maximum number of replaced URLs that are stored per subscription. It bounds
// the data that repeated changes can store; retention removes the URLs that no delivery can name.
const maxOldURLs = 100

const (
	insertOldURL = `INSERT INTO old_urls (subscription_id, number, url, in_flight, last_delivery)
		SELECT id, url_number, url, (SELECT json_group_array(id || ' ' || attempts_made) FROM deliveries WHERE status = 'pending'
			AND status <> 'success' AND subscription_id = ?1 AND claimed_at IS NOT NULL),
			(SELECT coalesce(max(num), 0) FROM deliveries) FROM subscriptions WHERE id = ?1 RETURNING number`
	// The row before the oldest URL stays: earlier deliveries must not seem to be sent to that URL.
	blankOldURL   = "UPDATE old_urls SET url = '' WHERE subscription_id = ? AND number = ?"
	deleteOldURLs = "DELETE FROM old_urls WHERE subscription_id = ? AND number < ?"
)

// replaceURL stores the URL of a subscription that is about to change, for its attempts, and
// increments its number.
func (t *tx) replaceURL(before, sub *webhook.Subscription) error {
	if sub.URL == before.URL {
		return nil
	}
	var number int64
	if err := t.Scan(insertOldURL, []any{sub.ID}, &number); err != nil {
		return err
	}
	for _, query := range []string{blankOldURL, deleteOldURLs} {
		if err := t.Exec(query, sub.ID, number-maxOldURLs); err != nil {
			return err
		}
	}
	return t.Exec("UPDATE subscriptions SET url_number = url_number + 1 WHERE id = ?", sub.ID)
}

// setCredentials sets the authorization header and the headers of a subscription, if f has them, and
// makes the next probe due now, since the new credentials may work.
func (w SubscriptionWrites) setCredentials(sub *webhook.Subscription, f *webhook.SubscriptionFields) error {
	s, t := w.t.s, w.t
	if f.AuthorizationHeader != nil {
		var encrypted []byte
		if header := *f.AuthorizationHeader; header != nil {
			encrypted = s.keys.Encrypt([]byte(*header), "authorization_header of "+sub.ID)
		}
		sub.HasAuthorizationHeader = encrypted != nil
		if err := t.Exec("UPDATE subscriptions SET authorization_header = ? WHERE id = ?", sqlite.Blob(encrypted), sub.ID); err != nil {
			return err
		}
	}
	if f.Headers != nil {
		sub.HeaderNames = webhook.HeaderNames(*f.Headers)
		err := t.Exec("UPDATE subscriptions SET header_names = ?, headers = ? WHERE id = ?",
			sqlite.JSONText(sub.HeaderNames), sqlite.Blob(s.encryptHeaders(sub.ID, *f.Headers)), sub.ID)
		if err != nil {
			return err
		}
	}
	at := s.clock.Now().UTC().Truncate(time.Millisecond)
	if !at.Before(sub.NextProbeAt) {
		return nil
	}
	sub.NextProbeAt = at
	return t.Exec("UPDATE failures SET next_probe_at = ? WHERE subscription_id = ?", at.UnixMilli(), sub.ID)
}

// encryptHeaders returns the stored form of a subscription's headers, nil for none.
func (s *core) encryptHeaders(id string, headers []webhook.Header) []byte {
	if len(headers) == 0 {
		return nil
	}
	return s.keys.Encrypt([]byte(sqlite.JSONText(headers)), "headers of "+id)
}

const (
	// SecretOverlap is how long a replaced signing secret still signs, in addition to the new one.
	SecretOverlap = 24 * time.Hour
	// maxOldSecrets is the maximum number of replaced secrets that still sign. Each adds a
	// signature to the header of every delivery.
	maxOldSecrets = 4
)

// SigningSecret returns the current signing secret, to show it before a rotation. The error is a
// *webhook.Error if there is no such subscription.
func (w SubscriptionWrites) SigningSecret(programID, id string) (webhook.SigningSecret, error) {
	if _, err := w.t.subscription(programID, id); err != nil {
		return nil, err
	}
	var encrypted []byte
	if err := w.t.Scan("SELECT signing_secret FROM subscriptions WHERE id = ?", []any{id}, &encrypted); err != nil {
		return nil, err
	}
	plain, err := w.t.s.keys.Decrypt(encrypted, "signing_secret of "+id)
	return plain, err
}

// Sign returns the signatures that an attempt would have now, one per secret of the subscription
// that still signs. The error is a *webhook.Error if there is no such subscription.
func (s Subscriptions) Sign(ctx context.Context, programID, id, deliveryID string, at time.Time, body []byte) (string, error) {
	q, err := (Queues{s.core}).Get(ctx, id)
	if err == nil && q.ProgramID != programID {
		err = webhook.NotFound("subscription")
	}
	if err != nil {
		return "", err
	}
	var all []string
	for _, secret := range q.SigningSecrets(s.clock.Now()) {
		all = append(all, secret.Sign(deliveryID, at, body))
	}
	return strings.Join(all, " "), nil
}

const insertOldSecret = `INSERT INTO old_signing_secrets (subscription_id, expires_at, secret)
	SELECT id, max(?, 1 + coalesce((SELECT max(expires_at) FROM old_signing_secrets WHERE subscription_id = s.id), 0)), signing_secret
	FROM subscriptions s WHERE id = ? RETURNING expires_at`

// RotateSecret replaces the signing secret of a subscription and returns the new one, which is shown
// only once. The old one keeps signing until the returned time, for SecretOverlap. If r ends it at
// once, so do older ones, and the time is zero.
func (w SubscriptionWrites) RotateSecret(programID, id string, r webhook.Rotation, by webhook.AuditEntry) (sub webhook.Subscription,
	secret webhook.SigningSecret, until time.Time, err error) {
	s, t := w.t.s, w.t
	if sub, err = t.subscription(programID, id); err != nil {
		return sub, nil, until, err
	}
	before, err := w.SigningSecret(programID, id)
	if err != nil {
		return sub, nil, until, err
	}
	if secret = r.Secret; secret == nil {
		secret = webhook.NewSigningSecret()
	} else if bytes.Equal(secret, before) {
		return sub, nil, until, webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidValue, Parameter: "signing_secret", Detail: "must be another than the current one"})
	}
	now := s.clock.Now().UTC().Truncate(time.Millisecond)
	detail := "no older secret signs"
	if r.EndOld {
		err = t.Exec("DELETE FROM old_signing_secrets WHERE subscription_id = ?", id)
	} else if until, err = w.keepSecret(id, now); err == nil {
		detail = "the old secret signs until " + webhook.FormatTime(until)
	}
	if err != nil {
		return sub, nil, until, err
	}
	sub.UpdatedAt = now
	sub.Revision++
	t.AfterCommit(func() { s.watchers.SubscriptionChanged(id) })
	err = t.Exec("UPDATE subscriptions SET signing_secret = ?, revision = revision + 1, updated_at = ? WHERE id = ?",
		s.keys.Encrypt(secret, "signing_secret of "+id), now.UnixMilli(), id)
	if err != nil {
		return sub, nil, until, err
	}
	return sub, secret, until, w.Record(by, webhook.ActionSubscriptionRotateSecret, &sub, detail)
}

// keepSecret keeps the current secret of a subscription for SecretOverlap, until the returned time.
func (w SubscriptionWrites) keepSecret(id string, now time.Time) (until time.Time, err error) {
	s, t := w.t.s, w.t
	if err := t.Exec("DELETE FROM old_signing_secrets WHERE subscription_id = ? AND expires_at <= ?", id, s.clock.Wait(now)); err != nil {
		return until, err
	}
	var old int
	if err := t.Scan("SELECT count(*) FROM old_signing_secrets WHERE subscription_id = ?", []any{id}, &old); err != nil {
		return until, err
	}
	if old >= maxOldSecrets {
		return until, webhook.NewError(webhook.CodeConflict, "The signing secret was rotated "+webhook.Count(old, "time")+
			" within 24 hours, the maximum: the old secrets are still valid. Try again when the first of them has expired, or end them now.")
	}
	// insertOldSecret gives each secret its own expiry, even after two rotations in a millisecond.
	var expires sql.NullInt64
	err = t.Scan(insertOldSecret, []any{s.clock.Wait(now.Add(SecretOverlap)), id}, &expires)
	return s.clock.Shown(expires), err
}

// Delete deletes a subscription and returns its last state. Its waiting deliveries fail,
// and an attempt in flight is the last. The records of its deliveries stay. If there are many
// waiting deliveries, [Store.Housekeep] completes the rest; they are shown as failed immediately.
func (w SubscriptionWrites) Delete(programID, id string, by webhook.AuditEntry) (webhook.Subscription, error) {
	s, t := w.t.s, w.t
	sub, err := t.subscription(programID, id)
	if err != nil {
		return sub, err
	}
	now := s.clock.Now().UTC().Truncate(time.Millisecond)
	sub.DeletedAt = now
	sub.Revision++
	// Delete the secrets as well, since nothing more is signed or sent.
	err = t.Exec("UPDATE subscriptions SET deleted_at = ?1, updated_at = ?1, counted_at = ?2, "+
		"active = 0, authorization_header = NULL, header_names = '[]', headers = NULL, signing_secret = x'', "+
		"revision = revision + 1 WHERE id = ?3",
		now.UnixMilli(), t.counted(), id)
	if err != nil {
		return sub, err
	}
	if err := t.endIncident(id, webhook.IncidentDeleted); err != nil {
		return sub, err
	}
	for _, table := range []string{"interests", "cursors", "splits", "size_bounds", "failures", "old_signing_secrets"} {
		if err := t.Exec("DELETE FROM "+table+" WHERE subscription_id = ?", id); err != nil {
			return sub, err
		}
	}
	err = t.Exec("UPDATE replays SET status = 'cancelled', completed_at = ?, counted_at = ? WHERE subscription_id = ? "+
		"AND status = 'running'", now.UnixMilli(), t.counted(), id)
	if err != nil {
		return sub, err
	}
	t.AfterCommit(func() {
		s.watchers.Probes.End(id, nil)
		s.housekeeping.forget(id)
		s.watchers.SubscriptionChanged(id)
	})
	ended, err := s.endDeleted(t, id, deletedAtOnce)
	if ended == deletedAtOnce {
		t.AfterCommit(func() { wake(s.housekeeping.deletions) })
	}
	if err != nil {
		return sub, err
	}
	return sub, w.Record(by, webhook.ActionSubscriptionDelete, &sub, "")
}

func (t *tx) subscription(programID, id string) (webhook.Subscription, error) {
	if err := t.use(programID, "subscription"); err != nil {
		return webhook.Subscription{}, err
	}
	sub, err := record.ScanSubscription(t.Row(record.SelectSubscription, id, programID))
	return sub, sqlite.NoRows(err, webhook.NotFound("subscription"))
}

func apply(sub *webhook.Subscription, f *webhook.SubscriptionFields) {
	set(&sub.URL, f.URL)
	set(&sub.Events, f.Events)
	if f.Events != nil && !sub.Filters.Equal(f.Filters) { // equal filters may come from different requests
		sub.Filters = f.Filters
	}
	set(&sub.Description, f.Description)
	set(&sub.Active, f.Active)
	set(&sub.Ordered, f.Ordered)
	set(&sub.MaxInFlight, f.MaxInFlight)
	set(&sub.MaxPerSecond, f.MaxPerSecond)
	set(&sub.MaxEvents, f.MaxEvents)
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

// An interest is a range of the log in which a subscription selects the events with one name. A
// range is open, without an end, while the subscription selects them.

// openInterests opens a range after head for some names of a subscription, with their filters.
func (t *tx) openInterests(sub *webhook.Subscription, names []string, head int64) error {
	for _, name := range names {
		var filter any
		if f := sub.Filters[name]; f != nil {
			filter = f.JSON()
		}
		err := t.Exec("INSERT INTO interests (subscription_id, name, after_seq, filter) VALUES (?, ?, ?, ?)", sub.ID, name, head, filter)
		if err != nil {
			return err
		}
	}
	return nil
}

const deleteRemovedInterests = "DELETE FROM interests WHERE subscription_id = ? AND name NOT IN (SELECT value FROM json_each(?))"

const deleteEmptyInterest = `DELETE FROM interests WHERE subscription_id = ? AND name = ? AND until_seq IS NULL
	AND NOT EXISTS (SELECT 1 FROM events e WHERE e.program_id = ? AND e.name = interests.name AND e.seq > interests.after_seq)`

// moveInterests closes the ranges of a subscription that was paused at the head of the log, and opens
// ranges for new names there. A changed filter does both. moveInterests deletes the ranges of names
// that the subscription no longer selects (spec, section 6.1.4).
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
	if err := t.Exec(deleteRemovedInterests, after.ID, sqlite.JSONText(after.Events)); err != nil {
		return err
	}
	stays := func(name string) bool {
		return slices.Contains(had, name) && slices.Contains(has, name) && webhook.SameFilter(before.Filters[name], after.Filters[name])
	}
	for _, name := range had {
		if stays(name) {
			continue
		}
		// A range without events is deleted, so that ranges do not accumulate.
		if err := t.Exec(deleteEmptyInterest, after.ID, name, after.ProgramID); err != nil {
			return err
		}
		err := t.Exec("UPDATE interests SET until_seq = ? WHERE subscription_id = ? AND name = ? AND until_seq IS NULL", head.seq, after.ID, name)
		if err != nil {
			return err
		}
	}
	// Ranges that the cursor has passed are no longer needed.
	err = t.Exec("DELETE FROM interests WHERE subscription_id = ? AND until_seq <= (SELECT seq FROM cursors WHERE subscription_id = ?)",
		after.ID, after.ID)
	if err != nil {
		return err
	}
	return t.openInterests(after, slices.DeleteFunc(slices.Clone(has), stays), head.seq)
}

package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"service/webhook"
)

// Answer is what a request was answered, as it is kept for the same request
// coming again.
type Answer struct {
	Status   int // 200 to 299
	Location string
	Body     []byte
}

// expiredAtOnce is how many expired keys are removed for each that is kept:
// more than one, so that they get fewer, and few, so that no write is long.
const expiredAtOnce = 8

// Answered returns what the request of a key was answered, nil when the key is
// not in use. The error is a *webhook.Error with CodeConflict when the key is
// in use for another request.
func (s *Store) Answered(ctx context.Context, k *webhook.IdempotencyKey) (*Answer, error) {
	var a Answer
	var request, encrypted []byte
	err := s.db.Scan(ctx, selectAnswer, []any{k.TokenID, k.Key, s.clock.wait(s.clock.now())}, &request, &a.Status, &a.Location, &encrypted)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(request, k.Request[:]) {
		return nil, webhook.NewError(webhook.CodeConflict, "The "+webhook.IdempotencyHeader+" is in use for another request: another method, path, query or body. Take a new key for a new request.")
	}
	a.Body, err = s.keys.Decrypt(encrypted, answerPlace(k))
	return &a, err
}

// Keep keeps the answer of a request under its key for
// webhook.IdempotencyKeptFor, in the write that did what was asked for: so both
// are stored or neither. The error is a *webhook.Error when the token has as
// much kept as it may.
func (w Write) Keep(k *webhook.IdempotencyKey, a *Answer) error {
	s, t := w.s, w.t
	now := s.clock.wait(s.clock.now())
	err := t.Exec("DELETE FROM idempotency_keys WHERE rowid IN ("+selectExpired+")", now, expiredAtOnce)
	if err != nil {
		return err
	}
	// This one may have expired and wait for its removal.
	if err := t.Exec("DELETE FROM idempotency_keys WHERE token_id = ? AND key = ? AND expires_at <= ?", k.TokenID, k.Key, now); err != nil {
		return err
	}
	encrypted := s.keys.Encrypt(a.Body, answerPlace(k))
	var keys, size int
	err = t.Scan("SELECT keys, bytes FROM idempotency_use WHERE token_id = ?", []any{k.TokenID}, &keys, &size)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if keys >= webhook.MaxIdempotencyKeys || size+len(encrypted) > webhook.MaxIdempotencyBytes {
		return webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidTooMany, Parameter: webhook.IdempotencyHeader,
			Detail: fmt.Sprintf("the access token has %s and %s of answers kept, and may have %d and %d MiB within 24 hours; wait for the oldest to expire, or send the request without one",
				webhook.Count(keys, "key"), webhook.Count(size, "byte"), webhook.MaxIdempotencyKeys, webhook.MaxIdempotencyBytes>>20),
		})
	}
	return t.Exec("INSERT INTO idempotency_keys (token_id, key, request, status, location, body, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
		k.TokenID, k.Key, k.Request[:], a.Status, a.Location, encrypted, now+webhook.IdempotencyKeptFor.Milliseconds())
}

const (
	selectAnswer  = "SELECT request, status, location, body FROM idempotency_keys WHERE token_id = ? AND key = ? AND expires_at > ?"
	selectExpired = "SELECT rowid FROM idempotency_keys WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
)

func answerPlace(k *webhook.IdempotencyKey) string {
	return "answer of " + k.TokenID + " " + k.Key
}

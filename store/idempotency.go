package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"service/webhook"
)

// StoredResponse is the stored response to a request, repeated when the request is sent again.
type StoredResponse struct {
	Status   int // 200 to 299
	Location string
	Body     []byte
}

// expiredAtOnce is how many expired keys are removed per stored key: more than one, so that
// their number falls, but few, so that no write is long.
const expiredAtOnce = 8

// StoredResponse returns the stored response to the request with a key, nil if the key is not in use.
// The error is a *webhook.Error with CodeConflict if the key was used for another request.
func (s *Store) StoredResponse(ctx context.Context, k *webhook.IdempotencyKey) (*StoredResponse, error) {
	var a StoredResponse
	var request, encrypted []byte
	err := s.db.Scan(ctx, selectResponse, []any{k.TokenID, k.Key, s.clock.Wait(s.clock.Now())}, &request, &a.Status, &a.Location, &encrypted)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(request, k.Request[:]) {
		return nil, webhook.NewError(webhook.CodeConflict, "The "+webhook.IdempotencyHeader+
			" was used for a request with a different method, path, query or body. Use a new key for each request.")
	}
	a.Body, err = s.keys.Decrypt(encrypted, responsePlace(k))
	return &a, err
}

// StoreResponse stores the response to a request under its key for webhook.IdempotencyKeptFor, in the
// write that performs the request. The error is a *webhook.Error if the token has reached its
// limit.
func (w Write) StoreResponse(k *webhook.IdempotencyKey, a *StoredResponse) error {
	s, t := w.t.s, w.t
	now := s.clock.Wait(s.clock.Now())
	err := t.Exec("DELETE FROM idempotency_keys WHERE rowid IN ("+selectExpired+")", now, expiredAtOnce)
	if err != nil {
		return err
	}
	// The same key may have expired without having been removed yet.
	if err := t.Exec("DELETE FROM idempotency_keys WHERE token_id = ? AND key = ? AND expires_at <= ?", k.TokenID, k.Key, now); err != nil {
		return err
	}
	encrypted := s.keys.Encrypt(a.Body, responsePlace(k))
	var keys, size int
	err = t.Scan("SELECT keys, bytes FROM idempotency_use WHERE token_id = ?", []any{k.TokenID}, &keys, &size)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if maxKeys, maxBytes := k.Limits(); keys >= maxKeys || size+len(encrypted) > maxBytes {
		return webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidTooMany, Parameter: webhook.IdempotencyHeader,
			Detail: fmt.Sprintf("is one too many: within 24 hours the access token has used %s with %s of responses, and may use %d with %d MiB; "+
				"wait for the oldest to expire, or send the request without a key",
				webhook.Count(keys, "key"), webhook.Count(size, "byte"), maxKeys, maxBytes>>20),
		})
	}
	return t.Exec("INSERT INTO idempotency_keys (token_id, program_id, key, request, status, location, body, expires_at) "+
		"VALUES (?, nullif(?, ''), ?, ?, ?, ?, ?, ?)",
		k.TokenID, k.ProgramID, k.Key, k.Request[:], a.Status, a.Location, encrypted, now+webhook.IdempotencyKeptFor.Milliseconds())
}

const (
	selectResponse = "SELECT request, status, location, body FROM idempotency_keys WHERE token_id = ? AND key = ? AND expires_at > ?"
	selectExpired  = "SELECT rowid FROM idempotency_keys WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
)

// responsePlace returns the associated data of a stored response.
func responsePlace(k *webhook.IdempotencyKey) string {
	return "answer of " + k.TokenID + " " + k.Key
}

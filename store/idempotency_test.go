package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

func newKey(tokenID, key, request string) *webhook.IdempotencyKey {
	return &webhook.IdempotencyKey{TokenID: tokenID, Key: key, Request: sha256.Sum256([]byte(request))}
}

func keep(s *Store, k *webhook.IdempotencyKey, body string) error {
	return s.Write(context.Background(), func(w Write) error {
		return w.StoreResponse(k, &StoredResponse{Status: 201, Location: "/there", Body: []byte(body)})
	})
}

func newTokenID(t *testing.T, s *Store) string {
	t.Helper()
	token, _, err := s.Tokens().Create(context.Background(), webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()})
	must(t, err)
	return token.ID
}

func TestStoredResponses(t *testing.T) {
	s := open(t)
	ctx := t.Context()
	one, other := newTokenID(t, s), newTokenID(t, s)
	if a, err := s.StoredResponse(ctx, newKey(one, "k", "request")); a != nil || err != nil {
		t.Errorf("new key: got %+v (%v)", a, err)
	}
	must(t, keep(s, newKey(one, "k", "request"), "whsec_secret"))
	a, err := s.StoredResponse(ctx, newKey(one, "k", "request"))
	if err != nil || a == nil || a.Status != 201 || a.Location != "/there" || string(a.Body) != "whsec_secret" {
		t.Errorf("got %+v (%v)", a, err)
	}
	_, err = s.StoredResponse(ctx, newKey(one, "k", "another request"))
	wantCode(t, err, webhook.CodeConflict)
	for _, k := range []*webhook.IdempotencyKey{newKey(other, "k", "request"), newKey(one, "K", "request")} {
		if a, err := s.StoredResponse(ctx, k); a != nil || err != nil {
			t.Errorf("%+v: got %+v (%v)", k, a, err)
		}
	}
	var stored []byte
	if err := s.db.Scan(ctx, "SELECT body FROM idempotency_keys", nil, &stored); err != nil || bytes.Contains(stored, []byte("secret")) {
		t.Errorf("the response is stored as %q (%v)", stored, err)
	}
	// Storing a key twice fails, which rolls back the second request.
	if err := keep(s, newKey(one, "k", "request"), "again"); err == nil {
		t.Error("a key was stored twice")
	}
}

// A write and its idempotency key are stored together or not at all.
func TestStoreResponseIsAtomic(t *testing.T) {
	s := open(t)
	token := newTokenID(t, s)
	failure := errors.New("after all")
	err := s.Write(t.Context(), func(w Write) error {
		if _, err := w.Publish("p", []webhook.Event{event("content_updated")}); err != nil {
			return err
		}
		if err := w.StoreResponse(newKey(token, "k", "r"), &StoredResponse{Status: 200}); err != nil {
			return err
		}
		return failure
	})
	if err != failure {
		t.Fatal(err)
	}
	if a, err := s.StoredResponse(t.Context(), newKey(token, "k", "r")); a != nil || err != nil {
		t.Errorf("the key was stored: %+v (%v)", a, err)
	}
	var events, use int
	if err := s.db.Scan(t.Context(), "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM idempotency_use WHERE keys > 0)", nil,
		&events, &use); err != nil || events != 0 || use != 0 {
		t.Errorf("%d events and %d tokens with keys (%v), want 0", events, use, err)
	}
}

func TestIdempotencyKeysExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		token := newTokenID(t, s)
		for i := range 3 * expiredAtOnce {
			must(t, keep(s, newKey(token, fmt.Sprint(i), "r"), "first"))
		}
		time.Sleep(webhook.IdempotencyKeptFor - time.Millisecond)
		if a, err := s.StoredResponse(t.Context(), newKey(token, "5", "r")); a == nil || err != nil {
			t.Errorf("just before it expires: got %+v (%v)", a, err)
		}
		time.Sleep(time.Millisecond)
		last := fmt.Sprint(3*expiredAtOnce - 1)
		if a, err := s.StoredResponse(t.Context(), newKey(token, last, "another")); a != nil || err != nil {
			t.Errorf("expired: got %+v (%v)", a, err)
		}
		// An expired key can be used again before it is removed.
		must(t, keep(s, newKey(token, last, "another"), "second"))
		if a, err := s.StoredResponse(t.Context(), newKey(token, last, "another")); a == nil || err != nil || string(a.Body) != "second" {
			t.Errorf("used again: got %+v (%v)", a, err)
		}
		for i, want := range []int{2 * expiredAtOnce, expiredAtOnce + 1, 3} { // a few are removed each time
			wantNumber(t, "keys that are left", keysOf(t, s, token), want)
			must(t, keep(s, newKey(token, fmt.Sprint("new", i), "r"), ""))
		}
		var keys, size, counted, measured int
		err := s.db.Scan(t.Context(),
			"SELECT keys, bytes, (SELECT count(*) FROM idempotency_keys), (SELECT sum(length(body)) FROM idempotency_keys) FROM idempotency_use",
			nil, &keys, &size, &counted, &measured)
		if err != nil || keys != counted || size != measured || keys != 4 {
			t.Errorf("counted %d keys of %d bytes, want %d of %d (%v)", keys, size, counted, measured, err)
		}
	})
}

func keysOf(t *testing.T, s *Store, token string) (n int) {
	t.Helper()
	must(t, s.db.Scan(t.Context(), "SELECT count(*) FROM idempotency_keys WHERE token_id = ?", []any{token}, &n))
	return n
}

func TestIdempotencyKeysAreBounded(t *testing.T) {
	s := open(t)
	one, other := newTokenID(t, s), newTokenID(t, s)
	wantTooMany := func(err error) {
		t.Helper()
		var e *webhook.Error
		if !errors.As(err, &e) || len(e.Validations) != 1 || e.Validations[0].Code != webhook.InvalidTooMany ||
			e.Validations[0].Parameter != "Idempotency-Key" {
			t.Errorf("got %v, want too_many Idempotency-Key", err)
		}
	}
	set := func(keys, size int) {
		t.Helper()
		err := s.writer.do(func(t *tx) error {
			return t.Exec("INSERT INTO idempotency_use (token_id, keys, bytes) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE "+
				"SET keys = ?2, bytes = ?3", one, keys, size)
		})
		must(t, err)
	}
	set(webhook.MaxIdempotencyKeys-1, 0)
	if err := keep(s, newKey(one, "last", "r"), ""); err != nil {
		t.Error(err)
	}
	wantTooMany(keep(s, newKey(one, "more", "r"), ""))
	set(1, webhook.MaxIdempotencyBytes-1000)
	wantTooMany(keep(s, newKey(one, "more", "r"), strings.Repeat("x", 1000)))
	if err := keep(s, newKey(one, "more", "r"), strings.Repeat("x", 900)); err != nil {
		t.Error(err)
	}
	wantError(t, "another token", keep(s, newKey(other, "more", "r"), ""), nil)
	// A platform token has higher limits, since it creates the records of many programs.
	set(webhook.MaxIdempotencyKeys, webhook.MaxIdempotencyBytes)
	platform := newKey(one, "of a program", "r")
	platform.ProgramID = "p"
	wantError(t, "a platform token", keep(s, platform, ""), nil)
	set(webhook.MaxPlatformIdempotencyKeys, 0)
	platform.Key = "more"
	wantTooMany(keep(s, platform, ""))
}

package people_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"service/store"
	"service/store/people"
	"service/store/storetest"
	"service/webhook"
)

// passkeyOf returns a passkey to store.
func passkeyOf(admin webhook.Admin, credential string) webhook.Passkey {
	return webhook.Passkey{AdminID: admin.ID, Name: "Laptop", RPID: "hooks.example", Credential: []byte(credential),
		PublicKey: []byte("key of " + credential)}
}

// createPasskey stores a passkey.
func createPasskey(t *testing.T, s *store.Store, p webhook.Passkey) (webhook.Passkey, error) {
	t.Helper()
	err := s.Write(t.Context(), func(w store.Write) (err error) {
		p, err = w.Passkeys().Create(p)
		return err
	})
	return p, err
}

func TestPasskeys(t *testing.T) {
	s := storetest.Open(t)
	ana, bo := createAdmin(t, s, "ana@example.com"), createAdmin(t, s, "bo@example.com")
	if any, err := s.Admins().HavePasskey(t.Context()); any || err != nil {
		t.Errorf("before the first: %v, %v", any, err)
	}
	first, err := createPasskey(t, s, passkeyOf(ana, "one"))
	must(t, err)
	_, err = createPasskey(t, s, passkeyOf(bo, "one"))
	storetest.WantCode(t, err, webhook.CodeConflict)
	for _, name := range []string{"", " ", "a\nb", strings.Repeat("x", webhook.MaxPasskeyName+1)} {
		p := passkeyOf(ana, "two")
		p.Name = name
		_, err := createPasskey(t, s, p)
		storetest.WantCode(t, err, webhook.CodeInvalid)
	}
	_, err = createPasskey(t, s, passkeyOf(webhook.Admin{ID: webhook.NewID()}, "two"))
	storetest.WantCode(t, err, webhook.CodeNotFound)
	for i := 1; i < webhook.MaxPasskeys; i++ {
		_, err := createPasskey(t, s, passkeyOf(ana, fmt.Sprint("more ", i)))
		must(t, err)
	}
	_, err = createPasskey(t, s, passkeyOf(ana, "too many"))
	storetest.WantCode(t, err, webhook.CodeConflict)

	found, err := s.Admins().Passkey(t.Context(), []byte("one"))
	must(t, err)
	if found.ID != first.ID || found.AdminID != ana.ID || string(found.PublicKey) != "key of one" || !found.UsedAt.IsZero() {
		t.Errorf("got %+v", found)
	}
	_, err = s.Admins().Passkey(t.Context(), []byte("On"))
	storetest.WantCode(t, err, webhook.CodeNotFound)

	storetest.WantCode(t, try(t, s, func(w store.Write) (any, error) { return w.Passkeys().Remove(bo.ID, first.ID) }), webhook.CodeNotFound)
	must(t, try(t, s, func(w store.Write) (any, error) { return w.Passkeys().Remove(ana.ID, first.ID) }))
	if all, err := s.Admins().Passkeys(t.Context(), ana.ID); err != nil || len(all) != webhook.MaxPasskeys-1 {
		t.Errorf("after one was removed: %d, %v", len(all), err)
	}
	_, err = createPasskey(t, s, passkeyOf(bo, "of bo"))
	must(t, err)
	mustWrite(t, s, func(w store.Write) error {
		removed, err := w.Passkeys().RemoveAll(bo.ID)
		left, err2 := w.Passkeys().Count(bo.ID)
		others, err3 := w.Passkeys().Count(ana.ID)
		if removed != 1 || left != 0 || others != webhook.MaxPasskeys-1 {
			t.Errorf("removed %d, left %d, of the other %d", removed, left, others)
		}
		return errors.Join(err, err2, err3)
	})
	// The passkeys end with their admin.
	must(t, try(t, s, func(w store.Write) (any, error) { return w.Admins().Remove(ana.Email) }))
	if any, err := s.Admins().HavePasskey(t.Context()); any || err != nil {
		t.Errorf("after the admin was removed: %v, %v", any, err)
	}
}

// A sign count must grow, unless the authenticator has none.
func TestSignCount(t *testing.T) {
	s := storetest.Open(t)
	p, err := createPasskey(t, s, passkeyOf(createAdmin(t, s, "ana@example.com"), "one"))
	must(t, err)
	for i, tt := range []struct {
		count uint32
		good  bool
	}{{0, true}, {0, true}, {5, true}, {5, false}, {4, false}, {0, false}, {6, true}, {1<<32 - 1, true}, {0, false}} {
		err := s.Write(t.Context(), func(w store.Write) error { return w.Passkeys().Use(p.ID, tt.count) })
		if tt.good != (err == nil) || !tt.good && !errors.Is(err, people.ErrSignCount) {
			t.Errorf("step %d, count %d: got %v", i, tt.count, err)
		}
	}
	found, err := s.Admins().Passkey(t.Context(), []byte("one"))
	if err != nil || found.UsedAt.IsZero() || found.SignCount != 1<<32-1 {
		t.Errorf("got %+v, %v", found, err)
	}
	err = s.Write(t.Context(), func(w store.Write) error { return w.Passkeys().Use(webhook.NewID(), 1) })
	storetest.WantCode(t, err, webhook.CodeNotFound)
}

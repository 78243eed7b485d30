package store

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/store/record"
	"service/webhook"
)

// share creates a link to a delivery.
func share(t *testing.T, s *Store, programID, deliveryID string) (sh webhook.Share, code string) {
	t.Helper()
	mustWrite(t, s, func(w Write) (err error) {
		sh, code, err = w.Deliveries().Share(programID, deliveryID, webhook.AuditEntry{})
		return err
	})
	return sh, code
}

// aDelivery returns the ID of a delivery of a program.
func aDelivery(t *testing.T, s *Store, programID string) string {
	t.Helper()
	var id string
	must(t, s.db.Scan(t.Context(), "SELECT d.id FROM deliveries d CROSS JOIN subscriptions s ON s.id = d.subscription_id "+
		"WHERE s.program_id = ? ORDER BY d.num LIMIT 1", []any{programID}, (*record.DeliveryID)(&id)))
	return id
}

func wantShared(t *testing.T, s *Store, code string, want bool) {
	t.Helper()
	d, sh, open, err := s.Deliveries().Shared(t.Context(), code)
	if err != nil || open != want || open && (d.ID != sh.DeliveryID || d.ProgramID != sh.ProgramID) {
		t.Errorf("the link of %q to %q: open %v, %v; want %v", sh.ProgramID, sh.DeliveryID, open, err, want)
	}
}

func TestShares(t *testing.T) {
	s := open(t)
	fillProgram(t, s, "one")
	fillProgram(t, s, "two")
	id := aDelivery(t, s, "one")
	for _, wrong := range [][2]string{{"two", id}, {"one", webhook.NewID()}, {"nowhere", id}, {"one", ""}} {
		err := s.Write(t.Context(), func(w Write) error {
			_, _, err := w.Deliveries().Share(wrong[0], wrong[1], webhook.AuditEntry{})
			return err
		})
		wantCode(t, err, webhook.CodeNotFound)
	}
	before, err := s.Deliveries().Shares().List(t.Context(), id)
	must(t, err)
	first, code := share(t, s, "one", id)
	_, second := share(t, s, "one", id)
	if n := count(t, s, "SELECT count(*) FROM shares WHERE instr(hash || id || delivery_id, ?) > 0", code); n != 0 {
		t.Error("the code is stored")
	}
	wantShared(t, s, code, true)
	wantShared(t, s, second, true)
	for _, guess := range []string{"", code[1:], code + "A", id, first.ID} {
		wantShared(t, s, guess, false)
	}
	wantCode(t, s.Write(t.Context(), func(w Write) error {
		return w.Shares().Revoke(aDelivery(t, s, "two"), first.ID, webhook.AuditEntry{})
	}), webhook.CodeNotFound)
	mustWrite(t, s, func(w Write) error {
		return w.Shares().Revoke(id, first.ID, webhook.AuditEntry{})
	})
	wantShared(t, s, code, false)
	wantShared(t, s, second, true)
	mustWrite(t, s, func(w Write) error {
		if n, err := w.Shares().RevokeAll("two", id, webhook.AuditEntry{}); n != 0 || err != nil {
			t.Errorf("of another program: %d, %v", n, err)
		}
		n, err := w.Shares().RevokeAll("one", id, webhook.AuditEntry{})
		if n != len(before)+1 {
			t.Errorf("revoked %d", n)
		}
		return err
	})
	wantShared(t, s, second, false)
	// The newest links stay.
	mustWrite(t, s, func(w Write) error {
		for range webhook.MaxShares {
			if _, code, err = w.Deliveries().Share("one", id, webhook.AuditEntry{}); err != nil {
				return err
			}
		}
		return nil
	})
	wantNumber(t, "links that are kept", count(t, s, "SELECT count(*) FROM shares WHERE program_id = 'one'"), webhook.MaxShares)
	wantShared(t, s, code, true)
	// The links end with the subscription.
	d, _, _, err := s.Deliveries().Shared(t.Context(), code)
	must(t, err)
	unsubscribe(t, s, "one", d.SubscriptionID)
	wantShared(t, s, code, false)
	wantCode(t, s.Write(t.Context(), func(w Write) error {
		_, _, err := w.Deliveries().Share("one", id, webhook.AuditEntry{})
		return err
	}), webhook.CodeConflict)
	var other string // a delivery of another subscription
	must(t, s.db.Scan(t.Context(), "SELECT d.id FROM deliveries d CROSS JOIN subscriptions s ON s.id = d.subscription_id "+
		"WHERE s.program_id = 'one' AND s.deleted_at IS NULL LIMIT 1", nil, (*record.DeliveryID)(&other)))
	_, code = share(t, s, "one", other)
	wantShared(t, s, code, true)
	// The links end when the erasure of the program begins.
	erase(t, s, "one")
	wantShared(t, s, code, false)
}

func TestSharesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		fillProgram(t, s, "one")
		_, code := share(t, s, "one", aDelivery(t, s, "one"))
		time.Sleep(webhook.ShareLife - time.Second)
		wantShared(t, s, code, true)
		time.Sleep(time.Second)
		wantShared(t, s, code, false)
		all, err := s.Deliveries().Shares().List(t.Context(), aDelivery(t, s, "one"))
		if err != nil || len(all) != 0 {
			t.Errorf("%d links are listed, %v", len(all), err)
		}
		share(t, s, "one", aDelivery(t, s, "one"))
		wantNumber(t, "stored links", count(t, s, "SELECT count(*) FROM shares"), 1)
	})
}

// Links and sessions of the portal, and links to deliveries, keep their lifetime when the wall
// clock jumps.
func TestLinksMoveWithTheClock(t *testing.T) {
	for _, jump := range []time.Duration{30 * 24 * time.Hour, -30 * 24 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			var skew atomic.Int64
			s, err := Open(t.Context(), Config{Dir: memoryDir(t),
				Now: func() time.Time { return time.Now().Round(0).Add(time.Duration(skew.Load())) }})
			must(t, err)
			defer func() { must(t, s.Close()) }()
			fillProgram(t, s, "one")
			sh, code := share(t, s, "one", aDelivery(t, s, "one"))
			var link webhook.PortalLink
			var linkCode, secret string
			mustWrite(t, s, func(w Write) (err error) {
				n := webhook.NewPortalLink{ProgramID: "one", Role: webhook.PortalRead}
				if _, linkCode, err = w.Programs().CreatePortalLink(n, webhook.AuditEntry{}); err != nil {
					return err
				}
				if _, secret, err = w.Portal().BeginSession(linkCode, "", "", "", false); err != nil {
					return err
				}
				link, linkCode, err = w.Programs().CreatePortalLink(webhook.NewPortalLink{ProgramID: "one", Role: webhook.PortalRead},
					webhook.AuditEntry{})
				return err
			})
			skew.Store(int64(jump))
			must(t, s.writer.do(func(*tx) error { return nil }))
			wantShared(t, s, code, true)
			_, moved, _, err := s.Deliveries().Shared(t.Context(), code)
			must(t, err)
			movedLink, open, err := s.Portal().Link(t.Context(), linkCode)
			if err != nil || !open {
				t.Errorf("the link to the portal is open: %v, %v", open, err)
			}
			_, open, err = s.Portal().Session(t.Context(), secret)
			if err != nil || !open {
				t.Errorf("the session of the portal is open: %v, %v", open, err)
			}
			for name, by := range map[string]time.Duration{"share": moved.ExpiresAt.Sub(sh.ExpiresAt),
				"link": movedLink.ExpiresAt.Sub(link.ExpiresAt)} {
				if (by - jump).Abs() > time.Second {
					t.Errorf("the end of the %s moved by %v", name, by)
				}
			}
		})
	}
}

// shareIn shares a delivery of a program in a write.
func shareIn(w Write, programID, deliveryID string) error {
	_, _, err := w.Deliveries().Share(programID, deliveryID, webhook.AuditEntry{})
	return err
}

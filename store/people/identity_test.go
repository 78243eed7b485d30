package people_test

import (
	"errors"
	"strings"
	"testing"

	"service/store"
	"service/store/people"
	"service/store/storetest"
	"service/webhook"
)

// TestAdmitIdentity walks one admin through everything that a provider may report later.
func TestAdmitIdentity(t *testing.T) {
	s := storetest.Open(t)
	hash := webhook.NoPassword()
	var owner webhook.Admin
	write := func(do func(store.Write) error) error { return s.Write(t.Context(), do) }
	must(t, write(func(w store.Write) (err error) {
		owner, err = w.Admins().CreateFirst("ana@example.com", hash)
		return err
	}))
	admit := func(id webhook.Identity) (a people.Admission, err error) {
		err = write(func(w store.Write) (err error) { a, err = w.Admins().AdmitIdentity(id); return err })
		return a, err
	}
	refused := func(id webhook.Identity, want string) {
		t.Helper()
		if _, err := admit(id); !errors.As(err, new(*webhook.Error)) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	const a, b = "https://a.example", "https://b.example"
	cy := webhook.Identity{Issuer: a, Subject: "1", Email: "cy@example.com", Role: webhook.RoleOwner}
	got, err := admit(cy)
	if err != nil || !got.Created || got.Linked || got.Password != "" || got.Admin.HasPassword || got.Admin.OIDCSubject != "1" {
		t.Fatalf("got %+v, %v", got, err)
	}
	id := got.Admin.ID
	// A second owner, but without a password: ana remains the last one.
	last, err := s.Admins().LastOwner(t.Context(), &owner)
	if err != nil || !last {
		t.Errorf("got %v, %v", last, err)
	}
	err = write(func(w store.Write) error { _, err := w.Admins().SetRole(owner.ID, webhook.RoleViewer); return err })
	if err == nil || !strings.Contains(err.Error(), "last owner with a password") {
		t.Errorf("got %v", err)
	}
	err = write(func(w store.Write) error { _, err := w.Admins().Remove(owner.Email); return err })
	if err == nil || !strings.Contains(err.Error(), "last owner with a password") {
		t.Errorf("got %v", err)
	}

	// The same subject of another issuer is another person, as is another subject.
	refused(webhook.Identity{Issuer: b, Subject: "1", Email: "cy@example.com", Role: webhook.RoleViewer}, "not verified")
	refused(webhook.Identity{Issuer: a, Subject: "2", Email: "cy@example.com", EmailVerified: true, Role: webhook.RoleViewer},
		"another account")
	refused(webhook.Identity{Issuer: a, Subject: "2", Email: "dee@example.com", EmailVerified: true}, "role")

	// The address follows the provider, if it is verified and free.
	cy.Role = webhook.RoleOperator
	for _, step := range []struct {
		email    string
		verified bool
		want     string
	}{
		{"cyra@example.com", false, "cy@example.com"},
		{"ana@example.com", true, "cy@example.com"},
		{"not an address", true, "cy@example.com"},
		{"cyra@example.com", true, "cyra@example.com"},
		{"", false, "cyra@example.com"},
	} {
		cy.Email, cy.EmailVerified = step.email, step.verified
		got, err := admit(cy)
		if err != nil || got.Created || got.Admin.ID != id || got.Admin.Email != step.want || got.Admin.Role != webhook.RoleOperator {
			t.Errorf("%+v: got %+v, %v", step, got, err)
		}
		stored, _, err := s.Admins().Get(t.Context(), id)
		if err != nil || stored.Email != step.want || stored.Role != webhook.RoleOperator {
			t.Errorf("%+v: got %+v, %v", step, stored, err)
		}
	}

	// Another provider takes over an admin by the verified address; the old one ends.
	moved := webhook.Identity{Issuer: b, Subject: "x", Email: "cyra@example.com", EmailVerified: true, Role: webhook.RoleViewer}
	if got, err = admit(moved); err != nil || !got.Linked || got.Admin.ID != id || got.Before != webhook.RoleOperator {
		t.Errorf("got %+v, %v", got, err)
	}
	refused(cy, "no valid email address")

	moved.Role = ""
	checkRefusedIdentity(t, s, moved, id, owner.ID, hash)
}

// checkRefusedIdentity checks that without a role the sessions end, of this admin only.
func checkRefusedIdentity(t *testing.T, s *store.Store, identity webhook.Identity, id, owner string, hash webhook.PasswordHash) {
	t.Helper()
	err := s.Write(t.Context(), func(w store.Write) error {
		for _, one := range []struct {
			id   string
			hash webhook.PasswordHash
		}{{id, ""}, {owner, hash}} {
			if _, _, err := w.Sessions().Create(one.id, one.hash, "", "", ""); err != nil {
				return err
			}
		}
		found, ended, known, err := w.Admins().RefuseIdentity(identity)
		if err == nil && (!known || ended != 1 || found.ID != id) {
			t.Errorf("got %+v, %d, %v", found, ended, known)
		}
		return err
	})
	must(t, err)
	if all, err := s.Sessions().List(t.Context(), owner); err != nil || len(all) != 1 {
		t.Errorf("got %v, %v", all, err)
	}
}

// A higher role from the provider ends the earlier access of the admin, which may be another
// person's. The password of an owner remains.
func TestRaisedIdentity(t *testing.T) {
	s := storetest.Open(t)
	write := func(do func(store.Write) error) { t.Helper(); must(t, s.Write(t.Context(), do)) }
	hash := webhook.NoPassword()
	const issuer = "https://a.example"
	var roles = []webhook.Role{webhook.RoleOwner, webhook.RoleOperator, webhook.RoleViewer}
	write(func(w store.Write) error { _, err := w.Admins().CreateFirst("first@example.com", hash); return err })
	for i, before := range roles {
		for j, after := range roles {
			email := string(before) + "-" + string(after) + "@example.com"
			var admin webhook.Admin
			var secret string
			write(func(w store.Write) (err error) {
				if admin, err = w.Admins().Create(email, before, hash); err != nil {
					return err
				}
				if _, secret, err = w.Sessions().Create(admin.ID, hash, "", "", ""); err != nil {
					return err
				}
				_, err = w.Passkeys().Create(webhook.Passkey{AdminID: admin.ID, Name: "key", RPID: "service.example",
					Credential: []byte(email), PublicKey: []byte("key")})
				return err
			})
			var got people.Admission
			write(func(w store.Write) (err error) {
				got, err = w.Admins().AdmitIdentity(webhook.Identity{Issuer: issuer, Subject: email, Email: email, EmailVerified: true, Role: after})
				if err != nil {
					return err
				}
				// The password may have changed in between: a session needs the current one.
				_, _, err = w.Sessions().Create(got.Admin.ID, got.Password, "", "", "")
				return err
			})
			raised := j < i
			stored, password, err := s.Admins().Get(t.Context(), admin.ID)
			must(t, err)
			_, open, err := s.Sessions().GetUnseen(t.Context(), secret)
			must(t, err)
			keys, err := s.Admins().Passkeys(t.Context(), admin.ID)
			must(t, err)
			if stored.Role != after || (password == "") != raised || stored.HasPassword == raised || open == raised || (len(keys) == 0) != raised {
				t.Errorf("%s: got %+v, a session: %v, %d passkeys", email, stored, open, len(keys))
			}
			if got.HadPassword != raised || (got.Passkeys == 1) != raised || (got.Sessions == 1) != raised {
				t.Errorf("%s: got %+v", email, got)
			}
		}
	}
}

// An address that the provider reports as unverified gets no admin, new or old.
func TestRefutedAddress(t *testing.T) {
	s := storetest.Open(t)
	var owner webhook.Admin
	must(t, s.Write(t.Context(), func(w store.Write) (err error) {
		owner, err = w.Admins().CreateFirst("ana@example.com", webhook.NoPassword())
		return err
	}))
	id := webhook.Identity{Issuer: "https://a.example", Subject: "1", EmailRefuted: true, Role: webhook.RoleOwner}
	for _, email := range []string{owner.Email, "new@example.com"} {
		id.Email = email
		err := s.Write(t.Context(), func(w store.Write) error { _, err := w.Admins().AdmitIdentity(id); return err })
		if !errors.As(err, new(*webhook.Error)) || !strings.Contains(err.Error(), "has not verified the address "+email+".") {
			t.Errorf("%s: got %v", email, err)
		}
	}
	if all, err := s.Admins().List(t.Context()); err != nil || len(all) != 1 || all[0].OIDCSubject != "" {
		t.Errorf("got %v, %v", all, err)
	}
	// An admin with the identity signs in, and keeps the address.
	id.Email, id.EmailRefuted = "cy@example.com", false
	for _, email := range []string{"cy@example.com", "dee@example.com"} {
		var got people.Admission
		id.Email = email
		must(t, s.Write(t.Context(), func(w store.Write) (err error) { got, err = w.Admins().AdmitIdentity(id); return err }))
		if got.Admin.Email != "cy@example.com" {
			t.Errorf("got %+v", got)
		}
		id.EmailRefuted = true
	}
}

// Without a role at the provider, the open invitations of the admin end as well, and no others.
func TestRefusedIdentityEndsInvitations(t *testing.T) {
	s := storetest.Open(t)
	id := webhook.Identity{Issuer: "https://a.example", Subject: "1", Email: "cy@example.com", EmailVerified: true, Role: webhook.RoleOwner}
	var owner webhook.Admin
	must(t, s.Write(t.Context(), func(w store.Write) (err error) {
		if owner, err = w.Admins().CreateFirst("ana@example.com", webhook.NoPassword()); err != nil {
			return err
		}
		got, err := w.Admins().AdmitIdentity(id)
		if err != nil {
			return err
		}
		if _, _, err = w.Admins().CreateInvitation(got.Admin.ID, "by-cy@example.com", webhook.RoleOwner); err != nil {
			return err
		}
		_, _, err = w.Admins().CreateInvitation(owner.ID, "by-ana@example.com", webhook.RoleOwner)
		return err
	}))
	must(t, s.Write(t.Context(), func(w store.Write) error { _, _, _, err := w.Admins().RefuseIdentity(id); return err }))
	all, err := s.Admins().Invitations(t.Context())
	if err != nil || len(all) != 1 || all[0].Email != "by-ana@example.com" {
		t.Errorf("got %+v, %v", all, err)
	}
}

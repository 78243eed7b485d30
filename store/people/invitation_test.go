package people_test

import (
	"testing"

	"service/store"
	"service/store/storetest"
	"service/webhook"
)

// setRole changes the role of an admin.
func setRole(t *testing.T, s *store.Store, id string, role webhook.Role) error {
	t.Helper()
	return try(t, s, func(w store.Write) (any, error) { return w.Admins().SetRole(id, role) })
}

// The role of a session is that of its admin at the moment, and there is always an owner.
func TestRoles(t *testing.T) {
	s := storetest.Open(t)
	storetest.WantCode(t, try(t, s, func(w store.Write) (any, error) {
		return w.Admins().Create("bo@example.com", webhook.RoleViewer, hashOf("abc"))
	}), webhook.CodeConflict)
	storetest.WantCode(t, try(t, s, func(w store.Write) (any, error) {
		return w.Admins().Create("bo@example.com", "root", hashOf("abc"))
	}), webhook.CodeInvalid)
	ana := createAdmin(t, s, "ana@example.com")
	_, secret := createSession(t, s, ana, "")
	role := func() webhook.Role {
		t.Helper()
		session, _, err := s.Sessions().Get(t.Context(), secret)
		must(t, err)
		return session.Role
	}
	storetest.WantCode(t, setRole(t, s, ana.ID, webhook.RoleOperator), webhook.CodeConflict)
	storetest.WantCode(t, setRole(t, s, ana.ID, "root"), webhook.CodeInvalid)
	storetest.WantCode(t, setRole(t, s, webhook.NewID(), webhook.RoleViewer), webhook.CodeNotFound)
	must(t, setRole(t, s, ana.ID, webhook.RoleOwner))
	if last, err := s.Admins().LastOwner(t.Context(), &ana); !last || err != nil || role() != webhook.RoleOwner {
		t.Errorf("the only owner: last %v, %v, with the role %s", last, err, role())
	}
	bo := createAdmin(t, s, "bo@example.com")
	must(t, setRole(t, s, ana.ID, webhook.RoleViewer))
	if last, err := s.Admins().LastOwner(t.Context(), &bo); !last || err != nil || role() != webhook.RoleViewer {
		t.Errorf("the other owner: last %v, %v; the first has the role %s", last, err, role())
	}
	storetest.WantCode(t, setRole(t, s, bo.ID, webhook.RoleViewer), webhook.CodeConflict)
	storetest.WantCode(t, try(t, s, func(w store.Write) (any, error) { return w.Admins().Remove(bo.Email) }), webhook.CodeConflict)
	must(t, try(t, s, func(w store.Write) (any, error) { return w.Admins().Remove(ana.Email) }))
}

// invitations creates and accepts invitations.
type invitations struct {
	t *testing.T
	s *store.Store
}

func (c invitations) invite(owner webhook.Admin, email string, role webhook.Role) (in webhook.Invitation, code string, err error) {
	err = c.s.Write(c.t.Context(), func(w store.Write) (err error) {
		in, code, err = w.Admins().CreateInvitation(owner.ID, email, role)
		return err
	})
	return in, code, err
}

func (c invitations) isOpen(code string) bool {
	c.t.Helper()
	_, ok, err := c.s.Admins().Invitation(c.t.Context(), code)
	must(c.t, err)
	return ok
}

func (c invitations) accept(code string) (a webhook.Admin, err error) {
	err = c.s.Write(c.t.Context(), func(w store.Write) (err error) {
		a, _, err = w.Admins().AcceptInvitation(code, hashOf("abc"))
		return err
	})
	return a, err
}

// An invitation creates one admin with its address and role. Its link is invalid once the
// invitation has been accepted or has ended in any other way.
func TestInvitations(t *testing.T) {
	s := storetest.Open(t)
	ana, bo := createAdmin(t, s, "ana@example.com"), createAdmin(t, s, "bo@example.com")
	c := invitations{t, s}
	for _, email := range []string{"bo@example.com", "Cy@example.com"} { // taken, not normalized
		_, _, err := c.invite(ana, email, webhook.RoleViewer)
		storetest.WantCode(t, err, webhook.CodeInvalid)
	}
	_, _, err := c.invite(ana, "cy@example.com", "root")
	storetest.WantCode(t, err, webhook.CodeInvalid)

	_, replaced, err := c.invite(ana, "cy@example.com", webhook.RoleOwner)
	must(t, err)
	in, code, err := c.invite(bo, "cy@example.com", webhook.RoleOperator)
	must(t, err)
	got, ok, err := s.Admins().Invitation(t.Context(), code)
	in.InvitedBy = bo.Email
	if err != nil || !ok || got != in || c.isOpen(replaced) || c.isOpen("") || len(code) != 43 {
		t.Errorf("got %+v, %v, %v; want %+v, and the first one to be replaced", got, ok, err, in)
	}
	all, err := s.Admins().Invitations(t.Context())
	if err != nil || len(all) != 1 || all[0] != in {
		t.Errorf("the list: got %+v, %v", all, err)
	}
	for _, wrong := range []string{replaced, "", "x"} {
		_, err := c.accept(wrong)
		storetest.WantCode(t, err, webhook.CodeNotFound)
	}
	cy, err := c.accept(code)
	if err != nil || cy.Email != "cy@example.com" || cy.Role != webhook.RoleOperator {
		t.Errorf("the admin: got %+v, %v", cy, err)
	}
	_, err = c.accept(code)
	storetest.WantCode(t, err, webhook.CodeNotFound)
	storetest.WantCode(t, try(t, s, func(w store.Write) (any, error) { return w.Admins().RevokeInvitation(in.ID) }), webhook.CodeNotFound)
}

// An invitation ends when it is revoked, with the role of its owner, and when its address is taken.
func TestInvitationEnds(t *testing.T) {
	s := storetest.Open(t)
	ana, bo := createAdmin(t, s, "ana@example.com"), createAdmin(t, s, "bo@example.com")
	c := invitations{t, s}
	ends := func(about string, owner webhook.Admin, end func(in webhook.Invitation, w store.Write) (any, error)) {
		t.Helper()
		in, code, err := c.invite(owner, "di@example.com", webhook.RoleOwner)
		must(t, err)
		if !c.isOpen(code) {
			t.Errorf("%s: not open at first", about)
		}
		must(t, try(t, s, func(w store.Write) (any, error) { return end(in, w) }))
		_, err = c.accept(code)
		storetest.WantCode(t, err, webhook.CodeNotFound)
		if c.isOpen(code) {
			t.Errorf("%s: still open", about)
		}
	}
	ends("revoked", ana, func(in webhook.Invitation, w store.Write) (any, error) {
		return w.Admins().RevokeInvitation(in.ID)
	})
	ends("the owner is one no more", bo, func(_ webhook.Invitation, w store.Write) (any, error) {
		return w.Admins().SetRole(bo.ID, webhook.RoleViewer)
	})
	must(t, setRole(t, s, bo.ID, webhook.RoleOwner))
	ends("the owner is removed", bo, func(_ webhook.Invitation, w store.Write) (any, error) {
		return w.Admins().Remove(bo.Email)
	})
	ends("an admin with the address", ana, func(in webhook.Invitation, w store.Write) (any, error) {
		return w.Admins().Create(in.Email, webhook.RoleViewer, hashOf("abc"))
	})
}

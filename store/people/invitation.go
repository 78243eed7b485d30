package people

import (
	"context"
	"errors"
	"fmt"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

const (
	invitationColumns = "i.id, i.email, i.role, a.email, i.created_at, i.expires_at"

	selectInvitations = "SELECT " + invitationColumns + " FROM invitations i CROSS JOIN admins a ON a.id = i.invited_by " +
		"WHERE i.expires_at > ? ORDER BY i.created_at DESC, i.id"
	selectInvitation     = "SELECT " + invitationColumns + " FROM invitations i CROSS JOIN admins a ON a.id = i.invited_by WHERE i.hash = ?"
	selectInvitationByID = "SELECT " + invitationColumns + " FROM invitations i CROSS JOIN admins a ON a.id = i.invited_by WHERE i.id = ?"
)

// CreateInvitation creates an invitation by an owner and returns the code of its link: 32 random
// bytes in base64url. It replaces an open invitation of the same address. The error is a
// *webhook.Error if the address or the role is invalid, an admin has the address, or there are
// [webhook.MaxInvitations].
func (w AdminWrites) CreateInvitation(ownerID, email string, role webhook.Role) (webhook.Invitation, string, error) {
	now := w.now().UTC().Truncate(time.Millisecond)
	in := webhook.Invitation{ID: webhook.NewID(), Email: email, Role: role, CreatedAt: now, ExpiresAt: now.Add(webhook.InvitationLife)}
	if err := webhook.Invalid(append(webhook.CheckEmail("email", email), webhook.CheckRole("role", role)...)...); err != nil {
		return in, "", err
	}
	if _, err := w.Get(email); err == nil {
		return in, "", webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidDuplicate, Parameter: "email", Detail: "is the address of an admin already"})
	} else if !errors.As(err, new(*webhook.Error)) {
		return in, "", err
	}
	err := w.t.Exec("DELETE FROM invitations WHERE expires_at <= ? OR email = ?", now.UnixMilli(), email)
	var count int
	if err == nil {
		err = w.t.Scan("SELECT count(*) FROM invitations", nil, &count)
	}
	if err == nil && count >= webhook.MaxInvitations {
		err = webhook.NewError(webhook.CodeConflict, fmt.Sprintf("There are already %d open invitations, the maximum. Revoke one.", count))
	}
	if err != nil {
		return in, "", err
	}
	code, hash := newCode()
	return in, code, w.t.Exec("INSERT INTO invitations (hash, id, email, role, invited_by, created_at, expires_at) "+
		"VALUES (?, ?, ?, ?, ?, ?, ?)", hash[:], in.ID, in.Email, string(in.Role), ownerID, now.UnixMilli(), in.ExpiresAt.UnixMilli())
}

// Invitations returns the open invitations, at most [webhook.MaxInvitations], newest first.
func (s Admins) Invitations(ctx context.Context) ([]webhook.Invitation, error) {
	var all []webhook.Invitation
	err := s.lists.DB.Each(ctx, selectInvitations, []any{s.now().UnixMilli()}, sqlite.ScanInto(&all, scanInvitation))
	return all, err
}

// Invitation returns the open invitation with a code, and false if there is none.
func (s Admins) Invitation(ctx context.Context, code string) (webhook.Invitation, bool, error) {
	in, found, err := bySecret(Reads(s).scan(ctx), selectInvitation, code, scanInvitation)
	return in, found && s.now().Before(in.ExpiresAt), err
}

// AcceptInvitation creates the admin of an open invitation, which ends. The error is a
// *webhook.Error if no invitation with the code is open.
func (w AdminWrites) AcceptInvitation(code string, password webhook.PasswordHash) (webhook.Admin, webhook.Invitation, error) {
	in, found, err := bySecret(w.t.Scan, selectInvitation, code, scanInvitation)
	if err != nil {
		return webhook.Admin{}, in, err
	}
	if !found || !w.now().Before(in.ExpiresAt) {
		return webhook.Admin{}, in, webhook.NotFound("invitation")
	}
	a, err := w.Create(in.Email, in.Role, password) // which removes the invitation
	return a, in, err
}

// RevokeInvitation ends an invitation. The error is a *webhook.Error if none has this ID.
func (w AdminWrites) RevokeInvitation(id string) (webhook.Invitation, error) {
	in, err := scanInvitation(w.t.Row(selectInvitationByID, id))
	if err != nil {
		return in, sqlite.NoRows(err, webhook.NotFound("invitation"))
	}
	return in, w.t.Exec("DELETE FROM invitations WHERE id = ?", id)
}

// scanInvitation reads a row of invitationColumns.
func scanInvitation(scan func(...any) error) (in webhook.Invitation, err error) {
	err = scan(&in.ID, &in.Email, &in.Role, &in.InvitedBy, (*sqlite.Time)(&in.CreatedAt), (*sqlite.Time)(&in.ExpiresAt))
	return in, err
}

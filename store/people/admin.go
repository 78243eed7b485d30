package people

import (
	"context"

	"service/store/sqlite"
	"service/webhook"
)

// A session is active if it was seen after ?1 and expires after ?2.
const (
	adminColumns = "a.id, a.email, a.role, a.created_at, a.signed_in_at, a.password <> '', " +
		"EXISTS (SELECT 1 FROM passkeys p WHERE p.admin_id = a.id), a.oidc_issuer, a.oidc_subject"

	selectAdmins = "SELECT " + adminColumns + ", (SELECT count(*) FROM sessions s WHERE s.admin_id = a.id AND s.seen_at > ?1 " +
		"AND s.expires_at > ?2) FROM admins a ORDER BY a.email"
	selectAdmin       = "SELECT " + adminColumns + ", a.password FROM admins a WHERE a.email = ?"
	selectAdminByID   = "SELECT " + adminColumns + ", a.password FROM admins a WHERE a.id = ?"
	selectAnyAdmin    = "SELECT EXISTS (SELECT 1 FROM admins)"
	selectAdminsCount = "SELECT count(*) FROM admins"
	selectOwnersCount = "SELECT count(*) FROM admins WHERE role = 'owner'"

	// Owners with a password can sign in while an OpenID Connect provider cannot be used.
	selectOtherOwnersCount = "SELECT count(*) FROM admins WHERE role = 'owner' AND password <> '' AND id <> ?"
)

// List returns all admins, at most [webhook.MaxAdmins], ordered by address.
func (s Admins) List(ctx context.Context) ([]webhook.Admin, error) {
	var all []webhook.Admin
	now := s.now()
	err := s.lists.DB.Each(ctx, selectAdmins, []any{now.Add(-webhook.SessionIdle).UnixMilli(), now.UnixMilli()},
		func(scan func(...any) error) error {
			var sessions int
			a, err := scanAdmin(scan, &sessions)
			a.Sessions = sessions
			all = append(all, a)
			return err
		})
	return all, err
}

// Exist reports whether there is an admin.
func (s Admins) Exist(ctx context.Context) (bool, error) {
	var any bool
	err := s.lists.DB.Scan(ctx, selectAnyAdmin, nil, &any)
	return any, err
}

// LastOwner reports whether an admin is an owner, and no other owner has a password.
func (s Admins) LastOwner(ctx context.Context, a *webhook.Admin) (bool, error) {
	if a.Role != webhook.RoleOwner {
		return false, nil
	}
	var others int
	err := s.lists.DB.Scan(ctx, selectOtherOwnersCount, []any{a.ID}, &others)
	return others == 0, err
}

// ByEmail returns the admin with a normalized address, and the hash of the password. The error
// is a *webhook.Error if there is none.
func (s Admins) ByEmail(ctx context.Context, email string) (webhook.Admin, webhook.PasswordHash, error) {
	return s.admin(ctx, selectAdmin, email)
}

// Get returns an admin and the hash of the password. The error is a *webhook.Error if there is
// none.
func (s Admins) Get(ctx context.Context, id string) (webhook.Admin, webhook.PasswordHash, error) {
	return s.admin(ctx, selectAdminByID, id)
}

// admin reads one admin by a query with one parameter.
func (s Admins) admin(ctx context.Context, query, key string) (webhook.Admin, webhook.PasswordHash, error) {
	var hash webhook.PasswordHash
	a, err := scanAdmin(s.lists.DB.Row(ctx, query, key), &hash)
	return a, hash, sqlite.NoRows(err, webhook.NotFound("admin"))
}

// Get returns the admin with an address, as of this write. The error is a *webhook.Error if
// there is none.
func (w AdminWrites) Get(email string) (webhook.Admin, error) {
	a, _, err := w.adminWithPassword(selectAdmin, email)
	return a, err
}

// Create creates an admin and ends an invitation of the address. The error is a
// *webhook.Error if the address is invalid or taken, or if there is no owner yet and the role
// is another.
func (w AdminWrites) Create(email string, role webhook.Role, hash webhook.PasswordHash) (webhook.Admin, error) {
	if err := webhook.Invalid(append(webhook.CheckEmail("email", email), webhook.CheckRole("role", role)...)...); err != nil {
		return webhook.Admin{}, err
	}
	if err := hash.Check(); err != nil {
		return webhook.Admin{}, err
	}
	var owners int
	if err := w.t.Scan(selectOwnersCount, nil, &owners); err != nil {
		return webhook.Admin{}, err
	}
	if owners == 0 && role != webhook.RoleOwner {
		return webhook.Admin{}, webhook.NewError(webhook.CodeConflict, "There is no owner yet: the first admin must have the role owner.")
	}
	return w.insert(email, role, hash, nil)
}

// CreateFirst creates an owner if there is no admin yet. Otherwise the error is a
// *webhook.Error.
func (w AdminWrites) CreateFirst(email string, hash webhook.PasswordHash) (webhook.Admin, error) {
	var any bool
	if err := w.t.Scan(selectAnyAdmin, nil, &any); err != nil {
		return webhook.Admin{}, err
	}
	if any {
		return webhook.Admin{}, webhook.NewError(webhook.CodeConflict, "An admin already exists.")
	}
	return w.Create(email, webhook.RoleOwner, hash)
}

// SetPassword replaces the password of an admin and ends the admin's sessions except the
// session with the ID except ("" for none). It returns how many active sessions it ended.
func (w AdminWrites) SetPassword(adminID string, hash webhook.PasswordHash, except string) (ended int, err error) {
	if err := hash.Check(); err != nil {
		return 0, err
	}
	changed, err := w.t.Affected("UPDATE admins SET password = ? WHERE id = ?", string(hash), adminID)
	if err == nil && changed == 0 {
		err = webhook.NotFound("admin")
	}
	if err != nil {
		return 0, err
	}
	return SessionWrites(w).EndAll(adminID, except)
}

// RefreshPassword stores a newer hash of the same password, unless the password has changed
// since old was read.
func (w AdminWrites) RefreshPassword(adminID string, old, hash webhook.PasswordHash) error {
	return w.t.Exec("UPDATE admins SET password = ? WHERE id = ? AND password = ?", string(hash), adminID, string(old))
}

// Remove removes the admin with an address, with all sessions and the open invitations
// that the admin created. Audit entries of the admin remain. The error is a *webhook.Error if
// there is none, or if it is the last owner.
func (w AdminWrites) Remove(email string) (webhook.Admin, error) {
	a, err := w.Get(email)
	if err == nil {
		err = w.checkOtherOwner(&a)
	}
	if err == nil {
		err = w.t.Exec("DELETE FROM admins WHERE id = ?", a.ID)
	}
	return a, err
}

// SetRole changes the role of an admin, which applies to the next request of open sessions. An
// admin who is no longer an owner loses open invitations. SetRole returns the admin from before
// the change. The error is a *webhook.Error if there is none, or if it is the last owner.
func (w AdminWrites) SetRole(adminID string, role webhook.Role) (webhook.Admin, error) {
	if err := webhook.Invalid(webhook.CheckRole("role", role)...); err != nil {
		return webhook.Admin{}, err
	}
	a, _, err := w.adminWithPassword(selectAdminByID, adminID)
	if err != nil {
		return a, err
	}
	if role != webhook.RoleOwner {
		if err := w.checkOtherOwner(&a); err != nil {
			return a, err
		}
		if err := w.t.Exec("DELETE FROM invitations WHERE invited_by = ?", a.ID); err != nil {
			return a, err
		}
	}
	return a, w.t.Exec("UPDATE admins SET role = ? WHERE id = ?", string(role), a.ID)
}

// checkOtherOwner returns a *webhook.Error if an admin is the last owner.
func (w AdminWrites) checkOtherOwner(a *webhook.Admin) error {
	if a.Role != webhook.RoleOwner {
		return nil
	}
	var others int
	err := w.t.Scan(selectOtherOwnersCount, []any{a.ID}, &others)
	if err != nil || others > 0 {
		return err
	}
	var owners int
	if err := w.t.Scan(selectOwnersCount, nil, &owners); err != nil {
		return err
	}
	if owners <= 1 {
		return webhook.NewError(webhook.CodeConflict, a.Email+" is the last owner. Make another admin an owner first.")
	}
	return webhook.NewError(webhook.CodeConflict, a.Email+" is the last owner with a password. Give another owner a password first: "+
		"service admin reset-password.")
}

// scanAdmin reads a row of adminColumns and one more column.
func scanAdmin(scan func(...any) error, more any) (a webhook.Admin, err error) {
	err = scan(&a.ID, &a.Email, &a.Role, (*sqlite.Time)(&a.CreatedAt), (*sqlite.Time)(&a.SignedInAt), &a.HasPassword, &a.HasPasskey,
		sqlite.OrZero(&a.OIDCIssuer), sqlite.OrZero(&a.OIDCSubject), more)
	return a, err
}

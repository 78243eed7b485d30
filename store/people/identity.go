package people

import (
	"errors"
	"fmt"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

const selectAdminByIdentity = "SELECT " + adminColumns + ", a.password FROM admins a INDEXED BY admins_by_identity " +
	"WHERE a.oidc_issuer = ? AND a.oidc_subject = ?"

// Admission describes how an identity became an admin.
type Admission struct {
	Admin    webhook.Admin
	Password webhook.PasswordHash // of the admin; "" for none
	Created  bool                 // the admin is new
	Linked   bool                 // the admin existed, and got the identity
	Renamed  bool                 // the admin got the address of the identity
	Before   webhook.Role         // the role before, "" for a new admin

	// The access that ended because the provider gave a higher role.
	HadPassword bool
	Passkeys    int
	Sessions    int // active ones
}

// AdmitIdentity returns the admin of an identity, with the role of the identity. An admin with
// the same address gets the identity, if the provider has verified the address. If there is
// none, it creates an admin without a password. The error is a *webhook.Error if the identity
// has no role or no valid address, if its address belongs to another admin, if the provider says
// that it is unverified, or says neither and it belongs to an admin or an open invitation, or if
// the last owner with a password would lose that role.
func (w AdminWrites) AdmitIdentity(id webhook.Identity) (Admission, error) {
	if v := webhook.CheckRole("role", id.Role); v != nil {
		return Admission{}, webhook.Invalid(v...)
	}
	admin, hash, err := w.adminByIdentity(id)
	switch {
	case err == nil:
		return w.renewIdentity(Admission{Admin: admin, Password: hash, Before: admin.Role}, id)
	case !errors.As(err, new(*webhook.Error)):
		return Admission{}, err
	}
	if v := webhook.CheckEmail("email", id.Email); v != nil {
		return Admission{}, webhook.NewError(webhook.CodeConflict,
			"The provider sends no valid email address for this account. It must be in the claim email.")
	}
	if id.EmailRefuted {
		return Admission{}, unverifiedEmail(id.Email, "")
	}
	admin, hash, err = w.adminWithPassword(selectAdmin, id.Email)
	switch {
	case err == nil:
		return w.linkIdentity(Admission{Admin: admin, Password: hash, Linked: true, Before: admin.Role}, id)
	case !errors.As(err, new(*webhook.Error)):
		return Admission{}, err
	}
	if !id.EmailVerified {
		var invited bool
		err := w.t.Scan("SELECT EXISTS (SELECT 1 FROM invitations WHERE email = ? AND expires_at > ?)",
			[]any{id.Email, w.now().UnixMilli()}, &invited)
		if err != nil {
			return Admission{}, err
		}
		if invited {
			return Admission{}, unverifiedEmail(id.Email, "an open invitation")
		}
	}
	admin, err = w.insert(id.Email, id.Role, "", &id)
	return Admission{Admin: admin, Created: true}, err
}

// adminByIdentity returns the admin with an identity. The error is a *webhook.Error if there is
// none.
func (w AdminWrites) adminByIdentity(id webhook.Identity) (webhook.Admin, webhook.PasswordHash, error) {
	return w.adminWithPassword(selectAdminByIdentity, id.Issuer, id.Subject)
}

// adminWithPassword reads one admin and the hash of the password.
func (w AdminWrites) adminWithPassword(query string, key ...any) (webhook.Admin, webhook.PasswordHash, error) {
	var hash webhook.PasswordHash
	a, err := scanAdmin(w.t.Row(query, key...), &hash)
	return a, hash, sqlite.NoRows(err, webhook.NotFound("admin"))
}

// linkIdentity gives an identity to the admin with its address.
func (w AdminWrites) linkIdentity(a Admission, id webhook.Identity) (Admission, error) {
	switch {
	case !id.EmailVerified:
		return a, unverifiedEmail(id.Email, "an admin")
	case a.Admin.OIDCIssuer == id.Issuer:
		// Providers reassign the address of a person who left.
		return a, webhook.NewError(webhook.CodeConflict, "The admin "+id.Email+" is another account at the provider. "+
			"If that account is gone, an owner must remove the admin first.")
	}
	err := w.t.Exec("UPDATE admins SET oidc_issuer = ?, oidc_subject = ? WHERE id = ?", id.Issuer, id.Subject, a.Admin.ID)
	if err != nil {
		return a, err
	}
	a.Admin.OIDCIssuer, a.Admin.OIDCSubject = id.Issuer, id.Subject
	return w.renewIdentity(a, id)
}

// renewIdentity updates the role and the address of an admin from the identity. The address
// remains if the new one is unverified, invalid or taken.
func (w AdminWrites) renewIdentity(a Admission, id webhook.Identity) (Admission, error) {
	if a.Admin.Role != id.Role {
		before, err := w.SetRole(a.Admin.ID, id.Role)
		if errors.As(err, new(*webhook.Error)) {
			// A sign-in never gives more than the provider grants.
			err = webhook.NewError(webhook.CodeConflict, "The provider grants the role "+string(id.Role)+", but "+before.Email+
				" is the last owner with a password, who cannot get another role. Sign in with the password, "+
				"or give another owner a password first.")
		}
		if err != nil {
			return a, err
		}
		a.Admin.Role = id.Role
	}
	if a.Admin.Role != a.Before && a.Admin.Role.Allows(a.Before) {
		if err := w.endOldAccess(&a); err != nil {
			return a, err
		}
	}
	if !id.EmailVerified || id.Email == a.Admin.Email || webhook.CheckEmail("email", id.Email) != nil {
		return a, nil
	}
	changed, err := w.t.Affected("UPDATE OR IGNORE admins SET email = ? WHERE id = ?", id.Email, a.Admin.ID)
	if err == nil && changed > 0 {
		a.Admin.Email, a.Renamed = id.Email, true
	}
	return a, err
}

// endOldAccess removes the password, the passkeys and the sessions of an admin whom the provider
// gave a higher role. They may belong to another person who had the address before, and must not
// get the new role. No role is higher than owner, so an owner's password remains.
func (w AdminWrites) endOldAccess(a *Admission) (err error) {
	if a.Sessions, err = SessionWrites(w).EndAll(a.Admin.ID, ""); err != nil {
		return err
	}
	if a.Passkeys, err = PasskeyWrites(w).RemoveAll(a.Admin.ID); err != nil {
		return err
	}
	a.HadPassword = a.Password != ""
	a.Password, a.Admin.HasPassword, a.Admin.HasPasskey = "", false, false
	return w.t.Exec("UPDATE admins SET password = '' WHERE id = ?", a.Admin.ID)
}

// unverifiedEmail returns the error for an unverified address. of names who the address belongs
// to; "" omits it.
func unverifiedEmail(email, of string) error {
	if of != "" {
		email += ", which belongs to " + of
	}
	return webhook.NewError(webhook.CodeConflict, "The provider has not verified the address "+email+
		". It must send the claim email_verified with the value true.")
}

// RefuseIdentity ends the sessions and the invitations of the admin of an identity that no longer
// has a role. It returns the admin, and false if there is none.
func (w AdminWrites) RefuseIdentity(id webhook.Identity) (a webhook.Admin, ended int, known bool, err error) {
	a, _, err = w.adminByIdentity(id)
	if errors.As(err, new(*webhook.Error)) {
		return a, 0, false, nil
	}
	if err == nil {
		ended, err = SessionWrites(w).EndAll(a.ID, "")
	}
	if err == nil {
		err = w.t.Exec("DELETE FROM invitations WHERE invited_by = ?", a.ID)
	}
	return a, ended, err == nil, err
}

// insert creates an admin with a password or an identity, and ends an invitation of the
// address. The error is a *webhook.Error if the address is taken or there are
// [webhook.MaxAdmins].
func (w AdminWrites) insert(email string, role webhook.Role, hash webhook.PasswordHash, id *webhook.Identity) (webhook.Admin, error) {
	var count int
	if err := w.t.Scan(selectAdminsCount, nil, &count); err != nil {
		return webhook.Admin{}, err
	}
	if count >= webhook.MaxAdmins {
		return webhook.Admin{}, webhook.NewError(webhook.CodeConflict, fmt.Sprintf("There are already %d admins, the maximum.", count))
	}
	now := w.now().UTC().Truncate(time.Millisecond)
	a := webhook.Admin{ID: webhook.NewID(), Email: email, Role: role, CreatedAt: now, HasPassword: hash != ""}
	if id != nil {
		a.OIDCIssuer, a.OIDCSubject = id.Issuer, id.Subject
	}
	made, err := w.t.Affected("INSERT INTO admins (id, email, role, password, created_at, oidc_issuer, oidc_subject) "+
		"VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (email) DO NOTHING",
		a.ID, a.Email, string(a.Role), string(hash), now.UnixMilli(), sqlite.OrNull(a.OIDCIssuer), sqlite.OrNull(a.OIDCSubject))
	if err == nil && made == 0 {
		err = webhook.NewError(webhook.CodeConflict, "An admin with the address "+email+" already exists.")
	}
	if err == nil {
		err = w.t.Exec("DELETE FROM invitations WHERE email = ?", email)
	}
	return a, err
}

package api

import (
	"service/store"
	"service/webhook"
)

// AdminRequest names an admin by email address. Role applies to a new admin only, and a missing
// password hash keeps the password.
type AdminRequest struct {
	Email string               `json:"email"`
	Role  webhook.Role         `json:"role,omitempty"`
	Hash  webhook.PasswordHash `json:"password_hash,omitempty"`

	RemovePasskeys bool `json:"remove_passkeys,omitempty"` // with a new password
}

// PasswordReset is the result of setting a new password.
type PasswordReset struct {
	Sessions        int `json:"sessions"`         // that ended
	RemovedPasskeys int `json:"removed_passkeys"` // of the admin
	Passkeys        int `json:"passkeys"`         // that remain
}

func (cfg OwnerConfig) admins(req *request) (answer, error) {
	all, err := req.api.store.Admins().List(req.ctx)
	return answer{data: all}, err
}

func (cfg OwnerConfig) createAdmin(req *request, in *AdminRequest) (answer, error) {
	var admin webhook.Admin
	err := req.api.store.Write(req.ctx, func(w store.Write) (err error) {
		if admin, err = w.Admins().Create(in.Email, in.Role, in.Hash); err != nil {
			return err
		}
		return req.audit(w, webhook.ActionAdminCreate, "", admin.ID, in.Email+" as "+string(in.Role))
	})
	cfg.changed(in.Email)
	return answer{data: admin}, err
}

// changed tells the server about an admin that may have changed.
func (cfg OwnerConfig) changed(email string) {
	if cfg.AdminsChanged != nil {
		cfg.AdminsChanged(email)
	}
}

// resetPassword sets a new password and ends the admin's sessions. It also removes the admin's
// passkeys if the request says so.
func (cfg OwnerConfig) resetPassword(req *request, in *AdminRequest) (answer, error) {
	var did PasswordReset
	err := req.api.store.Write(req.ctx, func(w store.Write) error {
		admin, err := w.Admins().Get(in.Email)
		if err != nil {
			return err
		}
		did = PasswordReset{}
		if did.Sessions, err = w.Admins().SetPassword(admin.ID, in.Hash, ""); err != nil {
			return err
		}
		detail := in.Email + "; ended " + webhook.Count(did.Sessions, "session")
		if in.RemovePasskeys {
			if did.RemovedPasskeys, err = w.Passkeys().RemoveAll(admin.ID); err != nil {
				return err
			}
			detail += "; removed " + webhook.Count(did.RemovedPasskeys, "passkey")
		}
		if did.Passkeys, err = w.Passkeys().Count(admin.ID); err != nil {
			return err
		}
		return req.audit(w, webhook.ActionAdminPassword, "", admin.ID, detail)
	})
	cfg.changed(in.Email)
	return answer{data: did}, err
}

func (cfg OwnerConfig) removeAdmin(req *request, in *AdminRequest) (answer, error) {
	return answer{}, req.api.store.Write(req.ctx, func(w store.Write) error {
		admin, err := w.Admins().Remove(in.Email)
		if err != nil {
			return err
		}
		return req.audit(w, webhook.ActionAdminRemove, "", admin.ID, in.Email)
	})
}

// endSessions ends the sessions of one admin, or all sessions without an email address, and returns
// their number.
func (cfg OwnerConfig) endSessions(req *request, in *AdminRequest) (answer, error) {
	all, err := req.api.store.Admins().List(req.ctx)
	if err != nil {
		return answer{}, err
	}
	found, ended := in.Email == "", 0
	err = req.api.store.Write(req.ctx, func(w store.Write) error {
		for _, admin := range all {
			if in.Email != "" && admin.Email != in.Email {
				continue
			}
			found = true
			n, err := w.Sessions().EndAll(admin.ID, "")
			if err != nil {
				return err
			}
			ended += n
			if n > 0 {
				detail := "from the command line: ended " + webhook.Count(n, "session")
				if err := req.audit(w, webhook.ActionSessionEnd, "", admin.ID, detail); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil && !found {
		err = webhook.NotFound("admin")
	}
	return answer{data: ended}, err
}

package web

import (
	"net/http"
	"slices"

	"service/internal/ratelimit"
	"service/store"
	"service/web/hashing"
	"service/web/once"
	"service/web/ui"
	"service/webhook"
)

// accountPages are the pages of an admin's own account: password, sessions and preferences.
type accountPages struct {
	*site
	sessions *sessions
	limiter  *ratelimit.Limiter
	hasher   *hashing.Queue

	challenges *once.Challenges
}

// passkeyPasswordField is the ID of the field for the password in the form that adds a passkey.
const passkeyPasswordField = "passkey-password"

// accountView is the page of the admin's own account.
type accountView struct {
	session  webhook.Session // the current one
	sessions []webhook.Session
	errors   []ui.FieldError // of the forms
	passkeys []webhook.Passkey

	noPasskey string // why no passkey can be added at this address, "" if one can

	password bool   // the admin has a password that can be used
	provider string // name of the OpenID Connect provider, "" for none
}

// passkeyErrors are the errors of the form that adds a passkey.
func (a *accountView) passkeyErrors() []ui.FieldError {
	return slices.DeleteFunc(slices.Clone(a.errors), func(e ui.FieldError) bool { return e.ID != passkeyPasswordField })
}

// passwordErrors are the errors of the form that changes the password.
func (a *accountView) passwordErrors() []ui.FieldError {
	return slices.DeleteFunc(slices.Clone(a.errors), func(e ui.FieldError) bool { return e.ID == passkeyPasswordField })
}

func (h *accountPages) show(r *request) (response, error) {
	return h.render(r, http.StatusOK, nil)
}

func (h *accountPages) render(r *request, status int, wrong []ui.FieldError) (response, error) {
	all, err := h.store.Sessions().List(r.Context(), r.session.AdminID)
	if err != nil {
		return response{}, err
	}
	v := &accountView{session: r.session, sessions: all, errors: wrong, provider: h.providerName()}
	if v.passkeys, err = h.store.Admins().Passkeys(r.Context(), r.session.AdminID); err != nil {
		return response{}, err
	}
	_, v.noPasskey = h.relyingParty(r)
	admin, _, err := h.store.Admins().Get(r.Context(), r.session.AdminID)
	if err != nil {
		return response{}, asProblem(err)
	}
	v.password = admin.HasPassword && h.localSignInAllowed(&admin)
	return response{page: accountPage(h.frame(r, "Account"), v), status: status}, nil
}

// changePassword changes the password, which needs the current one. It ends all other sessions of
// the admin and replaces the current session.
func (h *accountPages) changePassword(r *request) (response, error) {
	form := r.PostForm
	wrong := checkNewPassword(form.Get("password"), form.Get("again"))
	if form.Get("current") == "" {
		wrong = append([]webhook.Validation{{Code: webhook.InvalidRequired, Parameter: "current", Detail: "is required"}}, wrong...)
	}
	if wrong != nil {
		return h.render(r, http.StatusUnprocessableEntity, ui.FieldErrors(validationError(wrong), passwordFields()))
	}
	var newer webhook.PasswordHash
	admin, hash, right, err := h.confirmPassword(r, form.Get("current"), func() { newer = webhook.HashPassword(form.Get("password")) })
	if err != nil {
		return response{}, err
	}
	if !right {
		return h.render(r, http.StatusUnprocessableEntity, []ui.FieldError{{ID: "current", Label: "Current password", Text: "is wrong"}})
	}
	ended, secret := 0, ""
	err = h.store.Write(r, func(sw store.Write) (err error) {
		if secret, err = h.sessions.create(sw, r, admin, hash); err != nil {
			return err
		}
		if ended, err = sw.Admins().SetPassword(admin.ID, newer, r.session.ID); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionAdminPassword, "", admin.ID, "changed; "+webhook.Count(ended, "other session")+" ended"))
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	said := &ui.Note{Kind: ui.NoteSuccess, Text: "Password changed. " + webhook.Count(ended, "other session") + " ended."}
	return response{location: "/account", cookies: h.sessions.cookies(r, secret), note: said}, nil
}

// revokeSession ends one session of the admin.
func (h *accountPages) revokeSession(r *request) (response, error) {
	id := r.PathValue("id")
	err := h.store.Write(r, func(sw store.Write) error {
		if err := sw.Sessions().Revoke(r.session.AdminID, id); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", r.session.AdminID, "revoked one session"))
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	if id == r.session.ID {
		return response{location: "/sign-in", cookies: []*http.Cookie{h.sessions.cookie(sessionCookie, "", -1)}}, nil
	}
	return done("/account#sessions", "Session revoked.")
}

// signOutEverywhere ends all sessions of the admin, including the current one.
func (h *accountPages) signOutEverywhere(r *request) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error {
		ended, err := sw.Sessions().EndAll(r.session.AdminID, "")
		if err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", r.session.AdminID, "signed out everywhere: "+webhook.Count(ended, "session")))
	})
	if err != nil {
		return response{}, err
	}
	return response{location: "/sign-in", cookies: []*http.Cookie{h.sessions.cookie(sessionCookie, "", -1)}}, nil
}

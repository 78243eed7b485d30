package web

import (
	"net/http"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// setupForm is the form that creates the first admin.
type setupForm struct {
	action string
	email  string // as typed
	errors []ui.FieldError
}

// checkSetup returns the code of a setup link, or a problem when the link is invalid.
func (h *signInPages) checkSetup(r *request) (string, error) {
	code := r.PathValue("code")
	any, err := h.store.Admins().Exist(r.Context())
	if err != nil {
		return "", err
	}
	if any || !h.setupCodes.ok(code) {
		p := invalidLink()
		if !any {
			p.text += " To print a new link, run this on the server:"
			p.command, p.after = h.setupLinkCommand(), dataFlagHint
		}
		return "", p
	}
	return code, nil
}

// newFirstAdmin shows the form of the first admin. The link stays valid.
func (h *signInPages) newFirstAdmin(r *request) (response, error) {
	code, err := h.checkSetup(r)
	if err != nil {
		return response{}, err
	}
	return h.renderSetup(r, http.StatusOK, setupForm{action: "/setup/" + code}), nil
}

func (h *signInPages) renderSetup(r *request, status int, s setupForm) response {
	return response{page: setupPage(h.frame(r, "Create the first admin"), s), status: status, secret: true}
}

// createFirstAdmin creates the first admin and signs in.
func (h *signInPages) createFirstAdmin(r *request) (response, error) {
	code, err := h.checkSetup(r)
	if err != nil {
		return response{}, err
	}
	form, err := r.form()
	if err != nil {
		return response{}, err
	}
	s := setupForm{action: "/setup/" + code, email: form.Get("email")}
	email := webhook.NormalizeEmail(s.email)
	wrong := webhook.CheckEmail("email", email)
	s.errors = ui.FieldErrors(validationError(append(wrong, checkNewPassword(form.Get("password"), form.Get("again"))...)), passwordFields())
	if s.errors != nil {
		return h.renderSetup(r, http.StatusUnprocessableEntity, s), nil
	}
	var hash webhook.PasswordHash
	if err := h.hasher.do(r.Context(), knownDevice, func() { hash = webhook.HashPassword(form.Get("password")) }); err != nil {
		return response{}, tooBusy(err)
	}
	var secret string
	err = h.store.Write(r.Context(), func(sw store.Write) error {
		admin, err := sw.CreateFirstAdmin(email, hash)
		if err != nil {
			return err
		}
		if secret, err = h.sessions.create(sw, r, admin, hash); err != nil {
			return err
		}
		if err := sw.Audit(r.entry(webhook.ActionAdminCreate, "", admin.ID, "first admin, created through the setup link")); err != nil {
			return err
		}
		return sw.Audit(r.signInEntry())
	})
	if isCallerError(err) { // another request was first
		return response{}, invalidLink()
	}
	if err != nil {
		return response{}, unavailable(err)
	}
	h.setupCodes.clear()
	return response{location: "/", cookies: h.sessions.cookies(r, secret)}, nil
}

// checkNewPassword returns the faults of a new password that was typed twice.
func checkNewPassword(password, again string) []webhook.Validation {
	wrong := webhook.CheckPassword("password", password)
	if wrong == nil && password != again {
		wrong = []webhook.Validation{{Code: webhook.InvalidValue, Parameter: "again", Detail: "must match the password"}}
	}
	return wrong
}

func passwordFields() map[string][2]string {
	return map[string][2]string{
		"email": {"email", "Email"}, "current": {"current", "Current password"},
		"password": {"password", "Password"}, "again": {"again", "Repeat password"},
	}
}

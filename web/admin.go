package web

import (
	"net/http"
	"net/url"
	"strings"

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

// checkSetup returns the code of a setup link, or a problem if the link is invalid.
func (h *signInPages) checkSetup(r *request) (string, error) {
	code := r.PathValue("code")
	any, err := h.store.Admins().Exist(r.Context())
	if err != nil {
		return "", err
	}
	if any || !h.setupCodes.Valid(code) {
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
	form := r.PostForm
	s := setupForm{action: "/setup/" + code, email: form.Get("email")}
	email := webhook.NormalizeEmail(s.email)
	wrong := webhook.CheckEmail("email", email)
	s.errors = ui.FieldErrors(validationError(append(wrong, checkNewPassword(form.Get("password"), form.Get("again"))...)), passwordFields())
	if s.errors != nil {
		return h.renderSetup(r, http.StatusUnprocessableEntity, s), nil
	}
	a, err := h.signUp(r, form.Get("password"), func(sw store.Write, hash webhook.PasswordHash) (webhook.Admin, string, error) {
		admin, err := sw.Admins().CreateFirst(email, hash)
		return admin, "first admin, created through the setup link", err
	})
	if isCallerError(err) { // another request was faster
		return response{}, invalidLink()
	}
	if err == nil {
		h.setupCodes.Clear()
	}
	return a, err
}

// adminPages are the pages of admins and of invitations.
type adminPages struct{ *site }

// adminPath returns the path of the admin page.
func adminPath(id string) string { return "/admins/" + url.PathEscape(id) }

// roleMeanings describe what each role allows.
var roleMeanings = map[webhook.Role]string{
	webhook.RoleViewer:   "Sees everything but secrets, and changes nothing.",
	webhook.RoleOperator: "Everything a viewer can do, plus manage subscriptions, deliveries, events and replays.",
	webhook.RoleOwner: "Everything an operator can do, plus manage programs, portal links, tokens, alert channels and admins, " +
		"and resume deliveries after a restore.",
}

// roleOptions are the choices of a field for a role.
func roleOptions() (all []ui.Option) {
	for _, r := range webhook.Roles() {
		all = append(all, ui.Option{Value: string(r), Label: string(r)})
	}
	return all
}

// adminList is the page of all admins and open invitations.
type adminList struct {
	admins      []webhook.Admin
	invitations []webhook.Invitation
	own         string // ID of the admin who views the page
	same        string // the command that prints the same list
}

func (h *adminPages) list(r *request) (response, error) {
	l := adminList{own: r.session.AdminID, same: h.command("admin list")}
	var err error
	if l.admins, err = h.store.Admins().List(r.Context()); err != nil {
		return response{}, err
	}
	if l.invitations, err = h.store.Admins().Invitations(r.Context()); err != nil {
		return response{}, err
	}
	return response{page: adminsPage(h.frame(r, "Admins"), &l)}, nil
}

// adminView is the page of one admin.
type adminView struct {
	webhook.Admin
	sessions  []webhook.Session
	own       string // ID of the session that views the page
	passkeys  []webhook.Passkey
	lastOwner bool // no other owner has a password

	provider   string // name of the OpenID Connect provider, "" for none
	signInHint string // why a way to sign in cannot be used now, "" when each can
}

// get reads the admin of the path.
func (h *adminPages) get(r *request) (webhook.Admin, error) {
	a, _, err := h.store.Admins().Get(r.Context(), r.PathValue("id"))
	return a, asProblem(err)
}

// find is get with what the page shows.
func (h *adminPages) find(r *request) (*adminView, error) {
	a, err := h.get(r)
	if err != nil {
		return nil, err
	}
	v := &adminView{Admin: a, own: r.session.ID, provider: h.providerName()}
	switch {
	case (a.HasPassword || a.HasPasskey) && !h.localSignInAllowed(&a):
		v.signInHint = "While OpenID Connect is on, only owners with a password use passwords and passkeys."
	case a.OIDCSubject != "" && (h.cfg.OIDC == nil || h.cfg.OIDC.Issuer() != a.OIDCIssuer):
		v.signInHint = "This provider is not configured any more."
	}
	if v.lastOwner, err = h.store.Admins().LastOwner(r.Context(), &a); err != nil {
		return nil, err
	}
	if v.passkeys, err = h.store.Admins().Passkeys(r.Context(), a.ID); err != nil {
		return nil, err
	}
	v.sessions, err = h.store.Sessions().List(r.Context(), a.ID)
	return v, err
}

func (h *adminPages) show(r *request, v *adminView) (response, error) {
	return response{page: adminPage(h.frame(r, ui.Visible(v.Email)), v)}, nil
}

// setRole changes the role of an admin. It applies to the next request of open sessions.
func (h *adminPages) setRole(r *request) (response, error) {
	form := r.PostForm
	role := webhook.Role(form.Get("role"))
	var before webhook.Admin
	err := h.store.Write(r, func(sw store.Write) (err error) {
		if before, err = sw.Admins().SetRole(r.PathValue("id"), role); err != nil || before.Role == role {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionAdminRole, "", before.ID, before.Email+": from "+string(before.Role)+" to "+string(role)))
	})
	return saved(err, adminPath(before.ID), before.Email+" now has the role "+string(role)+".")
}

// endSessions ends all sessions of an admin.
func (h *adminPages) endSessions(r *request, a webhook.Admin) (response, error) {
	ended := 0
	err := h.store.Write(r, func(sw store.Write) (err error) {
		if ended, err = sw.Sessions().EndAll(a.ID, ""); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", a.ID, "of "+a.Email+": "+webhook.Count(ended, "session")))
	})
	return saved(err, adminPath(a.ID), "Ended "+webhook.Count(ended, "session")+" of "+a.Email+".")
}

func (h *adminPages) confirmRemove(r *request, v *adminView) (response, error) {
	return response{page: adminRemovePage(h.frame(r, "Remove "+ui.Visible(v.Email)), v)}, nil
}

// remove removes an admin, with all sessions.
func (h *adminPages) remove(r *request, a webhook.Admin) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error {
		if _, err := sw.Admins().Remove(a.Email); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionAdminRemove, "", a.ID, a.Email))
	})
	return saved(err, "/admins", "Removed "+a.Email+".")
}

// checkNewPassword returns the validations of a new password and its repetition.
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

// signInMethods says how an admin can sign in.
func signInMethods(a *webhook.Admin) string {
	var all []string
	if a.HasPassword {
		all = append(all, "password")
	}
	if a.HasPasskey {
		all = append(all, "passkey")
	}
	if a.OIDCSubject != "" {
		all = append(all, "OpenID Connect")
	}
	return strings.Join(all, ", ")
}

// identityPath returns the address that leads to the OpenID Connect provider, and then to
// next.
func identityPath(next string) string {
	if next == "/" {
		return "/sign-in/oidc"
	}
	return "/sign-in/oidc?" + url.Values{"next": {next}}.Encode()
}

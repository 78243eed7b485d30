package web

import (
	"net/http"
	"strings"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// invitationForm is the form that invites an admin.
type invitationForm struct {
	email  string // as typed
	role   string
	errors []ui.FieldError

	provider string // name of the OpenID Connect provider, "" for none
}

func invitationFields() map[string][2]string {
	return map[string][2]string{"email": {"email", "Email"}, "role": {"role", "Role"}}
}

func (h *adminPages) inviteForm(r *request) (response, error) {
	f := invitationForm{role: string(webhook.RoleViewer)}
	if h.cfg.OIDC != nil {
		f.role = string(webhook.RoleOwner)
	}
	return h.renderInvite(r, http.StatusOK, &f), nil
}

func (h *adminPages) renderInvite(r *request, status int, f *invitationForm) response {
	f.provider = h.providerName()
	return response{page: invitePage(h.frame(r, "Invite admin"), f), status: status}
}

// invite creates an invitation. The response shows its link, once.
func (h *adminPages) invite(r *request) (response, error) {
	form := r.PostForm
	f := invitationForm{email: strings.TrimSpace(form.Get("email")), role: form.Get("role")}
	if h.cfg.OIDC != nil && webhook.Role(f.role).Allows(webhook.RoleViewer) && f.role != string(webhook.RoleOwner) {
		f.errors = []ui.FieldError{{ID: "role", Label: "Role", Text: "must be owner: viewers and operators sign in with " + h.providerName() +
			", which decides their role"}}
		return h.renderInvite(r, http.StatusUnprocessableEntity, &f), nil
	}
	var in webhook.Invitation
	var code string
	err := h.store.Write(r, func(sw store.Write) (err error) {
		in, code, err = sw.Admins().CreateInvitation(r.session.AdminID, webhook.NormalizeEmail(f.email), webhook.Role(f.role))
		if err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionAdminInvite, "", in.ID, in.Email+" as "+string(in.Role)))
	})
	if f.errors = ui.FieldErrors(err, invitationFields()); f.errors != nil {
		if len(f.email) > ui.MaxVisible {
			f.email = ""
		}
		return h.renderInvite(r, http.StatusUnprocessableEntity, &f), nil
	}
	if err != nil {
		return response{}, err
	}
	return response{page: invitedPage(h.frame(r, "Invitation created"), &in, h.cfg.BaseURL+"/invitation/"+code), secret: true}, nil
}

// revokeInvitation ends an open invitation.
func (h *adminPages) revokeInvitation(r *request) (response, error) {
	var in webhook.Invitation
	err := h.store.Write(r, func(sw store.Write) (err error) {
		if in, err = sw.Admins().RevokeInvitation(r.PathValue("id")); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionAdminRevokeInvitation, "", in.ID, in.Email+" as "+string(in.Role)))
	})
	return saved(err, "/admins", "Revoked the invitation of "+in.Email+". Its link no longer works.")
}

// acceptForm is the form that an invited person fills in.
type acceptForm struct {
	action     string
	invitation webhook.Invitation
	errors     []ui.FieldError
}

// invitation returns the open invitation of the link, or a problem if the link is invalid.
func (h *signInPages) invitation(r *request) (*acceptForm, error) {
	code := r.PathValue("code")
	in, open, err := h.store.Admins().Invitation(r.Context(), code)
	if err != nil {
		return nil, err
	}
	if !open {
		return nil, invalidInvitation()
	}
	if !h.localSignInAllowed(&webhook.Admin{Role: in.Role, HasPassword: true}) {
		return nil, &problem{status: http.StatusForbidden, title: "Sign in with " + h.providerName(),
			text: "Since this invitation was created, only owners sign in with a password. Sign in with " + h.providerName() +
				", which decides your role."}
	}
	return &acceptForm{action: "/invitation/" + code, invitation: in}, nil
}

// invalidInvitation returns one problem for a link that was used, has expired, was revoked or never
// existed.
func invalidInvitation() *problem {
	return &problem{
		status: http.StatusNotFound,
		title:  "This invitation is not valid",
		text:   "An invitation works once, within 72 hours, and can be revoked. Ask an owner for a new one.",
	}
}

// showInvitation shows only a button, see followPage.
func (h *signInPages) showInvitation(r *request) (response, error) {
	f, err := h.invitation(r)
	if err != nil {
		return response{}, err
	}
	return response{page: followPage(h.frame(r, "Invitation"),
		"You are invited to the admin UI of this service. Continue to choose a password.", f.action, "Continue"), secret: true}, nil
}

// acceptInvitation shows the form for a password or, given a password, creates the admin and signs
// in.
func (h *signInPages) acceptInvitation(r *request) (response, error) {
	f, err := h.invitation(r)
	if err != nil {
		return response{}, err
	}
	form := r.PostForm
	if !form.Has("password") {
		return h.renderAccept(r, http.StatusOK, f), nil
	}
	f.errors = ui.FieldErrors(validationError(checkNewPassword(form.Get("password"), form.Get("again"))), passwordFields())
	if f.errors != nil {
		return h.renderAccept(r, http.StatusUnprocessableEntity, f), nil
	}
	a, err := h.signUp(r, form.Get("password"), func(sw store.Write, hash webhook.PasswordHash) (webhook.Admin, string, error) {
		admin, in, err := sw.Admins().AcceptInvitation(r.PathValue("code"), hash)
		return admin, string(admin.Role) + ", invited by " + in.InvitedBy, err
	})
	if isCallerError(err) { // another request was faster, or the invitation was revoked
		return response{}, invalidInvitation()
	}
	return a, err
}

func (h *signInPages) renderAccept(r *request, status int, f *acceptForm) response {
	return response{page: acceptPage(h.frame(r, "Choose a password"), f), status: status, secret: true}
}

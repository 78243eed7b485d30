package web

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// NewSetupLink returns the path of a link to the form that makes the first
// admin, once, within 30 minutes. Whoever has it is an admin: it is for the
// terminal of the operator and never for the log. While there is an admin no
// such link is good.
func (w *Web) NewSetupLink() string { return "/setup/" + w.setup.issue("") }

// AdminsChanged is to be called when an admin was made, or given another
// password, by somebody else: the setup links end, and the tries of strangers
// to sign in with that address are forgiven.
func (w *Web) AdminsChanged(email string) {
	w.setup.clear()
	w.throttle.forget(adminLimit(), email)
}

// setupForm is the form of the first admin.
type setupForm struct {
	action string
	email  string // as it was typed
	faults []ui.FieldError
}

// goodSetup returns the code of a setup link, or a problem when it is not good.
func (w *Web) goodSetup(r *request) (string, error) {
	code := r.PathValue("code")
	any, err := w.cfg.Store.HasAdmins(r.Context())
	if err != nil {
		return "", err
	}
	if any || !w.setup.good(code) {
		p := badLink()
		if !any {
			p.text += " Ask the running service for a new one, in a terminal on its machine:"
			p.command = w.command("admin setup-link")
		}
		return "", p
	}
	return code, nil
}

// askForAdmin shows the form of the first admin, which does not use the link up.
func (w *Web) askForAdmin(r *request) (answer, error) {
	code, err := w.goodSetup(r)
	if err != nil {
		return answer{}, err
	}
	return w.askForAdminAgain(r, http.StatusOK, setupForm{action: "/setup/" + code}), nil
}

func (w *Web) askForAdminAgain(r *request, status int, s setupForm) answer {
	return answer{page: setupPage(w.frame(r, "The first admin"), s), status: status, secret: true}
}

// createFirstAdmin makes the first admin and signs in.
func (w *Web) createFirstAdmin(r *request) (answer, error) {
	code, err := w.goodSetup(r)
	if err != nil {
		return answer{}, err
	}
	form, err := r.form()
	if err != nil {
		return answer{}, err
	}
	s := setupForm{action: "/setup/" + code, email: form.Get("email")}
	email := webhook.NormalizeEmail(s.email)
	wrong := webhook.CheckEmail("email", email)
	s.faults = ui.FieldErrors(invalid(append(wrong, newPassword(form.Get("password"), form.Get("again"))...)), passwordFields())
	if s.faults != nil {
		return w.askForAdminAgain(r, http.StatusUnprocessableEntity, s), nil
	}
	var hash webhook.PasswordHash
	if err := w.hashing.do(r.Context(), true, func() { hash = webhook.HashPassword(form.Get("password")) }); err != nil {
		return answer{}, busy(err)
	}
	var secret string
	err = w.cfg.Store.Write(r.Context(), func(sw store.Write) error {
		admin, err := sw.CreateFirstAdmin(email, hash)
		if err != nil {
			return err
		}
		if secret, err = w.begin(sw, r, admin, hash); err != nil {
			return err
		}
		if err := sw.Audit(r.entry(webhook.ActionAdminCreate, "", admin.ID, "the first admin, by the setup link")); err != nil {
			return err
		}
		return sw.Audit(r.beginning())
	})
	if isMistake(err) { // somebody else was first
		return answer{}, badLink()
	}
	if err != nil {
		return answer{}, unwritable(err)
	}
	w.setup.clear()
	return answer{location: "/", cookies: w.begun(r, secret)}, nil
}

// newPassword returns what is wrong with a new password that was typed twice.
func newPassword(password, again string) []webhook.Validation {
	wrong := webhook.CheckPassword("password", password)
	if wrong == nil && password != again {
		wrong = []webhook.Validation{{Code: webhook.InvalidValue, Parameter: "again", Detail: "is not the same as the first"}}
	}
	return wrong
}

func passwordFields() map[string][2]string {
	return map[string][2]string{
		"email": {"email", "Email"}, "current": {"current", "Present password"},
		"password": {"password", "Password"}, "again": {"again", "Password once more"},
	}
}

// invalid is [webhook.Invalid] as an error that is nil for none.
func invalid(v []webhook.Validation) error {
	if e := webhook.Invalid(v...); e != nil {
		return e
	}
	return nil
}

// busy turns the refusal to hash a password into a problem.
func busy(err error) error {
	if !errors.As(err, new(errBusy)) {
		return err
	}
	return &problem{status: http.StatusServiceUnavailable, title: "Try again in a few seconds", text: "Too many are signing in at this moment. Nothing was done.", retryAfter: 2 * time.Second}
}

// unwritable turns the failure to write into a problem.
func unwritable(err error) error {
	if !store.Unavailable(err) {
		return err
	}
	return &problem{status: http.StatusServiceUnavailable, title: "This cannot be stored just now", text: "The service cannot write to its disk, and nothing was done. Make room on it, and try again.", retryAfter: 10 * time.Second}
}

// account is the page of an admin's own affairs.
type accountView struct {
	session  webhook.Session // this one
	sessions []webhook.Session
	faults   []ui.FieldError // of the form that changes the password
}

func (w *Web) account(r *request) (answer, error) { return w.accountWith(r, http.StatusOK, nil) }

func (w *Web) accountWith(r *request, status int, wrong []ui.FieldError) (answer, error) {
	all, err := w.cfg.Store.Sessions(r.Context(), r.session.AdminID)
	if err != nil {
		return answer{}, err
	}
	return answer{page: accountPage(w.frame(r, "Account"), &accountView{r.session, all, wrong}), status: status}, nil
}

// changePassword takes the present password and a new one. All other sessions
// of the admin end, and this one goes on as another.
func (w *Web) changePassword(r *request) (answer, error) {
	form, err := r.form()
	if err != nil {
		return answer{}, err
	}
	wrong := newPassword(form.Get("password"), form.Get("again"))
	if form.Get("current") == "" {
		wrong = append([]webhook.Validation{{Code: webhook.InvalidRequired, Parameter: "current", Detail: "is required"}}, wrong...)
	}
	if wrong != nil {
		return w.accountWith(r, http.StatusUnprocessableEntity, ui.FieldErrors(invalid(wrong), passwordFields()))
	}
	admin, hash, err := w.cfg.Store.Admin(r.Context(), r.session.AdminID)
	if err != nil {
		return answer{}, mistake(err)
	}
	// By the session: who has stolen one cannot keep the admin from changing it.
	tried := try{sessionLimit(), r.session.ID}
	if wait := w.throttle.take(tried); wait > 0 {
		p := &problem{status: http.StatusTooManyRequests, title: "Too many wrong passwords", text: "Try again in " + ui.Duration(wait+time.Second) + ". Nothing was changed.", retryAfter: wait}
		return answer{}, p
	}
	var right bool
	var hashErr error
	var newer webhook.PasswordHash
	err = w.hashing.do(r.Context(), true, func() {
		if right, _, hashErr = hash.Matches(form.Get("current")); right {
			newer = webhook.HashPassword(form.Get("password"))
		}
	})
	if err = errors.Join(err, hashErr); err != nil {
		w.throttle.forgive(tried)
		return answer{}, busy(err)
	}
	if !right {
		return w.accountWith(r, http.StatusUnprocessableEntity, []ui.FieldError{{ID: "current", Label: "Present password", Text: "is not right"}})
	}
	w.throttle.forgive(tried)
	ended, secret := 0, ""
	err = w.cfg.Store.Write(r.Context(), func(sw store.Write) (err error) {
		if secret, err = w.begin(sw, r, admin, hash); err != nil {
			return err
		}
		if ended, err = sw.SetPassword(admin.ID, newer, r.session.ID); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionAdminPassword, "", admin.ID, "changed; "+webhook.Count(ended, "other session")+" ended"))
	})
	if err != nil {
		return answer{}, unwritable(mistake(err))
	}
	said := &ui.Note{Kind: ui.NoteSuccess, Text: "Your password is changed. " + webhook.Count(ended, "other session") + " ended."}
	return answer{location: "/account", cookies: w.begun(r, secret), note: said}, nil
}

// revokeSession ends one session of the admin.
func (w *Web) revokeSession(r *request) (answer, error) {
	id := r.PathValue("id")
	err := w.cfg.Store.Write(r.Context(), func(sw store.Write) error {
		if err := sw.RevokeSession(r.session.AdminID, id); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", r.session.AdminID, "ended one, by the list of sessions"))
	})
	if err != nil {
		return answer{}, unwritable(mistake(err))
	}
	if id == r.session.ID {
		return answer{location: "/sign-in", cookies: []*http.Cookie{w.cookie(sessionCookie, "", -1)}}, nil
	}
	return answer{location: "/account#sessions", note: &ui.Note{Kind: ui.NoteSuccess, Text: "The session has ended."}}, nil
}

// signOutEverywhere ends all sessions of the admin, this one too.
func (w *Web) signOutEverywhere(r *request) (answer, error) {
	err := w.cfg.Store.Write(r.Context(), func(sw store.Write) error {
		ended, err := sw.EndSessions(r.session.AdminID, "")
		if err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", r.session.AdminID, "signed out everywhere: "+webhook.Count(ended, "session")))
	})
	if err != nil {
		return answer{}, unwritable(err)
	}
	return answer{location: "/sign-in", cookies: []*http.Cookie{w.cookie(sessionCookie, "", -1)}}, nil
}

// browserOf names the browser and the system that an agent says it is, in a few
// words. It is text from outside still.
func browserOf(agent string) string {
	named := func(names ...[2]string) string {
		for _, n := range names {
			if strings.Contains(agent, n[0]) {
				return n[1]
			}
		}
		return ""
	}
	// The order matters: most say that they are others, too.
	browser := named([2]string{"Edg", "Edge"}, [2]string{"OPR/", "Opera"}, [2]string{"Firefox/", "Firefox"}, [2]string{"FxiOS/", "Firefox"},
		[2]string{"CriOS/", "Chrome"}, [2]string{"HeadlessChrome/", "Chrome"}, [2]string{"Chromium/", "Chromium"}, [2]string{"Chrome/", "Chrome"}, [2]string{"Safari/", "Safari"})
	system := named([2]string{"Windows", "Windows"}, [2]string{"Android", "Android"}, [2]string{"iPhone", "iPhone"}, [2]string{"iPad", "iPad"},
		[2]string{"CrOS", "ChromeOS"}, [2]string{"Mac OS X", "macOS"}, [2]string{"Linux", "Linux"})
	switch {
	case browser != "" && system != "":
		return browser + " on " + system
	case browser != "" || agent == "":
		return browser
	}
	name, _, _ := strings.Cut(agent, " ")
	return cutText(name, 40)
}

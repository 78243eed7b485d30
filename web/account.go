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

// accountPages are the pages of what belongs to an admin: password, sessions and
// preferences.
type accountPages struct {
	*site
	sessions *sessions
	throttle *throttle
	hashing  *hashing
}

// account is the page of an admin's own affairs.
type accountView struct {
	session  webhook.Session // this one
	sessions []webhook.Session
	faults   []ui.FieldError // of the form that changes the password
}

func (h *accountPages) show(r *request) (answer, error) {
	return h.render(r, http.StatusOK, nil)
}

func (h *accountPages) render(r *request, status int, wrong []ui.FieldError) (answer, error) {
	all, err := h.store.Sessions(r.Context(), r.session.AdminID)
	if err != nil {
		return answer{}, err
	}
	return answer{page: accountPage(h.frame(r, "Account"), &accountView{r.session, all, wrong}), status: status}, nil
}

// changePassword takes the present password and a new one. All other sessions
// of the admin end, and this one goes on as another.
func (h *accountPages) changePassword(r *request) (answer, error) {
	form, err := r.form()
	if err != nil {
		return answer{}, err
	}
	wrong := newPassword(form.Get("password"), form.Get("again"))
	if form.Get("current") == "" {
		wrong = append([]webhook.Validation{{Code: webhook.InvalidRequired, Parameter: "current", Detail: "is required"}}, wrong...)
	}
	if wrong != nil {
		return h.render(r, http.StatusUnprocessableEntity, ui.FieldErrors(invalid(wrong), passwordFields()))
	}
	admin, hash, err := h.store.Admin(r.Context(), r.session.AdminID)
	if err != nil {
		return answer{}, mistake(err)
	}
	// By the session: who has stolen one cannot keep the admin from changing it.
	tried := try{sessionLimit(), r.session.ID}
	if wait := h.throttle.take(tried); wait > 0 {
		p := &problem{status: http.StatusTooManyRequests, title: "Too many wrong passwords", text: "Try again in " + ui.Duration(wait+time.Second) + ". Nothing was changed.", retryAfter: wait}
		return answer{}, p
	}
	var right bool
	var hashErr error
	var newer webhook.PasswordHash
	err = h.hashing.do(r.Context(), true, func() {
		if right, _, hashErr = hash.Matches(form.Get("current")); right {
			newer = webhook.HashPassword(form.Get("password"))
		}
	})
	if err = errors.Join(err, hashErr); err != nil {
		h.throttle.forgive(tried)
		return answer{}, busy(err)
	}
	if !right {
		return h.render(r, http.StatusUnprocessableEntity, []ui.FieldError{{ID: "current", Label: "Present password", Text: "is not right"}})
	}
	h.throttle.forgive(tried)
	ended, secret := 0, ""
	err = h.store.Write(r.Context(), func(sw store.Write) (err error) {
		if secret, err = h.sessions.begin(sw, r, admin, hash); err != nil {
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
	return answer{location: "/account", cookies: h.sessions.cookies(r, secret), note: said}, nil
}

// revokeSession ends one session of the admin.
func (h *accountPages) revokeSession(r *request) (answer, error) {
	id := r.PathValue("id")
	err := h.store.Write(r.Context(), func(sw store.Write) error {
		if err := sw.RevokeSession(r.session.AdminID, id); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", r.session.AdminID, "ended one, by the list of sessions"))
	})
	if err != nil {
		return answer{}, unwritable(mistake(err))
	}
	if id == r.session.ID {
		return answer{location: "/sign-in", cookies: []*http.Cookie{h.sessions.cookie(sessionCookie, "", -1)}}, nil
	}
	return answer{location: "/account#sessions", note: &ui.Note{Kind: ui.NoteSuccess, Text: "The session has ended."}}, nil
}

// signOutEverywhere ends all sessions of the admin, this one too.
func (h *accountPages) signOutEverywhere(r *request) (answer, error) {
	err := h.store.Write(r.Context(), func(sw store.Write) error {
		ended, err := sw.EndSessions(r.session.AdminID, "")
		if err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", r.session.AdminID, "signed out everywhere: "+webhook.Count(ended, "session")))
	})
	if err != nil {
		return answer{}, unwritable(err)
	}
	return answer{location: "/sign-in", cookies: []*http.Cookie{h.sessions.cookie(sessionCookie, "", -1)}}, nil
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

package web

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// signInPages are the pages without a session: signing in, by password or by
// link, and the first admin.
type signInPages struct {
	*site
	sessions *sessions
	setup    *secrets // the links that make the first admin
	links    *secrets // those that sign in, by admin
	throttle *throttle
	hashing  *hashing

	noPassword webhook.PasswordHash // that is checked for admins who do not exist
}

// NewSetupLink returns the path of a link to the form that makes the first
// admin, once, within 30 minutes. Whoever has it is an admin: it is for the
// terminal of the operator and never for the log. While there is an admin no
// such link is good.
func (w *Web) NewSetupLink() string { return "/setup/" + w.pages.signIn.setup.issue("") }

// AdminsChanged is to be called when an admin was made, or given another
// password, by somebody else: the setup links end, and the tries of strangers
// to sign in with that address are forgiven.
func (w *Web) AdminsChanged(email string) {
	w.pages.signIn.setup.clear()
	w.pages.signIn.throttle.forget(adminLimit(), email)
}

// requireSession lets only requests of a session through. The handler finds it in the
// request; others are asked to sign in, and led back. What a page reads by
// itself, again and again, does not keep the session from ending.
func (h *signInPages) requireSession(do handler) handler {
	return func(r *request) (answer, error) {
		find := h.sessions.find
		if r.byItself() {
			find = h.sessions.findUnnoted
		}
		found, err := find(r)
		if err != nil {
			return answer{}, err
		}
		if !found {
			return h.requireSignIn(r)
		}
		return do(r)
	}
}

// requireSessionUnnoted is signedIn for what a page asks for by itself: it does not
// keep the session from ending.
func (h *signInPages) requireSessionUnnoted(do handler) handler {
	return func(r *request) (answer, error) {
		found, err := h.sessions.findUnnoted(r)
		if err != nil {
			return answer{}, err
		}
		if !found {
			return h.requireSignIn(r)
		}
		return do(r)
	}
}

// requireSignIn answers a request without a session.
func (h *signInPages) requireSignIn(r *request) (answer, error) {
	any, err := h.store.HasAdmins(r.Context())
	if err != nil {
		return answer{}, err
	}
	if !any {
		return answer{}, &problem{
			status:  http.StatusUnauthorized,
			title:   "There is no admin yet",
			text:    "Open the setup link that the service printed when it started, or ask the running service for a new one, in a terminal on its machine:",
			command: h.command("admin setup-link"),
			after:   "A link works once, within 30 minutes.",
		}
	}
	s := signInForm{next: "/"}
	if r.Method == http.MethodGet {
		s.next = local(r.URL.RequestURI(), "/")
	} else if r.Method != http.MethodHead {
		s.lost = true
	}
	return h.renderSignIn(r, http.StatusUnauthorized, s), nil
}

// signInForm is the page of the same name.
type signInForm struct {
	next  string // where it leads
	email string // as it was typed
	fault string // why nobody was signed in, "" at first
	lost  bool   // it takes the place of something that was not done

	requestID string // shown unless the form was asked for
}

func (h *signInPages) renderSignIn(r *request, status int, s signInForm) answer {
	if status != http.StatusOK {
		s.requestID = r.id
	}
	return answer{page: signInPage(h.frame(r, "Sign in"), s), status: status}
}

// showSignIn shows the form, unless there is no need for it.
func (h *signInPages) showSignIn(r *request) (answer, error) {
	next := local(r.URL.Query().Get("next"), "/")
	found, err := h.sessions.find(r)
	if err != nil {
		return answer{}, err
	}
	if found {
		return answer{location: next}, nil
	}
	any, err := h.store.HasAdmins(r.Context())
	if err != nil {
		return answer{}, err
	}
	if !any {
		return h.requireSignIn(r)
	}
	return h.renderSignIn(r, http.StatusOK, signInForm{next: next}), nil
}

// signIn takes an address and a password. Nothing of what it answers, nor how
// long it takes, tells whether there is an admin of that address.
func (h *signInPages) signIn(r *request) (answer, error) {
	form, err := r.form()
	if err != nil {
		return answer{}, err
	}
	s := signInForm{next: local(form.Get("next"), "/"), email: form.Get("email")}
	email, password := webhook.NormalizeEmail(s.email), form.Get("password")
	if len(s.email) > ui.MaxVisible {
		s.email = ""
	}
	if webhook.CheckEmail("email", email) != nil || password == "" || len(password) > webhook.MaxPassword {
		return h.wrongPassword(r, s), nil // no admin has these: there is nothing to be guessed
	}
	admin, hash, err := h.store.AdminByEmail(r.Context(), email)
	if isMistake(err) {
		admin, hash = webhook.Admin{}, h.noPassword
	} else if err != nil {
		return answer{}, err
	}
	device, known := h.sessions.device(r, admin.ID)
	tries := []try{{deviceLimit(), device}}
	if !known {
		tries = []try{{addressLimit(), networkOf(r)}, {adminLimit(), email}}
	}
	if wait := h.throttle.take(tries...); wait > 0 {
		s.fault = "Too many wrong passwords. Try again in " + ui.Duration(wait+time.Second) + ". A browser that was signed in before is not held up by others."
		a := h.renderSignIn(r, http.StatusTooManyRequests, s)
		a.retryAfter = wait
		return a, nil
	}
	var right, stale bool
	newer := hash
	err = h.hashing.do(r.Context(), known, func() {
		if right, stale, err = hash.Matches(password); right && stale {
			newer = webhook.HashPassword(password)
		}
	})
	if errors.As(err, new(errBusy)) {
		h.throttle.forgive(tries...)
		s.fault = "Too many are signing in at this moment. Try again in a few seconds."
		a := h.renderSignIn(r, http.StatusServiceUnavailable, s)
		a.retryAfter = 2 * time.Second
		return a, nil
	}
	if err != nil {
		return answer{}, err
	}
	if !right {
		return h.wrongPassword(r, s), nil
	}
	h.throttle.forgive(tries...)
	var secret string
	err = h.store.Write(r.Context(), func(sw store.Write) (err error) {
		if secret, err = h.sessions.begin(sw, r, admin, hash); err != nil {
			return err
		}
		if newer != hash {
			if err := sw.RefreshPassword(admin.ID, hash, newer); err != nil {
				return err
			}
		}
		return sw.Audit(r.beginning())
	})
	switch {
	case isMistake(err): // the password was changed while it was checked
		return h.wrongPassword(r, s), nil
	case store.Unavailable(err):
		s.fault = "Nobody can sign in while the service cannot write to its disk. Make room on it; " + h.cfg.BaseURL + "/readyz says when it is well again."
		a := h.renderSignIn(r, http.StatusServiceUnavailable, s)
		a.retryAfter = 10 * time.Second
		return a, nil
	case err != nil:
		return answer{}, err
	}
	return answer{location: s.next, cookies: h.sessions.cookies(r, secret)}, nil
}

func (h *signInPages) wrongPassword(r *request, s signInForm) answer {
	s.fault = "There is no admin with this address and this password."
	return h.renderSignIn(r, http.StatusUnauthorized, s)
}

// signOut ends the session.
func (h *signInPages) signOut(r *request) (answer, error) {
	c, err := r.Cookie(h.sessions.cookieName(sessionCookie))
	if err != nil {
		return answer{}, err
	}
	err = h.store.Write(r.Context(), func(sw store.Write) error {
		if _, _, err := sw.EndSession(c.Value); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", r.session.AdminID, "signed out"))
	})
	if err != nil {
		return answer{}, err
	}
	return answer{location: "/sign-in", cookies: []*http.Cookie{h.sessions.cookie(sessionCookie, "", -1)}}, nil
}

// NewSignInLink returns the path of a link that signs one browser in as an
// admin, once, within 30 minutes, without a password: for the demo, whose data
// is thrown away.
func (w *Web) NewSignInLink(adminID string) string {
	return "/sign-in/" + w.pages.signIn.links.issue(adminID)
}

// showLink shows a button. Only pressing it uses the link up: programs that
// look ahead at links, such as those of chats, do not press buttons.
func (h *signInPages) showLink(r *request) (answer, error) {
	code := r.PathValue("code")
	if !h.links.good(code) {
		return answer{}, badLink()
	}
	return answer{page: followPage(h.frame(r, "Sign in"), "/sign-in/"+code), secret: true}, nil
}

func (h *signInPages) useLink(r *request) (answer, error) {
	id, good := h.links.take(r.PathValue("code"))
	if !good {
		return answer{}, badLink()
	}
	admin, hash, err := h.store.Admin(r.Context(), id)
	if err != nil {
		return answer{}, mistake(err)
	}
	var secret string
	err = h.store.Write(r.Context(), func(sw store.Write) (err error) {
		if secret, err = h.sessions.begin(sw, r, admin, hash); err != nil {
			return err
		}
		return sw.Audit(r.beginning())
	})
	if err != nil {
		return answer{}, unwritable(mistake(err))
	}
	return answer{location: "/", cookies: h.sessions.cookies(r, secret)}, nil
}

// badLink does not tell a used link from one that has expired or never was.
func badLink() *problem {
	return &problem{
		status: http.StatusNotFound,
		title:  "This link is not good any more",
		text:   "A link works once, within 30 minutes, and a setup link only until there is an admin.",
	}
}

// local returns an address if it is a page of this service that can be led to,
// and otherwise the other one: no link may lead visitors elsewhere.
func local(s, otherwise string) string {
	u, err := url.Parse(s)
	odd := func(c rune) bool { return c <= ' ' || c == '\\' || c >= 0x7f }
	if err != nil || len(s) > 2048 || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" ||
		!strings.HasPrefix(s, "/") || strings.Contains(u.Path, "//") || strings.ContainsFunc(s, odd) || strings.ContainsFunc(u.Path, odd) {
		return otherwise
	}
	for _, door := range []string{"/sign-in", "/sign-out", "/setup"} {
		if u.Path == door || strings.HasPrefix(u.Path, door+"/") {
			return otherwise
		}
	}
	return s
}

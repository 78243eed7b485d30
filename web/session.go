package web

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

const (
	linkLife = 30 * time.Minute
	maxLinks = 32
)

// signedIn lets only requests of a session through. The handler finds it in the
// request; others are asked to sign in, and led back. What a page reads by
// itself, again and again, does not keep the session from ending.
func (w *Web) signedIn(do handler) handler {
	return func(r *request) (answer, error) {
		find := w.findSession
		if r.byItself() {
			find = w.findSessionUnnoted
		}
		found, err := find(r)
		if err != nil {
			return answer{}, err
		}
		if !found {
			return w.askWhoIsThere(r)
		}
		return do(r)
	}
}

// stillSignedIn is signedIn for what a page asks for by itself: it does not
// keep the session from ending.
func (w *Web) stillSignedIn(do handler) handler {
	return func(r *request) (answer, error) {
		found, err := w.findSessionUnnoted(r)
		if err != nil {
			return answer{}, err
		}
		if !found {
			return w.askWhoIsThere(r)
		}
		return do(r)
	}
}

// findSession finds the session of a request, and says whether there is one. It
// notes that it was seen.
func (w *Web) findSession(r *request) (bool, error) {
	return w.findSessionBy(r, w.cfg.Store.Session)
}

// findSessionUnnoted is findSession without noting it.
func (w *Web) findSessionUnnoted(r *request) (bool, error) {
	return w.findSessionBy(r, w.cfg.Store.SessionUnnoted)
}

func (w *Web) findSessionBy(r *request, find func(context.Context, string) (webhook.Session, bool, error)) (bool, error) {
	c, err := r.Cookie(w.cookieName(sessionCookie))
	if err != nil {
		return false, nil
	}
	session, good, err := find(r.Context(), c.Value)
	if err != nil || !good {
		return false, err
	}
	r.session, r.admin = session, session.Email
	return true, nil
}

// askWhoIsThere answers a request without a session.
func (w *Web) askWhoIsThere(r *request) (answer, error) {
	any, err := w.cfg.Store.HasAdmins(r.Context())
	if err != nil {
		return answer{}, err
	}
	if !any {
		return answer{}, &problem{
			status:  http.StatusUnauthorized,
			title:   "There is no admin yet",
			text:    "Open the setup link that the service printed when it started, or ask the running service for a new one, in a terminal on its machine:",
			command: w.command("admin setup-link"),
			after:   "A link works once, within 30 minutes.",
		}
	}
	s := signInForm{next: "/"}
	if r.Method == http.MethodGet {
		s.next = local(r.URL.RequestURI(), "/")
	} else if r.Method != http.MethodHead {
		s.lost = true
	}
	return w.signInAgain(r, http.StatusUnauthorized, s), nil
}

// command is one of this binary to be typed into a terminal.
func (w *Web) command(args string) string {
	data := ""
	if dir := w.cfg.Store.Dir(); dir != "./data" {
		data = " --data " + ui.ShellQuote(dir)
	}
	return w.cfg.Program + " " + args + data
}

// signInForm is the page of the same name.
type signInForm struct {
	next  string // where it leads
	email string // as it was typed
	fault string // why nobody was signed in, "" at first
	lost  bool   // it takes the place of something that was not done

	requestID string // shown unless the form was asked for
}

func (w *Web) signInAgain(r *request, status int, s signInForm) answer {
	if status != http.StatusOK {
		s.requestID = r.id
	}
	return answer{page: signInPage(w.frame(r, "Sign in"), s), status: status}
}

// askToSignIn shows the form, unless there is no need for it.
func (w *Web) askToSignIn(r *request) (answer, error) {
	next := local(r.URL.Query().Get("next"), "/")
	found, err := w.findSession(r)
	if err != nil {
		return answer{}, err
	}
	if found {
		return answer{location: next}, nil
	}
	any, err := w.cfg.Store.HasAdmins(r.Context())
	if err != nil {
		return answer{}, err
	}
	if !any {
		return w.askWhoIsThere(r)
	}
	return w.signInAgain(r, http.StatusOK, signInForm{next: next}), nil
}

// signIn takes an address and a password. Nothing of what it answers, nor how
// long it takes, tells whether there is an admin of that address.
func (w *Web) signIn(r *request) (answer, error) {
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
		return w.wrongPassword(r, s), nil // no admin has these: there is nothing to be guessed
	}
	admin, hash, err := w.cfg.Store.AdminByEmail(r.Context(), email)
	if isMistake(err) {
		admin, hash = webhook.Admin{}, w.noPassword
	} else if err != nil {
		return answer{}, err
	}
	device, known := w.device(r, admin.ID)
	tries := []try{{deviceLimit(), device}}
	if !known {
		tries = []try{{addressLimit(), networkOf(r)}, {adminLimit(), email}}
	}
	if wait := w.throttle.take(tries...); wait > 0 {
		s.fault = "Too many wrong passwords. Try again in " + ui.Duration(wait+time.Second) + ". A browser that was signed in before is not held up by others."
		a := w.signInAgain(r, http.StatusTooManyRequests, s)
		a.retryAfter = wait
		return a, nil
	}
	var right, stale bool
	newer := hash
	err = w.hashing.do(r.Context(), known, func() {
		if right, stale, err = hash.Matches(password); right && stale {
			newer = webhook.HashPassword(password)
		}
	})
	if errors.As(err, new(errBusy)) {
		w.throttle.forgive(tries...)
		s.fault = "Too many are signing in at this moment. Try again in a few seconds."
		a := w.signInAgain(r, http.StatusServiceUnavailable, s)
		a.retryAfter = 2 * time.Second
		return a, nil
	}
	if err != nil {
		return answer{}, err
	}
	if !right {
		return w.wrongPassword(r, s), nil
	}
	w.throttle.forgive(tries...)
	var secret string
	err = w.cfg.Store.Write(r.Context(), func(sw store.Write) (err error) {
		if secret, err = w.begin(sw, r, admin, hash); err != nil {
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
		return w.wrongPassword(r, s), nil
	case store.Unavailable(err):
		s.fault = "Nobody can sign in while the service cannot write to its disk. Make room on it; " + w.cfg.BaseURL + "/readyz says when it is well again."
		a := w.signInAgain(r, http.StatusServiceUnavailable, s)
		a.retryAfter = 10 * time.Second
		return a, nil
	case err != nil:
		return answer{}, err
	}
	return answer{location: s.next, cookies: w.begun(r, secret)}, nil
}

func (w *Web) wrongPassword(r *request, s signInForm) answer {
	s.fault = "There is no admin with this address and this password."
	return w.signInAgain(r, http.StatusUnauthorized, s)
}

// begin signs an admin in, in a write, whose password has that hash. It returns
// the secret of the session, which takes the place of the one that the browser
// had before; the request is of the new one from then on.
func (w *Web) begin(sw store.Write, r *request, admin webhook.Admin, hash webhook.PasswordHash) (secret string, err error) {
	replaced := ""
	if c, err := r.Cookie(w.cookieName(sessionCookie)); err == nil {
		replaced = c.Value
	}
	session, secret, err := sw.CreateSession(admin.ID, hash, addressText(r), r.UserAgent(), replaced)
	session.Email = admin.Email
	r.session, r.admin = session, admin.Email
	return secret, err
}

// begun are the cookies of a browser that an admin has signed in with: its
// session, and unless it has one its mark as a device.
func (w *Web) begun(r *request, secret string) []*http.Cookie {
	cookies := []*http.Cookie{w.cookie(sessionCookie, secret, webhook.SessionLife)}
	if _, known := w.device(r, r.session.AdminID); !known {
		cookies = append(cookies, w.cookie(deviceCookie, w.cfg.Store.NewDevice(r.session.AdminID), deviceLife))
	}
	return cookies
}

// beginning is what the audit is told of it.
func (r *request) beginning() webhook.AuditEntry {
	return r.entry(webhook.ActionSessionBegin, "", r.session.AdminID, browserOf(r.session.Agent))
}

// device is the name of the browser that sent a request, when the admin has
// signed in with it before.
func (w *Web) device(r *request, adminID string) (string, bool) {
	c, err := r.Cookie(w.cookieName(deviceCookie))
	if err != nil || adminID == "" {
		return "", false
	}
	return w.cfg.Store.Device(adminID, c.Value)
}

// signOut ends the session.
func (w *Web) signOut(r *request) (answer, error) {
	c, err := r.Cookie(w.cookieName(sessionCookie))
	if err != nil {
		return answer{}, err
	}
	err = w.cfg.Store.Write(r.Context(), func(sw store.Write) error {
		if _, _, err := sw.EndSession(c.Value); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", r.session.AdminID, "signed out"))
	})
	if err != nil {
		return answer{}, err
	}
	return answer{location: "/sign-in", cookies: []*http.Cookie{w.cookie(sessionCookie, "", -1)}}, nil
}

// NewSignInLink returns the path of a link that signs one browser in as an
// admin, once, within 30 minutes, without a password: for the demo, whose data
// is thrown away.
func (w *Web) NewSignInLink(adminID string) string { return "/sign-in/" + w.links.issue(adminID) }

// askToFollow shows a button. Only pressing it uses the link up: programs that
// look ahead at links, such as those of chats, do not press buttons.
func (w *Web) askToFollow(r *request) (answer, error) {
	code := r.PathValue("code")
	if !w.links.good(code) {
		return answer{}, badLink()
	}
	return answer{page: followPage(w.frame(r, "Sign in"), "/sign-in/"+code), secret: true}, nil
}

func (w *Web) followLink(r *request) (answer, error) {
	id, good := w.links.take(r.PathValue("code"))
	if !good {
		return answer{}, badLink()
	}
	admin, hash, err := w.cfg.Store.Admin(r.Context(), id)
	if err != nil {
		return answer{}, mistake(err)
	}
	var secret string
	err = w.cfg.Store.Write(r.Context(), func(sw store.Write) (err error) {
		if secret, err = w.begin(sw, r, admin, hash); err != nil {
			return err
		}
		return sw.Audit(r.beginning())
	})
	if err != nil {
		return answer{}, unwritable(mistake(err))
	}
	return answer{location: "/", cookies: w.begun(r, secret)}, nil
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

// The cookies. The session ends with its cookie; a device is known for as long
// as browsers keep a cookie.
const (
	sessionCookie = "session"
	deviceCookie  = "device"
	deviceLife    = 400 * 24 * time.Hour
)

// cookieName has the prefix that makes browsers refuse the cookie unless this
// host alone set it over HTTPS; they would refuse it over HTTP, too.
func (w *Web) cookieName(name string) string {
	if w.cfg.Secure {
		return "__Host-" + name
	}
	return name
}

// cookie returns a cookie, or for a negative life the one that removes it.
func (w *Web) cookie(name, value string, life time.Duration) *http.Cookie {
	age := int(life.Seconds())
	if life < 0 {
		age = -1
	}
	return &http.Cookie{
		Name: w.cookieName(name), Value: value, Path: "/", MaxAge: age,
		Secure: w.cfg.Secure, HttpOnly: true,
		// Lax, so that a link from elsewhere finds the admin signed in; what
		// changes something is a POST, which must come from our own pages.
		SameSite: http.SameSiteLaxMode,
	}
}

// maxForm bounds the body of a form, in bytes.
const maxForm = 64 << 10

// form reads the fields of a POST. The error is a problem.
func (r *request) form() (url.Values, error) { return r.formUpTo(maxForm) }

// formUpTo is the same for a form of so many bytes.
func (r *request) formUpTo(limit int64) (url.Values, error) {
	r.Body = http.MaxBytesReader(nil, r.Body, limit)
	err := r.ParseForm()
	if r.Context().Err() != nil {
		return nil, context.Cause(r.Context())
	}
	if err != nil {
		return nil, &problem{status: http.StatusBadRequest, title: "This form cannot be read", text: "It is too large, or was cut off. Nothing was done."}
	}
	return r.PostForm, nil
}

// isMistake says whether an error is the caller's.
func isMistake(err error) bool {
	var e *webhook.Error
	return errors.As(err, &e)
}

// mistake turns what the store refused into a problem, and leaves other errors
// as they are.
func mistake(err error) error {
	var e *webhook.Error
	if !errors.As(err, &e) {
		return err
	}
	status := http.StatusUnprocessableEntity
	switch e.Code {
	case webhook.CodeNotFound:
		status = http.StatusNotFound
	case webhook.CodeConflict:
		status = http.StatusConflict
	}
	return &problem{status: status, title: "This cannot be done", text: e.Error()}
}

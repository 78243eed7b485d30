package web

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"service/internal/ratelimit"
	"service/store"
	"service/web/hashing"
	"service/web/once"
	"service/web/ui"
	"service/webhook"
)

// signInPages are the pages without a session: sign-in by password or link, and the form of the
// first admin.
type signInPages struct {
	*site
	sessions    *sessions
	setupCodes  *once.Codes // of links that create the first admin
	signInCodes *once.Codes // of links that sign in, by admin
	limiter     *ratelimit.Limiter
	hasher      *hashing.Queue
	challenges  *once.Challenges
	flows       *flowKeeper // of sign-ins through OpenID Connect

	noPassword webhook.PasswordHash // hash for admins who do not exist, to take the same time
}

// NewSetupLink returns the path of a link to the form that creates the first admin. The link works
// once, within 30 minutes, while there is no admin. Every visitor who opens it can become an admin:
// print it to the operator's terminal, and never log it.
func (w *Web) NewSetupLink() string { return "/setup/" + w.pages.signIn.setupCodes.Issue("") }

// AdminsChanged must be called after another process or command has created an admin or set a
// password. It ends the setup links and resets the limit of tries for that email address.
func (w *Web) AdminsChanged(email string) {
	w.pages.signIn.setupCodes.Clear()
	w.pages.signIn.limiter.Reset(ratelimit.Try{Limit: adminLimit, Key: email})
}

// requireSession passes on requests with a session and redirects others to the sign-in form. Neither a
// background request of a page nor a path that only scripts request extends the session.
func (h *signInPages) requireSession(kind routeKind, do handler) handler {
	return func(r *request) (response, error) {
		found, err := h.sessions.find(r, kind == pageRoute && !r.isBackground())
		if err != nil {
			return response{}, err
		}
		if !found {
			return h.requireSignIn(r)
		}
		return do(r)
	}
}

// requireSignIn is the response to a request without a session.
func (h *signInPages) requireSignIn(r *request) (response, error) {
	any, err := h.store.Admins().Exist(r.Context())
	if err != nil {
		return response{}, err
	}
	if !any {
		return response{}, &problem{
			status:  http.StatusUnauthorized,
			title:   "No admin yet",
			text:    "Open the setup link that the service printed when it started. To print a new link, run this on the server:",
			command: h.setupLinkCommand(),
			after:   dataFlagHint,
		}
	}
	s := signInForm{next: "/"}
	if r.Method == http.MethodGet {
		s.next = localPath(r.URL.RequestURI(), "/")
	} else if r.Method != http.MethodHead {
		s.lost, s.kept = true, keepForm(r)
	}
	return h.renderSignIn(r, http.StatusUnauthorized, s), nil
}

// setupLinkCommand is a command that prints a link to create the first admin. The page that shows
// it needs no session, so the command omits the data directory.
func (h *site) setupLinkCommand() string { return h.cfg.Program + " admin setup-link" }

const dataFlagHint = "Add --data DIR if the service was started with it. A link works once, within 30 minutes."

// signInForm is the state of the sign-in page.
type signInForm struct {
	next  string    // path to open after signing in
	email string    // as typed
	fault string    // why the sign-in failed, "" at first
	lost  bool      // the page replaces the response to a form that was not processed
	kept  *keptForm // the form, nil if it was not kept

	provider  string // name of the OpenID Connect provider, "" for none
	requestID string // shown unless the visitor opened the form

	passkeys  bool   // whether passkeys work at this address
	noPasskey string // why passkeys do not work, if an admin has one
}

func (h *signInPages) renderSignIn(r *request, status int, s signInForm) response {
	if status != http.StatusOK {
		s.requestID = r.id
	}
	_, why := h.relyingParty(r)
	s.passkeys = why == ""
	if any, err := h.store.Admins().HavePasskey(r.Context()); any && err == nil { // the page is usable without the hint
		s.noPasskey = why
	}
	s.provider = h.providerName()
	return response{page: signInPage(h.frame(r, "Sign in"), s), status: status}
}

// refused shows the form again with why the sign-in failed. after is when to try again, 0 for at once.
func (h *signInPages) refused(r *request, status int, s signInForm, fault string, after time.Duration) response {
	s.fault = fault
	a := h.renderSignIn(r, status, s)
	a.retryAfter = after
	return a
}

// showSignIn shows the form, or redirects if there is a session.
func (h *signInPages) showSignIn(r *request) (response, error) {
	next := localPath(r.URL.Query().Get("next"), "/")
	found, err := h.sessions.find(r, true)
	if err != nil {
		return response{}, err
	}
	if found {
		return response{location: next}, nil
	}
	any, err := h.store.Admins().Exist(r.Context())
	if err != nil {
		return response{}, err
	}
	if !any {
		return h.requireSignIn(r)
	}
	return h.renderSignIn(r, http.StatusOK, signInForm{next: next}), nil
}

// unavailable explains why admins cannot sign in while the store cannot write.
func (h *signInPages) unavailable(err error) string {
	if store.LeaseExpired(err) {
		return "Signing in is not possible: the service has lost its lease (only the instance that holds it may run). The replica's bucket " +
			"does not respond, or another instance has taken over. " + h.cfg.BaseURL + "/readyz reports when the service has the lease again."
	}
	return "Signing in is not possible while the service cannot write to its disk. Free disk space; " + h.cfg.BaseURL +
		"/readyz reports when the service has recovered."
}

// signIn checks an email address and a password. Neither its response nor its duration
// reveals whether an admin with that address exists.
func (h *signInPages) signIn(r *request) (response, error) {
	form := r.PostForm
	s := signInForm{next: localPath(form.Get("next"), "/"), email: form.Get("email"), kept: readKeptForm(form)}
	if form.Has("continue") && s.kept != nil {
		return h.continueKept(r, s)
	}
	email, password := webhook.NormalizeEmail(s.email), form.Get("password")
	if len(s.email) > ui.MaxVisible {
		s.email = ""
	}
	if webhook.CheckEmail("email", email) != nil || password == "" || len(password) > webhook.MaxPassword {
		return h.wrongPassword(r, s), nil // no admin has this email or password
	}
	admin, hash, err := h.store.Admins().ByEmail(r.Context(), email)
	if isCallerError(err) || err == nil && !admin.HasPassword {
		admin, hash = webhook.Admin{}, h.noPassword
	} else if err != nil {
		return response{}, err
	}
	device, known := h.sessions.device(r, admin.ID)
	tries, rank, wait := []ratelimit.Try{{Limit: deviceLimit, Key: device}}, hashing.KnownDevice, time.Duration(0)
	if known {
		wait = h.limiter.Allow(tries...)
	} else {
		tries, rank, wait = allowUnknown(h.limiter, addressOf(r), email)
	}
	if wait > 0 {
		return h.refused(r, http.StatusTooManyRequests, s, "Too many wrong passwords. Try again in "+ui.Duration(wait+time.Second)+
			". A browser in which you have signed in before has its own limit.", wait), nil
	}
	var right, stale bool
	newer := hash
	err = h.hasher.Do(r.Context(), rank, func() {
		if right, stale, err = hash.Matches(password); right && stale {
			newer = webhook.HashPassword(password)
		}
	})
	if errors.Is(err, hashing.ErrBusy) {
		h.limiter.Refund(tries...)
		return h.refused(r, http.StatusServiceUnavailable, s, "Too many people are signing in. Try again in a few seconds.", 2*time.Second), nil
	}
	if err != nil {
		return response{}, err
	}
	if !right {
		return h.wrongPassword(r, s), nil
	}
	h.limiter.Refund(tries...)
	if !h.localSignInAllowed(&admin) {
		return h.refused(r, http.StatusForbidden, s, onlyOwners(h.providerName()), 0), nil
	}
	return h.begin(r, s, admin, hash, newer)
}

// begin begins the session of an admin with the right password, and replaces the password's hash if
// newer differs.
func (h *signInPages) begin(r *request, s signInForm, admin webhook.Admin, hash, newer webhook.PasswordHash) (response, error) {
	var secret string
	err := h.store.Write(r, func(sw store.Write) (err error) {
		if secret, err = h.sessions.create(sw, r, admin, hash); err != nil {
			return err
		}
		if newer != hash {
			if err := sw.Admins().RefreshPassword(admin.ID, hash, newer); err != nil {
				return err
			}
		}
		return sw.Audit(r.signInEntry())
	})
	switch {
	case isCallerError(err): // the password was changed during the check
		return h.wrongPassword(r, s), nil
	case store.Unavailable(err):
		return h.refused(r, http.StatusServiceUnavailable, s, h.unavailable(err), unavailableRetry), nil
	case err != nil:
		return response{}, err
	}
	return h.signedIn(r, s, secret), nil
}

// signedIn redirects to the requested page, or shows the kept form.
func (h *signInPages) signedIn(r *request, s signInForm, secret string) response {
	a := response{location: s.next, session: true, cookies: h.sessions.cookies(r, secret)}
	if s.kept != nil {
		a.location, a.page = "", keptFormPage(h.frame(r, "Continue with your form"), s.kept)
	}
	return a
}

// continueKept shows the kept form to a visitor who has signed in in another tab.
func (h *signInPages) continueKept(r *request, s signInForm) (response, error) {
	found, err := h.sessions.find(r, true)
	if err != nil {
		return response{}, err
	}
	if !found {
		return h.refused(r, http.StatusUnauthorized, s, "You are not signed in yet. Sign in in the other tab, then continue here.", 0), nil
	}
	return response{page: keptFormPage(h.frame(r, "Continue with your form"), s.kept)}, nil
}

func (h *signInPages) wrongPassword(r *request, s signInForm) response {
	return h.refused(r, http.StatusUnauthorized, s, "Wrong email or password.", 0)
}

// signUp hashes the password of a new admin, and signs in the admin that create creates with the hash. create also
// returns the detail of the audit entry.
func (h *signInPages) signUp(r *request, password string, create func(store.Write, webhook.PasswordHash) (webhook.Admin, string, error)) (
	response, error,
) {
	var hash webhook.PasswordHash
	if err := h.hasher.Do(r.Context(), hashing.KnownDevice, func() { hash = webhook.HashPassword(password) }); err != nil {
		return response{}, tooBusy(err)
	}
	var secret string
	err := h.store.Write(r, func(sw store.Write) error {
		admin, detail, err := create(sw, hash)
		if err != nil {
			return err
		}
		if secret, err = h.sessions.create(sw, r, admin, hash); err != nil {
			return err
		}
		if err := sw.Audit(r.entry(webhook.ActionAdminCreate, "", admin.ID, detail)); err != nil {
			return err
		}
		return sw.Audit(r.signInEntry())
	})
	if err != nil {
		return response{}, err
	}
	return response{location: "/", cookies: h.sessions.cookies(r, secret)}, nil
}

// signOut ends the session.
func (h *signInPages) signOut(r *request) (response, error) {
	c, err := r.Cookie(h.sessions.cookieName(sessionCookie))
	if err != nil {
		return response{}, err
	}
	err = h.store.Write(r, func(sw store.Write) error {
		if _, _, err := sw.Sessions().End(c.Value); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionSessionEnd, "", r.session.AdminID, "signed out"))
	})
	if err != nil {
		return response{}, err
	}
	return response{location: "/sign-in", cookies: []*http.Cookie{h.sessions.cookie(sessionCookie, "", -1)}}, nil
}

// NewSignInLink returns the path of a link that signs a browser in as an admin without a
// password, once, within 30 minutes. It is for the demo, whose data is temporary.
func (w *Web) NewSignInLink(adminID string) string {
	return "/sign-in/" + w.pages.signIn.signInCodes.Issue(adminID)
}

// showLink shows only a button, which uses the link when pressed, see followPage.
func (h *signInPages) showLink(r *request) (response, error) {
	code := r.PathValue("code")
	if !h.signInCodes.Valid(code) {
		return response{}, invalidLink()
	}
	return response{page: followPage(h.frame(r, "Sign in"),
		"This link signs your browser in to the admin pages. It works once.", "/sign-in/"+code, "Sign in"), secret: true}, nil
}

// useLink signs in the admin that the link was issued for.
func (h *signInPages) useLink(r *request) (response, error) {
	id, good := h.signInCodes.Use(r.PathValue("code"))
	if !good {
		return response{}, invalidLink()
	}
	admin, hash, err := h.store.Admins().Get(r.Context(), id)
	if err != nil {
		return response{}, asProblem(err)
	}
	var secret string
	err = h.store.Write(r, func(sw store.Write) (err error) {
		if secret, err = h.sessions.create(sw, r, admin, hash); err != nil {
			return err
		}
		return sw.Audit(r.signInEntry())
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	return response{location: "/", session: true, cookies: h.sessions.cookies(r, secret)}, nil
}

// invalidLink returns one problem for a link that was used, has expired or never existed.
func invalidLink() *problem {
	return &problem{
		status: http.StatusNotFound,
		title:  "Invalid link",
		text:   "A link works once, within 30 minutes. A setup link works only until an admin exists.",
	}
}

// localPath returns s if it is a page of this service that a link may open, and the fallback
// otherwise if not: no link may redirect visitors to another site.
func localPath(s, otherwise string) string {
	u, err := url.Parse(s)
	odd := func(c rune) bool { return c <= ' ' || c == '\\' || c >= 0x7f }
	if err != nil || len(s) > 2048 || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" ||
		!strings.HasPrefix(s, "/") || strings.Contains(u.Path, "//") || strings.ContainsFunc(s, odd) || strings.ContainsFunc(u.Path, odd) {
		return otherwise
	}
	for _, path := range []string{"/sign-in", "/sign-out", "/setup", "/invitation", portalBase + "/link", portalBase + "/sign-out"} {
		if u.Path == path || strings.HasPrefix(u.Path, path+"/") {
			return otherwise
		}
	}
	return s
}

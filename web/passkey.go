package web

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/webauthn"

	"service/internal/ratelimit"
	"service/store"
	"service/store/people"
	"service/web/hashing"
	"service/web/once"
	"service/web/ui"
	"service/webhook"
)

// relyingParty is the address that passkeys are bound to.
type relyingParty struct {
	id     string // a domain name
	origin string // of the pages
}

// relyingParty returns the relying party of a request, or why passkeys do not work at its address.
// Browsers check the relying party against the address that they show, so a forged Host gains
// nothing: passkeys of another domain do not work there. If the configuration has a domain, the
// domain and the port come from it.
func (h *site) relyingParty(r *request) (rp relyingParty, why string) {
	host := strings.ToLower(r.Host)
	name, port := (&url.URL{Host: host}).Hostname(), (&url.URL{Host: host}).Port()
	_, err := netip.ParseAddr(name)
	local := name == "localhost"
	switch {
	case err == nil:
		return rp, "Passkeys need a domain name, and this page was opened at an IP address. " + h.passkeyAddress()
	case len(h.cfg.Domains) > 0 && !local && (!slices.Contains(h.cfg.Domains, name) || !h.ownPort(port)):
		return rp, "Passkeys work only at a domain of the service. " + h.passkeyAddress()
	case !h.cfg.Secure && !local:
		return rp, "Passkeys need HTTPS, except at localhost."
	case protocol.ValidateRPID(name) != nil:
		return rp, "Passkeys need a domain name. " + h.passkeyAddress()
	}
	scheme := "https"
	if !h.cfg.Secure {
		scheme = "http"
	}
	if h.cfg.Secure && port == "443" {
		host = name
	}
	return relyingParty{name, scheme + "://" + host}, ""
}

// ownPort reports whether the pages at the domains can have a port: the HTTPS port, to which a
// router may forward, or the port that the service listens on. At another port of the same name,
// another program could ask for a passkey and send the response here.
func (h *site) ownPort(port string) bool {
	base, err := url.Parse(h.cfg.BaseURL)
	return port == "" || port == "443" || err == nil && port == base.Port()
}

// passkeyAddress says where passkeys work.
func (h *site) passkeyAddress() string {
	base, err := url.Parse(h.cfg.BaseURL)
	if err != nil {
		return ""
	}
	isName := func(host string) bool {
		_, err := netip.ParseAddr(host)
		return err != nil
	}
	if i := slices.IndexFunc(h.cfg.Domains, isName); i >= 0 {
		if !isName(base.Hostname()) {
			base.Host = strings.TrimSuffix(h.cfg.Domains[i]+":"+base.Port(), ":")
		}
		return "Open " + base.String() + " instead."
	}
	host := "localhost"
	if port := base.Port(); port != "" {
		host += ":" + port
	}
	return "Open the service at its domain, or at " + base.Scheme + "://" + host + " on the same machine."
}

// webAuthn returns the library's view of a relying party.
func (rp relyingParty) webAuthn() (*webauthn.WebAuthn, error) {
	return webauthn.New(&webauthn.Config{
		RPID: rp.id, RPDisplayName: "service", RPOrigins: []string{rp.origin}, AttestationPreference: protocol.PreferNoAttestation,
		AuthenticatorSelection: protocol.AuthenticatorSelection{
			ResidentKey: protocol.ResidentKeyRequirementRequired, RequireResidentKey: protocol.ResidentKeyRequired(),
			UserVerification: protocol.VerificationRequired,
		},
	})
}

// ceremony returns the state of a ceremony with a challenge, in the library's form.
func (rp relyingParty) ceremony(challenge []byte) webauthn.SessionData {
	return webauthn.SessionData{
		Challenge: base64.RawURLEncoding.EncodeToString(challenge), RelyingPartyID: rp.id, UserVerification: protocol.VerificationRequired,
		CredParams: webauthn.CredentialParametersDefault(),
	}
}

// passkeyUser is an admin in the library's form. The user handle, which authenticators store, is
// the admin's ID and contains no personal data.
type passkeyUser struct {
	admin    webhook.Admin
	passkeys []webhook.Passkey
}

func (u passkeyUser) WebAuthnID() []byte          { return []byte(u.admin.ID) }
func (u passkeyUser) WebAuthnName() string        { return u.admin.Email }
func (u passkeyUser) WebAuthnDisplayName() string { return u.admin.Email }

func (u passkeyUser) WebAuthnCredentials() []webauthn.Credential {
	all := make([]webauthn.Credential, len(u.passkeys))
	for i, p := range u.passkeys {
		all[i] = webauthn.Credential{
			ID: p.Credential, PublicKey: p.PublicKey, Flags: webauthn.CredentialFlags{BackupEligible: p.Synced},
			Authenticator: webauthn.Authenticator{SignCount: p.SignCount},
		}
	}
	return all
}

// The purposes of challenges, and the cookie that binds those of signing in to a browser.
const (
	challengeSignIn   = "sign in"
	challengeRegister = "register"

	visitorCookie = "passkey"
	visitorLife   = time.Hour
)

// passkeyLimit limits refused passkey responses per network and passkey. Passkeys cannot be
// guessed: the limit bounds the work of checking. All unregistered passkeys count as one, so that a
// stranger, who knows no other ID, does not block an admin on the same network.
var passkeyLimit = ratelimit.Limit{Name: "passkey", Burst: 20, Interval: 10 * time.Second}

// passkeyOptions returns the options of signing in with a passkey, as JSON for the script of the
// page.
func (h *signInPages) passkeyOptions(r *request) (response, error) {
	rp, why := h.relyingParty(r)
	if why != "" {
		return response{}, &problem{status: http.StatusUnprocessableEntity, title: "Passkeys do not work here", text: why}
	}
	w, err := rp.webAuthn()
	if err != nil {
		return response{}, err
	}
	visitor := h.visitor(r)
	if visitor == "" {
		visitor = rand.Text()
	}
	options, _, err := w.BeginDiscoverableLogin(webauthn.WithChallenge(h.challenges.Issue(challengeSignIn, visitor)))
	if err != nil {
		return response{}, err
	}
	options.Response.Timeout = int(once.ChallengeLife.Milliseconds())
	b, err := json.Marshal(options.Response)
	if err != nil {
		return response{}, err
	}
	return response{json: b, cookies: []*http.Cookie{h.sessions.cookie(visitorCookie, visitor, visitorLife)}}, nil
}

// visitor returns the identity of r's browser while it signs in, "" for none.
func (h *signInPages) visitor(r *request) string {
	c, err := r.Cookie(h.sessions.cookieName(visitorCookie))
	if err != nil || len(c.Value) != len(rand.Text()) {
		return ""
	}
	return c.Value
}

// signInByPasskey checks the response of a passkey, which identifies the admin.
func (h *signInPages) signInByPasskey(r *request) (response, error) {
	form := r.PostForm
	s := signInForm{next: localPath(form.Get("next"), "/"), kept: readKeptForm(form)}
	rp, why := h.relyingParty(r)
	if why != "" {
		return h.passkeyRefused(r, s, why), nil
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes([]byte(form.Get("credential")))
	if err != nil {
		return h.passkeyRefused(r, s, "The browser sent no valid response of a passkey. Try again."), nil
	}
	p, err := h.store.Admins().Passkey(r.Context(), parsed.RawID)
	if err != nil && !isCallerError(err) {
		return response{}, err
	}
	tries := []ratelimit.Try{{Limit: passkeyLimit, Key: webhook.Network(addressOf(r)).String() + " " + p.ID}}
	if device, known := h.sessions.device(r, p.AdminID); known {
		tries = []ratelimit.Try{{Limit: deviceLimit, Key: device}}
	}
	if wait := h.limiter.Allow(tries...); wait > 0 {
		return h.refused(r, http.StatusTooManyRequests, s, "Too many attempts. Try again in "+ui.Duration(wait+time.Second)+".", wait), nil
	}
	if p.ID == "" || p.RPID != rp.id {
		return h.passkeyRefused(r, s, "This passkey is not registered here. It may have been removed. Sign in with your password."), nil
	}
	challenge, err := base64.RawURLEncoding.DecodeString(parsed.Response.CollectedClientData.Challenge)
	if err != nil || !h.challenges.Valid(challenge, challengeSignIn, h.visitor(r)) {
		return h.passkeyRefused(r, s, "The sign-in took too long, or its page was opened in another browser. Try again."), nil
	}
	admin, hash, err := h.store.Admins().Get(r.Context(), p.AdminID)
	if err != nil {
		return response{}, asProblem(err)
	}
	w, err := rp.webAuthn()
	if err != nil {
		return response{}, err
	}
	find := func([]byte, []byte) (webauthn.User, error) { return passkeyUser{admin, []webhook.Passkey{p}}, nil }
	_, _, err = w.ValidatePasskeyLogin(find, rp.ceremony(challenge), parsed)
	if err != nil || !h.challenges.Spend(challenge) {
		h.logPasskey(r, err)
		return h.passkeyRefused(r, s, "The response of the passkey is not valid. Try again, or sign in with your password."), nil
	}
	h.limiter.Refund(tries...)
	if !h.localSignInAllowed(&admin) {
		return h.refused(r, http.StatusForbidden, s, onlyOwners(h.providerName()), 0), nil
	}
	return h.beginByPasskey(r, s, &p, admin, hash, parsed.Response.AuthenticatorData.Counter)
}

// beginByPasskey signs in the admin whose passkey signed, unless the passkey's sign count did not
// grow.
func (h *signInPages) beginByPasskey(r *request, s signInForm, p *webhook.Passkey, admin webhook.Admin, hash webhook.PasswordHash,
	count uint32) (response, error) {
	var secret string
	err := h.store.Write(r, func(sw store.Write) (err error) {
		if err = sw.Passkeys().Use(p.ID, count); err != nil {
			return err
		}
		if secret, err = h.sessions.create(sw, r, admin, hash); err != nil {
			return err
		}
		e := r.signInEntry()
		e.Detail += " with the passkey " + p.Name
		return sw.Audit(e)
	})
	switch {
	case errors.Is(err, people.ErrSignCount):
		r.session, r.admin = webhook.Session{}, ""
		e := r.entry(webhook.ActionPasskeyRefuse, "", p.ID, p.Name+": its sign count did not grow, so it may have been copied")
		e.Admin = admin.Email
		if err := h.store.Write(r, func(sw store.Write) error { return sw.Audit(e) }); err != nil {
			return response{}, err
		}
		return h.passkeyRefused(r, s, "This passkey was refused: its counter did not grow, so it may have been copied. "+
			"Sign in with your password, and remove the passkey."), nil
	case isCallerError(err): // the admin or the passkey was removed, or the password changed, at the same time
		r.session, r.admin = webhook.Session{}, ""
		return h.passkeyRefused(r, s, "The account has just changed. Try again."), nil
	case store.Unavailable(err):
		r.session, r.admin = webhook.Session{}, ""
		return h.refused(r, http.StatusServiceUnavailable, s, h.unavailable(err), unavailableRetry), nil
	case err != nil:
		return response{}, err
	}
	a := h.signedIn(r, s, secret)
	a.cookies = append(a.cookies, h.sessions.cookie(visitorCookie, "", -1))
	return a, nil
}

func (h *signInPages) passkeyRefused(r *request, s signInForm, fault string) response {
	return h.refused(r, http.StatusUnauthorized, s, fault, 0)
}

// logPasskey logs why the library refused a response. The library's errors contain no secrets.
func (h *site) logPasskey(r *request, err error) {
	if err != nil {
		h.logger.Warn("passkey refused", "request_id", r.id, "error", cutText(ui.Visible(err.Error()), 200))
	}
}

// newPasskeyView is the page that creates a passkey.
type newPasskeyView struct {
	name    string // suggested
	options string // for the script, JSON
}

// newPasskey checks the admin's password, and shows the page that creates a passkey.
func (h *accountPages) newPasskey(r *request) (response, error) {
	form := r.PostForm
	rp, why := h.relyingParty(r)
	if why != "" {
		return response{}, &problem{status: http.StatusUnprocessableEntity, title: "Passkeys do not work here", text: why}
	}
	wrong := func(text string) (response, error) {
		return h.render(r, http.StatusUnprocessableEntity, []ui.FieldError{{ID: passkeyPasswordField, Label: "Current password", Text: text}})
	}
	password := form.Get("current")
	if password == "" {
		return wrong("is required")
	}
	admin, _, right, err := h.confirmPassword(r, password, nil)
	if err != nil {
		return response{}, err
	}
	if !right {
		return wrong("is wrong")
	}
	u := passkeyUser{admin: admin}
	if u.passkeys, err = h.store.Admins().Passkeys(r.Context(), admin.ID); err != nil {
		return response{}, err
	}
	if len(u.passkeys) >= webhook.MaxPasskeys {
		return wrong("cannot be used to add more: " + webhook.Count(len(u.passkeys), "passkey") + " is the maximum")
	}
	w, err := rp.webAuthn()
	if err != nil {
		return response{}, err
	}
	known := make([]protocol.CredentialDescriptor, 0, len(u.passkeys))
	for _, c := range u.WebAuthnCredentials() {
		known = append(known, c.Descriptor())
	}
	options, _, err := w.BeginRegistration(u, webauthn.WithExclusions(known))
	if err != nil {
		return response{}, err
	}
	options.Response.Challenge = h.challenges.Issue(challengeRegister, r.session.ID)
	options.Response.Timeout = int(once.ChallengeLife.Milliseconds())
	b, err := json.Marshal(options.Response)
	if err != nil {
		return response{}, err
	}
	v := &newPasskeyView{name: browserOf(r.UserAgent()), options: string(b)}
	return response{page: newPasskeyPage(h.frame(r, "Add passkey"), v)}, nil
}

// confirmPassword reports whether a password is the signed-in admin's, and returns its hash. If it is,
// then runs in the same turn of the queue, unless it is nil.
func (h *accountPages) confirmPassword(r *request, password string, then func()) (
	admin webhook.Admin, hash webhook.PasswordHash, right bool, err error,
) {
	if admin, hash, err = h.store.Admins().Get(r.Context(), r.session.AdminID); err != nil {
		return admin, hash, false, asProblem(err)
	}
	if !admin.HasPassword || !h.localSignInAllowed(&admin) {
		return admin, hash, false, h.noPassword()
	}
	// The limit is per session: a stolen session cannot keep the admin from changing the password.
	tried := ratelimit.Try{Limit: sessionLimit, Key: r.session.ID}
	if wait := h.limiter.Allow(tried); wait > 0 {
		return admin, hash, false, &problem{status: http.StatusTooManyRequests, title: "Too many wrong passwords", text: "Try again in " +
			ui.Duration(wait+time.Second) + ". Nothing was changed.", retryAfter: wait}
	}
	if len(password) > webhook.MaxPassword {
		return admin, hash, false, nil
	}
	var hashErr error
	err = h.hasher.Do(r.Context(), hashing.KnownDevice, func() {
		if right, _, hashErr = hash.Matches(password); right && then != nil {
			then()
		}
	})
	if err = errors.Join(err, hashErr); err != nil {
		h.limiter.Refund(tried)
		return admin, hash, false, tooBusy(err)
	}
	if right {
		h.limiter.Refund(tried)
	}
	return admin, hash, right, nil
}

// createPasskey stores the passkey that the browser created.
func (h *accountPages) createPasskey(r *request) (response, error) {
	form := r.PostForm
	refused := func(text string) (response, error) {
		return response{}, &problem{status: http.StatusUnprocessableEntity, title: "The passkey was not added", text: text}
	}
	rp, why := h.relyingParty(r)
	if why != "" {
		return refused(why)
	}
	p := webhook.Passkey{AdminID: r.session.AdminID, Name: strings.TrimSpace(form.Get("name")), RPID: rp.id}
	if wrong := webhook.CheckPasskeyName("name", p.Name); wrong != nil {
		return refused("The name " + wrong[0].Detail + ". Start again on the page Account.")
	}
	parsed, err := protocol.ParseCredentialCreationResponseBytes([]byte(form.Get("credential")))
	if err != nil {
		return refused("The browser sent no valid response. Start again on the page Account.")
	}
	challenge, err := base64.RawURLEncoding.DecodeString(parsed.Response.CollectedClientData.Challenge)
	if err != nil || !h.challenges.Valid(challenge, challengeRegister, r.session.ID) {
		return refused("It took too long, or the page was opened in another session. Start again on the page Account.")
	}
	admin, _, err := h.store.Admins().Get(r.Context(), p.AdminID)
	if err != nil {
		return response{}, asProblem(err)
	}
	w, err := rp.webAuthn()
	if err != nil {
		return response{}, err
	}
	u, state := passkeyUser{admin: admin}, rp.ceremony(challenge)
	state.UserID = u.WebAuthnID()
	credential, err := w.CreateCredential(u, state, parsed)
	if err != nil || len(credential.ID) > webhook.MaxPasskeyCredential || len(credential.PublicKey) > webhook.MaxPasskeyKey ||
		!h.challenges.Spend(challenge) {
		h.logPasskey(r, err)
		return refused("The response of the authenticator is not valid. Start again on the page Account.")
	}
	p.Credential, p.PublicKey = credential.ID, credential.PublicKey
	p.SignCount, p.Synced = credential.Authenticator.SignCount, credential.Flags.BackupEligible
	err = h.store.Write(r, func(sw store.Write) (err error) {
		if p, err = sw.Passkeys().Create(p); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionPasskeyCreate, "", p.ID, p.Name))
	})
	return saved(err, "/account#passkeys", "Passkey added. You can now sign in with it.")
}

// removePasskey removes a passkey of the signed-in admin.
func (h *accountPages) removePasskey(r *request) (response, error) {
	p, err := h.endPasskey(r, r.session.AdminID, "")
	return saved(err, "/account#passkeys", "Removed the passkey "+p.Name+".")
}

// removePasskey removes a passkey of another admin.
func (h *adminPages) removePasskey(r *request, a webhook.Admin) (response, error) {
	p, err := h.endPasskey(r, a.ID, " of "+a.Email)
	return saved(err, adminPath(a.ID)+"#passkeys", "Removed the passkey "+p.Name+" of "+a.Email+".")
}

// endPasskey removes the passkey of the path. Sessions that it began continue.
func (h *site) endPasskey(r *request, adminID, of string) (p webhook.Passkey, err error) {
	err = h.store.Write(r, func(sw store.Write) (err error) {
		if p, err = sw.Passkeys().Remove(adminID, r.PathValue("passkey")); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionPasskeyRemove, "", p.ID, p.Name+of))
	})
	return p, err
}

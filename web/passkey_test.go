package web

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"html"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"service/internal/ratelimit"
	"service/store"
	"service/web/once"
	"service/webhook"
)

// authenticator simulates a security key with one passkey. Its fields select what the browser or
// the key does wrong.
type authenticator struct {
	t      *testing.T
	key    *ecdsa.PrivateKey
	id     []byte // of the credential
	user   string // the user handle
	count  uint32
	origin string // that the browser saw
	framed bool   // the browser saw the page in a frame of another site
	rp     string
	flags  byte
}

const (
	userPresent  = 0x01
	userVerified = 0x04
	synced       = 0x18 // may be copied to other devices, and was
	withKey      = 0x40
)

func newAuthenticator(t *testing.T, origin string) *authenticator {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	u, err := url.Parse(origin)
	must(t, err)
	return &authenticator{t: t, key: key, id: []byte(rand.Text()), origin: origin, rp: u.Hostname(), flags: userPresent | userVerified}
}

// data returns authenticator data, with the public key if requested.
func (a *authenticator) data(key bool) []byte {
	rp := sha256.Sum256([]byte(a.rp))
	b := append(rp[:], a.flags)
	if key {
		b[32] |= withKey
	}
	b = binary.BigEndian.AppendUint32(b, a.count)
	if !key {
		return b
	}
	b = append(b, make([]byte, 16)...) // the model
	b = binary.BigEndian.AppendUint16(b, uint16(len(a.id)))
	b = append(b, a.id...)
	point, err := a.key.PublicKey.Bytes() // 4, X, Y
	must(a.t, err)
	b = append(b, 0xa5, 1, 2, 3, 0x26, 0x20, 1, 0x21, 0x58, 32) // COSE: EC2, ES256, P-256, X
	b = append(b, point[1:33]...)
	b = append(b, 0x22, 0x58, 32) // Y
	return append(b, point[33:]...)
}

// options reads what a page requests from an authenticator.
func (a *authenticator) options(text string) (challenge string) {
	a.t.Helper()
	var o struct {
		Challenge string
		User      struct{ ID string }
	}
	must(a.t, json.Unmarshal([]byte(text), &o))
	if o.User.ID != "" {
		user, err := base64.RawURLEncoding.DecodeString(o.User.ID)
		must(a.t, err)
		a.user = string(user)
	}
	return o.Challenge
}

func (a *authenticator) client(kind, challenge string) []byte {
	b, err := json.Marshal(map[string]any{"type": kind, "challenge": challenge, "origin": a.origin, "crossOrigin": a.framed})
	must(a.t, err)
	return b
}

func (a *authenticator) credential(response map[string][]byte) string {
	encoded := make(map[string]string)
	for name, b := range response {
		encoded[name] = base64.RawURLEncoding.EncodeToString(b)
	}
	id := base64.RawURLEncoding.EncodeToString(a.id)
	b, err := json.Marshal(map[string]any{"id": id, "rawId": id, "type": "public-key", "response": encoded,
		"clientExtensionResults": map[string]any{}})
	must(a.t, err)
	return string(b)
}

// create returns the response to the options of the page that creates a passkey.
func (a *authenticator) create(challenge string) string {
	data := a.data(true)
	object := append([]byte("\xa3\x63fmt\x64none\x67attStmt\xa0\x68authData\x59"), byte(len(data)>>8), byte(len(data)))
	client := a.client("webauthn.create", challenge)
	return a.credential(map[string][]byte{"clientDataJSON": client, "attestationObject": append(object, data...)})
}

// sign returns the response to a challenge of signing in.
func (a *authenticator) sign(challenge string) string {
	data := a.data(false)
	return a.signAs(challenge, "webauthn.get", data, data)
}

// signAs is sign for another type of ceremony, or with sent authenticator data that differs from
// the signed data.
func (a *authenticator) signAs(challenge, kind string, data, sent []byte) string {
	client := a.client(kind, challenge)
	hash := sha256.Sum256(client)
	signed := sha256.Sum256(append(bytes.Clone(data), hash[:]...))
	signature, err := ecdsa.SignASN1(rand.Reader, a.key, signed[:])
	must(a.t, err)
	return a.credential(map[string][]byte{"clientDataJSON": client, "authenticatorData": sent, "signature": signature,
		"userHandle": []byte(a.user)})
}

// at makes the visitor request another host, which the server sees.
type at struct {
	host string
	http.RoundTripper
}

func (a at) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Host = a.host
	return a.RoundTripper.RoundTrip(r)
}

const (
	passkeyHost   = "hooks.example"
	passkeyOrigin = "https://" + passkeyHost
)

// passkeyVisit is a browser at a service with a domain. Cookies go to the host of the
// server, whatever the request says.
func passkeyVisit(t *testing.T, w *Web, host string) visitor {
	t.Helper()
	v := visit(t, w)
	transport := v.client.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	v.client.Transport = at{host, transport}
	return v
}

var passkeyOptionsOf = regexp.MustCompile(`data-passkey-options="([^"]*)"`)

// newPasskey returns the challenge of the page that creates a passkey.
func (v visitor) newPasskey(a *authenticator) string {
	v.t.Helper()
	p := v.send("/account/passkeys/new", "current", testPassword)
	p.want(v.t, 200, "Create passkey")
	return a.options(html.UnescapeString(passkeyOptionsOf.FindStringSubmatch(p.body)[1]))
}

// register adds a passkey to the account of testAdmin.
func (v visitor) register(a *authenticator, name string) {
	v.t.Helper()
	v.send("/account/passkeys", "name", name, "credential", a.create(v.newPasskey(a))).want(v.t, 303, "")
}

// challenge returns a challenge of signing in.
func (v visitor) challenge(a *authenticator) string {
	v.t.Helper()
	p := v.do("GET", "/sign-in/passkey")
	p.want(v.t, 200, `"userVerification":"required"`)
	if strings.Contains(p.body, "allowCredentials") {
		v.t.Error("signing in names passkeys")
	}
	return a.options(p.body)
}

// passkeyWeb is a service with a domain and an admin with a password, who is signed in.
func passkeyWeb(t *testing.T) (*Web, webhook.Admin, visitor) {
	t.Helper()
	w := testWeb(t, func(c *Config) { c.Secure, c.Domains = true, []string{passkeyHost} })
	admin := withPassword(t, w, testAdmin)
	v := passkeyVisit(t, w, passkeyHost)
	v.enter(testAdmin, testPassword).want(t, 303, "")
	return w, admin, v
}

func TestPasskey(t *testing.T) {
	w, admin, v := passkeyWeb(t)
	passkeyVisit(t, w, passkeyHost).do("GET", "/sign-in").want(t, 200, "data-passkey hidden")
	v.send("/account/passkeys/new").want(t, 422, "is required")
	p := v.send("/account/passkeys/new", "current", "wrong")
	p.want(t, 422, "is wrong")
	if n := strings.Index(p.body, "Nothing was saved."); n < strings.Index(p.body, `id="passkeys"`) || n > strings.Index(p.body, `id="change"`) {
		t.Error("the errors are not at the form that was sent")
	}

	a := newAuthenticator(t, passkeyOrigin)
	v.register(a, "Laptop <b>")
	v.do("GET", "/account").want(t, 200, "Laptop &lt;b&gt;")
	v.do("POST", "/sign-out").want(t, 303, "")
	v.do("GET", "/account").want(t, 401, "")

	// The passkey names the admin; no email is typed.
	p = v.send("/sign-in/passkey", "credential", a.sign(v.challenge(a)), "next", "/deliveries")
	p.want(t, 303, "")
	p.wantHeader(t, "Location", "/deliveries")
	v.do("GET", "/account").want(t, 200, "Signed in as "+testAdmin)
	all, err := w.store.Admins().Passkeys(t.Context(), admin.ID)
	must(t, err)
	if len(all) != 1 || all[0].UsedAt.IsZero() || all[0].RPID != passkeyHost {
		t.Errorf("got %+v", all)
	}
	wantAudit(t, w, testAdmin+" from 127.0.0.1: passkey.create", "with the passkey Laptop")

	v.do("POST", "/account/passkeys/"+webhook.NewID()+"/remove").want(t, 404, "")
	v.do("POST", "/account/passkeys/"+all[0].ID+"/remove").want(t, 303, "")
	v.do("POST", "/sign-out").want(t, 303, "")
	v.send("/sign-in/passkey", "credential", a.sign(v.challenge(a))).want(t, 401, "not registered here")
	wantAudit(t, w, testAdmin+" from 127.0.0.1: passkey.remove")
}

// A wrong passkey response does not sign in, and creates no session.
func TestPasskeyRefused(t *testing.T) {
	w, _, v := passkeyWeb(t)
	a := newAuthenticator(t, passkeyOrigin)
	v.register(a, "Laptop")
	v.do("POST", "/sign-out").want(t, 303, "")

	stranger := newAuthenticator(t, passkeyOrigin)
	stranger.user = a.user
	forged := newAuthenticator(t, passkeyOrigin)
	forged.id, forged.user = a.id, a.user
	with := func(change func(*authenticator)) *authenticator {
		b := *a
		change(&b)
		return &b
	}
	other := passkeyVisit(t, w, passkeyHost)
	restarted := once.NewChallenges().Issue(challengeSignIn, "x")
	for name, credential := range map[string]func() string{
		"unknown":        func() string { return stranger.sign(v.challenge(a)) },
		"of another key": func() string { return forged.sign(v.challenge(a)) },
		"wrong origin": func() string {
			return with(func(b *authenticator) { b.origin = "https://evil.example" }).sign(v.challenge(a))
		},
		"another port": func() string { return with(func(b *authenticator) { b.origin += ":8443" }).sign(v.challenge(a)) },
		"over HTTP": func() string {
			return with(func(b *authenticator) { b.origin = "http://" + passkeyHost }).sign(v.challenge(a))
		},
		"wrong domain":     func() string { return with(func(b *authenticator) { b.rp = "evil.example" }).sign(v.challenge(a)) },
		"unverified user":  func() string { return with(func(b *authenticator) { b.flags = userPresent }).sign(v.challenge(a)) },
		"absent user":      func() string { return with(func(b *authenticator) { b.flags = userVerified }).sign(v.challenge(a)) },
		"another user":     func() string { return with(func(b *authenticator) { b.user = webhook.NewID() }).sign(v.challenge(a)) },
		"no user":          func() string { return with(func(b *authenticator) { b.user = "" }).sign(v.challenge(a)) },
		"in a frame":       func() string { return with(func(b *authenticator) { b.framed = true }).sign(v.challenge(a)) },
		"synced by now":    func() string { return with(func(b *authenticator) { b.flags |= synced }).sign(v.challenge(a)) },
		"another ceremony": func() string { return a.signAs(v.challenge(a), "webauthn.create", a.data(false), a.data(false)) },
		"verified afterwards": func() string {
			signed := bytes.Clone(a.data(false))
			signed[32] = userPresent
			return a.signAs(v.challenge(a), "webauthn.get", signed, a.data(false))
		},
		"another browser":   func() string { return a.sign(other.challenge(a)) },
		"own challenge":     func() string { return a.sign(base64.RawURLEncoding.EncodeToString(make([]byte, once.ChallengeSize))) },
		"short challenge":   func() string { return a.sign("") },
		"before a restart":  func() string { return a.sign(base64.RawURLEncoding.EncodeToString(restarted)) },
		"of a registration": func() string { return a.create(v.challenge(a)) },
		"nothing":           func() string { return "" },
		"no JSON":           func() string { return "{" },
	} {
		w.pages.signIn.limiter = ratelimit.New(maxLimitKeys)
		p := v.send("/sign-in/passkey", "credential", credential())
		if p.StatusCode != 401 || v.cookie("session") != "" {
			t.Errorf("%s: got %d:\n%s", name, p.StatusCode, p.body)
		}
		p.hasNot(t, testAdmin)
	}
	// None of these blocks the right response.
	v.send("/sign-in/passkey", "credential", a.sign(v.challenge(a))).want(t, 303, "")
}

// A signed response works once, and so does its challenge, even for another signature and another
// passkey.
func TestPasskeyReplayed(t *testing.T) {
	w, _, v := passkeyWeb(t)
	again := passkeyVisit(t, w, passkeyHost)
	a, second := newAuthenticator(t, passkeyOrigin), newAuthenticator(t, passkeyOrigin)
	v.register(a, "Laptop")
	v.register(second, "Phone")
	v.do("POST", "/sign-out").want(t, 303, "")
	challenge := v.challenge(a)
	signed, mark := a.sign(challenge), v.cookie("passkey")
	v.send("/sign-in/passkey", "credential", signed).want(t, 303, "")
	v.do("POST", "/sign-out").want(t, 303, "")
	for _, credential := range []string{signed, a.sign(challenge), second.sign(challenge)} {
		p := again.post("/sign-in/passkey", url.Values{"credential": {credential}}.Encode(), "Cookie", "__Host-passkey="+mark)
		p.want(t, 401, "is not valid")
	}
	v.send("/sign-in/passkey", "credential", second.sign(v.challenge(second))).want(t, 303, "")
}

// A passkey works at the domain at which it was created, even if its owner's key signs for another
// domain of the service.
func TestPasskeyOfAnotherDomain(t *testing.T) {
	const secondHost = "second.example"
	w := testWeb(t, func(c *Config) { c.Secure, c.Domains = true, []string{passkeyHost, secondHost} })
	withPassword(t, w, testAdmin)
	v := passkeyVisit(t, w, passkeyHost)
	v.enter(testAdmin, testPassword).want(t, 303, "")
	a := newAuthenticator(t, passkeyOrigin)
	v.register(a, "Laptop")
	second := passkeyVisit(t, w, secondHost)
	moved := *a
	moved.origin, moved.rp = "https://"+secondHost, secondHost
	second.send("/sign-in/passkey", "credential", moved.sign(second.challenge(a))).want(t, 401, "not registered here")
	second.send("/sign-in/passkey", "credential", a.sign(second.challenge(a))).want(t, 401, "not registered here")
	v.do("POST", "/sign-out").want(t, 303, "")
	v.send("/sign-in/passkey", "credential", a.sign(v.challenge(a))).want(t, 303, "")
}

// The sign count reveals a copied passkey.
func TestPasskeyCopied(t *testing.T) {
	w, _, v := passkeyWeb(t)
	a := newAuthenticator(t, passkeyOrigin)
	a.count = 7
	v.register(a, "Key")
	v.do("POST", "/sign-out").want(t, 303, "")
	a.count = 8
	v.send("/sign-in/passkey", "credential", a.sign(v.challenge(a))).want(t, 303, "")
	v.do("POST", "/sign-out").want(t, 303, "")
	for _, back := range []uint32{8, 7, 1, 0} {
		a.count = back
		v.send("/sign-in/passkey", "credential", a.sign(v.challenge(a))).want(t, 401, "may have been copied")
		if v.cookie("session") != "" {
			t.Errorf("count %d: there is a session", back)
		}
	}
	// The refused counts are not stored: the original still works.
	a.count = 9
	v.send("/sign-in/passkey", "credential", a.sign(v.challenge(a))).want(t, 303, "")
	wantAudit(t, w, testAdmin+" from 127.0.0.1: passkey.refuse")
}

// The response of the page for a new passkey belongs to its session, and works once.
func TestNewPasskeyRefused(t *testing.T) {
	w, admin, v := passkeyWeb(t)
	other := passkeyVisit(t, w, passkeyHost)
	other.enter(testAdmin, testPassword).want(t, 303, "")
	a := newAuthenticator(t, passkeyOrigin)
	// with adds a passkey of an authenticator that a change makes wrong.
	with := func(change func(*authenticator)) page {
		wrong := newAuthenticator(t, passkeyOrigin)
		change(wrong)
		return v.send("/account/passkeys", "name", "x", "credential", wrong.create(v.newPasskey(wrong)))
	}
	for name, p := range map[string]page{
		"absent user":        with(func(b *authenticator) { b.flags = userVerified }),
		"in a frame":         with(func(b *authenticator) { b.framed = true }),
		"wrong domain":       with(func(b *authenticator) { b.rp = "evil.example" }),
		"wrong origin":       with(func(b *authenticator) { b.origin = "https://evil.example" }),
		"unverified user":    with(func(b *authenticator) { b.flags = userPresent }),
		"an assertion":       v.send("/account/passkeys", "name", "x", "credential", a.sign(v.newPasskey(a))),
		"of another session": v.send("/account/passkeys", "name", "x", "credential", a.create(other.newPasskey(a))),
		"of a sign-in":       v.send("/account/passkeys", "name", "x", "credential", a.create(v.challenge(a))),
		"without a name":     v.send("/account/passkeys", "name", " ", "credential", a.create(v.newPasskey(a))),
		"no credential":      v.send("/account/passkeys", "name", "x"),
	} {
		if p.StatusCode != 422 || !strings.Contains(p.body, "The passkey was not added") {
			t.Errorf("%s: got %d:\n%s", name, p.StatusCode, p.body)
		}
	}
	created := a.create(v.newPasskey(a))
	v.send("/account/passkeys", "name", "x", "credential", created).want(t, 303, "")
	v.send("/account/passkeys", "name", "x", "credential", created).want(t, 422, "The passkey was not added")
	// The same key again, with a new challenge.
	v.send("/account/passkeys", "name", "x", "credential", a.create(v.newPasskey(a))).want(t, 409, "registered already")
	if all, err := w.store.Admins().Passkeys(t.Context(), admin.ID); err != nil || len(all) != 1 {
		t.Errorf("got %d passkeys, %v", len(all), err)
	}
}

// An owner may remove the passkeys of others; other admins only their own.
func TestPasskeyOfAnother(t *testing.T) {
	w, admin, v := passkeyWeb(t)
	bo := withPassword(t, w, "bo@example.com")
	other := passkeyVisit(t, w, passkeyHost)
	other.enter(bo.Email, testPassword).want(t, 303, "")
	v.register(newAuthenticator(t, passkeyOrigin), "Laptop")
	all, err := w.store.Admins().Passkeys(t.Context(), admin.ID)
	must(t, err)
	remove := adminPath(admin.ID) + "/passkeys/" + all[0].ID + "/remove"
	other.do("POST", "/account/passkeys/"+all[0].ID+"/remove").want(t, 404, "")
	must(t, w.store.Write(t.Context(), func(sw store.Write) error {
		_, err := sw.Admins().SetRole(bo.ID, webhook.RoleOperator)
		return err
	}))
	other.do("POST", remove).want(t, 403, "")
	other.do("GET", adminPath(admin.ID)).hasNot(t, remove)
	must(t, w.store.Write(t.Context(), func(sw store.Write) error {
		_, err := sw.Admins().SetRole(bo.ID, webhook.RoleOwner)
		return err
	}))
	other.do("GET", adminPath(admin.ID)).want(t, 200, remove)
	other.do("POST", adminPath(bo.ID)+"/passkeys/"+all[0].ID+"/remove").want(t, 404, "")
	other.do("POST", remove).want(t, 303, "")
	wantAudit(t, w, bo.Email+" from 127.0.0.1: passkey.remove")
}

// The passkey of one admin cannot become, or stand for, that of another.
func TestPasskeyForAnother(t *testing.T) {
	w, admin, v := passkeyWeb(t)
	bo := withPassword(t, w, "bo@example.com")
	other := passkeyVisit(t, w, passkeyHost)
	other.enter(bo.Email, testPassword).want(t, 303, "")
	a, b := newAuthenticator(t, passkeyOrigin), newAuthenticator(t, passkeyOrigin)
	v.register(a, "Laptop")
	other.register(b, "Key")

	// Bo's key under the ID of the other's passkey, added to Bo's account.
	taken := *b
	taken.id = a.id
	other.send("/account/passkeys", "name", "x", "credential", taken.create(other.newPasskey(&taken))).want(t, 409, "registered already")
	// Bo's authenticator answers the options of the other's page, and either of them sends the
	// answer.
	fresh := newAuthenticator(t, passkeyOrigin)
	options := v.newPasskey(fresh)
	other.send("/account/passkeys", "name", "x", "credential", fresh.create(options)).want(t, 422, "The passkey was not added")
	v.do("POST", "/sign-out").want(t, 303, "")
	other.do("POST", "/sign-out").want(t, 303, "")

	// Bo claims to be the other: by the user handle, by the ID of the passkey, or by both.
	handle, both := *b, taken
	handle.user, both.user = a.user, a.user
	for name, forged := range map[string]*authenticator{"user": &handle, "ID": &taken, "user and ID": &both} {
		p := other.send("/sign-in/passkey", "credential", forged.sign(other.challenge(b)))
		if p.StatusCode != 401 || other.cookie("session") != "" {
			t.Errorf("another's %s: got %d:\n%s", name, p.StatusCode, p.body)
		}
	}
	// In any browser, a passkey signs in its own admin.
	v.send("/sign-in/passkey", "credential", b.sign(v.challenge(b))).want(t, 303, "")
	v.do("GET", "/account").want(t, 200, "Signed in as "+bo.Email)
	other.send("/sign-in/passkey", "credential", a.sign(other.challenge(a))).want(t, 303, "")
	other.do("GET", "/account").want(t, 200, "Signed in as "+testAdmin)
	for _, who := range []webhook.Admin{admin, bo} {
		if all, err := w.store.Admins().Passkeys(t.Context(), who.ID); err != nil || len(all) != 1 {
			t.Errorf("%s has %d passkeys, %v", who.Email, len(all), err)
		}
	}
	// Removing an admin ends the admin's passkeys.
	must(t, w.store.Write(t.Context(), func(sw store.Write) error {
		_, err := sw.Admins().Remove(bo.Email)
		return err
	}))
	v.do("GET", "/account").want(t, 401, "")
	v.send("/sign-in/passkey", "credential", b.sign(v.challenge(b))).want(t, 401, "not registered here")
}

// Pages explain why browsers offer no passkeys at their address.
func TestPasskeysNeedADomain(t *testing.T) {
	for _, tt := range []struct {
		host    string
		secure  bool
		domains []string
		why     string
	}{
		{"9.9.9.9", true, []string{"9.9.9.9"}, "opened at an IP address. Open the service at its domain"},
		{"9.9.9.9", true, []string{"9.9.9.9", passkeyHost}, "opened at an IP address. Open https://service.example:8443 instead."},
		{"127.0.0.1:8443", true, nil, "opened at an IP address"},
		{"[::1]:8443", true, nil, "opened at an IP address"},
		{"other.example", true, []string{passkeyHost}, "only at a domain of the service"},
		{"hooks.example", false, nil, "need HTTPS"},
		{"localhost:8443", true, []string{passkeyHost}, ""},
		{"localhost:8080", false, nil, ""},
		{"HOOKS.example", true, []string{passkeyHost}, ""},
		{"proxied.example", true, nil, ""},
		{passkeyHost + ":443", true, []string{passkeyHost}, ""},
		{passkeyHost + ":8443", true, []string{passkeyHost}, ""}, // the port of BaseURL
		{passkeyHost + ":9000", true, []string{passkeyHost}, "only at a domain of the service"},
	} {
		w := testWeb(t, func(c *Config) {
			c.Secure, c.Domains, c.BaseURL = tt.secure, tt.domains, "https://service.example:8443"
		})
		admin := withPassword(t, w, testAdmin)
		v := passkeyVisit(t, w, tt.host)
		p := v.do("GET", "/sign-in")
		if got := strings.Contains(p.body, "data-passkey hidden"); got != (tt.why == "") {
			t.Errorf("%s: a button to sign in: %v", tt.host, got)
		}
		p.hasNot(t, "Passkeys")
		must(t, w.store.Write(t.Context(), func(sw store.Write) error {
			_, err := sw.Passkeys().Create(webhook.Passkey{AdminID: admin.ID, Name: "x", RPID: "x", Credential: []byte("x"), PublicKey: []byte("x")})
			return err
		}))
		p = v.do("GET", "/sign-in")
		p.want(t, 200, tt.why)
		v.signIn(w)
		account := v.do("GET", "/account")
		account.want(t, 200, tt.why)
		if got := strings.Contains(account.body, "Add passkey"); got != (tt.why == "") {
			t.Errorf("%s: a form that adds one: %v", tt.host, got)
		}
		if tt.why != "" {
			v.do("GET", "/sign-in/passkey").want(t, 422, tt.why)
			v.send("/account/passkeys/new", "current", testPassword).want(t, 422, tt.why)
			v.send("/sign-in/passkey", "credential", "{}").want(t, 401, tt.why)
		}
	}
}

// Refused responses are limited per network. Neither they nor wrong passwords block a registered
// passkey in a new browser on the same network.
func TestPasskeysAreLimited(t *testing.T) {
	w, _, v := passkeyWeb(t)
	own := newAuthenticator(t, passkeyOrigin)
	v.register(own, "Laptop")
	v = passkeyVisit(t, w, passkeyHost)
	a := newAuthenticator(t, passkeyOrigin)
	a.user = webhook.NewID()
	refused := 0
	for range passkeyLimit.Burst + 3 {
		p := v.send("/sign-in/passkey", "credential", a.sign(v.challenge(a)))
		if p.StatusCode == 429 && p.Header.Get("Retry-After") != "" {
			refused++
		}
	}
	if refused != 3 {
		t.Errorf("%d of 3 above the limit are refused", refused)
	}
	// Passwords have separate limits.
	v.enter(testAdmin, testPassword).want(t, 303, "")
	v = passkeyVisit(t, w, passkeyHost)
	for range 100 {
		allowUnknown(w.pages.signIn.limiter, netip.MustParseAddr("127.0.0.1"), testAdmin)
	}
	v.send("/sign-in/passkey", "credential", own.sign(v.challenge(own))).want(t, 303, "")
}

package web

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/web/oidc"
	"service/webhook"
)

const callback = oidc.CallbackPath

// withProvider returns the admin UI with a provider, and creates an owner with a password.
func withProvider(t *testing.T, p *rogue, log *bytes.Buffer) *Web {
	t.Helper()
	w := testWeb(t, func(c *Config) {
		if log != nil {
			c.Logger = slog.New(slog.NewTextHandler(log, nil))
		}
		c.OIDC = oidc.New(oidc.Config{Name: "Corp", Issuer: p.server.URL, ClientID: rogueClient, ClientSecret: rogueSecret,
			RedirectURL: "https://service.example" + callback,
			Rules: []oidc.RoleRule{{Claim: "groups", Value: "staff", Role: webhook.RoleViewer},
				{Claim: "groups", Value: "ops", Role: webhook.RoleOperator},
				{Claim: "realm.roles", Value: "boss", Role: webhook.RoleOwner},
				{Claim: "email", Value: "chief@example.com", Role: webhook.RoleOwner},
				{Claim: "phone_number", Value: "+15550100", Role: webhook.RoleOwner},
				{Claim: "https://corp.example/email", Value: "chief@example.com", Role: webhook.RoleOwner}},
		})
	})
	makeAdmin(t, w, testAdmin)
	return w
}

// newRogueWeb returns a provider, and the admin UI that it signs visitors in to.
func newRogueWeb(t *testing.T) (*rogue, *Web) {
	t.Helper()
	p := newRogue(t)
	return p, withProvider(t, p, nil)
}

// begin begins a flow, and returns the query with which the provider sends the browser back.
func (v visitor) begin(p *rogue) url.Values {
	v.t.Helper()
	a := v.do("GET", "/sign-in/oidc?next=%2Fevents")
	a.want(v.t, 303, "")
	return p.authorize(a.Header.Get("Location"))
}

// through signs in through the provider.
func (v visitor) through(p *rogue) page {
	v.t.Helper()
	return v.do("GET", callback+"?"+v.begin(p).Encode())
}

// fresh returns another browser at the same address.
func (v visitor) fresh() visitor {
	jar, _ := cookiejar.New(nil)
	return visitor{v.t, v.base, &http.Client{Jar: jar, CheckRedirect: v.client.CheckRedirect, Transport: v.client.Transport}}
}

// wantAdmins checks how many admins there are.
func wantAdmins(t *testing.T, w *Web, want int) {
	t.Helper()
	if all, err := w.store.Admins().List(t.Context()); err != nil || len(all) != want {
		t.Errorf("got %d admins, %v; want %d", len(all), err, want)
	}
}

// TestIdentitySignIn signs in through a provider: the request, the session, the roles and
// the audit entries.
func TestIdentitySignIn(t *testing.T) {
	p, w := newRogueWeb(t)
	v := visit(t, w)
	v.do("GET", "/").want(t, 401, `<a class="action" href="/sign-in/oidc">Sign in with Corp</a>`)
	v.do("GET", "/events?a=b").want(t, 401, `href="/sign-in/oidc?next=%2Fevents%3Fa%3Db"`)
	v.through(p).want(t, 303, "")
	asked := p.asked["/auth"]
	for name, want := range map[string]string{"response_type": "code", "client_id": rogueClient, "scope": "openid email profile groups",
		"redirect_uri": "https://service.example" + callback, "code_challenge_method": "S256"} {
		if got := asked.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if len(asked.Get("state")) < 40 || len(asked.Get("nonce")) < 40 || len(asked.Get("code_challenge")) < 40 {
		t.Errorf("got %v", asked)
	}
	v.do("GET", "/account").want(t, 200, "Signed in as cy@example.com with the role operator",
		"You sign in with Corp, without a password.")
	v.do("GET", "/tokens/new").want(t, 403, "")
	v.do("GET", "/admins").want(t, 200, "OpenID Connect")

	// At each sign-in the role is the highest role of the visitor's groups.
	p.set(func() {
		p.claims["groups"] = []string{"staff"}
		p.claims["realm"] = map[string]any{"roles": []string{"boss"}}
	})
	v.through(p).want(t, 303, "")
	v.do("GET", "/account").want(t, 200, "with the role owner")
	p.set(func() { delete(p.claims, "realm") })
	v.through(p).want(t, 303, "")
	v.do("GET", "/account").want(t, 200, "with the role viewer")
	v.post("/account/password", "current=x&password=long-enough-password&again=long-enough-password").want(t, 409, "without a password")
	wantAdmins(t, w, 2)

	// A visitor who has lost all groups gets no access, and loses all sessions.
	p.set(func() { p.claims["groups"] = []string{"other"} })
	v.fresh().through(p).want(t, 403, "No role for this account")
	v.do("GET", "/account").want(t, 401, "")
	// An unknown account without a group creates nothing.
	p.set(func() { p.claims["sub"] = "sub-2"; p.claims["email"] = "dee@example.com" })
	v.fresh().through(p).want(t, 403, "Nothing was created")
	wantAdmins(t, w, 2)
	wantAudit(t, w, "cy@example.com from 127.0.0.1: admin.create operator, through OpenID Connect",
		"session.begin Go-http-client/1.1, through OpenID Connect", "from operator to owner, through OpenID Connect", "from owner to viewer",
		"cy@example.com from 127.0.0.1: session.refuse OpenID Connect: no role; ended 1 session",
		"provider from 127.0.0.1: session.refuse", "no role, subject sub-2")
}

// TestIdentityCookie checks the cookie of a flow behind HTTPS.
func TestIdentityCookie(t *testing.T) {
	p := newRogue(t)
	w := testWeb(t, func(c *Config) {
		c.Secure = true
		c.OIDC = oidc.New(oidc.Config{Issuer: p.server.URL, ClientID: rogueClient, RedirectURL: "https://service.example" + callback})
	})
	makeAdmin(t, w, testAdmin)
	a := visit(t, w).do("GET", "/sign-in/oidc")
	a.want(t, 303, "")
	c := a.Cookies()[0]
	if c.Name != "__Host-oidc" || !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.MaxAge != 600 ||
		c.Domain != "" {
		t.Errorf("got %v", c)
	}
}

// identityAttack is a wrong response of a provider.
type identityAttack struct {
	name   string
	rogue  func(*rogue)             // before the flow begins
	query  func(*rogue, url.Values) // of the response
	late   func(*rogue)             // before the response is sent
	status int
	text   string
}

func identityAttacks() []identityAttack {
	const unverified, refused = "could not be verified", "did not sign you in"
	claim := func(name string, value any) func(*rogue) {
		return func(p *rogue) { p.claims[name] = value }
	}
	set := func(name, value string) func(*rogue, url.Values) {
		return func(_ *rogue, q url.Values) { q.Set(name, value) }
	}
	return []identityAttack{
		{name: "wrong nonce", rogue: claim("nonce", "another"), status: 401, text: unverified},
		{name: "no nonce", rogue: claim("nonce", nil), status: 401, text: unverified},
		{name: "wrong state", query: set("state", strings.Repeat("A", 43)), status: 400, text: "started in another browser"},
		{name: "no state", query: func(_ *rogue, q url.Values) { q.Del("state") }, status: 400, text: "started in another browser"},
		{name: "two states", query: func(_ *rogue, q url.Values) { q.Add("state", "x") }, status: 401, text: unverified},
		{name: "wrong audience", rogue: claim("aud", "other"), status: 401, text: unverified},
		{name: "several audiences", rogue: claim("aud", []string{"other", rogueClient}), status: 401, text: unverified},
		{name: "other party", rogue: claim("azp", "other"), status: 401, text: unverified},
		{name: "wrong issuer", rogue: claim("iss", "https://evil.example"), status: 401, text: unverified},
		{name: "expired", rogue: claim("exp", time.Now().Add(-2*time.Minute).Unix()), status: 401, text: unverified},
		{name: "from the future", rogue: claim("iat", time.Now().Add(time.Hour).Unix()), status: 401, text: unverified},
		{name: "not valid yet", rogue: claim("nbf", time.Now().Add(time.Hour).Unix()), status: 401, text: unverified},
		{name: "no subject", rogue: claim("sub", ""), status: 401, text: unverified},
		{name: "long subject", rogue: claim("sub", strings.Repeat("s", 256)), status: 401, text: unverified},
		{name: "wrong access token", rogue: claim("at_hash", "AAAAAAAAAAAAAAAAAAAAAA"), status: 401, text: unverified},
		{name: "alg none", rogue: func(p *rogue) { p.alg = "none" }, status: 401, text: unverified},
		{name: "alg HS256", rogue: func(p *rogue) { p.alg = "HS256" }, status: 401, text: unverified},
		{name: "withdrawn key", late: func(p *rogue) { delete(p.keys, "one") }, status: 401, text: unverified},
		{name: "other key", late: func(p *rogue) { p.keys["one"] = rogueKeys()[1] }, status: 401, text: unverified},
		{name: "mix-up", query: set("iss", "https://evil.example"), status: 401, text: unverified},
		{name: "no iss where promised", rogue: func(p *rogue) { p.meta["authorization_response_iss_parameter_supported"] = true },
			status: 401, text: unverified},
		{name: "no code", query: func(_ *rogue, q url.Values) { q.Del("code") }, status: 401, text: unverified},
		{name: "long code", query: set("code", strings.Repeat("c", 10_000)), status: 401, text: unverified},
		{name: "error", query: set("error", "access_denied"), status: 401, text: refused + ": access was denied."},
		{name: "hostile error", query: set("error", "<script>"), status: 401, text: refused + "."},
		{name: "wrong secret", late: func(p *rogue) { p.asked["/auth"].Set("code_challenge", "x") }, status: 401, text: unverified},
		{name: "token endpoint fails", rogue: func(p *rogue) { p.broken = "/token" }, status: 503, text: "does not respond"},
		{name: "keys fail", rogue: func(p *rogue) { p.broken = "/keys" }, status: 503, text: "does not respond"},
		{name: "large token", rogue: func(p *rogue) { p.big = "/token" }, status: 503, text: "does not respond"},
		{name: "large keys", rogue: func(p *rogue) { p.big = "/keys" }, status: 503, text: "does not respond"},
		{name: "UserInfo of another", rogue: func(p *rogue) {
			p.info = map[string]any{"sub": "sub-9", "email": "cy@example.com"}
			p.claims["email"] = nil
		}, status: 401, text: unverified},
		{name: "large UserInfo", rogue: func(p *rogue) {
			p.info, p.big = map[string]any{"sub": "sub-1"}, "/info"
			p.claims["email"] = nil
		}, status: 503, text: "does not respond"},
		{name: "no email", rogue: claim("email", nil), status: 403, text: "no valid email address"},
		{name: "hostile email", rogue: claim("email", "<b>@example.com"), status: 403, text: "no valid email address"},
		{name: "unverified email of an admin", rogue: func(p *rogue) {
			p.claims["email"], p.claims["email_verified"] = testAdmin, false
		}, status: 403, text: "has not verified the address"},
		{name: "email of an admin, verified not said", rogue: func(p *rogue) {
			p.claims["email"], p.claims["email_verified"] = testAdmin, nil
		}, status: 403, text: "has not verified the address"},
		{name: "verified email of the last owner, with a lower role", rogue: claim("email", testAdmin), status: 403,
			text: "last owner with a password"},
	}
}

// TestIdentityAttacks checks that no wrong response signs anyone in or creates anything.
func TestIdentityAttacks(t *testing.T) {
	for _, tt := range identityAttacks() {
		t.Run(tt.name, func(t *testing.T) {
			tt.run(t)
		})
	}
}

// run signs in through an identity provider that attacks: the result must be no session, no admin
// and no secret.
func (tt *identityAttack) run(t *testing.T) {
	t.Helper()
	p, log := newRogue(t), new(bytes.Buffer)
	w := withProvider(t, p, log)
	if tt.rogue != nil {
		p.set(func() { tt.rogue(p) })
	}
	v := visit(t, w)
	q := v.begin(p)
	if tt.late != nil {
		p.set(func() { tt.late(p) })
	}
	if tt.query != nil {
		tt.query(p, q)
	}
	a := v.do("GET", callback+"?"+q.Encode())
	a.want(t, tt.status, tt.text)
	for _, c := range a.Cookies() {
		if c.Name == sessionCookie || c.Name == deviceCookie {
			t.Errorf("got the cookie %s", c.Name)
		}
	}
	v.do("GET", "/account").want(t, 401, "")
	wantAdmins(t, w, 1)
	admin, _, err := w.store.Admins().ByEmail(t.Context(), testAdmin)
	must(t, err)
	if admin.Role != webhook.RoleOwner || admin.OIDCSubject != "" {
		t.Errorf("got %+v", admin)
	}
	for _, secret := range []string{rogueSecret, q.Get("code"), q.Get("state")} {
		if len(secret) > 3 && (strings.Contains(log.String(), secret) || strings.Contains(a.body, secret)) {
			t.Errorf("the log or the page has the secret %q:\n%s", secret, log)
		}
	}
}

// TestIdentityReplay checks that a response is valid once, and only in the browser that began the
// flow.
func TestIdentityReplay(t *testing.T) {
	p, w := newRogueWeb(t) // the provider accepts a code any number of times
	v := visit(t, w)
	a := v.do("GET", "/sign-in/oidc")
	flow := a.Cookies()[0]
	q := callback + "?" + p.authorize(a.Header.Get("Location")).Encode()

	v.fresh().do("GET", q).want(t, 400, "started in another browser")
	v.do("HEAD", q).want(t, 303, "") // uses nothing up
	forged := *flow
	forged.Value = strings.Replace(forged.Value, ".", "A.", 1)
	v.fresh().do("GET", q, "Cookie", flowCookie+"="+forged.Value).want(t, 400, "started in another browser")
	v.do("GET", q).want(t, 303, "")
	v.do("GET", q).want(t, 400, "started in another browser") // the flow's cookie is gone
	v.fresh().do("GET", q, "Cookie", flowCookie+"="+flow.Value).want(t, 401, "could not be verified")
	if n := p.count["/token"]; n != 1 {
		t.Errorf("the code was sent %d times", n)
	}
}

// TestIdentityFlowExpires checks that a flow expires, and that it ends only once.
func TestIdentityFlowExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFlowKeeper()
		value, err := k.value(oidc.Flow{State: "s", Nonce: "n", Verifier: "v"}, "/events")
		must(t, err)
		f, ok := k.find(value, "s")
		if !ok || f.Next != "/events" || f.Flow.Verifier != "v" {
			t.Fatalf("got %+v, %v", f, ok)
		}
		if _, ok := newFlowKeeper().find(value, "s"); ok {
			t.Error("another key's flow is found")
		}
		if !k.spend(&f) || k.spend(&f) {
			t.Error("a flow must be spent once")
		}
		time.Sleep(flowLife)
		if _, ok := k.find(value, "s"); ok {
			t.Error("an expired flow is found")
		}
		for range maxSpentFlows + 5 {
			if !k.spend(&keptFlow{Flow: oidc.Flow{State: webhook.NewID()}, Expires: time.Now().Add(flowLife)}) {
				t.Fatal("a new flow is not spent")
			}
		}
		if len(k.spent) > maxSpentFlows {
			t.Errorf("got %d states", len(k.spent))
		}
	})
}

// TestIdentityClock checks that a token that expired less than a minute ago is accepted: clocks
// differ.
func TestIdentityClock(t *testing.T) {
	p, w := newRogueWeb(t)
	p.set(func() { maps.Copy(p.claims, map[string]any{"exp": time.Now().Add(-20 * time.Second).Unix()}) })
	visit(t, w).through(p).want(t, 303, "")
	p.set(func() {
		maps.Copy(p.claims, map[string]any{"exp": nil, "iat": time.Now().Add(30 * time.Second).Unix()})
	})
	visit(t, w).through(p).want(t, 401, "") // a token without an expiry
}

// TestIdentityRotation checks that a key that the provider adds is accepted at once.
func TestIdentityRotation(t *testing.T) {
	p, w := newRogueWeb(t)
	visit(t, w).through(p).want(t, 303, "")
	p.addKey("two")
	visit(t, w).through(p).want(t, 303, "")
	p.set(func() { delete(p.keys, "one"); p.signer = "one" })
	visit(t, w).through(p).want(t, 401, "could not be verified")
}

// TestIdentityUserInfo takes claims from UserInfo that the ID token lacks.
func TestIdentityUserInfo(t *testing.T) {
	p, w := newRogueWeb(t)
	p.set(func() {
		p.claims["email"], p.claims["email_verified"], p.claims["groups"] = nil, nil, nil
		p.info = map[string]any{"sub": "sub-1", "email": "Info@Example.com", "email_verified": "true", "groups": []string{"ops"}}
	})
	v := visit(t, w)
	v.through(p).want(t, 303, "")
	v.do("GET", "/account").want(t, 200, "Signed in as info@example.com with the role operator")
	// A verified address in UserInfo does not verify the address in the ID token.
	p.set(func() { p.claims["email"], p.claims["sub"], p.info["sub"] = testAdmin, "sub-3", "sub-3" })
	v.fresh().through(p).want(t, 403, "has not verified the address")
	// Nor does the claim of an ID token without an address verify the address in UserInfo.
	p.set(func() {
		p.claims["email"], p.claims["email_verified"] = nil, true
		p.info["email"] = testAdmin
		delete(p.info, "email_verified")
	})
	v.fresh().through(p).want(t, 403, "has not verified the address")
}

// TestIdentityAddressRole checks that an address decides a role only if the provider says that it
// has verified the address: visitors enter addresses themselves.
func TestIdentityAddressRole(t *testing.T) {
	const chief, phone, namespaced = "chief@example.com", "+15550100", "https://corp.example/email"
	type c = map[string]any
	for _, tt := range []struct {
		name         string
		claims, info c // over those of a visitor without a group
		owner        bool
	}{
		{"verified", c{"email": chief, "email_verified": true}, nil, true},
		{"verified, as text", c{"email": chief, "email_verified": "true"}, nil, true},
		{"refuted", c{"email": chief, "email_verified": false}, nil, false},
		{"refuted, as text", c{"email": chief, "email_verified": "false"}, nil, false},
		{"not said", c{"email": chief, "email_verified": nil}, nil, false},
		{"verified with a number", c{"email": chief, "email_verified": 1}, nil, false},
		{"list of addresses", c{"email": []string{"cy@example.com", chief}}, nil, false},
		{"object of addresses", c{"email": c{chief: true}}, nil, false},
		{"verified in UserInfo", c{"email": nil, "email_verified": nil}, c{"email": chief, "email_verified": true}, true},
		{"same address verified in UserInfo", c{"email": chief, "email_verified": nil}, c{"email": chief, "email_verified": true}, true},
		{"other address verified in UserInfo", c{"email": chief, "email_verified": nil},
			c{"email": "cy@example.com", "email_verified": true}, false},
		{"only another address verified in the token", c{"email": nil}, c{"email": chief}, false},
		{"verified number", c{"phone_number": phone, "phone_number_verified": true}, nil, true},
		{"number", c{"phone_number": phone}, nil, false},
		{"other number verified in UserInfo", c{"phone_number": phone},
			c{"phone_number": "+15550199", "phone_number_verified": true}, false},
		{"verified with a namespace", c{namespaced: chief, namespaced + "_verified": true}, nil, true},
		{"with a namespace, another claim verified", c{namespaced: chief}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, w := newRogueWeb(t)
			p.set(func() {
				p.claims["groups"] = []string{"other"}
				maps.Copy(p.claims, tt.claims)
				if tt.info != nil {
					p.info = c{"sub": "sub-1"}
					maps.Copy(p.info, tt.info)
				}
			})
			v := visit(t, w)
			if !tt.owner {
				v.through(p).want(t, 403, "No role for this account")
				return
			}
			v.through(p).want(t, 303, "")
			v.do("GET", "/account").want(t, 200, "with the role owner")
		})
	}
}

// TestIdentityProviderDown starts while the provider is down, reports that, and recovers.
func TestIdentityProviderDown(t *testing.T) {
	p := newRogue(t)
	p.broken = "/.well-known/openid-configuration"
	p.server.Config.SetKeepAlivesEnabled(false) // an idle connection stops the clock of a bubble
	synctest.Test(t, func(t *testing.T) {
		w := withProvider(t, p, nil)
		wants := func(path string, status int, text string) {
			t.Helper()
			rw := httptest.NewRecorder()
			w.ServeHTTP(rw, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
			if rw.Code != status || !strings.Contains(rw.Body.String(), text) || (rw.Header().Get("Retry-After") != "") != (status == 503) {
				t.Errorf("%s: got %d and %v, want %d and %q", path, rw.Code, rw.Header(), status, text)
			}
		}
		wants("/sign-in", 200, "Sign in with Corp")
		for range 3 {
			wants("/sign-in/oidc", 503, "Corp does not respond as expected")
			time.Sleep(900 * time.Millisecond)
		}
		p.set(func() {
			if n := p.count[p.broken]; n != 1 {
				t.Errorf("the metadata was read %d times within three seconds", n)
			}
			p.broken = ""
		})
		wants("/sign-in/oidc", 503, "Corp does not respond as expected")
		time.Sleep(300 * time.Millisecond)
		wants("/sign-in/oidc", 303, "")
	})
}

// TestIdentityMetadata refuses unsuitable metadata.
func TestIdentityMetadata(t *testing.T) {
	for name, value := range map[string]any{
		"issuer": "https://evil.example", "authorization_endpoint": "http://login.example/auth", "token_endpoint": "",
		"jwks_uri": "file:///etc/passwd", "id_token_signing_alg_values_supported": []string{"HS256", "none"},
		"response_types_supported": []string{"token"}, "code_challenge_methods_supported": []string{"plain"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newRogue(t)
			p.meta[name] = value
			w := withProvider(t, p, nil)
			visit(t, w).do("GET", "/sign-in/oidc").want(t, 503, "does not respond as expected")
		})
	}
	p := newRogue(t)
	p.big = "/.well-known/openid-configuration"
	visit(t, withProvider(t, p, nil)).do("GET", "/sign-in/oidc").want(t, 503, "does not respond as expected")
}

// TestIdentityLimit limits failed sign-ins per network. Passwords and known browsers are not
// affected, and the networks of an IPv6 site share a limit.
func TestIdentityLimit(t *testing.T) {
	p, w := newRogueWeb(t)
	v := visit(t, w)
	known := v.fresh()
	known.through(p).want(t, 303, "")
	p.set(func() { p.claims["nonce"] = "wrong" })
	before := p.count["/token"]
	for range addressLimit.Burst {
		v.through(p).want(t, 401, "could not be verified")
	}
	a := v.through(p)
	a.want(t, 429, "Too many failed sign-ins through Corp")
	if a.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if n := p.count["/token"] - before; n != addressLimit.Burst {
		t.Errorf("got %d requests for tokens", n)
	}
	v.post("/sign-in", "email=a@example.com&password=wrong-password").want(t, 401, "Wrong email or password")
	p.set(func() { delete(p.claims, "nonce") })
	v.through(p).want(t, 429, "")
	known.through(p).want(t, 303, "")

	// Many networks of one IPv6 site, and one network of another site.
	from := func(address string) *request {
		r := httptest.NewRequestWithContext(t.Context(), "GET", callback, nil)
		r.RemoteAddr = "[" + address + "]:1234"
		return &request{Request: r}
	}
	allowed := 0
	for i := range siteLimit.Burst + adminLimit.Burst + 50 {
		_, wait, err := w.pages.signIn.allowIdentity(from(fmt.Sprintf("2001:db8:1:%x::1", i)))
		must(t, err)
		if wait == 0 {
			allowed++
		}
	}
	if want := siteLimit.Burst + adminLimit.Burst; allowed < want || allowed > want+10 {
		t.Errorf("one site had %d tries, want %d", allowed, want)
	}
	if _, wait, err := w.pages.signIn.allowIdentity(from("2001:db8:2::1")); err != nil || wait != 0 {
		t.Errorf("another site waits %v, %v", wait, err)
	}
}

// A link on another site shows the sign-in page and begins nothing.
func TestIdentityFromAnotherSite(t *testing.T) {
	p := newRogue(t)
	v := visit(t, withProvider(t, p, nil))
	for _, site := range []string{"cross-site", "same-site", "anything"} {
		a := v.do("GET", "/sign-in/oidc?next=%2Fevents", "Sec-Fetch-Site", site)
		a.want(t, 200, `href="/sign-in/oidc?next=%2Fevents"`)
		if len(a.Cookies()) > 0 {
			t.Errorf("%s: got the cookies %v", site, a.Cookies())
		}
	}
	for _, site := range []string{"same-origin", "none"} {
		v.do("GET", "/sign-in/oidc", "Sec-Fetch-Site", site).want(t, 303, "")
	}
}

// TestIdentityRaised signs in an admin whom the provider makes an owner: the password, passkeys and
// earlier sessions end, and the audit log records that.
func TestIdentityRaised(t *testing.T) {
	p, w := newRogueWeb(t)
	hash := webhook.HashPassword(testPassword)
	var cy webhook.Admin
	must(t, w.store.Write(t.Context(), func(sw store.Write) (err error) {
		if cy, err = sw.Admins().Create("cy@example.com", webhook.RoleViewer, hash); err != nil {
			return err
		}
		_, err = sw.Passkeys().Create(webhook.Passkey{AdminID: cy.ID, Name: "x", RPID: "x", Credential: []byte("x"), PublicKey: []byte("x")})
		return err
	}))
	p.set(func() { p.claims["realm"] = map[string]any{"roles": []string{"boss"}} })
	first := visit(t, w)
	first.do("POST", w.NewSignInLink(cy.ID)).want(t, 303, "")
	v := first.fresh()
	v.through(p).want(t, 303, "")
	v.do("GET", "/account").want(t, 200, "with the role owner")
	first.do("GET", "/account").want(t, 401, "")
	first.enter(cy.Email, testPassword).want(t, 401, "Wrong email or password")
	wantAudit(t, w, "from viewer to owner, through OpenID Connect; ended the password, 1 passkey, 1 session")
}

// If the provider says that an address is unverified, no admin is created or found by it.
func TestIdentityRefutedAddress(t *testing.T) {
	for _, no := range []any{false, "false", "no"} {
		p, w := newRogueWeb(t)
		p.set(func() { p.claims["email_verified"] = no })
		for _, email := range []string{"new@example.com", testAdmin} {
			p.set(func() { p.claims["email"] = email })
			visit(t, w).through(p).want(t, 403, "has not verified the address "+email)
		}
		wantAdmins(t, w, 1)
	}
}

// TestIdentityPasswords checks who may sign in with a password when a provider is configured.
func TestIdentityPasswords(t *testing.T) {
	p, w := newRogueWeb(t)
	hash := webhook.HashPassword("correct horse battery")
	var code string
	must(t, w.store.Write(t.Context(), func(sw store.Write) error {
		owner, err := sw.Admins().Create("owner@example.com", webhook.RoleOwner, hash)
		if err != nil {
			return err
		}
		if _, err := sw.Admins().Create("op@example.com", webhook.RoleOperator, hash); err != nil {
			return err
		}
		_, code, err = sw.Admins().CreateInvitation(owner.ID, "new@example.com", webhook.RoleViewer)
		return err
	}))
	form := "&password=correct+horse+battery"
	visit(t, w).post("/sign-in", "email=op@example.com"+form).want(t, 403, "Only owners with a password sign in here. Sign in with Corp.")
	visit(t, w).post("/sign-in", "email=op@example.com&password=wrong-password").want(t, 401, "Wrong email or password")
	visit(t, w).do("GET", "/invitation/"+code).want(t, 403, "Sign in with Corp")
	visit(t, w).post("/invitation/"+code, "password=correct+horse+battery&again=correct+horse+battery").want(t, 403, "Sign in with Corp")

	v := visit(t, w)
	v.post("/sign-in", "email=owner@example.com"+form).want(t, 303, "")
	v.post("/admins/invite", "email=x@example.com&role=viewer").want(t, 422, "must be owner")
	v.post("/admins/invite", "email=x@example.com&role=owner").want(t, 200, "Copy the link now")

	// An admin from the provider has no password to guess.
	visit(t, w).through(p).want(t, 303, "")
	visit(t, w).post("/sign-in", "email=cy@example.com&password=anything-at-all").want(t, 401, "Wrong email or password")

	// An admin with the verified address gets the identity, and the role of its groups.
	p.set(func() { p.claims["email"], p.claims["sub"] = "owner@example.com", "sub-owner" })
	v.through(p).want(t, 303, "")
	v.do("GET", "/account").want(t, 200, "Signed in as owner@example.com with the role operator")
	visit(t, w).post("/sign-in", "email=owner@example.com"+form).want(t, 403, "Only owners")
	// Another account with the same address does not get it.
	p.set(func() { p.claims["sub"] = "sub-thief" })
	visit(t, w).through(p).want(t, 403, "is another account at the provider")
}

// TestIdentityInvitation keeps an unverified address from taking the place of an invitation.
func TestIdentityInvitation(t *testing.T) {
	p, w := newRogueWeb(t)
	owner := makeAdmin(t, w, testAdmin)
	must(t, w.store.Write(t.Context(), func(sw store.Write) error {
		_, _, err := sw.Admins().CreateInvitation(owner.ID, "cy@example.com", webhook.RoleOwner)
		return err
	}))
	p.set(func() { p.claims["email_verified"] = nil })
	visit(t, w).through(p).want(t, 403, "belongs to an open invitation")
	p.set(func() { delete(p.claims, "email_verified") })
	visit(t, w).through(p).want(t, 303, "")
	if all, err := w.store.Admins().Invitations(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v", all, err)
	}
}

// TestIdentityKeptForm keeps a form while its visitor signs in in another tab.
func TestIdentityKeptForm(t *testing.T) {
	p, w := newRogueWeb(t)
	v := visit(t, w)
	lost := v.post("/subscriptions/new", "url=https%3A%2F%2Fhooks.example.com%2Fkept&authorization=secret")
	lost.want(t, 401, "Continue after signing in there")
	if strings.Contains(lost.body, "secret") && !strings.Contains(lost.body, `name="kept"`) {
		t.Error("the secret is on the page")
	}
	kept := url.Values{"kept_to": {"/subscriptions/new"}, "kept": {"url=https%3A%2F%2Fhooks.example.com%2Fkept"}, "continue": {"yes"}}
	v.post("/sign-in", kept.Encode()).want(t, 401, "You are not signed in yet")
	v.through(p).want(t, 303, "")
	v.post("/sign-in", kept.Encode()).want(t, 200, "https://hooks.example.com/kept")
}

// TestNoProvider checks that the pages do not mention a provider if none is configured.
func TestNoProvider(t *testing.T) {
	w := testWeb(t, nil)
	makeAdmin(t, w, testAdmin)
	v := visit(t, w)
	v.do("GET", "/sign-in").hasNot(t, "oidc")
	v.do("GET", "/sign-in/oidc").want(t, 404, "")
	v.do("GET", callback+"?code=x&state=y").want(t, 404, "")
}

package api

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store/storetest"
	"service/webhook"
)

// revokeOwn revokes the token that the service's requests have.
func (s *service) revokeOwn() {
	s.t.Helper()
	s.revoke(data[identified](s.t, s.send("GET", "/v2/token", "")).ID)
}

// revoke revokes a token by its ID.
func (s *service) revoke(id string) {
	s.t.Helper()
	_, err := storetest.RevokeToken(s.t.Context(), s.store, id)
	must(s.t, err)
}

func TestTokens(t *testing.T) {
	s := start(t)
	revoked, secret := s.createToken(webhook.NewToken{ProgramID: "acme", UserID: "u", Scopes: webhook.Scopes()})
	wantStatus(t, "before it is revoked", s.send("GET", "/v2/events", "", "Authorization", "Bearer "+secret), 200)
	s.revoke(revoked)
	for _, test := range []struct {
		name      string
		header    []string
		challenge string // "" for a 200
	}{
		{"missing", nil, `Bearer realm="service"`},
		{"empty", []string{""}, `Bearer realm="service", error="invalid_token"`},
		{"no secret", []string{"Bearer"}, `Bearer realm="service", error="invalid_token"`},
		{"empty secret", []string{"Bearer "}, `Bearer realm="service", error="invalid_token"`},
		{"no scheme", []string{s.token}, `Bearer realm="service", error="invalid_token"`},
		{"another scheme", []string{"Basic " + s.token}, `Bearer realm="service", error="invalid_token"`},
		{"unknown", []string{"Bearer " + webhook.NewTokenSecret(webhook.TokenPrefix)}, `Bearer realm="service", error="invalid_token"`},
		{"mistyped", []string{"Bearer " + s.token + "x"}, `Bearer realm="service", error="invalid_token"`},
		{"huge", []string{"Bearer " + strings.Repeat("x", 10000)}, `Bearer realm="service", error="invalid_token"`},
		{"revoked", []string{"Bearer " + secret}, `Bearer realm="service", error="invalid_token"`},
		{"two headers", []string{"Bearer " + s.token, "Bearer " + s.token}, `Bearer realm="service", error="invalid_token"`},
		{"right", []string{"Bearer " + s.token}, ""},
		{"right, in small letters", []string{"bearer  " + s.token}, ""},
	} {
		for _, target := range []string{"/v2/events", "/v2/event_types", "/v2/events/none?x=1&access_token=" + s.token} {
			r := httptest.NewRequest("GET", target, nil)
			r.Header["Authorization"] = test.header
			got := s.serve(r)
			if test.challenge == "" {
				if got.status == 401 || got.header.Get("X-Program-Id") != "acme" || got.header.Get("X-User-Id") != "ada" {
					t.Errorf("%s: %s: got %d %v", test.name, target, got.status, got.header)
				}
				continue
			}
			wantStatus(t, test.name+": "+target, got, 401)
			if c := got.header.Get("WWW-Authenticate"); c != test.challenge {
				t.Errorf("%s: got challenge %s, want %s", test.name, c, test.challenge)
			}
			if got.header["X-Program-Id"] != nil || got.header["X-User-Id"] != nil {
				t.Errorf("%s: the response names a program: %v", test.name, got.header)
			}
		}
	}
}

// An unrouted request needs no token, and its response names the program of a valid one.
func TestUnroutedRequestWithToken(t *testing.T) {
	s := start(t)
	for _, test := range []struct {
		method, target, authorization, program string
		status                                 int
	}{
		{"GET", "/v2/nothing", "Bearer " + s.token, "acme", 404},
		{"PUT", "/v2/events", "Bearer " + s.token, "acme", 405},
		{"PUT", "/v2/events", "Bearer " + s.token + "x", "", 405},
		{"GET", "/v2/nothing", "", "", 404},
		{"GET", "/nothing", "Bearer " + s.token, "", 404},
	} {
		r := s.send(test.method, test.target, "", "Authorization", test.authorization)
		wantStatus(t, test.method+" "+test.target, r, test.status)
		if got := r.header.Get("X-Program-Id"); got != test.program || (r.header.Get("X-User-Id") == "") != (test.program == "") {
			t.Errorf("%s %s: got %v, want the program %q and its user", test.method, test.target, r.header, test.program)
		}
	}
}

func TestTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		_, secret := s.createToken(
			webhook.NewToken{ProgramID: "acme", UserID: "u", Scopes: webhook.Scopes(), ExpiresAt: time.Now().Add(time.Hour)})
		time.Sleep(time.Hour - time.Millisecond)
		wantStatus(t, "just before it expires", s.send("GET", "/v2/events", "", "Authorization", "Bearer "+secret), 200)
		time.Sleep(time.Millisecond)
		wantStatus(t, "when it expires", s.send("GET", "/v2/events", "", "Authorization", "Bearer "+secret), 401)
	})
}

func TestScopes(t *testing.T) {
	s := start(t)
	for _, rt := range routes() {
		target := strings.NewReplacer(":id", "none", ":delivery_id", "none", ":name", "none", ":token_id", "none").Replace(rt.pattern)
		name := rt.method + " " + rt.pattern
		if rt.scope == scopeNone {
			wantStatus(t, name+" without a token", s.send(rt.method, target, "", "Authorization", ""), 200)
			continue
		}
		wantStatus(t, name+" without a token", s.send(rt.method, target, "", "Authorization", ""), 401)
		others := slices.DeleteFunc(slices.Clone(webhook.Scopes()), func(scope webhook.Scope) bool { return scope == rt.scope })
		r := s.send(rt.method, target, "", "Authorization", "Bearer "+s.newToken("acme", "ada", others...))
		if rt.scope == scopeAny {
			if r.status == 401 || r.status == 403 {
				t.Errorf("%s with any token: got %d", name, r.status)
			}
			continue
		}
		s.wantScope(&rt, r, target)
	}
}

// wantScope checks the response to a token that lacks only the route's scope, and that this scope
// alone is enough.
func (s *service) wantScope(rt *route, r response, target string) {
	t, name := s.t, rt.method+" "+rt.pattern
	t.Helper()
	platform := rt.scope == webhook.ScopePlatform
	if !slices.Contains(webhook.Scopes(), rt.scope) && !platform {
		t.Errorf("%s needs %q, which no token can have", name, rt.scope)
	}
	wantStatus(t, name+" without its scope", r, 403)
	want := `Bearer realm="service", error="insufficient_scope", scope="` + string(rt.scope) + `"`
	if got := r.header.Get("WWW-Authenticate"); got != want || !strings.Contains(r.body, string(rt.scope)) {
		t.Errorf("%s: got challenge %s, want %s; the body is %s", name, got, want, r.body)
	}
	if r.header.Get("X-Program-Id") != "acme" || r.header.Get("X-User-Id") != "ada" {
		t.Errorf("%s: 403 without the program and user: %v", name, r.header)
	}
	if platform {
		r = s.as(rt).send(rt.method, target, "")
	} else {
		r = s.send(rt.method, target, "", "Authorization", "Bearer "+s.newToken("acme", "ada", rt.scope))
	}
	if r.status == 401 || r.status == 403 {
		t.Errorf("%s with only its scope: got %d", name, r.status)
	}
}

package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"service/webhook"
)

// TestOwner checks that the owner needs no token, acts like a platform token without a limit, and
// appears as the terminal in the audit log. The public handler is not affected.
func TestOwner(t *testing.T) {
	s := start(t, func(cfg *Config) { cfg.RateLimit, cfg.PlatformRateLimit = 1, 1 })
	owner := s.api.Owner(OwnerConfig{})
	send := func(method, target, body string, headers ...string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		r.RemoteAddr = "@" // of a Unix socket
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		owner.ServeHTTP(w, r)
		return w
	}
	const hook = `{"url": "https://a.example/", "events": [{"name": "ping"}]}`
	for _, test := range []struct {
		method, target, body string
		headers              []string
		status               int
	}{
		{"PUT", "/v2/programs/globex", `{"name": "Globex", "limits": {"rate_limit": 1}}`, nil, 201},
		{"POST", "/v2/programs/globex/tokens", `{"user_id": "me", "scopes": ["events.read"]}`, []string{"Idempotency-Key", "k"}, 201},
		{"POST", subscriptionsPath, hook, []string{programHeader, "globex", "Idempotency-Key", "k"}, 201},
		{"GET", subscriptionsPath, "", []string{programHeader, "globex"}, 200},
		{"GET", subscriptionsPath, "", []string{programHeader, "globex", "Authorization", "Bearer nonsense"}, 200},
		{"GET", subscriptionsPath, "", []string{programHeader, "none"}, 404},
		{"GET", subscriptionsPath, "", nil, 400},
		{"POST", subscriptionsPath, hook, []string{programHeader, "globex", "Idempotency-Key", "a b"}, 400},
		{"GET", "/v2/token", "", nil, 404}, // the owner has no token
	} {
		if w := send(test.method, test.target, test.body, test.headers...); w.Code != test.status {
			t.Errorf("%s %s: got %d, want %d: %s", test.method, test.target, w.Code, test.status, w.Body)
		}
	}
	entries := s.auditLog()
	for _, e := range entries {
		if e.Admin != webhook.Terminal || e.Address != "" {
			t.Errorf("%s: got %q at %q, want %s", e.Action, e.Admin, e.Address, webhook.Terminal)
		}
	}
	if len(entries) != 3 {
		t.Errorf("got %d entries in the audit log, want 3", len(entries))
	}
	r := httptest.NewRequest("GET", "/v2/programs", nil)
	r.RemoteAddr = "@"
	wantStatus(t, "the public handler without a token", s.serve(r), 401)
}

// TestOwnerRoutesArePrivate checks that the public handler does not serve the owner's routes,
// whatever token a request has.
func TestOwnerRoutesArePrivate(t *testing.T) {
	s := start(t)
	owner := s.api.Owner(OwnerConfig{})
	tokens := map[string]string{"none": "", "invalid": "nonsense", "of a program": s.token, "platform": s.platform,
		"metrics": s.newToken("", "prometheus", webhook.ScopeMetricsRead)}
	routes := OwnerConfig{}.routes()
	if len(routes) == 0 {
		t.Fatal("there are no routes")
	}
	for _, rt := range routes {
		if rt.scope != scopeOwner {
			t.Errorf("%s %s: got the scope %s, want %s", rt.method, rt.pattern, rt.scope, scopeOwner)
		}
		for name, token := range tokens {
			r := httptest.NewRequest(rt.method, strings.ReplaceAll(rt.pattern, ":token_id", "x"), strings.NewReader("{}"))
			r.Header.Set("Content-Type", "application/json")
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			w := httptest.NewRecorder()
			if s.api.ServeHTTP(w, r); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "No route matches this path.") {
				t.Errorf("%s %s, token %s: got %d %s, want 404", rt.method, rt.pattern, name, w.Code, w.Body)
			}
		}
	}
	w := httptest.NewRecorder()
	if owner.ServeHTTP(w, httptest.NewRequest("GET", "/v2/owner/tokens", nil)); w.Code != http.StatusOK {
		t.Errorf("the owner: got %d %s, want 200", w.Code, w.Body)
	}
}

// TestOwnerErrors checks that the owner gets the cause of an internal error, even if the response
// has begun, and that clients do not.
func TestOwnerErrors(t *testing.T) {
	s := start(t)
	owner := s.api.Owner(OwnerConfig{})
	s.closeStore()
	get := func(h http.Handler, path string) *http.Response {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Authorization", "Bearer "+s.token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
	body := func(r *http.Response) string {
		b, err := io.ReadAll(r.Body)
		must(t, err)
		return string(b)
	}
	if r := get(s.api, subscriptionsPath); r.StatusCode < 500 || strings.Contains(body(r), "closed") {
		t.Errorf("a client: got %d and the cause, want an error without it", r.StatusCode)
	}
	if r := get(owner, "/v2/owner/tokens"); r.StatusCode < 500 || !strings.Contains(body(r), "closed") {
		t.Errorf("the owner: got %d, want an error with the cause", r.StatusCode)
	}
	if r := get(owner, "/v2/owner/audit"); r.StatusCode != 200 || !strings.Contains(r.Trailer.Get(streamError), "closed") {
		t.Errorf("a stream: got %d and the trailer %v, want the cause", r.StatusCode, r.Trailer)
	}
	if !strings.Contains(s.log.String(), "closed") {
		t.Errorf("the log lacks the cause: %s", s.log)
	}
}

package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"service/webhook"
)

// TestOwner checks that the owner needs no token, acts like a platform token without a limit,
// and is named as the terminal in the audit log. The public handler is not affected.
func TestOwner(t *testing.T) {
	s := start(t, func(cfg *Config) { cfg.RateLimit, cfg.PlatformRateLimit = 1, 1 })
	owner := s.api.Owner()
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
		{"GET", "/v2/token", "", nil, 404}, // there is none
	} {
		if w := send(test.method, test.target, test.body, test.headers...); w.Code != test.status {
			t.Errorf("%s %s: got %d, want %d: %s", test.method, test.target, w.Code, test.status, w.Body)
		}
	}
	entries, _, err := s.store.Audit().Page(t.Context(), listQuery(t, webhook.AuditList, "sort=at&page[size]=100"))
	if err != nil {
		t.Fatal(err)
	}
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
	w := httptest.NewRecorder()
	if s.api.ServeHTTP(w, r); w.Code != http.StatusUnauthorized {
		t.Errorf("the public handler without a token: got %d, want 401", w.Code)
	}
}

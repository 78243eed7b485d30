package server

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// A client whose base URL is wrong gets errors in its own format; browsers get pages.
func TestPathsOutsideTheAPI(t *testing.T) {
	s, err := Open(t.Context(), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const page, envelope = "text/html", "application/json"
	for _, tt := range []struct {
		request string
		headers []string
		status  int
		kind    string
		text    string
	}{
		{"GET /v1/webhooks", []string{"Authorization", "Bearer x", "Accept", envelope}, 404, envelope, "Paths of the API begin with /v2/."},
		{"POST /events", []string{"Authorization", "Bearer x"}, 401, envelope, "Paths of the API begin with /v2/."},
		{"GET /events", []string{"Accept", "*/*"}, 401, envelope, "This is a page for admins"},
		{"GET /", []string{"Authorization", "Bearer x"}, 401, page, "<!doctype html>"},
		{"GET /nowhere", []string{"Accept", "*/*"}, 404, envelope, "Paths of the API begin with /v2/."},
		{"GET /portal/nowhere", nil, 404, envelope, "Paths of the API begin with /v2/."},
		{"POST //v2/events", []string{"Authorization", "Bearer x"}, 404, envelope, "two slashes"},
		{"POST //v2/events", []string{"Accept", page}, 404, envelope, "two slashes"},
		{"GET /nowhere", []string{"Accept", "text/html,application/xhtml+xml"}, 401, page, "<!doctype html>"},
		{"GET /events", []string{"Cookie", "__Host-session=x"}, 401, page, "<!doctype html>"},
		{"GET /nowhere", []string{"Cookie", "other=x"}, 404, envelope, "No route matches this path."},
		{"GET /sign-in", []string{"Accept", "*/*"}, 401, page, "<!doctype html>"},
	} {
		method, path, _ := strings.Cut(tt.request, " ")
		r := httptest.NewRequest(method, "https://localhost"+path, nil)
		for i := 0; i < len(tt.headers); i += 2 {
			r.Header.Set(tt.headers[i], tt.headers[i+1])
		}
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		kind := w.Header().Get("Content-Type")
		if w.Code != tt.status || !strings.HasPrefix(kind, tt.kind) || !strings.Contains(w.Body.String(), tt.text) {
			t.Errorf("%s %q: %d, %s, %.300s; want %d, %s, %q", tt.request, tt.headers, w.Code, kind, w.Body, tt.status, tt.kind, tt.text)
		}
	}
}

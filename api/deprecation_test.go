package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestDeprecationHeaders(t *testing.T) {
	s := start(t, limited(2))
	planted := &deprecation{
		since:  time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC),
		sunset: time.Date(2028, 1, 1, 1, 0, 0, 0, time.FixedZone("", 3600)),
		docs:   "/docs#deprecations",
	}
	routes := s.api.routes()
	for i := range routes {
		if routes[i].pattern == "/v2/event_types" {
			routes[i].deprecation = planted
		}
	}
	s.api.handle(routes)
	// The OpenAPI document does not have this route.
	get := func(method, target, token string) response {
		r := httptest.NewRequest(method, target, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		s.api.ServeHTTP(w, r)
		return response{w.Code, w.Header(), w.Body.String()}
	}
	for _, test := range []struct {
		method, target, token string
		status                int
	}{
		{"GET", "/v2/event_types", s.token, 200},
		{"GET", "/v2/event_types?x=1", s.token, 400},
		{"HEAD", "/v2/event_types", s.token, 429},
		{"GET", "/v2/event_types", "none", 401},
	} {
		r := get(test.method, test.target, test.token)
		wantStatus(t, test.method+" "+test.target, r, test.status)
		for name, want := range map[string]string{
			"Deprecation": "@1798761600",
			"Sunset":      "Sat, 01 Jan 2028 00:00:00 GMT",
			"Link":        `</docs#deprecations>; rel="deprecation"; type="text/html"`,
		} {
			if got := r.header.Values(name); len(got) != 1 || got[0] != want {
				t.Errorf("%s %s: got %s: %q, want %s once", test.method, test.target, name, got, want)
			}
		}
	}
	for _, target := range []string{"/v2/event_types/ping", "/v2/nothing", "/healthz"} {
		r := get("GET", target, s.token)
		if r.header["Deprecation"] != nil || r.header["Sunset"] != nil || r.header["Link"] != nil {
			t.Errorf("%s is not deprecated, but its response has the header: %v", target, r.header)
		}
	}
}

// The policy in the reference.
func TestDeprecationPeriod(t *testing.T) {
	for _, rt := range (&API{}).routes() {
		if d := rt.deprecation; d != nil {
			if err := checkDeprecation(d); err != "" {
				t.Errorf("%s %s: %s", rt.method, rt.pattern, err)
			}
		}
	}
	day := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		d  deprecation
		ok bool
	}{
		{deprecation{day, day.AddDate(0, minSunset, 0), "/docs#deprecations"}, true},
		{deprecation{day, day.AddDate(0, minSunset, -1), "/docs#deprecations"}, false},
		{deprecation{time.Time{}, day, "/docs#deprecations"}, false},
		{deprecation{day, day.AddDate(2, 0, 0), ""}, false},
		{deprecation{day, day.AddDate(2, 0, 0), "/docs>; x"}, false},
	} {
		if err := checkDeprecation(&test.d); (err == "") != test.ok {
			t.Errorf("%+v: got %q, want ok %t", test.d, err, test.ok)
		}
	}
	h := make(http.Header)
	(*deprecation)(nil).header(h)
	if len(h) > 0 {
		t.Errorf("a nil deprecation adds %v", h)
	}
}

func checkDeprecation(d *deprecation) string {
	switch {
	case d.since.IsZero():
		return "since when it is deprecated is not said"
	case d.sunset.Before(d.since.AddDate(0, minSunset, 0)):
		return "its sunset comes too early"
	case d.docs == "" || strings.ContainsAny(d.docs, "<> "):
		return "where to read more is not a URL"
	}
	return ""
}

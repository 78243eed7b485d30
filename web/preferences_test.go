package web

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"service/web/ui"
)

func TestPreferencesCookie(t *testing.T) {
	for _, value := range []string{"", "%zz", "theme=evil&zone=Local&keys=off", "zone=../../etc/passwd", "zone=" + strings.Repeat("a", 5000),
		"theme=\"><script>"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Cookie", preferencesCookie+"="+value)
		if p := readPreferences(r); p.theme != ui.ThemeSystem || p.zone != nil {
			t.Errorf("%q: got %+v, want the theme of the system and UTC", value, p)
		}
	}
	p := preferences{theme: ui.ThemeDark}
	r := httptest.NewRequest("GET", "/", nil)
	r.AddCookie(p.cookie(false))
	if got := readPreferences(r); got != p {
		t.Errorf("got %+v, want %+v", got, p)
	}
}

func TestPrefer(t *testing.T) {
	w := testWeb(t, nil)
	ask := func(form url.Values, cookie *http.Cookie) (response, preferences) {
		t.Helper()
		r := formRequest("/preferences", form)
		if cookie != nil {
			r.AddCookie(cookie)
		}
		a, err := by{post: w.pages.account.savePreferences}.handle(w.newRequest(r, "id"))
		must(t, err)
		next := httptest.NewRequest("GET", "/", nil)
		for _, c := range a.cookies {
			next.AddCookie(c)
		}
		return a, readPreferences(next)
	}
	a, p := ask(url.Values{"theme": {"dark"}, "back": {"/deliveries?x=y"}}, nil)
	if p.theme != ui.ThemeDark || !p.keys || a.location != "/deliveries?x=y" {
		t.Errorf("got %+v and %s", p, a.location)
	}
	a, p = ask(url.Values{"zone": {" Europe/Berlin "}, "back": {"https://evil.example/"}}, a.cookies[0])
	if p.theme != ui.ThemeDark || p.zone.String() != "Europe/Berlin" || a.location != "/preferences" {
		t.Errorf("got %+v and %s, want the theme kept, the zone, and no way out", p, a.location)
	}
	if _, p = ask(url.Values{"keys": {"off"}}, a.cookies[0]); p.keys {
		t.Errorf("the keyboard is listened to")
	}
	if a, _ := ask(url.Values{"zone": {"Nowhere/At all"}}, nil); a.status != 422 || a.location != "" {
		t.Errorf("a zone that there is not: got %d and %q, want a page with 422", a.status, a.location)
	}
}

package web

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// A form that is submitted after its session has ended is kept, except for secrets, while its
// visitor signs in, and is submitted after a confirmation.
func TestFormOutlivesSession(t *testing.T) {
	w := testWeb(t, nil)
	v := visit(t, w)
	withPassword(t, w, testAdmin)
	v.enter(testAdmin, testPassword).want(t, 303, "")
	l := newEventSource(t, w, "https://hooks.example.com")
	path := "/subscriptions/" + l.sub.ID + "/edit"
	typed := url.Values{"url": {"https://new.example.com/?a=b&c=<d>"}, "description": {"Typed for \"minutes\""},
		"events": {"content_published", "content_updated"}, "authorization": {"Bearer hush"}, "once": {"x"}}
	v.send("/sign-out").want(t, 303, "")

	p := v.post(path, typed.Encode(), "Origin", v.base, "Sec-Fetch-Site", "same-origin")
	p.want(t, 401, "Sign in to submit what you typed.")
	p.hasNot(t, "hush")
	p.inert(t)
	next := url.Values{"email": {testAdmin}, "password": {testPassword}}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`).FindAllStringSubmatch(p.body, -1) {
		next.Add(html.UnescapeString(m[1]), html.UnescapeString(m[2]))
	}
	p = v.post("/sign-in", next.Encode(), "Origin", v.base, "Sec-Fetch-Site", "same-origin")
	p.want(t, 200, "You are signed in again", `action="`+path+`"`, "Typed for", `name="authorization"`, "Enter it again")
	p.hasNot(t, "hush", `name="once"`)
	p.inert(t)
	sent := make(url.Values)
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`).FindAllStringSubmatch(p.body, -1) {
		sent.Add(html.UnescapeString(m[1]), html.UnescapeString(m[2]))
	}
	typed.Del("authorization")
	typed.Del("once")
	if got, want := sent.Encode(), typed.Encode(); got != want {
		t.Errorf("sent again: got %s, want %s", got, want)
	}

	// A path on another site is ignored.
	v.send("/sign-out").want(t, 303, "")
	for _, to := range []string{"https://evil.example/", "//evil.example/", "/sign-out", ""} {
		next.Set("kept_to", to)
		if p := v.post("/sign-in", next.Encode(), "Origin", v.base, "Sec-Fetch-Site", "same-origin"); p.StatusCode != 303 ||
			strings.Contains(p.body, "evil") {
			t.Errorf("%q: got %d", to, p.StatusCode)
		}
	}
}

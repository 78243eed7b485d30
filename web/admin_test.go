package web

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"service/store"
	"service/store/record"
	"service/webhook"
)

// Changing the password ends all other sessions and replaces the current one.
func TestPassword(t *testing.T) {
	w := testWeb(t, nil)
	withPassword(t, w, testAdmin)
	here, elsewhere := visit(t, w), visit(t, w)
	here.enter(testAdmin, testPassword).want(t, 303, "")
	elsewhere.enter(testAdmin, testPassword).want(t, 303, "")
	before := here.cookie("session")

	const newer = "another password"
	for _, c := range []struct{ current, password, again, want string }{
		{"", newer, newer, "is required"},
		{"wrong", newer, newer, "is wrong"},
		{testPassword, "short", "short", "must have at least 12 characters"},
		{testPassword, newer, newer + "x", "must match the password"},
		{testPassword, strings.Repeat("ö", 513), strings.Repeat("ö", 513), "must be at most 1024 bytes"},
	} {
		p := here.send("/account/password", "current", c.current, "password", c.password, "again", c.again)
		p.want(t, 422, c.want)
		for _, secret := range []string{c.current, c.password} {
			if secret != "" && strings.Contains(p.body, `"`+secret) {
				t.Errorf("the page repeats %q", secret)
			}
		}
	}
	elsewhere.do("GET", "/account").want(t, 200, "")

	here.send("/account/password", "current", testPassword, "password", newer, "again", newer).want(t, 303, "")
	here.do("GET", "/account").want(t, 200, "Password changed. 1 other session ended.")
	elsewhere.do("GET", "/account").want(t, 401, "")
	if here.cookie("session") == before {
		t.Error("the session is the same")
	}
	visit(t, w).do("GET", "/account", "Cookie", "session="+before).want(t, 401, "")
	elsewhere.enter(testAdmin, testPassword).want(t, 401, "")
	elsewhere.enter(testAdmin, newer).want(t, 303, "")
	got := audited(t, w)
	if len(got) != 4 || !strings.HasSuffix(got[2], "admin.password changed; 1 other session ended") {
		t.Errorf("the audit has %q", got)
	}
}

// An admin lists sessions, ends one, and then all.
func TestSessionList(t *testing.T) {
	w := testWeb(t, nil)
	ana, bo := makeAdmin(t, w, testAdmin), makeAdmin(t, w, "bo@example.com")
	browsers := make(map[string]visitor)
	for name, agent := range map[string]string{
		"desk": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
		"phone": "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Mobile/15E148 " +
			"Safari/604.1",
		"evil": "<script>\x80\u202e" + strings.Repeat("x", 1000),
	} {
		v := visit(t, w)
		v.do("POST", w.NewSignInLink(ana.ID), "User-Agent", agent).want(t, 303, "")
		browsers[name] = v
	}
	other := visit(t, w)
	other.do("POST", w.NewSignInLink(bo.ID)).want(t, 303, "")

	desk := browsers["desk"]
	p := desk.do("GET", "/account")
	p.has(t, "Firefox on Linux", "Safari on iPhone", "127.0.0.1", "this browser", "&lt;script&gt;")
	p.hasNot(t, "<script>\x80", "\u202e")
	if n := strings.Count(p.body, "/revoke"); n != 3 {
		t.Errorf("%d sessions can be revoked, want 3", n)
	}
	sessions, err := w.store.Sessions().List(t.Context(), ana.ID)
	must(t, err)
	id := func(browser string) string {
		for _, s := range sessions {
			if browserOf(s.Agent) == browser {
				return s.ID
			}
		}
		t.Fatalf("no session of %s: %+v", browser, sessions)
		return ""
	}
	phone := id("Safari on iPhone")
	// Another admin can neither end the session nor see it.
	other.send("/account/sessions/"+phone+"/revoke").want(t, 404, "")
	other.do("GET", "/account").hasNot(t, "iPhone")
	browsers["phone"].do("GET", "/account").want(t, 200, "")
	desk.do("GET", "/account/sessions/"+phone+"/revoke").want(t, 405, "")
	desk.send("/account/sessions/"+phone+"/revoke").want(t, 303, "")
	desk.do("GET", "/account").want(t, 200, "Session revoked.")
	browsers["phone"].do("GET", "/account").want(t, 401, "")

	desk.send("/account/sign-out-everywhere").want(t, 303, "")
	desk.do("GET", "/account").want(t, 401, "")
	browsers["evil"].do("GET", "/account").want(t, 401, "")
	other.do("GET", "/account").want(t, 200, "")
	got := audited(t, w)
	if n := len(got); n < 2 || !strings.HasSuffix(got[n-1], "signed out everywhere: 2 sessions") ||
		!strings.Contains(got[n-2], "session.end") {
		t.Errorf("the audit has %q", got)
	}
}

func TestBrowserOf(t *testing.T) {
	const webkit = "AppleWebKit/537.36 (KHTML, like Gecko)"
	for agent, want := range map[string]string{
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) " + webkit + " Chrome/140.0.0.0 Safari/537.36 Edg/140.0.0.0":     "Edge on Windows",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML) Version/18.1 Safari/605.1.15": "Safari on macOS",
		"Mozilla/5.0 (Linux; Android 15) " + webkit + " Chrome/140.0.0.0 Mobile Safari/537.36":                      "Chrome on Android",
		"curl/8.14.1": "curl/8.14.1", "": "", strings.Repeat("x", 100): strings.Repeat("x", 37) + "…",
	} {
		if got := browserOf(agent); got != want {
			t.Errorf("%q is %q, want %q", agent, got, want)
		}
	}
}

// The audit page shows entries, including hostile ones, and has filters and pages.
func TestAuditPage(t *testing.T) {
	v, w := startSignedIn(t, nil)
	v.do("GET", "/audit").want(t, 200, ">Sign in</td>")
	hostile := "<script>alert(1)</script>\x00\u202e\xff"
	err := w.store.Write(t.Context(), func(sw store.Write) error {
		for _, e := range []webhook.AuditEntry{
			{Admin: webhook.Terminal, Action: webhook.ActionTokenCreate, ProgramID: "acme", SubjectID: "token-1", Detail: "svc_abc…"},
			{Admin: hostile, Address: "192.0.2.1", Action: webhook.ActionSubscriptionPause, ProgramID: hostile, SubjectID: hostile, Detail: hostile},
		} {
			if err := sw.Audit(e); err != nil {
				return err
			}
		}
		return nil
	})
	must(t, err)
	p := v.do("GET", "/audit")
	p.want(t, 200, `<a href="/tokens/token-1">`)
	p.has(t, "terminal", "Create token", "acme", "svc_abc…", "Pause subscription", "&lt;script&gt;alert(1)", "from 192.0.2.1",
		"⟨U+202E⟩")
	p.hasNot(t, "<script>alert", "\u202e")
	for query, want := range map[string][2]string{
		"?filter[admin]=terminal":            {"Create token", "Pause subscription"},
		"?filter[action]=subscription.pause": {"Pause subscription", "svc_abc"},
		"?filter[subject_id]=token-1":        {"svc_abc", "Pause subscription"},
		"?program=acme":                      {"svc_abc", "Pause subscription"},
		"?filter[admin]=unknown":             {"No results", "svc_abc"},
	} {
		p := v.do("GET", "/audit"+query)
		rows := p.body[strings.Index(p.body, "<main"):]
		rows = rows[strings.Index(rows, "</form>"):] // after the filters
		if p.StatusCode != 200 || !strings.Contains(rows, want[0]) || strings.Contains(rows, want[1]) {
			t.Errorf("%s: got %d, want %q and not %q:\n%s", query, p.StatusCode, want[0], want[1], rows)
		}
	}
	v.do("GET", "/audit?filter[action]=crown").want(t, 400, "must be one of")
	v.do("GET", "/audit?page[size]=1").want(t, 200, "page[cursor]=")
}

// No form can exhaust the memory.
func TestFormsAreBounded(t *testing.T) {
	w := testWeb(t, nil)
	withPassword(t, w, testAdmin)
	rw := httptest.NewRecorder()
	w.ServeHTTP(rw, formRequest("/sign-in",
		url.Values{"email": {testAdmin}, "password": {testPassword}, "more": {strings.Repeat("x", maxForm)}}))
	if rw.Code != http.StatusRequestEntityTooLarge || !strings.Contains(rw.Body.String(), "at most 64.0 KiB") ||
		len(rw.Result().Cookies()) > 0 {
		t.Errorf("got %d with %v:\n%s", rw.Code, rw.Result().Cookies(), rw.Body)
	}
}

// An entry about a subscription shows its name, or without one its URL at that time.
func TestAuditDetails(t *testing.T) {
	a := auditRecords{labels: map[string]record.SubscriptionLabel{"named": {Description: "Partner X\nmore"}, "unnamed": {}}}
	for _, test := range []struct {
		action                webhook.Action
		subject, name, detail string
	}{
		{webhook.ActionSubscriptionRotateSecret, "named", "Partner X", "own secret"},
		{webhook.ActionSubscriptionRotateSecret, "unnamed", "", "https://hooks.example/in; own secret"},
		{webhook.ActionSubscriptionRotateSecret, "gone", "", "https://hooks.example/in; own secret"},
		{webhook.ActionProgramDelete, "named", "", "https://hooks.example/in; own secret"},
	} {
		e := webhook.AuditEntry{Action: test.action, SubjectID: test.subject, Detail: "https://hooks.example/in; own secret"}
		name, detail := a.details(&e)
		if name != test.name || detail != test.detail {
			t.Errorf("%s %s: got %q, %q", test.action, test.subject, name, detail)
		}
	}
}

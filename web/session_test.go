package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/webhook"
)

// testPassword is the password of admins who have one.
const testPassword = "correct horse battery"

// send posts a form as a browser does.
func (v visitor) send(path string, fields ...string) page {
	v.t.Helper()
	form := make(url.Values)
	for i := 0; i < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	return v.post(path, form.Encode(), "Origin", v.base, "Sec-Fetch-Site", "same-origin")
}

// enter sends the form to sign in.
func (v visitor) enter(email, password string) page {
	v.t.Helper()
	return v.send("/sign-in", "email", email, "password", password)
}

// cookie returns a cookie of the browser, "" for none.
func (v visitor) cookie(name string) string {
	v.t.Helper()
	u, err := url.Parse(v.base)
	must(v.t, err)
	for _, c := range v.client.Jar.Cookies(u) {
		if strings.TrimPrefix(c.Name, "__Host-") == name {
			return c.Value
		}
	}
	return ""
}

// withPassword creates an admin with testPassword.
func withPassword(t *testing.T, w *Web, email string) webhook.Admin {
	t.Helper()
	var admin webhook.Admin
	hash := webhook.HashPassword(testPassword)
	err := w.store.Write(t.Context(), func(sw store.Write) (err error) {
		admin, err = sw.Admins().Create(email, webhook.RoleOwner, hash)
		return err
	})
	must(t, err)
	return admin
}

// audited returns the audit log, oldest first: admin, action and detail.
func audited(t *testing.T, w *Web) (all []string) {
	t.Helper()
	q, _ := webhook.AuditList.Parse(url.Values{"sort": {"at"}})
	entries, _, err := w.store.Audit().Page(t.Context(), &q)
	must(t, err)
	for _, e := range entries {
		all = append(all, fmt.Sprintf("%s from %s: %s %s", e.Admin, e.Address, e.Action, e.Detail))
	}
	return all
}

// wantAudit checks that the audit log contains every text, and returns the log.
func wantAudit(t *testing.T, w *Web, texts ...string) (log string) {
	t.Helper()
	log = strings.Join(audited(t, w), "\n")
	for _, want := range texts {
		if !strings.Contains(log, want) {
			t.Errorf("the audit log lacks %q:\n%s", want, log)
		}
	}
	return log
}

// TestFirstAdmin goes from the first start to the first page, over HTTP and over HTTPS.
func TestFirstAdmin(t *testing.T) {
	for name, secure := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) { firstAdmin(t, secure) })
	}
}

func firstAdmin(t *testing.T, secure bool) {
	w := testWeb(t, func(cfg *Config) { cfg.Secure = secure; cfg.Program = "./service" })
	v := visit(t, w)
	p := v.do("GET", "/")
	p.want(t, 401, "./service admin setup-link<")
	p.hasNot(t, w.store.Dir())
	if got := p.Header.Get("WWW-Authenticate"); got == "" {
		t.Error("401 without WWW-Authenticate")
	}
	v.do("GET", "/sign-in").want(t, 401, "No admin yet")

	link := w.NewSetupLink()
	other := w.NewSetupLink()
	// Neither opening the link nor a mistake uses up the link.
	for _, method := range []string{"GET", "HEAD", "GET"} {
		v.do(method, link).want(t, 200, "")
	}
	v.do("GET", link).want(t, 200, `method="post" action="`+link+`"`)
	p = v.send(link, "email", "Ana", "password", "short", "again", "short")
	p.want(t, 422, `value="Ana"`, "must be an email address", "must have at least 12 characters", `href="#email"`, `href="#password"`)
	p.hasNot(t, "short")
	v.send(link, "email", testAdmin, "password", testPassword, "again", testPassword+"x").want(t, 422, "must match the password")
	v.send(link, "email", testAdmin).want(t, 422, "is required")
	v.do("GET", "/").want(t, 401, "")

	p = v.send(link, "email", " Ana@Example.COM ", "password", testPassword, "again", testPassword)
	p.want(t, 303, "")
	p.wantHeader(t, "Location", "/")
	wantCookies(t, p, secure)
	if strings.Contains(link, v.cookie("session")) {
		t.Error("the session has the code of the link")
	}
	v.do("GET", "/").want(t, 200, "<h1>Overview</h1>")
	v.do("GET", "/account").want(t, 200, "Signed in as "+testAdmin)

	// From now on no setup link works.
	for _, l := range []string{link, other, w.NewSetupLink(), "/setup/" + strings.Repeat("A", 43)} {
		for _, method := range []string{"GET", "POST"} {
			v.do(method, l).want(t, 404, "Invalid link")
		}
		v.send(l, "email", "eve@example.com", "password", testPassword, "again", testPassword).want(t, 404, "Invalid link")
	}
	wantAdmins(t, w, 1)
	got := audited(t, w)
	if len(got) != 2 || !strings.HasPrefix(got[0], testAdmin+" from 127.0.0.1: admin.create") ||
		!strings.HasPrefix(got[1], testAdmin+" from 127.0.0.1: session.begin") {
		t.Errorf("the audit has %q", got)
	}
}

// wantCookies checks the cookies of a sign-in: the session, and the mark of the device.
func wantCookies(t *testing.T, p page, secure bool) {
	t.Helper()
	prefix := map[bool]string{false: "", true: "__Host-"}[secure]
	ages := map[string]int{prefix + "session": 12 * 60 * 60, prefix + "device": 400 * 24 * 60 * 60}
	if got := len(p.Cookies()); got != len(ages) {
		t.Errorf("%d cookies, want %d: %q", got, len(ages), p.Header.Values("Set-Cookie"))
	}
	for _, c := range p.Cookies() {
		if ages[c.Name] == 0 || c.Secure != secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" ||
			c.MaxAge != ages[c.Name] {
			t.Errorf("cookie: got %s", c)
		}
	}
}

// TestSetupIsRaced uses one setup link many times concurrently.
func TestSetupIsRaced(t *testing.T) {
	w := testWeb(t, nil)
	raceLink(t, w, 8, w.NewSetupLink(), func(i int) url.Values {
		return url.Values{"email": {fmt.Sprintf("a%d@example.com", i)}, "password": {testPassword}, "again": {testPassword}}
	})
	wantAdmins(t, w, 1)
}

// raceLink sends n forms to a link concurrently. One of them must sign in, and the others must not
// find the link.
func raceLink(t *testing.T, w *Web, n int, link string, form func(i int) url.Values) {
	t.Helper()
	var wg sync.WaitGroup
	var in atomic.Int32
	for i := range n {
		wg.Go(func() {
			rw := httptest.NewRecorder()
			w.ServeHTTP(rw, formRequest(link, form(i)))
			if rw.Code == 303 {
				in.Add(1)
			} else if rw.Code != 404 {
				t.Errorf("got %d, want 303 or 404", rw.Code)
			}
		})
	}
	wg.Wait()
	if got := in.Load(); got != 1 {
		t.Errorf("%d were signed in, want 1", got)
	}
}

// formRequest returns a POST of a form.
func formRequest(path string, form url.Values) *http.Request {
	r := httptest.NewRequest("POST", path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

// TestSignIn signs in over HTTP and over HTTPS: no session, the form, the requested page, signing
// out.
func TestSignIn(t *testing.T) {
	for name, secure := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) {
			w := testWeb(t, func(cfg *Config) { cfg.Secure = secure })
			withPassword(t, w, testAdmin)
			v := visit(t, w)
			// The form replaces every page and leads back to it.
			p := v.do("GET", "/audit?filter[action]=token.create&x=%22")
			p.want(t, 401, `name="next" value="/audit?filter[action]=token.create&amp;x=%22"`)
			if got := p.Header.Get("WWW-Authenticate"); got == "" {
				t.Error("401 without WWW-Authenticate")
			}
			v.do("GET", "/sign-in?next=/audit").want(t, 200, `name="next" value="/audit"`)
			v.do("POST", "/account/sign-out-everywhere").want(t, 401, "nothing was saved")

			// A session cookie that an attacker set is not used for the new session.
			jar, err := url.Parse(v.base)
			must(t, err)
			planted := strings.Repeat("A", 43)
			v.client.Jar.SetCookies(jar, []*http.Cookie{{Name: w.sessions.cookieName("session"), Value: planted, Path: "/", Secure: secure}})
			p = v.send("/sign-in", "email", " Ana@Example.COM ", "password", testPassword, "next", "/audit?x=1")
			p.want(t, 303, "")
			p.wantHeader(t, "Location", "/audit?x=1")
			wantCookies(t, p, secure)
			first := v.cookie("session")
			if first == planted {
				t.Error("the session is the attacker's")
			}
			v.do("GET", "/").want(t, 200, "<h1>Overview</h1>")
			v.do("GET", "/sign-in?next=/audit").want(t, 303, "")

			// Signing in again creates a new session and ends the first.
			device := v.cookie("device")
			v.enter(testAdmin, testPassword).want(t, 303, "")
			second := v.cookie("session")
			if second == first || v.cookie("device") != device {
				t.Errorf("signing in again: the same session: %v, the same device: %v", second == first, v.cookie("device") == device)
			}
			bare := visit(t, w)
			name := w.sessions.cookieName("session")
			bare.do("GET", "/", "Cookie", name+"="+first).want(t, 401, "")
			bare.do("GET", "/", "Cookie", name+"="+second).want(t, 200, "")

			p = v.send("/sign-out")
			p.want(t, 303, "")
			if c := p.Cookies(); len(c) != 1 || c[0].MaxAge >= 0 || c[0].Value != "" {
				t.Errorf("cookies: got %v, want one that is removed", c)
			}
			v.do("GET", "/").want(t, 401, "")
			// The session has ended on the server as well, not only in the browser.
			bare.do("GET", "/", "Cookie", name+"="+second).want(t, 401, "")
			if got := audited(t, w); len(got) != 3 || !strings.Contains(got[2], "session.end") {
				t.Errorf("the audit has %q", got)
			}
		})
	}
}

// TestWrongPasswordsAreAlike checks that a wrong password and an unknown admin get the same
// response, and that no page repeats a password.
func TestWrongPasswordsAreAlike(t *testing.T) {
	w := testWeb(t, nil)
	withPassword(t, w, testAdmin)
	v := visit(t, w)
	var first string
	for _, c := range [][2]string{
		{testAdmin, "another password"}, {"bo@example.com", "another password"}, {"bo@example.com", testPassword}, {testAdmin, ""},
		{"<script>", testPassword}, {"", ""}, {testAdmin, strings.Repeat("x", webhook.MaxPassword+1)}, {strings.Repeat("x", 500) + "@example.com",
			testPassword},
	} {
		p := v.enter(c[0], c[1])
		p.want(t, 401, "Wrong email or password.")
		if len(p.Cookies()) > 0 {
			t.Errorf("%q: sets a cookie", c[0])
		}
		if c[1] != "" && strings.Contains(p.body, c[1]) {
			t.Errorf("%q: the page repeats the password", c[0])
		}
		if strings.Contains(p.body, "<script>") {
			t.Errorf("%q: is markup on the page", c[0])
		}
		body := strings.ReplaceAll(p.body, p.Header.Get("X-Request-Id"), "ID")
		for _, email := range []string{testAdmin, "bo@example.com", "&lt;script&gt;"} {
			body = strings.ReplaceAll(body, `value="`+email+`"`, `value=""`)
		}
		if first == "" {
			first = body
		}
		if body != first {
			t.Errorf("%q: another page than the first:\n%s\n%s", c[0], body, first)
		}
	}
	if got := audited(t, w); len(got) != 0 {
		t.Errorf("the audit has %q", got)
	}
}

// TestUnknownAdminsCostTheSame checks that a password is hashed whether or not the admin exists.
func TestUnknownAdminsCostTheSame(t *testing.T) {
	w := testWeb(t, nil)
	if ok, stale, err := w.pages.signIn.noPassword.Matches(testPassword); ok || stale || err != nil {
		t.Errorf("the hash for an unknown admin: matches %v, stale %v, %v; want the parameters of a real one", ok, stale, err)
	}
}

// TestOldHashesAreReplaced checks that signing in rehashes a password whose hash has other
// parameters.
func TestOldHashesAreReplaced(t *testing.T) {
	w := testWeb(t, nil)
	old := webhook.PasswordHash("$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHRzYWx0c2FsdA$uxWTSOnvlCJwDdrvGjf7x3xvw771mTCJHUN5gdfCrTw")
	if ok, stale, err := old.Matches("correct horse battery"); !ok || !stale || err != nil {
		t.Fatalf("the test's hash: matches %v, stale %v, %v", ok, stale, err)
	}
	err := w.store.Write(t.Context(), func(sw store.Write) error {
		_, err := sw.Admins().Create(testAdmin, webhook.RoleOwner, old)
		return err
	})
	must(t, err)
	v := visit(t, w)
	for range 2 {
		v.enter(testAdmin, "correct horse battery").want(t, 303, "")
		_, hash, err := w.store.Admins().ByEmail(t.Context(), testAdmin)
		if ok, stale, err2 := hash.Matches("correct horse battery"); err != nil || err2 != nil || hash == old || !ok || stale {
			t.Errorf("after signing in the hash is %s, %v, %v", hash, err, err2)
		}
	}
}

// TestRedirectsStayHere checks that no link redirects a visitor to another site after signing in.
func TestRedirectsStayHere(t *testing.T) {
	for next, want := range map[string]string{
		"/audit": "/audit", "/audit?a=b&c=%2F": "/audit?a=b&c=%2F", "/": "/", "/deliveries/x": "/deliveries/x",
		"": "/", "audit": "/", "//evil.example": "/", "///evil.example": "/", "/\\evil.example": "/", "\\\\evil.example": "/",
		"https://evil.example": "/", "https:evil.example": "/", "https:/evil.example": "/", "javascript:alert(1)": "/",
		"/\t/evil.example": "/", "/\n/evil.example": "/", " /audit": "/", "/%09/evil.example": "/", "/..//evil.example": "/",
		"/%2F/evil.example": "/", "/%2fevil.example": "/", "//user@evil.example/": "/", "/%5cevil.example": "/", "/a%": "/", "/ö": "/",
		"/sign-in": "/", "/sign-in/x": "/", "/sign-out": "/", "/setup/x": "/", "/" + strings.Repeat("a", 3000): "/",
	} {
		if got := localPath(next, "/"); got != want {
			t.Errorf("%q leads to %q, want %q", next, got, want)
		}
	}
}

func TestOtherSitesCannotPost(t *testing.T) {
	w := testWeb(t, nil)
	v := visit(t, w)
	setup := w.NewSetupLink()
	foreign := [][]string{
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Origin", "https://evil.example"},
		{"Origin", "null"},
	}
	form := url.Values{"email": {testAdmin}, "password": {testPassword}, "again": {testPassword}}.Encode()
	for _, header := range foreign {
		v.post(setup, form, header...).want(t, 403, "another site")
	}
	v.post(setup, form).want(t, 303, "") // none of them used up the link
	for _, path := range []string{"/sign-in", "/sign-out", "/account/password", "/account/sessions/x/revoke", "/account/sign-out-everywhere"} {
		for _, header := range foreign {
			v.post(path, form, header...).want(t, 403, "another site")
		}
	}
	v.do("GET", "/", "Sec-Fetch-Site", "cross-site").want(t, 200, "") // a link may come from anywhere
}

// TestBadLinksAreAlike checks that a used link and a link that never existed get the same response.
func TestBadLinksAreAlike(t *testing.T) {
	w := testWeb(t, nil)
	v := visit(t, w)
	used := w.NewSignInLink(makeAdmin(t, w, testAdmin).ID)
	v.do("POST", used).want(t, 303, "")
	var first string
	for _, method := range []string{"GET", "POST"} {
		for _, link := range []string{used, "/sign-in/" + strings.Repeat("A", 43), "/sign-in/x", "/sign-in/%3Cscript%3E", w.NewSetupLink(),
			"/setup/x"} {
			p := v.do(method, link)
			p.want(t, 404, "Invalid link")
			if len(p.Cookies()) > 0 {
				t.Errorf("%s %s: sets a cookie", method, link)
			}
			body := strings.ReplaceAll(p.body, p.Header.Get("X-Request-Id"), "ID")
			if first == "" {
				first = body
			}
			if body != first {
				t.Errorf("%s %s: another page than the first:\n%s\n%s", method, link, body, first)
			}
		}
	}
}

// TestLinkSignsInOnce presses the button many times concurrently.
func TestLinkSignsInOnce(t *testing.T) {
	w := testWeb(t, nil)
	raceLink(t, w, 20, w.NewSignInLink(makeAdmin(t, w, testAdmin).ID), func(int) url.Values { return nil })
}

// inFakeTime runs a test of the admin UI in fake time.
func inFakeTime(t *testing.T, test func(t *testing.T, w *Web)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), store.Config{Dir: dir})
		must(t, err)
		defer s.Close()
		test(t, New(Config{Store: s, Started: time.Now(), BaseURL: "https://service.example"}))
	})
}

// timed runs a test of pages in fake time.
func timed(t *testing.T, test func(t *testing.T, w *Web, do func(method, path, cookie, address string,
	fields ...string) *httptest.ResponseRecorder)) {
	t.Helper()
	inFakeTime(t, func(t *testing.T, w *Web) {
		test(t, w, func(method, path, cookie, address string, fields ...string) *httptest.ResponseRecorder {
			form := make(url.Values)
			for i := 0; i < len(fields); i += 2 {
				form.Set(fields[i], fields[i+1])
			}
			r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Cookie", cookie)
			r.RemoteAddr = address
			rw := httptest.NewRecorder()
			w.ServeHTTP(rw, r)
			return rw
		})
	})
}

// cookiesOf returns the cookies that a browser sends after a response.
func cookiesOf(rw *httptest.ResponseRecorder, names ...string) string {
	var all []string
	for _, c := range rw.Result().Cookies() {
		for _, name := range names {
			if c.Name == name {
				all = append(all, c.Name+"="+c.Value)
			}
		}
	}
	return strings.Join(all, "; ")
}

func TestLinksAndSessionsExpire(t *testing.T) {
	timed(t, func(t *testing.T, w *Web, do func(method, path, cookie, address string, fields ...string) *httptest.ResponseRecorder) {
		wants := func(about string, want int, method, path, cookie string) {
			t.Helper()
			if got := do(method, path, cookie, "").Code; got != want {
				t.Errorf("%s %s: got %d, want %d", method, about, got, want)
			}
		}
		setup := w.NewSetupLink()
		time.Sleep(30*time.Minute - time.Nanosecond)
		wants("a setup link within 30 minutes", 200, "GET", setup, "")
		time.Sleep(time.Nanosecond)
		wants("a setup link after 30 minutes", 404, "GET", setup, "")

		admin := makeAdmin(t, w, testAdmin)
		late, intime := w.NewSignInLink(admin.ID), w.NewSignInLink(admin.ID)
		time.Sleep(30*time.Minute - time.Nanosecond)
		in := do("POST", intime, "", "")
		if in.Code != 303 {
			t.Fatalf("within 30 minutes: got %d, want 303", in.Code)
		}
		began := time.Now()
		time.Sleep(time.Nanosecond)
		for _, method := range []string{"GET", "POST"} {
			wants("after 30 minutes", 404, method, late, "")
		}
		session := cookiesOf(in, "session")
		for time.Since(began) < 12*time.Hour-2*time.Minute {
			wants("after "+time.Since(began).String(), 404, "GET", "/nowhere", session)
			time.Sleep(min(2*time.Hour-time.Minute, 12*time.Hour-time.Minute-time.Since(began)))
		}
		wants("within 12 hours", 404, "GET", "/nowhere", session)
		time.Sleep(time.Minute)
		wants("after 12 hours", 401, "GET", "/nowhere", session)
		idle := cookiesOf(do("POST", w.NewSignInLink(admin.ID), "", ""), "session")
		time.Sleep(2 * time.Hour)
		wants("2 hours after it was seen", 401, "GET", "/nowhere", idle)
	})
}

// An open page that is not used does not extend its session.
func TestWatchingIsNotBeingSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := testWeb(t, nil)
		admin := makeAdmin(t, w, testAdmin)
		var cookie *http.Cookie
		ask := func(want int, method, path string, header ...string) {
			t.Helper()
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			r := httptest.NewRequestWithContext(ctx, method, path, nil)
			if cookie != nil {
				r.AddCookie(cookie)
			}
			if header != nil {
				r.Header.Set(header[0], header[1])
			}
			rec := httptest.NewRecorder()
			w.ServeHTTP(rec, r)
			name := w.sessions.cookieName(sessionCookie)
			if i := slices.IndexFunc(rec.Result().Cookies(), func(c *http.Cookie) bool { return c.Name == name }); i >= 0 {
				cookie = rec.Result().Cookies()[i]
			}
			if rec.Code != want {
				t.Fatalf("%s %s: got %d, want %d", method, path, rec.Code, want)
			}
		}
		ask(303, "POST", w.NewSignInLink(admin.ID))
		for range 4 {
			time.Sleep(webhook.SessionIdle / 2)
			ask(200, "GET", "/deliveries") // the visitor reloads a page
		}
		for range 3 {
			time.Sleep(webhook.SessionIdle / 4)
			ask(200, "GET", "/deliveries/stream")
			ask(200, "GET", "/deliveries", "HX-Request", "true") // the script of a page reloads a part
		}
		time.Sleep(webhook.SessionIdle / 4)
		ask(401, "GET", "/deliveries/stream")
		ask(401, "GET", "/deliveries")
	})
}

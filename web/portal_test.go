package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"service/internal/ratelimit"
	"service/store"
	"service/store/record"
	"service/webhook"
)

// portalLink creates a link to a program's portal, and returns its path.
func portalLink(t *testing.T, w *Web, programID string, role webhook.PortalRole) string {
	t.Helper()
	var code string
	must(t, w.store.Write(t.Context(), func(sw store.Write) (err error) {
		if _, err = w.store.Programs().Get(t.Context(), programID); isCallerError(err) {
			_, _, err = sw.Programs().Put(programID, &webhook.ProgramFields{}, webhook.AuditEntry{})
		}
		if err == nil {
			_, code, err = sw.Programs().CreatePortalLink(webhook.NewPortalLink{ProgramID: programID, Role: role}, webhook.AuditEntry{})
		}
		return err
	}))
	return "/portal/link/" + code
}

// enter opens a program's portal with a browser that keeps its cookies.
func enter(t *testing.T, w *Web, programID string, role webhook.PortalRole) visitor {
	t.Helper()
	v := visit(t, w)
	got := v.do("POST", portalLink(t, w, programID, role))
	got.want(t, 303, "")
	got.wantHeader(t, "Location", "/portal/")
	return v
}

// A link shows a button and works once. The responses for a link that was used, has expired or
// never existed are equal and reveal nothing.
func TestPortalLinks(t *testing.T) {
	w := testWeb(t, nil)
	link := portalLink(t, w, "acme", webhook.PortalRead)
	v := visit(t, w)
	for range 2 {
		v.do("GET", link).want(t, 200, `action="`+link+`"`)
		v.do("HEAD", link).want(t, 200, "")
	}
	if cookies := v.do("GET", link).Cookies(); len(cookies) > 0 {
		t.Errorf("looking at the link sets %v", cookies)
	}
	v.do("POST", link, "Sec-Fetch-Site", "cross-site").want(t, 403, "another site")
	got := v.do("POST", link)
	got.want(t, 303, "")
	cookie := got.Cookies()[0]
	if len(got.Cookies()) != 1 || cookie.Name != "portal" || !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode ||
		cookie.MaxAge != 8*60*60 || cookie.Path != "/" || cookie.Partitioned {
		t.Errorf("got the cookies %v", got.Cookies())
	}
	expired := portalLink(t, w, "acme", webhook.PortalRead)
	erased := portalLink(t, w, "gone", webhook.PortalRead)
	must(t, w.store.Write(t.Context(), func(sw store.Write) error {
		if _, _, err := sw.Portal().EndAccess("acme"); err != nil {
			return err
		}
		_, err := sw.Programs().Erase("gone", webhook.AuditEntry{})
		return err
	}))
	requestID := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
	var first string
	for _, path := range []string{link, expired, erased, "/portal/link/guess", "/portal/link/" + strings.Repeat("A", 43)} {
		for _, method := range []string{"GET", "POST"} {
			p := visit(t, w).do(method, path)
			p.want(t, 404, "A link works once and for a limited time. Ask for a new link.")
			body := requestID.ReplaceAllString(p.body, "")
			if first == "" {
				first = body
			}
			if body != first || strings.Contains(body, "acme") || len(p.Cookies()) > 0 ||
				!strings.HasSuffix(p.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
				t.Errorf("%s %s: differs from the others:\n%s", method, path, p.body)
			}
		}
	}
	v.do("GET", "/portal/subscriptions").want(t, 401, "Your session has ended")

	v = enter(t, w, "acme", webhook.PortalRead)
	v.do("GET", link).want(t, 404, "A link works once and for a limited time. Your session in this browser is still open.")
}

// insidePortal is a program with records, and a portal session in it.
func insidePortal(t *testing.T, f *furnished, role webhook.PortalRole) visitor {
	t.Helper()
	putProgram(t, f.w, "mine", webhook.ProgramFields{})
	return enter(t, f.w, "mine", role)
}

// TestPortalHidesFlags checks that a partner who does not run the service sees none of its flags.
func TestPortalHidesFlags(t *testing.T) {
	for _, local := range []bool{true, false} {
		w := testWeb(t, func(cfg *Config) { cfg.Rules.ShowFlags = local })
		f := &furnished{t: t, w: w}
		p := insidePortal(t, f, webhook.PortalWrite).send("/portal/subscriptions/check-url", "url", "http://127.0.0.1/")
		p.want(t, 200, "must begin with https://")
		if got := strings.Contains(p.body, "--allow-http"); got != local {
			t.Errorf("local %t: got %s", local, p.body)
		}
	}
}

// TestPortalReachesNoOtherProgram requests each portal route with the IDs of another program, and
// each route of the admin UI.
func TestPortalReachesNoOtherProgram(t *testing.T) {
	for _, role := range webhook.PortalRoles() {
		f := furnish(t)
		v := insidePortal(t, f, role)
		mine := sender{t, f.w.store}.subscribe("mine", "https://mine.example.com/")
		for _, one := range f.w.portalRoutes() {
			if one.path == "/portal/sign-out" || one.role == anyone {
				continue
			}
			for _, method := range one.methods() {
				refusesOtherProgram(t, f, v, role, one, method)
			}
		}
		for _, query := range []string{"?program=acme", "?filter[program_id]=acme", "?program=acme&filter[program_id]=acme"} {
			for _, path := range []string{"/portal/subscriptions", "/portal/deliveries", "/portal/event-types/content_published",
				portalBase + subscriptionPath(mine.ID)} {
				v.do("GET", path+query).hasNot(t, "hooks.example.com")
			}
		}
		eventType := v.do("GET", portalBase+eventTypePath(mine.Events[0]))
		eventType.has(t, mine.ID)
		eventType.hasNot(t, "w-program") // the only program needs no column
		adminsRefusePartners(t, f, v, role)
	}
}

// adminsRefusePartners requests each route of the admin UI with a portal session.
func adminsRefusePartners(t *testing.T, f *furnished, v visitor, role webhook.PortalRole) {
	t.Helper()
	for _, one := range f.w.routes() {
		if one.role == anyone {
			continue
		}
		for _, method := range one.methods() {
			if got := f.ask(v, one, method); got.StatusCode != 401 {
				t.Errorf("%s: %s %s with a session of the portal: got %d", role, method, one.path, got.StatusCode)
			}
		}
	}
}

// refusesOtherProgram requests a portal route for a record of another program.
func refusesOtherProgram(t *testing.T, f *furnished, v visitor, role webhook.PortalRole, one route, method string) {
	t.Helper()
	path := "/portal" + f.path(strings.TrimPrefix(one.path, "/portal"))
	path = strings.Replace(path, "/portal/{$}", "/portal/", 1)
	before := len(audited(t, f.w))
	got := v.do(method, path)
	about := fmt.Sprintf("%s: %s %s", role, method, path)
	named := strings.Contains(one.path, "{id}")
	switch {
	case one.role == writer && role == webhook.PortalRead:
		if got.StatusCode != 403 {
			t.Errorf("%s: got %d", about, got.StatusCode)
		}
	case named && got.StatusCode != 404, got.StatusCode == 401 || got.StatusCode == 403 || got.StatusCode >= 500:
		t.Errorf("%s: got %d\n%s", about, got.StatusCode, got.body)
	}
	got.hasNot(t, "acme", "hooks.example.com", urlCanary, "gone.example.com")
	if after := len(audited(t, f.w)); after != before {
		t.Errorf("%s: the audit has %d new entries", about, after-before)
	}
}

// TestAdminsAreNotInThePortal requests each portal route with the session of an owner, and with the
// secret of each session in the cookie of the other.
func TestAdminsAreNotInThePortal(t *testing.T) {
	f := furnish(t)
	v := insidePortal(t, f, webhook.PortalWrite)
	at, _ := url.Parse(v.base)
	inside := v.client.Jar.Cookies(at)[0]
	admin := f.as(owner)
	session := admin.client.Transport.(withCookie).cookie
	none := f.as(anyone)
	crossed := visitor{t, f.v.base, &http.Client{CheckRedirect: f.v.client.CheckRedirect,
		Transport: withCookie{&http.Cookie{Name: portalCookie, Value: session.Value}}}}
	for _, one := range append(f.w.portalRoutes(), route{path: "/portal/nowhere", role: reader, by: by{get: notFound}}) {
		if one.role == anyone {
			continue
		}
		for _, method := range one.methods() {
			path := strings.Replace("/portal"+f.path(strings.TrimPrefix(one.path, "/portal")), "{$}", "", 1)
			for name, who := range map[string]visitor{"an owner": admin, "nobody": none, "an admin's secret": crossed} {
				if got := who.do(method, path); got.StatusCode != 401 || strings.Contains(got.body, "Sign in") {
					t.Errorf("%s: %s %s: got %d\n%s", name, method, path, got.StatusCode, got.body)
				}
			}
		}
	}
	crossed = visitor{t, f.v.base, &http.Client{CheckRedirect: f.v.client.CheckRedirect,
		Transport: withCookie{&http.Cookie{Name: sessionCookie, Value: inside.Value}}}}
	crossed.do("GET", "/").want(t, 401, "")
	// A browser may have both sessions. Each ends alone.
	both := visit(t, f.w)
	both.signIn(f.w)
	both.do("POST", portalLink(t, f.w, "mine", webhook.PortalRead)).want(t, 303, "")
	both.do("GET", "/portal/subscriptions").want(t, 200, "mine")
	both.do("GET", "/subscriptions").want(t, 200, "acme")
	both.do("POST", "/portal/sign-out").want(t, 200, "ask for a new link")
	both.do("GET", "/portal/subscriptions").want(t, 401, "")
	both.do("GET", "/subscriptions").want(t, 200, "acme")
}

// operatorWords are words that only operators should read.
var operatorWords = regexp.MustCompile(`(?:^|\s|>)--[a-z]+[a-z-]*|/v2/|event_types|data directory|service token|\bsearch its log\b|` +
	`[Tt]he partner|Ask the partner|TOKEN is|admin UI`)

// TestPortalPages visits each page of a program with its own records. No page contains what only
// admins may see or an operator's words, and each of its links and forms leads to a portal route
// that the role allows.
func TestPortalPages(t *testing.T) {
	for _, role := range webhook.PortalRoles() {
		f := furnish(t)
		v := enter(t, f.w, "acme", role)
		seen := make(map[string]bool)
		for _, one := range f.w.portalRoutes() {
			if one.get == nil || one.role == anyone || one.role == writer && role == webhook.PortalRead || one.kind == partRoute {
				continue
			}
			checkPortalPage(t, f, v, role, one, seen)
		}
		for _, pattern := range []string{"/portal/subscriptions/{id}", "/portal/deliveries/{id}", "/portal/event-types/{name}",
			"/portal/subscriptions/{id}/ping", "/portal/subscriptions/new", "/portal/deliveries/{id}/redeliver"} {
			needsWrite := slices.ContainsFunc(f.w.portalRoutes(), func(r route) bool { return r.path == pattern && r.role == writer })
			if want := role == webhook.PortalWrite || !needsWrite; seen[pattern] != want {
				t.Errorf("%s: %s is found: %v", role, pattern, seen[pattern])
			}
		}
	}
}

// checkPortalPage opens a portal page, and adds the routes that it links to.
func checkPortalPage(t *testing.T, f *furnished, v visitor, role webhook.PortalRole, one route, seen map[string]bool) {
	t.Helper()
	path := strings.Replace("/portal"+f.path(strings.TrimPrefix(one.path, "/portal")), "{$}", "", 1)
	got := v.do("GET", path)
	if got.StatusCode == 303 {
		return
	}
	if got.StatusCode != 200 {
		t.Errorf("%s: got %d\n%s", path, got.StatusCode, got.body)
		return
	}
	if secret := signingSecret.FindString(got.body); secret != "" {
		t.Errorf("%s has %s", path, secret)
	}
	if !strings.HasPrefix(got.Header.Get("Content-Type"), "text/html") {
		return
	}
	text := strings.ReplaceAll(got.body, "--data-binary", "") // a flag of curl
	if found := operatorWords.FindString(text); found != "" {
		t.Errorf("%s has %q", path, found)
	}
	if form := strings.HasSuffix(path, "/edit"); strings.Contains(got.body, urlCanary) && !form {
		t.Errorf("%s has the query of the URL", path)
	}
	for _, m := range addresses.FindAllStringSubmatch(got.body, -1) {
		if strings.HasPrefix(m[1], "/assets/") || strings.HasPrefix(m[1], "/docs/receiving") {
			continue
		}
		if !strings.HasPrefix(m[1], "/portal") || !portalAllows(role, f.w.roleOf(strings.ReplaceAll(m[1], "&amp;", "&"))) {
			t.Errorf("%s of %s leads to %s", path, role, m[1])
		}
		seen[f.w.patternOf(m[1])] = true
	}
	if n := strings.Count(got.body, "<h1"); n != 1 {
		t.Errorf("%s has %d h1", path, n)
	}
}

// patternOf returns the pattern of the route of an address.
func (w *Web) patternOf(address string) string {
	path, _, _ := strings.Cut(strings.ReplaceAll(address, "#", "?"), "?")
	_, pattern := w.mux.Handler(&http.Request{Method: "GET", URL: &url.URL{Path: path}})
	return pattern
}

// A portal may be embedded only on the origins of its program, where its cookie is partitioned.
func TestPortalFraming(t *testing.T) {
	w := testWeb(t, func(c *Config) { c.Secure = true })
	putProgram(t, w, "acme", webhook.ProgramFields{PortalOrigins: &[]string{"https://app.example.com", "https://b.example:8443"}})
	framed := func(p page) bool { return mayBeFramed(t, p) }
	link := portalLink(t, w, "acme", webhook.PortalWrite)
	v := visit(t, w)
	if !framed(v.do("GET", link)) || framed(v.do("GET", "/portal/link/guess")) || framed(v.do("GET", "/sign-in")) {
		t.Error("the link cannot be embedded, or a page without a session can be")
	}
	got := v.do("POST", link, "Sec-Fetch-Dest", "iframe", "Sec-Fetch-Site", "same-origin")
	got.want(t, 303, "")
	c := got.Cookies()[0]
	framedSecret := c.Value
	if c.Name != "__Host-portal-frame" || c.SameSite != http.SameSiteNoneMode || !c.Secure || !c.Partitioned || !c.HttpOnly || c.Path != "/" ||
		c.Domain != "" {
		t.Errorf("got %v", c)
	}
	if !framed(v.do("GET", "/portal/subscriptions")) || !framed(v.do("GET", "/portal/nowhere")) || framed(v.do("GET", "/")) {
		t.Error("the wrong pages can be embedded")
	}
	saved := v.post("/portal/preferences", "theme=dark&back=/portal/deliveries")
	saved.wantHeader(t, "Location", "/portal/deliveries")
	if c := saved.Cookies()[0]; c.SameSite != http.SameSiteNoneMode || !c.Partitioned {
		t.Errorf("got %v", c)
	}
	for _, back := range []string{"/tokens", "//evil.example", "/portal/link/x", "/portals"} {
		v.post("/portal/preferences", "theme=dark&back="+back).wantHeader(t, "Location", "/portal/")
	}
	v.do("POST", "/portal/sign-out", "Sec-Fetch-Site", "cross-site").want(t, 403, "")
	v.do("GET", "/portal/subscriptions").want(t, 200, "")
	// A session outside replaces the one in the iframe.
	outside := v.do("POST", portalLink(t, w, "acme", webhook.PortalRead), "Sec-Fetch-Dest", "document").Cookies()
	if !slices.ContainsFunc(outside, func(c *http.Cookie) bool { return c.Name == "__Host-portal-frame" && c.MaxAge < 0 && c.Partitioned }) {
		t.Errorf("the cookie of the iframe is left: %v", outside)
	}

	v = visit(t, w)
	got = v.do("POST", portalLink(t, w, "acme", webhook.PortalWrite), "Sec-Fetch-Dest", "document")
	c = got.Cookies()[0]
	if c.Name != "__Host-portal" || c.SameSite != http.SameSiteLaxMode || !c.Secure || c.Partitioned {
		t.Errorf("got %v", c)
	}
	// The secret of a session works only in its own cookie.
	for _, test := range []struct {
		name, secret string
		status       int
	}{
		{"__Host-portal", c.Value, 200}, {"__Host-portal-frame", c.Value, 401},
		{"__Host-portal-frame", framedSecret, 200}, {"__Host-portal", framedSecret, 401},
	} {
		if got := visit(t, w).do("GET", "/portal/subscriptions", "Cookie", test.name+"="+test.secret); got.StatusCode != test.status {
			t.Errorf("%s with %.8s…: got %d, want %d", test.name, test.secret, got.StatusCode, test.status)
		}
	}
	putProgram(t, w, "acme", webhook.ProgramFields{PortalOrigins: &[]string{}})
	if framed(v.do("GET", "/portal/subscriptions")) {
		t.Error("a page can be embedded without origins")
	}
}

// mayBeFramed reports whether the origins of TestPortalFraming may embed a page. It fails if
// others may.
func mayBeFramed(t *testing.T, p page) bool {
	t.Helper()
	switch _, ancestors, _ := strings.Cut(p.Header.Get("Content-Security-Policy"), "frame-ancestors "); ancestors {
	case "https://app.example.com https://b.example:8443":
		return true
	case "'none'":
		return false
	default:
		t.Fatalf("%s: frame-ancestors %s", p.Request.URL.Path, ancestors)
		return false
	}
}

// TestPortalLimits checks that portal requests are limited per program, and that the program's
// subscription limit applies to them.
func TestPortalLimits(t *testing.T) {
	w := testWeb(t, func(c *Config) { c.MaxSubscriptions = 1 })
	v := enter(t, w, "acme", webhook.PortalRead)
	v.do("GET", "/portal/event-types").want(t, 200, "")
	for w.pages.portal.pace.Allow(ratelimit.Try{Limit: portalLimit, Key: "acme"}) == 0 {
	}
	v.do("GET", "/portal/event-types").want(t, 429, "")
	enter(t, w, "other", webhook.PortalRead).do("GET", "/portal/event-types").want(t, 200, "")

	// A program's limit replaces that of the configuration.
	for limit, status := range map[int]int{1: 422, 2: 200} {
		id := fmt.Sprint("limited-", limit)
		v := enter(t, w, id, webhook.PortalWrite)
		sender{t, w.store}.subscribe(id, "https://hooks.example.com/in")
		putProgram(t, w, id, webhook.ProgramFields{MaxSubscriptions: new(&limit)})
		v.send("/portal/subscriptions/new", "url", "https://hooks.example.com/2", "events", "content_published",
			"once", v.do("GET", "/portal/subscriptions/new").hidden(t, "once")).want(t, status, "")
	}
}

// The partners of one program cannot take all live streams, nor any of the admins' streams.
func TestPortalStreams(t *testing.T) {
	w := testWeb(t, nil)
	from := func(programID string) *request {
		r := &request{}
		if programID != "" {
			r.portal.program = &webhook.Program{ID: programID}
		}
		return r
	}
	open := func(programID string, n int) (leaves []func()) {
		for range n {
			if leave, ok := w.takeStream(from(programID)); ok {
				leaves = append(leaves, leave)
			}
		}
		return leaves
	}
	greedy := open("greedy", 2*maxStreams)
	if len(greedy) != maxInPortal {
		t.Fatalf("one program has %d streams", len(greedy))
	}
	for i := range maxStreams/maxInPortal - 1 {
		if got := len(open(fmt.Sprintf("p%d", i), maxInPortal)); got != maxInPortal {
			t.Fatalf("program %d has %d streams", i, got)
		}
	}
	if got := len(open("late", 1)); got != 0 {
		t.Errorf("partners have %d streams more than allowed", got)
	}
	admins := open("", 2*maxStreams)
	if len(admins) != maxStreams {
		t.Errorf("admins have %d streams", len(admins))
	}
	for _, leave := range greedy {
		leave()
	}
	if got := len(open("late", 1)); got != 1 {
		t.Error("a stream that ended keeps its slot")
	}
	if got := len(open("greedy", maxInPortal)); got != maxInPortal-1 {
		t.Errorf("got %d streams again", got)
	}
	if got := len(open("late", 1)); got != 0 {
		t.Error("a refused stream of a program frees a slot")
	}
	if w.perProgram.Take("late", 1) || !w.perProgram.Take("late", 2) {
		t.Error("refused streams count, or the open one does not")
	}
}

// A portal stream takes a slot of its program over HTTP as well.
func TestPortalStreamsOverHTTP(t *testing.T) {
	f := furnish(t)
	v := enter(t, f.w, "acme", webhook.PortalRead)
	path := "/portal" + f.path("/deliveries/{id}/stream")
	for range maxInPortal {
		if !f.w.perProgram.Take("acme", maxInPortal) {
			t.Fatal("no slot")
		}
	}
	v.do("GET", path).want(t, 503, "Too many pages receive live updates.")
	f.w.perProgram.Leave("acme")
	followList(v, path, "")
	if len(f.w.portalStreams) != 1 || len(f.w.streams) != 0 {
		t.Errorf("%d slots of partners and %d of admins are taken", len(f.w.portalStreams), len(f.w.streams))
	}
}

// An open stream sends nothing more once its partner's access has ended.
func TestPortalStreamEnds(t *testing.T) {
	w := testWeb(t, nil)
	v := enter(t, w, "acme", webhook.PortalRead)
	at, err := url.Parse(v.base)
	must(t, err)
	r := &request{Request: httptest.NewRequestWithContext(t.Context(), "GET", "/portal/deliveries/x/stream", nil)}
	r.AddCookie(v.client.Jar.Cookies(at)[0])
	must(t, w.pages.portal.find(r))
	w.follow(httptest.NewRecorder(), r, func(s *stream) error {
		check := func() error {
			s.checkedAt = s.checkedAt.Add(-streamCheck)
			return s.idle()
		}
		must(t, check())
		must(t, w.store.Write(t.Context(), func(sw store.Write) error {
			_, _, err := sw.Portal().EndAccess("acme")
			return err
		}))
		if err := check(); !errors.Is(err, errSignedOut) {
			t.Errorf("after the access ended: got %v, want %v", err, errSignedOut)
		}
		return nil
	})
}

// Link errors for strangers and partners do not reveal how the service is run.
func TestErrorsOfStrangers(t *testing.T) {
	w, v, id := sharedFixture(t)
	shared := v.shareDelivery(id)
	partner := enter(t, w, "acme", webhook.PortalWrite)
	partner.post("/portal/subscriptions/new", "url=https%3A%2F%2Fx.example&max_in_flight=many").want(t, 422, "empty for the default")
	must(t, w.cfg.Store.Close())
	for path, who := range map[string]visitor{shared: v, "/portal/subscriptions": partner} {
		got := who.do("GET", path)
		got.want(t, 500, "ask us if it fails again")
		got.hasNot(t, "Search its log")
	}
}

// Partners do not learn which admin created a subscription, nor how long the phases of an attempt
// took.
func TestPortalHidesOperators(t *testing.T) {
	w := testWeb(t, nil)
	admin := visitSignedIn(t, w)
	l := newEventSource(t, w, "https://hooks.example.com")
	l.publish("content_published", `"one"`)
	c := l.form()
	l.end(c, answerOf500("", ""))
	var made webhook.Subscription
	must(t, w.store.Write(t.Context(), func(sw store.Write) (err error) {
		url := "https://second.example.com"
		made, _, err = sw.Subscriptions().Create("acme", record.AdminUser(testAdmin), &webhook.SubscriptionFields{URL: &url,
			Events: &[]string{"content_updated"}}, 0, webhook.AuditEntry{})
		return err
	}))
	partner := enter(t, w, "acme", webhook.PortalWrite)
	for path, hidden := range map[string][]string{
		subscriptionPath(made.ID): {testAdmin},
		deliveryPath(c.ID):        {`class="split"`, "took-dns"},
	} {
		admin.do("GET", path).want(t, 200, hidden[0])
		got := partner.do("GET", portalBase+path)
		got.want(t, 200, "Details")
		got.hasNot(t, hidden...)
	}
}

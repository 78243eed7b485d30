package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"service/store"
	"service/store/storetest"
	"service/webhook"
)

// furnished is an admin UI with a record for the path of each route.
type furnished struct {
	t     *testing.T
	w     *Web
	v     visitor
	paths map[string]string // by the pattern of the route, or by its beginning
	owner webhook.Admin
}

const urlCanary = "canary-of-the-url"

func furnish(t *testing.T) *furnished {
	t.Helper()
	w := testWeb(t, nil)
	f := &furnished{t: t, w: w, v: visit(t, w), owner: makeAdmin(t, w, "owner@example.com")}
	l := newEventSource(t, w, "https://hooks.example.com/in?key="+urlCanary)
	events := l.publish("content_published", `"one"`)
	failed := l.form()
	l.end(failed, webhook.Attempt{ResponseStatus: 404})
	deleted := sender{t, w.store}.subscribe("other", "https://gone.example.com/")
	_, err := storetest.DeleteSubscription(t.Context(), w.store, "other", deleted.ID)
	must(t, err)
	tokens, err := w.store.Tokens().List(t.Context())
	must(t, err)
	incidents := incidentsOf(t, w)
	if len(incidents) == 0 || len(tokens) == 0 {
		t.Fatal("there is no incident or no token")
	}
	var replay webhook.Replay
	var run webhook.BulkRun
	var channel webhook.AlertChannel
	var invited webhook.Invitation
	var link webhook.Share
	var code, shared string
	from := time.Now().Add(-time.Hour)
	replay, err = storetest.CreateReplay(t.Context(), w.store, "acme", l.sub.ID, &webhook.ReplayFields{From: from, Only: webhook.ReplayAll})
	must(t, err)
	must(t, w.store.Write(t.Context(), func(sw store.Write) (err error) {
		dq, _ := webhook.AllDeliveryList.Parse(url.Values{})
		run, err = sw.BulkRuns().Create(&store.NewBulkRun{ID: webhook.NewID(), Action: webhook.BulkRedeliver, Query: &dq,
			Audit: webhook.AuditEntry{Admin: f.owner.Email}})
		if err != nil {
			return err
		}
		channel, err = sw.Channels().Create(webhook.AlertChannel{Kind: webhook.ChannelSlack, Name: "On call", Alerts: webhook.AlertNames(),
			Active: true, URL: "https://chat.example/" + urlCanary})
		if err != nil {
			return err
		}
		invited, code, err = sw.Admins().CreateInvitation(f.owner.ID, "cy@example.com", webhook.RoleViewer)
		if err != nil {
			return err
		}
		link, shared, err = sw.Deliveries().Share("acme", failed.ID, webhook.AuditEntry{})
		return err
	}))
	sendAlerts(t, w) // a test alert waits for its result
	f.paths = map[string]string{
		"/sign-in/{code}":                             "/sign-in/" + strings.Repeat("A", 43),
		"/setup/{code}":                               "/setup/" + strings.Repeat("A", 43),
		"/link/{code}":                                "/link/" + strings.Repeat("A", 43), // a portal link
		"/shared/{code}":                              "/shared/" + shared,
		"/deliveries/{id}/shares/{share}/revoke":      deliveryPath(failed.ID) + "/shares/" + link.ID + "/revoke",
		"/invitation/{code}":                          "/invitation/" + code,
		"/incidents/{id}":                             incidentPath(incidents[0].ID),
		"/subscriptions/{id}":                         subscriptionPath(l.sub.ID),
		"/subscriptions/{id}/replays/{replay}/cancel": subscriptionPath(l.sub.ID) + "/replays/" + replay.ID + "/cancel",
		// No dispatcher runs, so these would wait.
		"/subscriptions/{id}/ping":                    subscriptionPath(deleted.ID) + "/ping",
		"/subscriptions/{id}/test":                    subscriptionPath(deleted.ID) + "/test",
		"/deliveries/{id}":                            deliveryPath(failed.ID),
		"/deliveries/{id}/attempts/{number}/body.txt": deliveryPath(failed.ID) + "/attempts/1/body.txt",
		"/bulk-runs/{id}":                             runPath(run.ID),
		"/events/{program}/{id}":                      eventPath("acme", events[0].ID),
		"/event-types/{name}":                         "/event-types/content_published",
		"/programs/{id}":                              programPath("other"), // the test erases it
		"/programs/{id}/portal":                       programPortalPath("acme"),
		"/tokens/{id}":                                tokenPath(tokens[0].ID),
		"/alerts/{id}":                                channelPath(channel.ID),
		"/admins/{id}":                                adminPath(f.owner.ID),
		"/admins/invitations/{id}/revoke":             "/admins/invitations/" + invited.ID + "/revoke",
		"/account/passkeys/{passkey}/remove":          "/account/passkeys/" + webhook.NewID() + "/remove",
		"/admins/{id}/passkeys/{passkey}/remove":      adminPath(f.owner.ID) + "/passkeys/" + webhook.NewID() + "/remove",
		"/account/sessions/{id}/revoke":               "/account/sessions/" + webhook.NewID() + "/revoke",
		"/{$}":                                        "/",
	}
	return f
}

func incidentsOf(t *testing.T, w *Web) []webhook.Incident {
	t.Helper()
	q, _ := webhook.AllIncidentList.Parse(url.Values{})
	incidents, _, err := w.store.Incidents().Page(t.Context(), "", &q)
	must(t, err)
	return incidents
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// path returns the path of a record for the pattern of a route.
func (f *furnished) path(pattern string) string {
	f.t.Helper()
	if inside, ok := strings.CutPrefix(pattern, portalBase); ok {
		return portalBase + f.path(inside)
	}
	if p, ok := f.paths[pattern]; ok {
		return p
	}
	longest := ""
	for begins := range f.paths {
		if strings.HasPrefix(pattern, begins+"/") && len(begins) > len(longest) {
			longest = begins
		}
	}
	path := pattern
	if longest != "" {
		path = f.paths[longest] + strings.TrimPrefix(pattern, longest)
	}
	if strings.Contains(path, "{") {
		f.t.Fatalf("the test has no record for %s", pattern)
	}
	return path
}

// as gives the browser a new session of an admin with a role, or of a partner of acme with the role
// writer; "" for no session.
func (f *furnished) as(role webhook.Role) visitor {
	f.t.Helper()
	v := visitor{f.t, f.v.base, &http.Client{CheckRedirect: f.v.client.CheckRedirect}}
	switch role {
	case anyone:
		return v
	case writer:
		v.client.Transport = withCookie{v.do("POST", portalLink(f.t, f.w, "acme", webhook.PortalWrite)).Cookies()[0]}
		return v
	}
	email := string(role) + "@example.com"
	admin, _, err := f.w.store.Admins().ByEmail(f.t.Context(), email)
	if isCallerError(err) {
		err = f.w.store.Write(f.t.Context(), func(sw store.Write) (err error) {
			admin, err = sw.Admins().Create(email, role, f.w.pages.signIn.noPassword)
			return err
		})
	}
	must(f.t, err)
	for _, c := range v.do("POST", f.w.NewSignInLink(admin.ID)).Cookies() {
		if c.Name == sessionCookie {
			v.client.Transport = withCookie{c}
		}
	}
	return v
}

// withCookie sends a cookie with each request.
type withCookie struct{ cookie *http.Cookie }

func (c withCookie) RoundTrip(r *http.Request) (*http.Response, error) {
	r.AddCookie(c.cookie)
	return http.DefaultTransport.RoundTrip(r)
}

// ask sends a request to a route. It reads only the header of a stream.
func (f *furnished) ask(v visitor, t route, method string) page {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, v.base+f.path(t.path), nil)
	must(f.t, err)
	resp, err := v.client.Do(r)
	if err != nil {
		f.t.Fatalf("%s %s: %v", method, t.path, err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		return page{resp, ""}
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		f.t.Fatalf("%s %s: %v", method, t.path, err)
	}
	return page{resp, string(body)}
}

// methods returns the methods of a route.
func (t *route) methods() (all []string) {
	if t.get != nil {
		all = append(all, http.MethodGet, http.MethodHead)
	}
	if t.post != nil {
		all = append(all, http.MethodPost)
	}
	return all
}

// TestRoleOfEachRoute requests each route with each role, without a session, and with each
// method. A visitor whose role is too low gets a page with the required role, and nothing
// changes.
func TestRoleOfEachRoute(t *testing.T) {
	for _, role := range append(webhook.Roles(), anyone) {
		t.Run(cmp.Or(string(role), "no session"), func(t *testing.T) {
			f := furnish(t)
			f.as(webhook.RoleOwner) // creates no audit entry later
			for _, one := range f.w.routes() {
				for _, method := range one.methods() {
					checkRoleOfRoute(t, f, role, one, method)
				}
			}
		})
	}
}

// checkRoleOfRoute requests a route with a role, which may use it or is refused.
func checkRoleOfRoute(t *testing.T, f *furnished, role webhook.Role, one route, method string) {
	t.Helper()
	v := f.as(role)
	before := len(audited(t, f.w))
	got := f.ask(v, one, method)
	about := fmt.Sprintf("%s %s", method, one.path)
	switch {
	case one.role == anyone || role.Allows(one.role):
		if one.role != anyone && got.StatusCode == 401 || got.StatusCode == 403 || got.StatusCode >= 500 {
			t.Errorf("%s: got %d, which may use it:\n%s", about, got.StatusCode, got.body)
		}
		return
	case role == anyone && got.StatusCode != 401, role != anyone && got.StatusCode != 403:
		t.Errorf("%s: got %d", about, got.StatusCode)
	case role != anyone && method != http.MethodHead:
		got.has(t, "Your role does not allow this", "This needs the role "+string(one.role)+".",
			"You are signed in as "+string(role)+"@example.com with the role "+string(role)+".", "Request ID")
	}
	if after := len(audited(t, f.w)); after != before {
		t.Errorf("%s: refused, and the audit has %d new entries", about, after-before)
	}
}

// TestRolesOfRoutes lists the routes that need more than the role viewer. No other route changes
// anything but the visitor's own account.
func TestRolesOfRoutes(t *testing.T) {
	want := map[webhook.Role][]string{
		anyone: {
			"/invitation/{code}", "/setup/{code}", "/shared/{code}", "/sign-in", "/sign-in/oidc", "/sign-in/oidc/callback",
			"/sign-in/passkey", "/sign-in/{code}",
		},
		operator: {
			"/bulk-runs/{id}/cancel", "/deliveries/cancel", "/deliveries/cancel/count", "/deliveries/redeliver", "/deliveries/redeliver/count",
			"/deliveries/{id}/cancel", "/deliveries/{id}/redeliver", "/deliveries/{id}/share",
			"/deliveries/{id}/shares/{share}/revoke", "/events/publish", "/events/{program}/{id}/erase",
			"/subscriptions/check-url", "/subscriptions/filters",
			"/subscriptions/new",
			"/subscriptions/{id}/delete", "/subscriptions/{id}/edit", "/subscriptions/{id}/filters",
			"/subscriptions/{id}/pause", "/subscriptions/{id}/ping",
			"/subscriptions/{id}/probe", "/subscriptions/{id}/replay", "/subscriptions/{id}/replays/{replay}/cancel",
			"/subscriptions/{id}/resume", "/subscriptions/{id}/rotate-secret", "/subscriptions/{id}/test",
		},
		owner: {
			"/admins/invitations/{id}/revoke", "/admins/invite", "/admins/{id}/end-sessions",
			"/admins/{id}/passkeys/{passkey}/remove", "/admins/{id}/remove", "/admins/{id}/role", "/alerts/new",
			"/alerts/{id}/delete", "/alerts/{id}/edit", "/alerts/{id}/test", "/incidents/{id}/message", "/programs/-/new",
			"/programs/{id}/edit", "/programs/{id}/erase", "/programs/{id}/portal",
			"/programs/{id}/portal/end", "/programs/{id}/portal/origins", "/system/release", "/tokens/new", "/tokens/{id}/revoke",
		},
	}
	own := []string{
		"/account/passkeys", "/account/passkeys/new", "/account/passkeys/{passkey}/remove", "/account/password",
		"/account/sessions/{id}/revoke", "/account/sign-out-everywhere", "/preferences", "/sign-out",
	}
	got := make(map[webhook.Role][]string)
	for _, one := range testWeb(t, nil).routes() {
		if one.role != viewer {
			got[one.role] = append(got[one.role], one.path)
		} else if one.post != nil && !slices.Contains(own, one.path) {
			t.Errorf("a viewer may POST %s", one.path)
		}
	}
	for _, role := range []webhook.Role{anyone, operator, owner} {
		slices.Sort(got[role])
		if !slices.Equal(got[role], want[role]) {
			t.Errorf("for %q: got %q, want %q", role, got[role], want[role])
		}
	}
}

// addresses returns the links and form targets of a page.
var addresses = regexp.MustCompile(`\s(?:href|action|formaction|hx-post|hx-get|data-check)="(/[^"]*)"`)

var signingSecret = regexp.MustCompile(`whsec_[A-Za-z0-9+/=]{24,}`)

// TestPagesOfEachRole checks that no page shows a secret, or a link or form that the visitor's role
// does not allow. Each page of an owner must contain its links.
func TestPagesOfEachRole(t *testing.T) {
	f := furnish(t)
	seen := make(map[webhook.Role]map[string]bool)
	for _, role := range webhook.Roles() {
		v := f.as(role)
		seen[role] = make(map[string]bool)
		for _, one := range f.w.routes() {
			if one.get == nil || one.role == anyone || !role.Allows(one.role) {
				continue
			}
			checkPageOfRole(t, f, v, role, one, seen[role])
		}
	}
	// The test must find links: some that an owner sees and a viewer does not.
	for _, pattern := range []string{"/subscriptions/{id}/ping", "/subscriptions/{id}/edit", "/deliveries/{id}/redeliver",
		"/deliveries/redeliver", "/events/publish", "/events/{program}/{id}/erase", "/tokens/new", "/tokens/{id}/revoke", "/alerts/{id}/test",
		"/programs/-/new", "/programs/{id}/edit", "/programs/{id}/erase", "/admins/invite", "/admins/invitations/{id}/revoke"} {
		if !seen[owner][pattern] || seen[viewer][pattern] {
			t.Errorf("%s: an owner finds it: %v, a viewer: %v", pattern, seen[owner][pattern], seen[viewer][pattern])
		}
	}
}

// checkPageOfRole opens a page, and adds the routes that it links to.
func checkPageOfRole(t *testing.T, f *furnished, v visitor, role webhook.Role, one route, seen map[string]bool) {
	t.Helper()
	got := f.ask(v, one, http.MethodGet)
	if secret := signingSecret.FindString(got.body); secret != "" {
		t.Errorf("%s of %s has %s", one.path, role, secret)
	}
	for _, secret := range []string{urlCanary, "top-secret-token"} {
		// The form of a subscription contains its whole URL, whose query may contain a secret.
		form := role != viewer && one.path == "/subscriptions/{id}/edit" && secret == urlCanary
		if strings.Contains(got.body, secret) && !form {
			t.Errorf("%s of %s has %q", one.path, role, secret)
		}
	}
	if !strings.HasPrefix(got.Header.Get("Content-Type"), "text/html") {
		return
	}
	for _, m := range addresses.FindAllStringSubmatch(got.body, -1) {
		needs := f.w.roleOf(html.UnescapeString(m[1]))
		if !role.Allows(needs) {
			t.Errorf("%s of %s leads to %s, which needs the role %s", one.path, role, m[1], needs)
		}
		path, _, _ := strings.Cut(strings.ReplaceAll(html.UnescapeString(m[1]), "#", "?"), "?")
		_, pattern := f.w.mux.Handler(&http.Request{Method: "GET", URL: &url.URL{Path: path}})
		seen[pattern] = true
	}
}

// TestNothingIsStored checks that browsers and proxies store no response of an admin or partner
// route, with and without a session.
func TestNothingIsStored(t *testing.T) {
	f := furnish(t)
	for _, role := range []webhook.Role{owner, viewer, writer, anyone} {
		nowhere := by{get: notFound, post: notFound}
		for _, one := range slices.Concat(f.w.routes(), f.w.portalRoutes(),
			[]route{{path: "/nowhere", by: nowhere}, {path: portalBase + "/nowhere", by: nowhere}}) {
			for _, method := range append(one.methods(), http.MethodDelete) {
				got := f.ask(f.as(role), one, method)
				if cache := got.Header.Values("Cache-Control"); !slices.Equal(cache, []string{"no-store"}) || got.Header.Get("ETag") != "" ||
					got.Header.Get("Last-Modified") != "" || got.Header.Get("Expires") != "" {
					t.Errorf("%s %s as %q: %d with %v", method, one.path, role, got.StatusCode, got.Header)
				}
			}
		}
	}
}

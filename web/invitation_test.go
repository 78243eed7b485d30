package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"service/store"
	"service/webhook"
)

var invitationLink = regexp.MustCompile(`https://service\.example(/invitation/[A-Za-z0-9_-]{43})<`)

// invite invites a person as an owner does, and returns the path of the link.
func (v visitor) invite(email string, role webhook.Role) string {
	v.t.Helper()
	p := v.send("/admins/invite", "email", email, "role", string(role))
	p.want(v.t, 200, "Copy the link now:")
	m := invitationLink.FindStringSubmatch(p.body)
	if m == nil {
		v.t.Fatalf("the page has no link:\n%s", p.body)
	}
	return m[1]
}

// TestInvitation follows an invitation to the first page of the new admin.
func TestInvitation(t *testing.T) {
	w := testWeb(t, nil)
	ana, bo := visit(t, w), visit(t, w)
	ana.signIn(w)
	ana.do("GET", "/admins").want(t, 200, testAdmin)
	ana.do("GET", "/admins/invite").want(t, 200, "Create invitation")
	for _, c := range [][3]string{
		{"", "viewer", "is required"}, {"bo", "viewer", "must be an email address"},
		{"bo@example.com", "root", "must be one of viewer, operator, owner"},
		{testAdmin, "viewer", "is the address of an admin already"}, {"bo@example.com", "", "is required"},
	} {
		ana.send("/admins/invite", "email", c[0], "role", c[1]).want(t, 422, c[2])
	}
	replaced := ana.invite("bo@example.com", webhook.RoleOwner)
	link := ana.invite(" Bo@Example.com", webhook.RoleOperator)
	page := ana.do("GET", "/admins")
	page.has(t, "bo@example.com", "operator", "Revoke")
	if strings.Contains(page.body, link) || strings.Count(page.body, "bo@example.com") != 2 {
		t.Errorf("the list shows the link, or both invitations:\n%s", page.body)
	}
	bo.do("GET", replaced).want(t, 404, "This invitation is not valid")

	// Opening the link or the form, or a mistake in it, does not use up the invitation.
	for range 2 {
		bo.do("HEAD", link).want(t, 200, "")
		seen := bo.do("GET", link)
		seen.want(t, 200, "Continue")
		seen.hasNot(t, "bo@example.com", "operator")
	}
	bo.send(link).want(t, 200, "bo@example.com")
	bo.send(link).has(t, "operator", "Create admin and sign in")
	bo.send(link, "password", "short", "again", "short").want(t, 422, "must have at least 12 characters")
	bo.send(link, "password", testPassword, "again", "another").want(t, 422, "must match")
	form := url.Values{"password": {testPassword}, "again": {testPassword}}.Encode()
	bo.post(link, form, "Sec-Fetch-Site", "cross-site").want(t, 403, "another site")
	// The email address and the role are those of the invitation.
	p := bo.send(link, "password", testPassword, "again", testPassword, "email", "eve@example.com", "role", "owner")
	p.want(t, 303, "")
	wantCookies(t, p, false)
	bo.do("GET", "/account").want(t, 200, "Signed in as bo@example.com with the role operator.")
	eve := visit(t, w)
	for _, method := range []string{"GET", "POST"} {
		for _, l := range []string{link, "/invitation/" + strings.Repeat("A", 43), "/invitation/x"} {
			eve.do(method, l).want(t, 404, "This invitation is not valid")
		}
	}
	eve.enter("bo@example.com", testPassword).want(t, 303, "")
	admin, _, err := w.store.Admins().ByEmail(t.Context(), "bo@example.com")
	if err != nil || admin.Role != webhook.RoleOperator {
		t.Errorf("the admin is %+v, %v", admin, err)
	}
	log := wantAudit(t, w, testAdmin+" from 127.0.0.1: admin.invite bo@example.com as operator",
		"bo@example.com from 127.0.0.1: admin.create operator, invited by "+testAdmin)
	if strings.Contains(log, strings.TrimPrefix(link, "/invitation/")) {
		t.Error("the audit has the code of the link")
	}
}

// TestInvitationsEnd checks that a link ends when it is revoked, when it expires, and when the
// owner who created it is removed or demoted.
func TestInvitationsEnd(t *testing.T) {
	w := testWeb(t, nil)
	makeAdmin(t, w, testAdmin)
	boID := makeAdmin(t, w, "bo@example.com").ID
	ana, bo, guest := visit(t, w), visit(t, w), visit(t, w)
	ana.signIn(w)
	bo.do("POST", w.NewSignInLink(boID)).want(t, 303, "")

	revoked := ana.invite("cy@example.com", webhook.RoleViewer)
	action := ana.do("GET", "/admins").link(t, `action="(/admins/invitations/[^"]*/revoke)"`)
	ana.send(action).want(t, 303, "")
	ana.send(action).want(t, 404, "")
	guest.do("GET", revoked).want(t, 404, "This invitation is not valid")
	guest.send(revoked, "password", testPassword, "again", testPassword).want(t, 404, "")

	demoted := bo.invite("di@example.com", webhook.RoleOwner)
	guest.do("GET", demoted).want(t, 200, "")
	ana.send(adminPath(boID)+"/role", "role", "operator").want(t, 303, "")
	guest.do("GET", demoted).want(t, 404, "")
	ana.send(adminPath(boID)+"/role", "role", "owner").want(t, 303, "")
	removed := bo.invite("di@example.com", webhook.RoleOwner)
	ana.send(adminPath(boID)+"/remove").want(t, 303, "")
	guest.send(removed, "password", testPassword, "again", testPassword).want(t, 404, "")
	wantAdmins(t, w, 1)
}

func TestInvitationExpires(t *testing.T) {
	timed(t, func(t *testing.T, w *Web, do func(method, path, cookie, address string, fields ...string) *httptest.ResponseRecorder) {
		admin := makeAdmin(t, w, testAdmin)
		var code string
		must(t, w.store.Write(t.Context(), func(sw store.Write) (err error) {
			_, code, err = sw.Admins().CreateInvitation(admin.ID, "bo@example.com", webhook.RoleViewer)
			return err
		}))
		time.Sleep(72*time.Hour - time.Second)
		if got := do("GET", "/invitation/"+code, "", "").Code; got != 200 {
			t.Errorf("within 72 hours: got %d", got)
		}
		time.Sleep(time.Second)
		for _, method := range []string{"GET", "POST"} {
			got := do(method, "/invitation/"+code, "", "", "password", testPassword, "again", testPassword)
			if got.Code != 404 {
				t.Errorf("%s after 72 hours: got %d", method, got.Code)
			}
		}
	})
}

// TestInvitationIsRaced accepts one invitation many times concurrently.
func TestInvitationIsRaced(t *testing.T) {
	v, w := startSignedIn(t, nil)
	raceLink(t, w, 8, v.invite("bo@example.com", webhook.RoleViewer), func(int) url.Values {
		return url.Values{"password": {testPassword}, "again": {testPassword}}
	})
	wantAdmins(t, w, 2)
}

// TestRoleChanges checks that a role applies to the next request of open sessions, and that the
// last owner cannot be demoted.
func TestRoleChanges(t *testing.T) {
	w := testWeb(t, nil)
	anaID, boID := makeAdmin(t, w, testAdmin).ID, makeAdmin(t, w, "bo@example.com").ID
	ana, bo := visit(t, w), visit(t, w)
	ana.signIn(w)
	bo.do("POST", w.NewSignInLink(boID)).want(t, 303, "")
	bo.do("GET", "/tokens/new").want(t, 200, "")
	ana.send(adminPath(boID)+"/role", "role", "root").want(t, 422, "must be one of viewer, operator, owner")
	ana.send("/admins/"+webhook.NewID()+"/role", "role", "viewer").want(t, 404, "")
	for _, c := range []struct {
		role             webhook.Role
		tokens, publish  int
		allowed, refused string
	}{
		{webhook.RoleOperator, 403, 200, "Publish event", "New token"},
		{webhook.RoleViewer, 403, 403, "No events yet.", "Publish event"},
		{webhook.RoleOwner, 200, 200, "Publish event", "no such text"},
	} {
		ana.send(adminPath(boID)+"/role", "role", string(c.role)).want(t, 303, "")
		ana.do("GET", adminPath(boID)).want(t, 200, "bo@example.com now has the role "+string(c.role)+".")
		bo.do("GET", "/tokens/new").want(t, c.tokens, "")
		bo.do("GET", "/events/publish").want(t, c.publish, "")
		bo.do("GET", "/events").want(t, 200, c.allowed)
		bo.do("GET", "/events").hasNot(t, c.refused)
		bo.do("GET", "/tokens").hasNot(t, c.refused)
		bo.do("GET", "/account").want(t, 200, "with the role "+string(c.role))
	}
	ana.send(adminPath(anaID)+"/role", "role", "viewer").want(t, 303, "")
	ana.send(adminPath(boID)+"/role", "role", "viewer").want(t, 403, "")
	// Now bo is the last owner, who cannot be demoted in any way.
	bo.do("GET", adminPath(boID)).want(t, 200, "is the last owner")
	bo.do("GET", adminPath(boID)+"/remove").want(t, 200, "This is the last owner.")
	bo.send(adminPath(boID)+"/role", "role", "operator").want(t, 409, "is the last owner")
	bo.send(adminPath(boID)+"/remove").want(t, 409, "is the last owner")
	bo.do("GET", "/tokens/new").want(t, 200, "")

	// The sessions of another admin end immediately, even when the admin is removed.
	ana.do("GET", "/account").want(t, 200, "")
	bo.send(adminPath(anaID)+"/end-sessions").want(t, 303, "")
	bo.do("GET", adminPath(anaID)).want(t, 200, "Ended 1 session of "+testAdmin+".")
	ana.do("GET", "/account").want(t, 401, "")
	ana.signIn(w)
	bo.do("GET", adminPath(anaID)+"/remove").want(t, 200, "1 open session ends now")
	bo.send(adminPath(anaID)+"/remove").want(t, 303, "")
	ana.do("GET", "/account").want(t, 401, "")
	bo.do("GET", adminPath(anaID)).want(t, 404, "")
	bo.send(adminPath(anaID)+"/remove").want(t, 404, "")
	wantAudit(t, w, testAdmin+" from 127.0.0.1: admin.role bo@example.com: from owner to operator",
		testAdmin+" from 127.0.0.1: admin.role "+testAdmin+": from owner to viewer",
		"bo@example.com from 127.0.0.1: session.end of "+testAdmin+": 1 session",
		"bo@example.com from 127.0.0.1: admin.remove "+testAdmin)
}

// TestLastOwnerIsRaced lets two owners demote each other concurrently.
func TestLastOwnerIsRaced(t *testing.T) {
	w := testWeb(t, nil)
	ids := []string{makeAdmin(t, w, testAdmin).ID, makeAdmin(t, w, "bo@example.com").ID}
	var cookies []string
	for _, id := range ids {
		rw := httptest.NewRecorder()
		w.ServeHTTP(rw, httptest.NewRequest("POST", w.NewSignInLink(id), nil))
		cookies = append(cookies, cookiesOf(rw, sessionCookie))
	}
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			r := formRequest(adminPath(ids[1-i])+"/role", url.Values{"role": {"viewer"}})
			r.Header.Set("Cookie", cookies[i])
			rw := httptest.NewRecorder()
			w.ServeHTTP(rw, r)
			if rw.Code != http.StatusSeeOther && rw.Code != http.StatusConflict && rw.Code != http.StatusForbidden {
				t.Errorf("got %d", rw.Code)
			}
		})
	}
	wg.Wait()
	all, err := w.store.Admins().List(t.Context())
	owners := 0
	for i := range all {
		if all[i].Role == webhook.RoleOwner {
			owners++
		}
	}
	if err != nil || owners != 1 {
		t.Errorf("%d owners of %s, %v; want 1", owners, fmt.Sprint(all), err)
	}
}

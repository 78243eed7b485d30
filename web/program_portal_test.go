package web

import (
	"net/url"
	"regexp"
	"testing"

	"service/webhook"
)

var linkShown = regexp.MustCompile(`https://service\.example(/portal/link/[A-Za-z0-9_-]{43})<`)

// An owner creates a link, which is shown once, sees the sessions in the portal, and ends all of
// them.
func TestProgramPortal(t *testing.T) {
	w := testWeb(t, nil)
	portalLink(t, w, "acme", webhook.PortalRead)
	v := visitSignedIn(t, w)
	page := "/programs/acme/portal"
	v.do("GET", "/tokens?program=acme").want(t, 200, `href="`+page+`"`)
	v.do("GET", page).want(t, 200, "1 unused link.")
	for form, fault := range map[string]string{"role=owner&life=24h": "must be read or write",
		"role=read&life=x":     "must be one of the choices",
		"role=read&life=9999h": "must be 1 minute to 7 days from now"} {
		v.post(page, form).want(t, 422, fault)
	}
	v.do("GET", "/programs/nobody/portal").want(t, 404, "")
	v.post("/programs/nobody/portal", "role=read&life=24h").want(t, 404, "")
	v.post("/programs/nobody/portal/end", "").want(t, 404, "")
	created := v.post(page, "role=write&life=1h")
	created.want(t, 200, "with the role write")
	link := linkShown.FindStringSubmatch(created.body)
	if link == nil {
		t.Fatalf("there is no link:\n%s", created.body)
	}
	partner := visit(t, w)
	partner.do("POST", link[1], "User-Agent", "Firefox/140 Linux").want(t, 303, "")
	partner.do("GET", "/portal/subscriptions").want(t, 200, "New subscription")
	v.do("GET", page).want(t, 200, "Firefox on Linux")
	v.post(page+"/end", "").want(t, 303, "")
	v.do("GET", page).want(t, 200, "Ended 1 session and 1 link.")
	partner.do("GET", "/portal/subscriptions").want(t, 401, "")

	v.post(page+"/origins", "origins="+url.QueryEscape("http://app.example.com")).want(t, 422, "must be an origin such as")
	v.post(page+"/origins", "origins="+url.QueryEscape("https://app.example.com\r\nhttps://b.example:8443\r\n")).want(t, 303, "")
	v.do("GET", page).want(t, 200, "https://b.example:8443")
	p, err := w.store.Programs().Get(t.Context(), "acme")
	if err != nil || len(p.PortalOrigins) != 2 {
		t.Errorf("got %q, %v", p.PortalOrigins, err)
	}
	wantAudit(t, w, "ana@example.com from 127.0.0.1: portal_link.create write, expires", ": portal_session.begin write, link",
		"ana@example.com from 127.0.0.1: portal_session.end 1 session, 1 link", ": program.update portal_origins https://app.example.com")
}

package web

import (
	"strings"
	"testing"

	"service/webhook"
)

// TestPortalOverview checks that the first page of the portal says which endpoints need attention
// and what to do, without what only admins may see.
func TestPortalOverview(t *testing.T) {
	v, s, w := sending(t)
	empty := enter(t, w, "empty", webhook.PortalWrite)
	p := empty.do("GET", "/portal/")
	p.want(t, 200, "No subscriptions yet.", `href="/portal/subscriptions/new"`, `aria-current="page"`)

	works := s.subscribe("acme", "https://works.example/in")
	fails := s.subscribe("acme", "https://fails.example/in")
	s.subscribe("globex", "https://another.example/in")
	partner := enter(t, w, "acme", webhook.PortalRead)
	delivery := s.deliver(works, 200)
	partner.do("GET", "/portal/").want(t, 200, "All endpoints accept deliveries")
	s.deliver(fails, 401)
	for _, path := range []string{"/portal", "/portal/"} {
		p = partner.do("GET", path)
		p.want(t, 200, "1 endpoint needs attention")
	}
	p.has(t, "Does the endpoint use the current signing secret?", "Attempts", `href="/portal`+subscriptionPath(works.ID)+`"`)
	p.hasNot(t, "another.example", `href="/subscriptions`, "/portal/subscriptions/new")
	p.apart(t).inert(t)
	if strings.Index(p.body, "fails.example") > strings.Index(p.body, "works.example") {
		t.Error("the endpoint that works is listed first")
	}
	v.send(subscriptionPath(works.ID)+"/pause").want(t, 303, "")
	partner.do("GET", "/portal/").has(t, "Resume it to receive new events.")

	// A disabled button says why.
	writer := enter(t, w, "acme", webhook.PortalWrite)
	writer.do("GET", "/portal"+deliveryPath(delivery)).has(t, `title="The subscription is paused: resume it first."`)
}

// TestPortalLinkAsksForRole checks that the form preselects no role.
func TestPortalLinkAsksForRole(t *testing.T) {
	v, w := subscribing(t)
	newProgramToken(t, w.store, "acme")
	path := programPortalPath("acme")
	v.do("GET", path).has(t, `<option value="" selected>Choose one</option>`)
	v.send(path, "life", "1h", "role", "").want(t, 422, "Role")
	v.send(path, "life", "1h", "role", "read").want(t, 200, "/portal/link/")
}

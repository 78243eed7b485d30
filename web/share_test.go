package web

import (
	"bytes"
	"html"
	"regexp"
	"strings"
	"testing"

	"service/store"
	"service/store/storetest"
	"service/webhook"
)

var sharedLink = regexp.MustCompile(`https://service\.example(/shared/[A-Za-z0-9_-]{43})`)

// shareDelivery shares a delivery on its page, and returns the path of the link.
func (v visitor) shareDelivery(id string) string {
	v.t.Helper()
	p := v.send(deliveryPath(id)+"/share", "x", "y")
	p.want(v.t, 200, "won't be shown again")
	found := sharedLink.FindStringSubmatch(p.body)
	if found == nil {
		v.t.Fatalf("no link:\n%s", p.body)
	}
	return found[1]
}

// sharedFixture returns a delivery with canaries in the fields that only admins may see.
func sharedFixture(t *testing.T) (w *Web, v visitor, id string) {
	t.Helper()
	v, l, c := newDelivery(t, "https://hooks.example.com/canary-path?key="+urlCanary, `"visible <b> body"`)
	l.end(c, webhook.Attempt{ResponseStatus: 503, ResponseHeader: "X-Internal: header-canary\r\n", ResponseBody: []byte("body-canary")})
	return l.w, v, c.ID
}

// A link shows, without a session, what the API shows to a partner.
func TestSharedDelivery(t *testing.T) {
	w, v, id := sharedFixture(t)
	stranger := visit(t, w)
	path := v.shareDelivery(id)
	p := stranger.do("GET", path)
	p.want(t, 200, "503 Service Unavailable", id, "content_published", "visible", "hooks.example.com", "Attempts", "1 of 5")
	text := html.UnescapeString(p.body)
	contains(t, "the page", text, nil,
		[]string{urlCanary, "canary-path", "header-canary", "body-canary", "whsec_", "--", testAdmin, `<a `, "<form"})
	for name, want := range map[string]string{"Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
		"X-Robots-Tag": "noindex, nofollow"} {
		p.wantHeader(t, name, want)
	}
	if p.Uncompressed || len(p.Cookies()) != 0 {
		t.Errorf("the page is compressed (%t), or sets a cookie: %v", p.Uncompressed, p.Header)
	}
	stranger.send(path).want(t, 405, "")
	code := strings.TrimPrefix(path, webhook.SharePath)
	if log := wantAudit(t, w, testAdmin+" from 127.0.0.1: delivery.share"); strings.Contains(log, code) {
		t.Errorf("the audit log contains the code:\n%s", log)
	}
	v.do("GET", deliveryPath(id)).hasNot(t, code)
}

// A link that was revoked, expired or guessed, or whose program is erased, gets one and the same
// response.
func TestSharedLinksEnd(t *testing.T) {
	w, v, id := sharedFixture(t)
	revoked := v.shareDelivery(id)
	shares, err := w.store.Deliveries().Shares().List(t.Context(), id)
	must(t, err)
	v.do("GET", deliveryPath(id)).want(t, 200, shares[0].ID)
	v.do("POST", deliveryPath(id)+"/shares/"+webhook.NewID()+"/revoke").want(t, 404, "")
	v.do("POST", deliveryPath(id)+"/shares/"+shares[0].ID+"/revoke").want(t, 303, "")
	wantAudit(t, w, "delivery.revoke_share "+shares[0].ID)
	stranger := visit(t, w)
	requestID := regexp.MustCompile(`<code>[0-9a-f-]{36}</code>`)
	body := func(path string) []byte {
		t.Helper()
		p := stranger.do("GET", path)
		p.want(t, 404, "This link is not valid")
		p.hasNot(t, "Back to overview", "/sign-in")
		return requestID.ReplaceAll([]byte(p.body), nil)
	}
	guessed := body("/shared/" + strings.Repeat("A", 43))
	if !bytes.Equal(body("/shared/x"), guessed) {
		t.Error("a malformed link differs from a guessed one")
	}
	if !bytes.Equal(body(revoked), guessed) {
		t.Error("a revoked link differs from a guessed one")
	}
	deleted := sharedOfDeleted(t, w, v)
	if !bytes.Equal(body(deleted), guessed) {
		t.Error("a link to a delivery of a deleted subscription differs from a guessed one")
	}
	ended := v.shareDelivery(id)
	stranger.do("GET", ended).want(t, 200, id)
	must(t, w.store.Write(t.Context(), func(sw store.Write) error {
		_, err := sw.Programs().Erase("acme", webhook.AuditEntry{})
		return err
	}))
	if !bytes.Equal(body(ended), guessed) {
		t.Error("a link to an erased program differs from a guessed one")
	}
}

// sharedOfDeleted returns a link that ended with its subscription. The delivery page then shows no
// links, and creates none.
func sharedOfDeleted(t *testing.T, w *Web, v visitor) (link string) {
	t.Helper()
	l := newEventSource(t, w, "https://deleted.example.com")
	l.publish("content_published", `"one"`)
	c := l.form()
	link = v.shareDelivery(c.ID)
	v.do("GET", deliveryPath(c.ID)).want(t, 200, "Shared links")
	_, err := storetest.DeleteSubscription(t.Context(), w.store, "acme", l.sub.ID)
	must(t, err)
	got := v.do("GET", deliveryPath(c.ID))
	got.want(t, 200, c.ID)
	got.hasNot(t, "Shared links", "/revoke", deliveryPath(c.ID)+"/share")
	v.do("POST", deliveryPath(c.ID)+"/share").want(t, 409, "The subscription is deleted")
	return link
}

// Guesses are limited per network, which does not affect others.
func TestSharedLinksAreLimited(t *testing.T) {
	_, v, id := sharedFixture(t)
	path := v.shareDelivery(id)
	for range shareLimit.Burst {
		v.do("GET", "/shared/x").want(t, 404, "")
	}
	p := v.do("GET", "/shared/x")
	p.want(t, 429, "Too many invalid links")
	if p.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	v.do("GET", path).want(t, 200, id)
	v.do("GET", "/shared/y").want(t, 429, "Too many invalid links")
	for range 2 * shareLimit.Burst { // a valid link is not limited
		v.do("GET", path).want(t, 200, "")
	}
}

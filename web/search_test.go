package web

import (
	"strings"
	"testing"

	"service/store/storetest"
	"service/webhook"
)

func TestSearch(t *testing.T) {
	w := testWeb(t, nil)
	v := visit(t, w)
	v.signIn(w)
	l := newEventSource(t, w, "https://hooks.partner.example/in?key=s3cret")
	name := "Partner <b>X</b>"
	if _, err := storetest.UpdateSubscription(t.Context(), w.store, "acme", l.sub.ID,
		&webhook.SubscriptionFields{Description: &name}); err != nil {
		t.Fatal(err)
	}
	l.publish("content_published", `"one"`, `"two"`, `"two"`)

	page := v.do("GET", "/find?q=PARTNER")
	page.want(t, 303, "")
	if got := page.Header.Get("Location"); got != subscriptionPath(l.sub.ID) {
		t.Errorf("the only partner: led to %s", got)
	}
	v.do("GET", "/find?q=s3cret").want(t, 404, "No match for")
	p := v.do("GET", "/find?q=a") // matches a program, ids, and the partner
	p.want(t, 200, "Partner &lt;b&gt;X&lt;/b&gt;")
	p.inert(t)
	p = v.do("GET", "/find/suggest?q=partner")
	p.want(t, 200, subscriptionPath(l.sub.ID))
	p.hasNot(t, "<html", "s3cret")

	p = v.do("GET", "/find?q=text:two")
	p.want(t, 200, "all events of this period")
	if n := strings.Count(p.body, `href="/events/acme/`); n != 2 {
		t.Errorf("%d events are found, want 2", n)
	}
	p.inert(t)
	v.do("GET", "/find?q=text:none&span=7d").want(t, 404, "No event has this value in this period.")
	v.do("GET", "/find?q=text:"+"two&page[cursor]=x").want(t, 422, "")
	v.do("GET", "/find?q=https%3A%2F%2Fhooks.partner.example%2Fin").want(t, 303, "")
	v.do("GET", "/find").want(t, 200, "content_id:4711")
}

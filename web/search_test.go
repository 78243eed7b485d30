package web

import (
	"net/url"
	"strings"
	"testing"

	"service/webhook"
)

// TestFilterBySubscriptionName types the name, the host or the beginning of the ID of a
// subscription into a list's filter, which then contains the subscription's ID.
func TestFilterBySubscriptionName(t *testing.T) {
	v, s, w := sending(t)
	x := s.subscribe("acme", "https://hooks.x.example/in?key=s3cret")
	y := s.subscribe("acme", "https://hooks.y.example/in")
	other := s.subscribe("globex", "https://hooks.x.example/other")
	for id, name := range map[string]string{x.ID: "Partner X, Inc", y.ID: "Partner X, Inc (staging)"} {
		updateSubscription(t, w.store, id, webhook.SubscriptionFields{Description: &name})
	}
	filter := func(ids ...string) string { return "filter[subscription_id]=" + strings.Join(ids, ",") }
	for query, want := range map[string]string{
		"subscription=partner+x,+inc":                          filter(x.ID), // exactly the name
		"subscription=X.EXAMPLE&program=acme":                  filter(x.ID) + "&program=acme",
		"subscription=" + y.ID[:30] + "&filter[status]=failed": "filter[status]=failed&" + filter(y.ID),
		"subscription=staging&" + filter(x.ID):                 filter(x.ID, y.ID),
	} {
		for _, list := range []string{"/deliveries", "/incidents"} {
			if strings.Contains(query, "failed") && list == "/incidents" {
				continue
			}
			p := v.do("GET", list+"?"+query)
			p.want(t, 303, "")
			if got, err := url.QueryUnescape(p.Header.Get("Location")); err != nil || got != list+"?"+want {
				t.Errorf("%s?%s leads to %s, want %s", list, query, got, want)
			}
		}
	}
	p := v.do("GET", "/deliveries?"+filter(x.ID))
	p.want(t, 200, "Subscription: Partner X, Inc", `hx-get="/find/suggest?options"`, `name="filter[subscription_id]" value="`+x.ID+`"`)
	p.inert(t)
	for _, text := range []string{"nobody", "s3cret"} {
		v.do("GET", "/deliveries?subscription="+text).want(t, 400, "has no match for “"+text+"”")
	}
	p = v.do("GET", "/find/suggest?options&subscription=partner")
	p.want(t, 200, `<option value="Partner X, Inc">hooks.x.example</option>`)
	p.hasNot(t, "<html", "s3cret")

	// A partner finds only subscriptions of the own program, and sees no other names.
	partner := enter(t, w, "globex", webhook.PortalRead)
	partner.do("GET", "/portal/deliveries?subscription=partner").want(t, 400, "has no match")
	partner.do("GET", "/portal/deliveries?subscription=x.example").want(t, 303, "")
	partner.do("GET", "/portal/deliveries?"+filter(x.ID)).hasNot(t, "Partner X")
	partner.do("GET", "/portal/find/suggest?options&subscription=partner").hasNot(t, "Partner X")
	p = partner.do("GET", "/portal/find?q=x.example")
	p.want(t, 303, "")
	p.wantHeader(t, "Location", "/portal"+subscriptionPath(other.ID))
	for _, q := range []string{x.ID, x.ID[:35], "Partner", "acme", "globex", "text:two"} {
		p := partner.do("GET", "/portal/find?q="+url.QueryEscape(q))
		p.want(t, 404, "Subscriptions, deliveries and events were searched.")
		p.hasNot(t, "Partner X, Inc")
	}
	partner.do("GET", "/portal/subscriptions").has(t, `<form class="find" method="get" action="/portal/find">`)
	partner.do("GET", "/portal/find").hasNot(t, "event or token")
}

func TestSearch(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.partner.example/in?key=s3cret")
	updateSubscription(t, w.store, l.sub.ID, webhook.SubscriptionFields{Description: new("Partner <b>X</b>")})
	l.publish("content_published", `"one"`, `"two"`, `"two"`)

	page := v.do("GET", "/find?q=PARTNER")
	page.want(t, 303, "")
	page.wantHeader(t, "Location", subscriptionPath(l.sub.ID))
	v.do("GET", "/find?q=s3cret").want(t, 404, "No match for")
	p := v.do("GET", "/find?q=a") // matches a program, IDs, and the partner
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

package web

import (
	"strings"
	"testing"
	"time"

	"service/webhook"
)

// TestPortalShowsNoResponses records attempts with headers, bodies and error details of a receiver,
// which only admins may see: with them, every URL could be used to probe a network. It looks for
// them on all pages that show attempts.
func TestPortalShowsNoResponses(t *testing.T) {
	w := testWeb(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com/in")
	canaries := []string{"internal.example/canary", "canary-body", "canary-header", "canary-fact", "Retry-After"}
	words := []string{"--allow-destination", "--failing-after"}
	header := "Location: http://internal.example/canary\r\nRetry-After: 77\r\nX-Inside: canary-header\r\n"
	var ids []string
	for _, a := range []webhook.Attempt{
		{ResponseStatus: 302, ResponseHeader: header, ResponseBody: []byte("canary-body")},
		{ResponseStatus: 503, ResponseHeader: header, ResponseBody: []byte("canary-body")},
		{Error: webhook.ErrorConnect, ErrorFact: "connection refused by canary-fact"},
		{Error: webhook.ErrorDNS, ErrorFact: "no such host canary-fact"},
		{Error: webhook.ErrorBlocked, ErrorFact: "10.1.2.3 canary-fact"},
		{ResponseStatus: 422, ResponseHeader: header, ResponseBody: []byte("canary-body")},
		{Error: webhook.ErrorBlocked, ErrorFact: "10.1.2.3 canary-fact"}, // the subscription is then failing
	} {
		l.publish("content_updated", `"x"`)
		c := l.form()
		if c == nil {
			t.Fatal("no delivery: the subscription is failing")
		}
		a.Duration = time.Millisecond
		if ids = append(ids, c.ID); len(ids) < 7 {
			l.end(c, a)
			continue
		}
		a.Number, a.StartedAt, a.Result = c.Number, time.Now(), webhook.ResultFailed
		_, err := w.store.Queues().Record(c, &a, webhook.RetryPolicy{}.After(&a, a.StartedAt, 0), webhook.HealthPolicy{RejectingAfter: 1})
		must(t, err)
	}
	admin := visitSignedIn(t, w)
	seen := make(map[string]bool)
	for _, id := range ids {
		body := admin.do("GET", "/deliveries/"+id).body
		for _, text := range append(words[:1:1], canaries...) {
			seen[text] = seen[text] || strings.Contains(body, text)
		}
	}
	if subscription := admin.do("GET", subscriptionPath(l.sub.ID)).body; !strings.Contains(subscription, "canary-fact") {
		t.Error("an admin does not see the fact of the incident")
	}
	for _, text := range append(words[:1:1], canaries...) {
		if !seen[text] {
			t.Errorf("an admin does not see %q", text)
		}
	}
	for _, role := range webhook.PortalRoles() {
		v := enter(t, w, "acme", role)
		pages := []string{"/deliveries", "/deliveries?filter[status]=failed", "/subscriptions", subscriptionPath(l.sub.ID), "/events", "/verify"}
		for _, id := range ids {
			pages = append(pages, "/deliveries/"+id)
		}
		for _, path := range pages {
			p := v.do("GET", portalBase+path)
			p.want(t, 200, "")
			p.hasNot(t, append(words, canaries...)...)
		}
		for _, id := range ids {
			live := followList(v, portalBase+deliveryPath(id)+"/stream", "")
			point, data := live.next("<")
			live.body.Close()
			contains(t, "the stream of "+id, point+data, []string{`id="response"`}, append(words, canaries...))
		}
	}
}

// TestPortalProblems checks that errors in the portal use a partner's words.
func TestPortalProblems(t *testing.T) {
	for _, status := range []int{500, 503} {
		p := portalProblem(&problem{status: status, title: "canary", text: "canary: the disk is full", command: "canary", after: "canary"})
		if status == 503 && p.title == "canary" || strings.Contains(p.text+p.command+p.after, "canary") {
			t.Errorf("%d: %+v", status, p)
		}
	}
}

// TestNotesAreApart checks that a note for an admin is not shown in the portal, nor vice versa,
// although a browser may have both sessions.
func TestNotesAreApart(t *testing.T) {
	w := testWeb(t, nil)
	sub := sender{t, w.store}.subscribe("acme", "https://hooks.example.com/in")
	for _, from := range []string{"", portalBase} {
		v := visitSignedIn(t, w)
		v.do("POST", portalLink(t, w, "acme", webhook.PortalWrite)).want(t, 303, "")
		v.do("POST", from+subscriptionPath(sub.ID)+"/pause").want(t, 303, "")
		other := portalBase
		if from != "" {
			other = ""
		}
		v.do("GET", other+subscriptionPath(sub.ID)).hasNot(t, "Subscription paused.")
		v.do("GET", from+subscriptionPath(sub.ID)).has(t, "Subscription paused.")
		v.do("POST", from+subscriptionPath(sub.ID)+"/resume").want(t, 303, "")
	}
}

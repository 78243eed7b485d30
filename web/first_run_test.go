package web

import (
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"service/store/storetest"
	"service/webhook"
)

// The checklist shows the next step of the setup with a link to its form, and disappears once an
// event has been delivered.
func TestFirstRun(t *testing.T) {
	v, s, w := sending(t)
	steps := func(done string, links ...string) {
		t.Helper()
		p := v.do("GET", "/")
		p.want(t, http.StatusOK, done)
		p.has(t, links...)
		for _, command := range regexp.MustCompile(`<code>(service [^<]*|TOKEN=[^<]*|curl [^<]*)</code>`).FindAllStringSubmatch(p.body, -1) {
			line := html.UnescapeString(command[1])
			if service, curl := strings.Contains(line, "service "), strings.HasPrefix(line, "curl"); service &&
				!strings.Contains(line, "--data "+w.store.Dir()) || curl && !strings.Contains(line, "Bearer $TOKEN") {
				t.Errorf("the command is not complete:\n%s", line)
			}
		}
	}
	steps("1 of 4 steps done", `href="/tokens/new?scopes=full" class="primary"`, `href="/subscriptions/new"`)
	v.do("GET", "/subscriptions/new").has(t, `href="/tokens/new?scopes=full"`)
	v.do("GET", "/events/publish").has(t, `href="/tokens/new?scopes=full"`)
	form := v.do("GET", "/tokens/new?scopes=full")
	for _, scope := range strings.Split(fullScopes, ",") {
		form.has(t, `value="`+scope+`" checked`)
	}

	v.post("/tokens/new", "program=acme&user=me&scope=webhooks.write&days=30").has(t, `href="/subscriptions/new?program=acme"`)
	steps("2 of 4 steps done", `href="/subscriptions/new?program=acme" class="primary"`, "--program acme")

	sub := s.subscribe("acme", "https://a.example/in")
	test := `href="/subscriptions/` + sub.ID + `#test" class="primary"`
	steps("3 of 4 steps done", test, "/v2/webhooks/subscriptions/"+sub.ID+"/test")
	v.do("GET", "/subscriptions/"+sub.ID).has(t, `id="test"`)

	// Neither a ping nor an event that failed completes the setup.
	s.record(claimPing(t, w, sub.ID), 200)
	s.deliver(sub, 404)
	steps("3 of 4 steps done", test)
	s.deliver(sub, 200)
	v.do("GET", "/").hasNot(t, "steps done")
}

// A test event, which is not in the log, also completes the setup.
func TestFirstRunByTestEvent(t *testing.T) {
	v, s, w := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	event, invalid := w.cfg.Rules.Catalog.TestEvent(exampleEvent, time.Now())
	if invalid != nil {
		t.Fatal(invalid)
	}
	sent := make(chan error, 1)
	go func() {
		_, _, err := w.store.Subscriptions().Test(t.Context(), sub.ProgramID, sub.ID, event)
		sent <- err
	}()
	for name := ""; name != exampleEvent; { // the first ping comes first
		c, err := storetest.ClaimPing(t.Context(), w.store, sub.ID)
		must(t, err)
		if c == nil {
			continue
		}
		v.do("GET", "/").want(t, http.StatusOK, "3 of 4 steps done")
		if webhook.IsTestEvent(c.Events[0]) {
			name = exampleEvent
		}
		s.record(c, 200)
	}
	must(t, <-sent)
	v.do("GET", "/").hasNot(t, "steps done")
}

package web

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"service/webhook"
)

// TestProgramPages creates a program, changes its limits, lists it and erases it. The audit log
// records each change once.
func TestProgramPages(t *testing.T) {
	v, w := startSignedIn(t, func(cfg *Config) { cfg.MaxSubscriptions, cfg.RateLimit = 100, 1000 })

	v.do("GET", "/programs").want(t, 200, "No programs yet.")
	v.do("GET", "/programs/-/new").has(t, "Default: 1,000.", "Default: 100.")
	wrong := v.post("/programs/-/new", url.Values{"id": {"a b"}, "name": {strings.Repeat("x", 201)}, "max_subscriptions": {"1.5"},
		"rate_limit": {"-1"}, "max_in_flight": {"0"}}.Encode())
	wrong.want(t, 422, "Nothing was saved.", `id="service-status"`, `id="account"`) // the frame is that of other pages
	wrong.has(t, `href="#id"`, `href="#name"`, `href="#max-subscriptions"`, `href="#rate-limit"`, `href="#max-in-flight"`, `value="1.5"`,
		"must be 1 to 100000, or empty for no limit", "must be at most 200 characters")
	wrong.hasNot(t, "null")

	name := "<b>ACME & Söhne</b>"
	made := v.post("/programs/-/new", url.Values{"id": {" acme "}, "name": {name}, "rate_limit": {"60"}, "max_in_flight": {""}}.Encode())
	made.want(t, 303, "")
	made.wantHeader(t, "Location", "/programs/acme")
	p, err := w.store.Programs().Get(t.Context(), "acme")
	must(t, err)
	if p.Name != name || p.Limits.RateLimit == nil || *p.Limits.RateLimit != 60 ||
		p.Limits.MaxInFlight != nil || p.Limits.MaxSubscriptions != nil {
		t.Fatalf("created: %+v", p)
	}
	v.post("/programs/-/new", "id=acme&name=other").want(t, 422, "is the ID of another program")
	if p, err = w.store.Programs().Get(t.Context(), "acme"); err != nil || p.Name != name {
		t.Fatalf("creating it again: %+v, %v", p, err)
	}
	single := v.do("GET", "/programs/acme")
	single.has(t, "&lt;b&gt;ACME &amp; Söhne&lt;/b&gt;", "100 (default)", "no limit (default)", "No valid tokens.",
		"service program export acme acme.program", "no subscription behind")

	v.post("/programs/acme/edit", "name=ACME&max_subscriptions=0&rate_limit=&max_in_flight=x").want(t, 422, "must be an integer")
	v.post("/programs/acme/edit", "id=other&name=ACME&max_subscriptions=0&rate_limit=&max_in_flight=5").want(t, 303, "")
	v.post("/programs/acme/edit", "name=ACME&max_subscriptions=0&rate_limit=&max_in_flight=5").want(t, 303, "") // changes nothing
	v.do("GET", "/programs").has(t, "unlimited subscriptions, 5 in flight")
	v.do("GET", "/programs/acme/edit").has(t, `value="ACME"`, `value="5"`)
	v.do("GET", "/programs/none").want(t, 404, "")
	v.do("GET", "/programs/none/edit").want(t, 404, "")
	v.post("/programs/none/edit", "name=x").want(t, 404, "")

	v.do("GET", "/programs/acme/erase").has(t, "Type acme to confirm.", "There is no replica.")
	for _, typed := range []string{"", "ACME", "acme2"} {
		v.post("/programs/acme/erase", "confirm="+typed).want(t, 422, "Nothing was erased.")
	}
	if p, err = w.store.Programs().Get(t.Context(), "acme"); err != nil || !p.ErasingSince.IsZero() {
		t.Fatalf("erased without confirmation: %+v, %v", p, err)
	}
	for range 2 {
		v.post("/programs/acme/erase", "confirm=acme").want(t, 303, "")
	}
	v.do("GET", "/programs").has(t, "erasing")
	erasing := v.do("GET", "/programs/acme")
	erasing.has(t, "Being erased since ")
	erasing.hasNot(t, "/programs/acme/erase", "/programs/acme/edit", "/subscriptions/new", "/tokens/new")
	v.do("GET", "/programs/acme/erase").want(t, 200, "Already being erased.")
	v.post("/programs/acme/edit", "name=x").want(t, 422, "is being erased")
	must(t, w.store.Programs().Erase(t.Context()))
	v.do("GET", "/programs/acme").want(t, 404, "")
	v.post("/programs/-/new", "id=acme").want(t, 303, "")

	audit := v.do("GET", "/audit?filter[program_id]=acme")
	for action, want := range map[string]int{"Create program</td>": 2, "Edit program</td>": 1, "Delete program</td>": 1} {
		if n := strings.Count(audit.body, action); n != want {
			t.Errorf("the audit log contains %q %d times, want %d", action, n, want)
		}
	}
}

// TestProgramOfAnyName checks that no program ID is the path of another page.
func TestProgramOfAnyName(t *testing.T) {
	v, _ := startSignedIn(t, nil)
	for _, id := range []string{"new", "export", "edit", "A.b_c-9", strings.Repeat("x", 64)} {
		v.post("/programs/-/new", "id="+id).want(t, 303, "")
		v.do("GET", "/programs/"+id).want(t, 200, "<span class=\"noun\">Program</span> "+id)
	}
}

// TestProgramList filters and sorts the programs, and counts the records of each.
func TestProgramList(t *testing.T) {
	v, w := startSignedIn(t, nil)
	put := func(id, name string) { putProgram(t, w, id, webhook.ProgramFields{Name: &name}) }
	for i := range 30 {
		put(fmt.Sprintf("tenant-%02d", i), fmt.Sprintf("Müller %d%% Ltd", i))
	}
	put("zoo", "Zoo")
	l := newEventSource(t, w, "https://hooks.example.com/in")
	l.publish("content_published", `"one"`)

	v.do("GET", "/programs").has(t, "1 to 25 of 32")
	v.do("GET", "/programs?page[number]=2").has(t, "26 to 32 of 32", "Müller 0%")
	v.do("GET", "/programs?sort=id&page[size]=50").has(t, "1 to 32 of 32", ">acme</span>")
	v.do("GET", "/programs?filter[program_name]=m%C3%BCller+2").has(t, "1 to 11 of 11")
	v.do("GET", "/programs?filter[program_name]=ZOO,tenant-01").has(t, "1 to 2 of 2")
	v.do("GET", "/programs?filter[program_name]=%25+l").has(t, "1 to 25 of 30") // not a wildcard
	v.do("GET", "/programs?filter[program_name]=Z_o").want(t, 200, "No results.")
	v.do("GET", "/programs?program=zoo").has(t, "1 to 1 of 1")
	v.do("GET", "/programs?filter[failing]=true").want(t, 200, "No results.")
	v.do("GET", "/programs?filter[failing]=maybe").want(t, 400, "must be one of failing, not failing")
	for text, want := range map[string]string{"zoo": "/programs/zoo", "ller+7": "/programs/tenant-07"} {
		v.do("GET", "/find?q="+text).wantHeader(t, "Location", want)
	}

	v.do("GET", "/programs/acme").has(t, "all active", "<dd>1</dd>")
}

package api

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/webhook"
)

// selection sends requests of routes with tokens that select a program.
type selection struct {
	*service
	made ids
}

func (s *selection) ask(rt *route, token string, selected ...string) response {
	s.t.Helper()
	headers := []string{"Authorization", "Bearer " + token}
	for _, id := range selected {
		headers = append(headers, programHeader, id)
	}
	path := s.made.path(rt)
	if rt.method == "DELETE" && rt.pattern == programPath { // acme is needed
		path = "/v2/programs/" + webhook.NewID()
		if err := s.store.Write(s.t.Context(), func(w store.Write) error {
			_, _, err := w.Programs().Put(strings.TrimPrefix(path, "/v2/programs/"), &webhook.ProgramFields{}, webhook.AuditEntry{})
			return err
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	return s.send(rt.method, path, bodyFor(rt), headers...)
}

// The matrix of routes and what a token selects with X-Program-Id.
func TestPlatformTokens(t *testing.T) {
	s := start(t)
	all := &selection{s, s.records()}
	other := s.newToken("other", "oda", webhook.Scopes()...)
	for _, rt := range routes() {
		if rt.scope != scopeNone {
			all.withPlatform(&rt)
			all.withPartner(&rt, other)
		}
	}
	for _, rt := range routes() {
		if rt.scope != scopeNone && rt.method == "GET" {
			all.inProgram(&rt)
		}
	}
	twice := httptest.NewRequest("GET", "/v2/events", nil)
	twice.Header["Authorization"], twice.Header[programHeader] = []string{"Bearer " + s.platform}, []string{"acme", "acme"}
	wantFault(t, "two programs", s.serve(twice), "invalid_format", programHeader)
	empty := httptest.NewRequest("GET", "/v2/events", nil)
	empty.Header["Authorization"], empty.Header[programHeader] = []string{"Bearer " + s.platform}, []string{""}
	got := s.serve(empty)
	wantFault(t, "an empty program", got, "invalid_format", programHeader)
	wantBody(t, "an empty program", got, 400, "must not be empty: give the id of a program, or leave out the header")
}

// withPlatform checks a route with a platform token that selects no program, or a missing one.
func (s *selection) withPlatform(rt *route) {
	t, name := s.t, rt.method+" "+rt.pattern
	free := rt.scope == scopeAny || rt.scope == webhook.ScopePlatform
	r := s.ask(rt, s.platform)
	if free && r.status >= 400 && !strings.HasPrefix(rt.pattern, moveIDPath) { // no program has arrived
		t.Errorf("%s with a platform token: got %d %s", name, r.status, r.body)
	}
	if !free {
		wantFault(t, name+" with a platform token", r, "required", programHeader)
	}
	if r.header[programHeader] != nil || r.header.Get("X-User-Id") != "ops" {
		t.Errorf("%s with a platform token: got %v, want no program", name, r.header)
	}
	wantFault(t, name+" with a malformed program", s.ask(rt, s.platform, "ac me"), "invalid_format", programHeader)
	r = s.ask(rt, s.platform, "nobody")
	wantStatus(t, name+" with an unknown program", r, 404)
	if !strings.Contains(r.body, "There is no program nobody.") || r.header[programHeader] != nil {
		t.Errorf("%s with an unknown program: got %v %s", name, r.header, r.body)
	}
}

// withPartner checks that a token of the program other can neither select another program nor learn
// whether one exists.
func (s *selection) withPartner(rt *route, other string) {
	t, name := s.t, rt.method+" "+rt.pattern
	wantFault(t, name+" with a malformed program and a partner's token", s.ask(rt, s.token, "/"), "invalid_format", programHeader)
	foreign, unknown := s.ask(rt, other, "acme"), s.ask(rt, other, "nobody")
	wantStatus(t, name+" with another program", foreign, 403)
	if nameless(foreign) != nameless(unknown) || foreign.header.Get(programHeader) != "other" || strings.Contains(foreign.body, "acme") {
		t.Errorf("%s with another program: got\n%v, and with an unknown one\n%v", name, foreign, unknown)
	}
	own := s.ask(rt, other, "other")
	if (own.status == 403) != (rt.scope == webhook.ScopePlatform) || own.header.Get(programHeader) != "other" {
		t.Errorf("%s with its own program: got %v", name, own)
	}
}

// inProgram checks that a platform token that selects a program can read what the program's own
// tokens can.
func (s *selection) inProgram(rt *route) {
	r := s.ask(rt, s.platform, "acme")
	if r.status != 200 || r.header.Get(programHeader) != "acme" || r.header.Get("X-User-Id") != "ops" {
		s.t.Errorf("%s in a program: got %v", rt.pattern, r)
	}
	if rt.scope == webhook.ScopePlatform || rt.pattern == metricsPath || rt.pattern == "/v2/token" {
		return
	}
	if own := s.ask(rt, s.token); nameless(own) != strings.ReplaceAll(nameless(r), "[ops]", "[ada]") {
		s.t.Errorf("%s in a program: got\n%v, and with the program's token\n%v", rt.pattern, r, own)
	}
}

// A platform token does the same in a program as a token of that program, and each action is in the
// audit log.
func TestPlatformTokenActs(t *testing.T) {
	s := start(t)
	s.records()
	token := data[identified](t, s.as(&route{scope: webhook.ScopePlatform}).send("GET", "/v2/token", "")).ID
	before := len(s.auditLog())
	in := func(method, target, body string, status int) response {
		t.Helper()
		r := s.send(method, target, body, "Authorization", "Bearer "+s.platform, programHeader, "acme")
		wantStatus(t, method+" "+target, r, status)
		return r
	}
	in("PUT", "/v2/programs/acme", `{"name":"Acme Ltd.","limits":{"rate_limit":9}}`, 200)
	in("PUT", "/v2/programs/acme", `{"name":"Acme Ltd."}`, 200) // changes nothing
	in("PUT", "/v2/programs/fresh", `{}`, 201)
	path := "/v2/webhooks/subscriptions/" + idOf(in("POST", "/v2/webhooks/subscriptions",
		`{"url":"https://partner.example/x","events":[{"name":"content_updated"}]}`, 201))
	in("PUT", path, `{"active":false}`, 200)
	in("PUT", path, `{"active":true}`, 200)
	in("PUT", path, `{"description":"d","ordered":true}`, 200)
	in("PUT", "/v2/programs/acme", `{"limits":{"rate_limit":null}}`, 200)
	in("POST", path+"/rotate_secret", "", 200)
	replay := idOf(in("POST", path+"/replays", `{"from":"2026-01-01","only":"all"}`, 202))
	in("POST", path+"/replays/"+replay+"/cancel", "", 200)
	in("POST", "/v2/bulk_runs", `{"action":"cancel"}`, 202)
	in("DELETE", path, "", 200)
	in("POST", "/v2/events", contentUpdated, 201)
	id := idOf(in("POST", "/v2/programs/acme/tokens", `{"user_id":"backend","scopes":["events.write"]}`, 201))
	in("DELETE", "/v2/programs/acme/tokens/"+id, "", 200)
	in("DELETE", "/v2/programs/acme/tokens/"+id, "", 200) // changes nothing

	var got []string
	for _, e := range s.auditLog()[before:] {
		if e.Admin != "token:"+token || e.Address != "192.0.2.1" {
			t.Errorf("entry %+v: want the platform token and its address", e)
		}
		if e.ProgramID != "acme" && e.ProgramID != "fresh" || e.SubjectID == "" {
			t.Errorf("entry %+v: want a program and a subject", e)
		}
		got = append(got, string(e.Action)+": "+strings.ReplaceAll(e.Detail, replay, "R"))
	}
	const at = "https://partner.example/x"
	want := []string{
		`program.update: name "Acme Ltd.", rate_limit 9`, "program.create: ", "subscription.create: " + at + "; content_updated",
		"subscription.pause: " + at, "subscription.resume: " + at, "subscription.update: " + at + "; changed the description; ordered to true",
		"program.update: rate_limit null", "subscription.rotate_secret: " + at + "; the old secret signs until 2…",
		"subscription.replay: " + at + "; all from 2026-01-01T00:00:00.000Z to 2…",
		"subscription.cancel_replay: " + at + "; replay R after 0 events",
		"delivery.cancel: …", "subscription.delete: " + at, "token.create: for user backend, with events.write, never expires",
		"token.revoke: of user backend",
	}
	for i := range got {
		if i < len(want) && strings.HasSuffix(want[i], "…") {
			got[i] = got[i][:min(len(got[i]), len(want[i])-len("…"))] + "…"
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the audit log contains\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A key of a platform token is bound to the program in which it was used.
func TestIdempotencyKeyOfAnotherProgram(t *testing.T) {
	s := start(t)
	s.newToken("other", "oda", webhook.Scopes()...)
	body := `{"url":"https://partner.example/x","events":[{"name":"content_updated"}]}`
	send := func(program string) response {
		return s.send("POST", "/v2/webhooks/subscriptions", body,
			"Authorization", "Bearer "+s.platform, programHeader, program, "Idempotency-Key", "k")
	}
	first := send("acme")
	wantStatus(t, "the first", first, 201)
	if again := send("acme"); again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("again: got %v, want the first response", again)
	}
	wantStatus(t, "in another program", send("other"), 409)
}

// Preconditions of a program, which has no ETag.
func TestProgramPreconditions(t *testing.T) {
	s := start(t)
	put := func(id, header, value string) int {
		return s.send("PUT", "/v2/programs/"+id, `{"name":"n"}`, "Authorization", "Bearer "+s.platform, header, value).status
	}
	for _, test := range []struct {
		id, header, value string
		want              int
	}{
		{"new", "If-Match", "*", 412}, {"new", "If-Match", `"x"`, 412}, {"new", "If-None-Match", `"x"`, 201}, {"new2", "If-None-Match", "*", 201},
		{"new", "If-None-Match", "*", 412}, {"new", "If-Match", "*", 200}, {"new", "If-Match", `"x"`, 412}, {"new", "If-Match", "x", 400},
	} {
		if got := put(test.id, test.header, test.value); got != test.want {
			t.Errorf("%s with %s: %s: got %d, want %d", test.id, test.header, test.value, got, test.want)
		}
	}
}

func TestProgramFields(t *testing.T) {
	s := start(t)
	for body, parameter := range map[string]string{
		`{"name":5}`: "name invalid_type",
		`{"name":"` + strings.Repeat("ä", 201) + `"}`: "name too_long",
		`{"name":"a\nb"}`:                      "name invalid_format",
		`{"id":"other"}`:                       "id invalid_value",
		`{"limits":5}`:                         "limits invalid_type",
		`{"limits":{"rate_limit":-1}}`:         "limits.rate_limit invalid_value",
		`{"limits":{"rate_limit":1000001}}`:    "limits.rate_limit invalid_value",
		`{"limits":{"rate_limit":"5"}}`:        "limits.rate_limit invalid_type",
		`{"limits":{"max_in_flight":0}}`:       "limits.max_in_flight invalid_value",
		`{"limits":{"max_subscriptions":1.5}}`: "limits.max_subscriptions invalid_type",
		`{"limits":{"max":1}}`:                 "limits.max unknown_field",
		`{"colour":"red"}`:                     "colour unknown_field",
	} {
		name, code, _ := strings.Cut(parameter, " ")
		r := s.send("PUT", "/v2/programs/p", body, "Authorization", "Bearer "+s.platform)
		wantFault(t, body, r, code, name)
	}
	wantFault(t, "a malformed id", s.send("PUT", "/v2/programs/-p", `{}`, "Authorization", "Bearer "+s.platform), "invalid_format", "id")
	wantStatus(t, "nothing was created", s.send("GET", "/v2/programs/p", "", "Authorization", "Bearer "+s.platform), 404)

	for body, parameter := range map[string]string{
		`{}`:                                                           "user_id required",
		`{"user_id":"u","scopes":[]}`:                                  "scopes required",
		`{"user_id":"u","scopes":["platform"]}`:                        "scopes invalid_value",
		`{"user_id":"u","scopes":["sing"]}`:                            "scopes invalid_value",
		`{"user_id":"u","scopes":[5]}`:                                 "scopes[0] invalid_type",
		`{"user_id":"u","scopes":"events.read"}`:                       "scopes invalid_type",
		`{"user_id":"u","scopes":["events.read","events.read"]}`:       "scopes duplicate",
		`{"user_id":"u","scopes":["events.read"],"expires_at":"soon"}`: "expires_at invalid_format",
		`{"user_id":"u","scopes":["events.read"],"expires_at":"2001-01-01T00:00:00Z"}`:         "expires_at invalid_value",
		`{"user_id":"u","scopes":["events.read"],"program_id":"p"}`:                            "program_id unknown_field",
		`{"user_id":"u","scopes":["events.read"],"name":"` + strings.Repeat("x", 201) + `"}`:   "name too_long",
		`{"user_id":"u u","scopes":["events.read"]}`:                                           "user_id invalid_format",
		`{"user_id":"u","scopes":[` + strings.Repeat(`"events.read",`, 99) + `"events.read"]}`: "scopes too_many",
	} {
		name, code, _ := strings.Cut(parameter, " ")
		r := s.send("POST", "/v2/programs/acme/tokens", body, "Authorization", "Bearer "+s.platform)
		if r.status != 400 || !slices.Contains(faults(t, r), code+" "+name) {
			t.Errorf("%.80s: got %v, want %s", body, r, parameter)
		}
	}
	wantStatus(t, "a token of a missing program",
		s.send("POST", "/v2/programs/nobody/tokens", `{"user_id":"u","scopes":["events.read"]}`, "Authorization", "Bearer "+s.platform), 404)
	own := data[identified](t, s.send("GET", "/v2/token", "")).ID
	s.newToken("other", "oda", webhook.Scopes()...)
	foreign := s.send("DELETE", "/v2/programs/other/tokens/"+own, "", "Authorization", "Bearer "+s.platform)
	wantStatus(t, "a token of another program", foreign, 404)
	wantStatus(t, "it was not revoked", s.send("GET", "/v2/token", ""), 200)
}

// The limits of a program replace the defaults, and take effect with the next request.
func TestProgramLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, limited(2), func(c *Config) { c.MaxSubscriptions, c.PlatformRateLimit = 1, 4 })
		platform := s.newToken("", "ops", webhook.ScopePlatform)
		put := func(limits string) {
			t.Helper()
			r := s.send("PUT", "/v2/programs/acme", `{"limits":`+limits+`}`, "Authorization", "Bearer "+platform)
			wantStatus(t, "PUT "+limits, r, 200)
			if !strings.HasPrefix(r.header.Get("RateLimit"), `"platform";r=`) || r.header.Get("RateLimit-Policy") != `"platform";q=4;w=60` {
				t.Errorf("PUT %s: got %v, want the platform token's limit", limits, r.header)
			}
		}
		get := func(status int, state string) {
			t.Helper()
			r := s.send("GET", "/v2/event_types/ping", "")
			wantStatus(t, "GET", r, status)
			if got := r.header.Get("RateLimit"); got != state {
				t.Errorf("GET: got RateLimit %s, want %s", got, state)
			}
		}
		get(200, `"program";r=1;t=60`)
		time.Sleep(time.Second)
		get(200, `"program";r=0;t=59`)
		get(429, `"program";r=0;t=59`)
		put(`{"rate_limit":4}`)
		time.Sleep(time.Second)
		get(200, `"program";r=1;t=58`)
		time.Sleep(time.Second)
		get(200, `"program";r=0;t=57`)
		put(`{"rate_limit":2}`) // two more must leave the window
		get(429, `"program";r=0;t=59`)
		put(`{"rate_limit":0}`)
		get(200, "")
		put(`{"rate_limit":null}`)
		get(429, `"program";r=0;t=59`)
		r := s.send("GET", "/v2/programs", "", "Authorization", "Bearer "+platform)
		wantBody(t, "one too many of the platform token", r, 429, "The platform token has reached its limit of 4 requests")
		r = s.send("GET", "/v2/events", "", "Authorization", "Bearer "+platform, programHeader, "acme")
		wantStatus(t, "a platform token in the program counts against its limit", r, 429)
		wantStatus(t, "another platform token", s.send("GET", "/v2/programs", "", "Authorization", "Bearer "+s.platform), 200)
	})

	s := start(t, func(c *Config) { c.MaxSubscriptions = 1 })
	subscribe := func(status int) {
		t.Helper()
		r := s.send("POST", "/v2/webhooks/subscriptions", `{"url":"https://partner.example/x","events":[{"name":"content_updated"}]}`)
		wantStatus(t, "subscribe", r, status)
	}
	subscribe(201)
	subscribe(400)
	for _, limit := range []struct {
		value string
		allow int
	}{{"3", 2}, {"0", 2}, {"1", 0}, {"null", 0}} {
		wantStatus(t, "limit "+limit.value, s.send("PUT", "/v2/programs/acme", `{"limits":{"max_subscriptions":`+limit.value+`}}`,
			"Authorization", "Bearer "+s.platform), 200)
		for range limit.allow {
			subscribe(201)
		}
		if limit.value != "0" {
			subscribe(400)
		}
	}
}

// A page of programs costs the same number of queries for any number of programs.
func TestProgramStatistics(t *testing.T) {
	s := start(t)
	s.records()
	var r struct {
		Data struct{ Statistics map[string]any }
	}
	decode(t, s.as(&route{scope: webhook.ScopePlatform}).send("GET", "/v2/programs/acme", ""), &r)
	got := r.Data.Statistics
	if at, _ := got["last_event_at"].(string); at == "" {
		t.Errorf("last_event_at: got %v", got["last_event_at"])
	}
	delete(got, "last_event_at")
	want := "map[active_subscriptions:1 attempts_24h:map[failed:1 retryable:0 success:1] disabled_subscriptions:0 events:2 " +
		"failing_subscriptions:0 open_incidents:1 subscriptions:1 tokens:2]"
	if fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	must(t, s.store.Write(t.Context(), func(w store.Write) error {
		for i := range 100 {
			if _, _, err := w.Programs().Put(fmt.Sprintf("p%03d", i), &webhook.ProgramFields{}, webhook.AuditEntry{}); err != nil {
				return err
			}
		}
		return nil
	}))
	page := s.as(&route{scope: webhook.ScopePlatform}).send("GET", "/v2/programs?page[size]=100&sort=-id", "")
	if n := strings.Count(page.body, `"attempts_24h"`); page.status != 200 || n != 100 || !strings.Contains(page.body, `"total_count":101`) {
		t.Errorf("got %d programs: %.300s", n, page.body)
	}
}

// TestDeleteProgram checks that the tokens of an erased program are invalid at once, that its
// record says what delays the erasure, and that its ID is free once the erasure has finished.
func TestDeleteProgram(t *testing.T) {
	s := start(t)
	s.records()
	platform := func(method, target, body string, status int, texts ...string) {
		t.Helper()
		wantBody(t, method+" "+target, s.send(method, target, body, "Authorization", "Bearer "+s.platform), status, texts...)
	}
	platform("DELETE", "/v2/programs/unknown", "", 404)
	for range 2 {
		platform("DELETE", "/v2/programs/acme", "", 202, `"status":"erasing"`, `"replica_seconds":null`,
			"There is no replica. Backups, and copies of the database")
	}
	wantStatus(t, "a token of the program", s.send("GET", "/v2/events", ""), 401)
	wantStatus(t, "in the program", s.send("GET", "/v2/events", "", "Authorization", "Bearer "+s.platform, programHeader, "acme"), 404)
	platform("GET", "/v2/programs/acme", "", 200, `"status":"erasing","erasure":{"began_at":`)
	platform("PUT", "/v2/programs/acme", `{}`, 409)
	platform("POST", "/v2/programs/acme/tokens", `{"user_id":"u","scopes":["events.read"]}`, 409)
	must(t, s.store.Programs().Erase(t.Context()))
	platform("GET", "/v2/programs/acme", "", 404)
	platform("PUT", "/v2/programs/acme", `{}`, 201)
	var erasers []string
	for _, e := range s.auditLog() {
		if e.Action == webhook.ActionProgramDelete {
			erasers = append(erasers, e.Admin)
		}
	}
	if len(erasers) != 1 || !strings.HasPrefix(erasers[0], "token:") {
		t.Errorf("the audit log contains erasures by %q, want one by the token", erasers)
	}
}

package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// fields renders a valid subscription with the given fields replaced; a field with the
// value "" is omitted.
func fields(change map[string]string) string {
	all := map[string]string{"url": `"https://partner.example/hook"`, "events": `[{"name":"content_updated"}]`}
	for name, value := range change {
		all[name] = value
	}
	var members []string
	for name, value := range all {
		if value != "" {
			members = append(members, fmt.Sprintf("%q:%s", name, value))
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

func text(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func events(n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(`{"name":"content_updated"},`, n), ",") + "]"
}

// invalidFields are values that a field of a subscription must not have.
var invalidFields = []struct{ field, value, code, parameter string }{
	{"url", `""`, "required", "url"},
	{"url", `7`, "invalid_type", "url"},
	{"url", `null`, "invalid_type", "url"},
	{"url", `["https://partner.example"]`, "invalid_type", "url"},
	{"url", text("https://partner.example/" + strings.Repeat("a", 2048)), "too_long", "url"},
	{"url", `"partner.example"`, "invalid_format", "url"},
	{"url", `"http://partner.example"`, "invalid_format", "url"},
	{"url", `"ftp://partner.example"`, "invalid_format", "url"},
	{"url", `"https://user:secret@partner.example"`, "invalid_format", "url"},
	{"url", `"https://partner.example/#top"`, "invalid_format", "url"},
	{"url", `"https://127.0.0.1/"`, "blocked_destination", "url"},
	{"url", `"https://[::1]/"`, "blocked_destination", "url"},
	{"url", `"https://localhost/"`, "blocked_destination", "url"},
	{"events", `null`, "invalid_type", "events"},
	{"events", `"content_updated"`, "invalid_type", "events"},
	{"events", `{}`, "invalid_type", "events"},
	{"events", `[]`, "required", "events"},
	{"events", `["content_updated"]`, "invalid_type", "events[0]"},
	{"events", `[{}]`, "required", "events[0].name"},
	{"events", `[{"name":7}]`, "invalid_type", "events[0].name"},
	{"events", `[{"name":"content_updated"},{"name":"Content_Updated"}]`, "unknown_event", "events[1].name"},
	{"events", `[{"name":"*"}]`, "unknown_event", "events[0].name"},
	{"events", events(2), "duplicate", "events[1].name"},
	{"events", events(65), "too_many", "events"},
	{"events", `[{"name":"content_updated","version":1}]`, "invalid_type", "events[0].version"},
	{"events", `[{"name":"content_updated","version":"2"}]`, "invalid_value", "events[0].version"},
	{"events", `[{"name":"content_updated","only":"x"}]`, "unknown_field", "events[0].only"},
	{"events", `[{"name":"content_updated","filter":"x"}]`, "invalid_type", "events[0].filter"},
	{"events", `[{"name":"content_updated","filter":{"all":[{"path":"title","op":"eq","value":1}]}}]`, "unknown_field",
		"events[0].filter.all[0].path"},
	{"events", `[{"name":"ping","filter":{"all":[{"path":"id","op":"eq","value":"a"}]}}]`, "invalid_value", "events[0].filter"},
	{"authorization_header", `7`, "invalid_type", "authorization_header"},
	{"authorization_header", `""`, "invalid_value", "authorization_header"},
	{"authorization_header", `" Bearer x"`, "invalid_format", "authorization_header"},
	{"authorization_header", `"Bearer x\r\nHost: y"`, "invalid_format", "authorization_header"},
	{"authorization_header", text(strings.Repeat("x", 4097)), "too_long", "authorization_header"},
	{"description", `7`, "invalid_type", "description"},
	{"description", `null`, "invalid_type", "description"},
	{"description", text(strings.Repeat("é", 513)), "too_long", "description"},
	{"active", `"true"`, "invalid_type", "active"},
	{"active", `1`, "invalid_type", "active"},
	{"ordered", `null`, "invalid_type", "ordered"},
	{"max_in_flight", `"3"`, "invalid_type", "max_in_flight"},
	{"max_in_flight", `1.5`, "invalid_type", "max_in_flight"},
	{"max_in_flight", `-1`, "invalid_value", "max_in_flight"},
	{"max_in_flight", `257`, "invalid_value", "max_in_flight"},
	{"max_in_flight", `99999999999999999999`, "invalid_value", "max_in_flight"},
	{"max_per_second", `"3"`, "invalid_type", "max_per_second"},
	{"max_per_second", `0`, "invalid_value", "max_per_second"},
	{"max_per_second", `0.09`, "invalid_value", "max_per_second"},
	{"max_per_second", `1000.1`, "invalid_value", "max_per_second"},
	{"max_events", `"3"`, "invalid_type", "max_events"},
	{"max_events", `1.5`, "invalid_type", "max_events"},
	{"max_events", `-1`, "invalid_value", "max_events"},
	{"max_events", `1001`, "invalid_value", "max_events"},
	{"max_events", `99999999999999999999`, "invalid_value", "max_events"},
	{"Url", `"https://partner.example"`, "unknown_field", "Url"},
	{"program_id", `"acme"`, "unknown_field", "program_id"},
}

func TestSubscriptionFields(t *testing.T) {
	s := start(t)
	update := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated")
	for _, test := range invalidFields {
		name := test.field + " " + test.value[:min(len(test.value), 60)]
		wantFault(t, "create: "+name, s.send("POST", "/v2/webhooks/subscriptions", fields(map[string]string{test.field: test.value})), test.code,
			test.parameter)
		wantFault(t, "update: "+name, s.send("PUT", update, `{"`+test.field+`":`+test.value+`}`), test.code, test.parameter)
	}
	for _, missing := range []string{"url", "events"} {
		wantFault(t, "create without "+missing, s.send("POST", "/v2/webhooks/subscriptions", fields(map[string]string{missing: ""})), "required",
			missing)
		wantFault(t, missing+" twice", s.send("POST", "/v2/webhooks/subscriptions", `{"`+missing+`":"a","`+missing+`":"a"}`), "duplicate",
			missing)
	}
	wantFault(t, "name twice", s.send("PUT", update, `{"events":[{"name":"ping","name":"ping"}]}`), "duplicate", "events[0].name")

	wantStatus(t, "the longest of everything", s.send("POST", "/v2/webhooks/subscriptions", fields(map[string]string{
		"url":                  text("https://partner.example/" + strings.Repeat("a", 2048-24)),
		"authorization_header": text(strings.Repeat("x", 4096)), "description": text(strings.Repeat("é", 512)), "max_in_flight": "256",
	})), 201)
	wantStatus(t, "an update that changes nothing", s.send("PUT", update, `{}`), 200)
	r := s.send("GET", "/v2/webhooks/subscriptions", "")
	if n := len(data[[]identified](t, r)); n != 2 {
		t.Errorf("got %d subscriptions, want the two valid ones", n)
	}
	if strings.Contains(r.body, "xxxx") || strings.Contains(r.body, "whsec_") {
		t.Errorf("a list contains a secret: %s", r.body)
	}
}

// Creating a subscription rejects properties that an update ignores because clients may send them
// back.
func TestSubscriptionReadOnlyFields(t *testing.T) {
	s := start(t)
	update := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated")
	for _, test := range []struct{ field, value, code string }{ // an update ignores these
		{"id", `"x"`, "unknown_field"},
		{"status", `"healthy"`, "unknown_field"},
		{"signing_secret", `"x"`, "invalid_format"},
		{"signing_secret", `7`, "invalid_type"},
		{"signing_secret", `"whsec_` + strings.Repeat("A", 28) + `"`, "invalid_format"}, // 21 bytes
		{"signing_secret", `"whsec_` + strings.Repeat("A", 88) + `"`, "invalid_format"}, // 66 bytes
	} {
		create := fields(map[string]string{test.field: test.value})
		wantFault(t, "create: "+test.field+" "+test.value, s.send("POST", "/v2/webhooks/subscriptions", create), test.code, test.field)
	}
	wantFault(t, "another id", s.send("PUT", update, `{"id":"x"}`), "invalid_value", "id")
	// An update that would change the signing secret is refused rather than ignored.
	for _, secret := range []string{`"whsec_c2VjcmV0IG9mIHRoZSBwYXJ0bmVyJ3Mgb3duLCAzMkI="`, `"x"`} {
		r := s.send("PUT", update, `{"signing_secret":`+secret+`}`)
		wantFault(t, secret, r, "invalid_value", "signing_secret")
		wantBody(t, secret, r, 400, "see rotate_secret")
	}
}

// Clients can send back what creating and reading a subscription returned.
func TestWholeRecordSentBack(t *testing.T) {
	s := start(t)
	const secret = "whsec_c2VjcmV0IG9mIHRoZSBwYXJ0bmVyJ3Mgb3duLCAzMkI="
	r := s.send("POST", "/v2/webhooks/subscriptions", fields(map[string]string{"signing_secret": `"` + secret + `"`}))
	wantStatus(t, "create with a secret", r, 201)
	created := data[map[string]any](t, r)
	if created["signing_secret"] != secret {
		t.Errorf("the secret is %v, want the given one", created["signing_secret"])
	}
	path := "/v2/webhooks/subscriptions/" + created["id"].(string)
	read := data[map[string]any](t, s.send("GET", path, ""))
	for _, record := range []map[string]any{created, read} {
		record["description"] = "sent back"
		text, err := json.Marshal(record)
		must(t, err)
		r := s.send("PUT", path, string(text))
		wantStatus(t, "update by a whole record", r, 200)
		if got := data[map[string]any](t, r); got["description"] != "sent back" || got["created_at"] != created["created_at"] {
			t.Errorf("got %v, want the description alone to change", got)
		}
	}
}

func TestSubscriptionsAreLimited(t *testing.T) {
	s := start(t, func(c *Config) { c.MaxSubscriptions = 2 })
	s.subscribe("content_updated")
	id := s.subscribe("content_updated")
	wantFault(t, "one too many", s.send("POST", "/v2/webhooks/subscriptions", fields(nil)), "too_many", "body")
	wantStatus(t, "delete one", s.send("DELETE", "/v2/webhooks/subscriptions/"+id, ""), 200)
	s.subscribe("content_updated")
}

func TestPingTakesNoBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		ping := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated") + "/ping"
		for body, want := range map[string]int{"": 504, "{}": 504, " {\n} ": 504, "null": 400, "{": 400, `{"x":1}`: 400, "[]": 400} {
			wantStatus(t, "ping with body "+body, s.send("POST", ping, body), want) // 504: accepted, but nothing sends it
		}
		wantStatus(t, "a body of another type", s.send("POST", ping, "{}", "Content-Type", "text/plain"), 415)
	})
}

package api

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"service/webhook"
)

// orderSchema returns the schema of an event type with a field carrier of the given schema.
func orderSchema(name, carrier string) string {
	return `{"title":"Order shipped","description":"Emitted when an order leaves.","type":"object","properties":{` +
		`"id":{"type":"string","format":"uuid"},"timestamp":{"type":"string","format":"date-time"},"name":{"const":"` + name +
		`"},"version":{"const":"1"},"carrier":` + carrier + `},"required":["id","timestamp","name","version"],"additionalProperties":false,` +
		`"examples":[{"id":"019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7","timestamp":"2026-03-14T08:24:48.644Z","name":"` + name + `","version":"1"}]}`
}

// defineEventType creates an event type in the store.
func (s *service) defineEventType(name string) {
	s.t.Helper()
	_, _, err := s.store.EventTypes().Put(s.t.Context(), newOwnType(s.t, name, `{}`),
		func(*webhook.EventType) error { return nil }, webhook.AuditEntry{})
	must(s.t, err)
}

// asPlatform returns the service with a platform token, and the ID of the token.
func (s *service) asPlatform() (platform *service, tokenID string) {
	s.t.Helper()
	p := *s
	tokenID, p.token = s.createToken(webhook.NewToken{UserID: "ops", Scopes: []webhook.Scope{webhook.ScopePlatform}})
	return &p, tokenID
}

func wantDetail(t *testing.T, what string, r response, status int, detail string) {
	t.Helper()
	wantStatus(t, what, r, status)
	if e, _ := errorOf(r); !strings.Contains(e.Detail, detail) {
		t.Errorf("%s: got %q, want a detail with %q", what, e.Detail, detail)
	}
}

// A change of an event type takes effect at once, everywhere.
func TestOwnEventTypesOverTheAPI(t *testing.T) {
	s := start(t)
	p, tokenID := s.asPlatform()
	const name, target = "order.shipped", "/v2/event_types/order.shipped"
	put := func(carrier string, headers ...string) response {
		t.Helper()
		return p.send("PUT", target, `{"schema":`+orderSchema(name, carrier)+`}`, headers...)
	}
	event := func(carrier string) string { return `{"name":"order.shipped","version":"1","carrier":` + carrier + `}` }
	subscription := `{"url":"https://hooks.partner.example/in","events":[{"name":"order.shipped"}]}`
	document := s.send("GET", "/v2/openapi.json", "").body

	wantFault(t, "publish before", s.send("POST", "/v2/events", event(`"post"`)), "unknown_event", "name")
	wantFault(t, "subscribe before", s.send("POST", "/v2/webhooks/subscriptions", subscription), "unknown_event", "events[0].name")
	wantStatus(t, "delete before", p.send("DELETE", target, ""), 404)
	wantStatus(t, "change what does not exist", put(`{"enum":["post"]}`, "If-Match", "*"), 412)
	r := put(`{"enum":["post"]}`, "If-None-Match", "*")
	wantStatus(t, "create", r, 201)
	if got := r.header.Get("Location"); got != target {
		t.Errorf("got Location %q", got)
	}
	if got := data[eventTypeRecord](t, r); got.Source != webhook.SourceAPI || got.Title != "Order shipped" {
		t.Errorf("got %+v", got)
	}
	wantStatus(t, "subscribe", s.send("POST", "/v2/webhooks/subscriptions", subscription), 201)
	wantStatus(t, "publish", s.send("POST", "/v2/events", event(`"post"`)), 201)
	wantFault(t, "publish what is not valid", s.send("POST", "/v2/events", event(`"bike"`)), "invalid_value", "carrier")
	wantStatus(t, "filter", s.send("GET", "/v2/events?filter[name]=order.shipped", ""), 200)
	wantStatus(t, "filter", s.send("GET", "/v2/webhooks/subscriptions?filter[event]=order.shipped", ""), 200)
	if got := s.send("GET", "/v2/openapi.json", "").body; got == document || !strings.Contains(got, `"event_order-shipped"`) {
		t.Error("the document does not have the new event type")
	}
	if got := s.send("GET", typesPage, "").body; !strings.Contains(got, "order.shipped") {
		t.Error("the reference does not have the new event type")
	}

	read := s.send("GET", target, "")
	wantStatus(t, "read", read, 200)
	var record struct{ Data json.RawMessage }
	decode(t, read, &record)
	wantStatus(t, "send it back", p.send("PUT", target, string(record.Data)), 200)
	if got := s.send("GET", target, "").header.Get("ETag"); got != read.header.Get("ETag") {
		t.Error("sending it back has changed it")
	}
	wantStatus(t, "create what exists", put(`{"enum":["post"]}`, "If-None-Match", "*"), 412)
	wantStatus(t, "change", put(`{"enum":["post","bike"]}`, "If-Match", read.header.Get("ETag")), 200)
	wantStatus(t, "change what has changed", put(`{"enum":["post","bike","ship"]}`, "If-Match", read.header.Get("ETag")), 412)
	wantStatus(t, "publish what is valid now", s.send("POST", "/v2/events", event(`"bike"`)), 201)
	wantDetail(t, "narrow it", put(`{"enum":["post"]}`), 409, `/properties/carrier/enum no longer allows "bike"`)
	wantDetail(t, "delete it", p.send("DELETE", target, ""), 409,
		"requested by subscriptions of program acme, and in the event log of program acme")
	wantStatus(t, "delete it, if it has not changed", p.send("DELETE", target, "", "If-Match", read.header.Get("ETag")), 412)

	wantDetail(t, "a built-in name", p.send("PUT", "/v2/event_types/content_updated", `{"schema":`+orderSchema("content_updated", `{}`)+`}`),
		409, "built-in")
	wantDetail(t, "delete a built-in type", p.send("DELETE", "/v2/event_types/content_updated", ""), 409, "built-in")
	wantFault(t, "a wrong name", p.send("PUT", "/v2/event_types/Order%20paid", `{"schema":`+orderSchema("Order paid", `{}`)+`}`), "invalid_format", "name")
	wantFault(t, "a wrong schema", p.send("PUT", target, `{"schema":{"type":"strnig"}}`), "invalid_value", "schema")
	wantStatus(t, "an unused type", p.send("PUT", "/v2/event_types/order.lost", `{"schema":`+orderSchema("order.lost", `{}`)+`}`), 201)
	wantStatus(t, "delete it", p.send("DELETE", "/v2/event_types/order.lost", ""), 200)
	wantStatus(t, "delete it again", p.send("DELETE", "/v2/event_types/order.lost", ""), 404)

	var got []string
	for _, e := range s.auditLog() {
		if strings.HasPrefix(string(e.Action), "event_type.") {
			got = append(got, string(e.Action)+" "+e.SubjectID)
			if e.Admin != "token:"+tokenID || e.ProgramID != "" || e.Address == "" {
				t.Errorf("got the entry %+v", e)
			}
		}
	}
	want := "event_type.create order.shipped, event_type.update order.shipped, event_type.create order.lost, event_type.delete order.lost"
	if strings.Join(got, ", ") != want {
		t.Errorf("the audit has %q, want %q", got, want)
	}
}

// Only a platform token may change event types; a program token learns nothing.
func TestEventTypesNeedAPlatformToken(t *testing.T) {
	s := start(t)
	for _, target := range []string{"/v2/event_types/order.shipped", "/v2/event_types/content_updated"} {
		for method, body := range map[string]string{"PUT": `{"schema":` + orderSchema("order.shipped", `{}`) + `}`, "DELETE": ""} {
			wantDetail(t, method+" "+target, s.send(method, target, body), 403, "lacks the scope platform")
			wantStatus(t, method+" "+target, s.send(method, target, body, "Authorization", ""), 401)
		}
	}
	if s.catalog.Has("order.shipped") {
		t.Error("the event type was created")
	}
}

// FuzzEventTypeBody sends any text as the body of a PUT of an event type.
func FuzzEventTypeBody(f *testing.F) {
	s := start(f)
	s, _ = s.asPlatform()
	for _, body := range []string{
		`{"schema":` + orderSchema("order.shipped", `{}`) + `}`, `{"schema":` + orderSchema("order.shipped", `{"type":"string"}`) + `}`,
		`{"schema":` + orderSchema("order.shipped", `{"$ref":"#"}`) + `}`, `{"schema":{}}`, `{"schema":true}`, `[]`, ``,
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequest("PUT", "/v2/event_types/order.shipped", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		answered(t, s, r)
	})
}

// The operator may remove the file of an event type that logs and subscriptions still contain.
// Lists can still be filtered by its name, and a subscription may keep it.
func TestRemovedEventType(t *testing.T) {
	s := start(t)
	for _, name := range []string{"order.shipped", "order.kept", "order.lost"} {
		s.defineEventType(name)
	}
	const subscriptions = "/v2/webhooks/subscriptions"
	r := s.send("POST", subscriptions, `{"url":"https://hooks.partner.example/in","events":[{"name":"order.shipped"},{"name":"order.kept"}]}`)
	wantStatus(t, "subscribe", r, 201)
	target := subscriptions + "/" + data[struct{ ID string }](t, r).ID
	wantStatus(t, "publish", s.send("POST", "/v2/events", `{"name":"order.shipped","version":"1"}`), 201)
	s.deliver(200, webhook.ErrorNone)
	for _, name := range []string{"order.shipped", "order.kept", "order.lost"} {
		s.catalog.Remove(name)
	}

	other := *s
	other.token = s.newToken("other", "oda", webhook.Scopes()...)
	for _, tt := range []struct {
		target, parameter string
		kept              int // records with order.kept
	}{
		{"/v2/events", "filter[name]", 0},
		{subscriptions, "filter[event]", 1},
		{target + "/deliveries", "filter[event]", 0},
		{"/v2/deliveries", "filter[event]", 0},
	} {
		list := func(names string) string { return tt.target + "?" + tt.parameter + "=" + names }
		for names, want := range map[string]int{"order.shipped": 1, "order.kept": tt.kept, "content_updated,order.shipped,order.kept": 1} {
			r := s.send("GET", list(names), "")
			if wantStatus(t, list(names), r, 200); len(data[[]json.RawMessage](t, r)) != want {
				t.Errorf("%s: got %s, want %d records", list(names), r.body, want)
			}
		}
		wantFault(t, list("order.lost"), s.send("GET", list("order.lost,order.shipped"), ""), "unknown_event", tt.parameter)
		if tt.target != target+"/deliveries" {
			wantFault(t, "in another program", other.send("GET", list("order.shipped"), ""), "unknown_event", tt.parameter)
		}
	}

	var record struct{ Data json.RawMessage }
	decode(t, s.send("GET", target, ""), &record)
	wantStatus(t, "send it back", s.send("PUT", target, string(record.Data)), 200)
	changed := strings.Replace(string(record.Data), `"description":""`, `"description":"mine"`, 1)
	wantStatus(t, "change another field", s.send("PUT", target, changed), 200)
	wantFault(t, "create another", s.send("POST", subscriptions,
		`{"url":"https://hooks.partner.example/2","events":[{"name":"order.shipped"}]}`), "unknown_event", "events[0].name")
	wantFault(t, "add one", s.send("PUT", target, `{"events":[{"name":"order.shipped"},{"name":"order.lost"}]}`),
		"unknown_event", "events[1].name")
	wantStatus(t, "keep one", s.send("PUT", target, `{"events":[{"name":"order.shipped"},{"name":"content_updated"}]}`), 200)
	wantFault(t, "take one back", s.send("PUT", target, changed), "unknown_event", "events[1].name")
	wantFault(t, "filter by it", s.send("GET", "/v2/events?filter[name]=order.kept", ""), "unknown_event", "filter[name]")
}

package api

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"service/store"
	"service/webhook"
)

// Every validation error of an event, alone and in a batch.
func TestEventFields(t *testing.T) {
	s := start(t)
	for _, test := range []struct{ event, code, parameter string }{
		{`{"version":"1","content_id":7}`, "required", "name"},
		{`{"name":7,"version":"1","content_id":7}`, "invalid_type", "name"},
		{`{"name":"content_updatet","version":"1","content_id":7}`, "unknown_event", "name"},
		{`{"name":"Content_updated","version":"1","content_id":7}`, "unknown_event", "name"},
		{`{"name":"","version":"1","content_id":7}`, "unknown_event", "name"},
		{`{"name":"ping","version":"1"}`, "invalid_value", "name"},
		{`{"name":"content_updated","content_id":7}`, "required", "version"},
		{`{"name":"content_updated","version":1,"content_id":7}`, "invalid_type", "version"},
		{`{"name":"content_updated","version":"2","content_id":7}`, "invalid_value", "version"},
		{`{"id":7,"name":"content_updated","version":"1","content_id":7}`, "invalid_type", "id"},
		{`{"id":null,"name":"content_updated","version":"1","content_id":7}`, "invalid_type", "id"},
		{`{"id":"7","name":"content_updated","version":"1","content_id":7}`, "invalid_format", "id"},
		{`{"id":"{0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5}","name":"content_updated","version":"1","content_id":7}`, "invalid_format", "id"},
		{`{"timestamp":7,"name":"content_updated","version":"1","content_id":7}`, "invalid_type", "timestamp"},
		{`{"timestamp":"yesterday","name":"content_updated","version":"1","content_id":7}`, "invalid_format", "timestamp"},
		{`{"timestamp":"2026-02-30T00:00:00Z","name":"content_updated","version":"1","content_id":7}`, "invalid_format", "timestamp"},
		{`{"timestamp":"2026-03-01T00:00:00+02:00","name":"content_updated","version":"1","content_id":7}`, "invalid_format", "timestamp"},
		{`{"name":"content_updated","version":"1"}`, "required", "content_id"},
		{`{"name":"content_updated","version":"1","content_id":"7"}`, "invalid_type", "content_id"},
		{`{"name":"content_updated","version":"1","content_id":7.5}`, "invalid_type", "content_id"},
		{`{"name":"content_updated","version":"1","content_id":null}`, "invalid_type", "content_id"},
		{`{"name":"content_updated","version":"1","content_id":9223372036854775808}`, "invalid_value", "content_id"},
		{`{"name":"content_updated","version":"1","content_id":7,"title":"x"}`, "unknown_field", "title"},
		{`{"name":"content_updated","version":"1","content_id":7,"seq":1}`, "unknown_field", "seq"},
		{`{"name":"content_updated","version":"1","content_id":7,"content_id":7}`, "duplicate", "content_id"},
		{`{"name":"content_updated","name":"content_updated","version":"1","content_id":7}`, "duplicate", "name"},
		{`{"name":"content_published","version":"1","content_id":7,"channel_ids":[1,"2"]}`, "invalid_type", "channel_ids[1]"},
		{`{"name":"campaign_push_message_sent","version":"1","campaign_id":1,"campaign_name":7}`, "invalid_type", "campaign_name"},
		{`{"name":"channel_created","version":"1","channel_id":1,"channel_name":"` + strings.Repeat("x", webhook.MaxEventBytes) + `"}`,
			"too_large", ""},
	} {
		name := test.event[:min(len(test.event), 100)]
		parameter, nested := test.parameter, "events[1]."+test.parameter
		if parameter == "" {
			parameter, nested = "body", "events[1]"
		}
		r := s.send("POST", "/v2/events", test.event)
		if parameter == "campaign_name" {
			// Other fields are missing too.
			if got := strings.Join(faults(t, r), ", "); r.status != 400 || !strings.Contains(got, "invalid_type campaign_name") {
				t.Errorf("%s: got %d %s", name, r.status, got)
			}
			continue
		}
		wantFault(t, name, r, test.code, parameter)
		wantFault(t, "in a batch: "+name, s.send("POST", "/v2/events", `{"events":[`+contentUpdated+`,`+test.event+`]}`), test.code, nested)
		wantFault(t, "in a stream: "+name, s.send("POST", "/v2/events", contentUpdated+"\n"+test.event, "Content-Type", "application/x-ndjson"),
			test.code, nested)
	}
	for _, test := range []struct{ body, code, parameter string }{
		{`{"events":[]}`, "required", "events"},
		{`{"events":{}}`, "invalid_type", "events"},
		{`{"events":null}`, "invalid_type", "events"},
		{`{"events":[7]}`, "invalid_type", "events[0]"},
		{`{"events":[` + contentUpdated + `],"atomic":true}`, "unknown_field", "atomic"},
		{`{"events":[` + strings.TrimSuffix(strings.Repeat(contentUpdated+",", 1001), ",") + `]}`, "too_many", "events"},
	} {
		wantFault(t, test.body[:min(len(test.body), 60)], s.send("POST", "/v2/events", test.body), test.code, test.parameter)
	}
	for _, body := range []string{`[` + contentUpdated + `]`, `7`} {
		r := s.send("POST", "/v2/events", body)
		wantBody(t, body, r, 400, `"detail":"The body must be a JSON object."}`)
	}
	r := s.send("POST", "/v2/events", `{"events":[`+strings.TrimSuffix(strings.Repeat(contentUpdated+",", 1000), ",")+`]}`)
	wantStatus(t, "a thousand", r, 201)
	if n := len(data[[]identified](t, r)); n != 1000 {
		t.Errorf("got %d records, want 1000", n)
	}
}

func TestBatchIsAllOrNothing(t *testing.T) {
	s := start(t)
	id := s.publishOne()
	taken := `{"id":"` + id + `","name":"content_updated","version":"1","content_id":8}`
	r := s.send("POST", "/v2/events", `{"events":[`+contentUpdated+`,`+taken+`]}`)
	wantStatus(t, "an id that is taken", r, 409)
	if !strings.Contains(r.body, id) {
		t.Errorf("the response lacks the id: %s", r.body)
	}
	if !strings.Contains(r.body, "events[1] was rejected") {
		t.Errorf("the response lacks the place: %s", r.body)
	}
	const other = `{"id":"0198f6a2-7c1e-7d4b-9a41-000000000001","name":"content_updated","version":"1","content_id":`
	r = s.send("POST", "/v2/events", `{"events":[`+contentUpdated+`,`+other+`1},`+other+`1},`+other+`2}]}`)
	wantStatus(t, "an id twice", r, 409)
	if !strings.Contains(r.body, "events[1] and events[3] have the same id") {
		t.Errorf("the response lacks the two places: %s", r.body)
	}
	wantStatus(t, "one bad event", s.send("POST", "/v2/events", `{"events":[`+contentUpdated+`,{}]}`), 400)
	if n := len(data[[]identified](t, s.send("GET", "/v2/events", ""))); n != 1 {
		t.Errorf("got %d events, want only the first", n)
	}
}

func TestMalformedJSON(t *testing.T) {
	s := start(t)
	update := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated")
	for name, body := range map[string]string{
		"empty":                  " ",
		"cut off":                `{"name":"content_upd`,
		"not closed":             `{"name":"x"`,
		"closed twice":           `{"name":"x"}}`,
		"two values":             `{} {}`,
		"comma at the end":       `{"name":"x",}`,
		"single quotes":          `{'name':'x'}`,
		"no quotes":              `{name:"x"}`,
		"a comment":              `{} // x`,
		"NaN":                    `{"x":NaN}`,
		"leading zero":           `{"x":01}`,
		"hexadecimal":            `{"x":0x1}`,
		"not UTF-8":              "{\"x\":\"\xff\"}",
		"overlong UTF-8":         "{\"x\":\"\xc0\xaf\"}",
		"half a surrogate pair":  `{"x":"\ud800"}`,
		"control character":      "{\"x\":\"\x01\"}",
		"unknown escape":         `{"x":"\x41"}`,
		"BOM":                    "\ufeff{}",
		"UTF-16":                 "{\x00}\x00",
		"NUL":                    "{}\x00",
		"too deep":               strings.Repeat(`{"x":`, 40) + "1" + strings.Repeat("}", 40),
		"far too deep":           strings.Repeat("[", 1<<20),
		"words":                  "hello",
		"true in capitals":       `{"x":True}`,
		"form":                   "name=content_updated&version=1",
		"number as name":         `{1:2}`,
		"unescaped line feed":    "{\"x\":\"a\nb\"}",
		"lines where JSON is to": contentUpdated + "\n" + contentUpdated,
	} {
		for _, target := range []struct{ method, path string }{{"POST", "/v2/events"}, {"POST", "/v2/webhooks/subscriptions"}, {"PUT", update}} {
			r := s.send(target.method, target.path, body)
			e, _ := errorOf(r)
			if r.status != 400 || !strings.HasPrefix(e.Detail, "The body is not valid JSON: line ") {
				t.Errorf("%s: %s %s: got %d %s", name, target.method, target.path, r.status, r.body)
			}
		}
		if name == "empty" || name == "far too deep" || strings.Contains(body, "\n") { // no line at all, too long a line, two lines
			continue
		}
		wantFault(t, "a line: "+name, s.send("POST", "/v2/events", body, "Content-Type", "application/x-ndjson"), "invalid_format", "events[0]")
	}
}

func TestMediaTypes(t *testing.T) {
	s := start(t)
	for _, test := range []struct {
		headers []string
		want    int
	}{
		{[]string{"Content-Type", "application/json"}, 201},
		{[]string{"Content-Type", "application/json;charset=UTF-8"}, 201},
		{[]string{"Content-Type", "Application/JSON"}, 201},
		{[]string{"Content-Type", "application/x-ndjson"}, 201},
		{[]string{"Content-Type", "application/x-ndjson; charset=utf-8"}, 201},
		{[]string{"Content-Type", "application/json", "Content-Encoding", "identity"}, 201},
		{[]string{"Content-Type", ""}, 415},
		{[]string{"Content-Type", "text/plain"}, 415},
		{[]string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		{[]string{"Content-Type", "application/json, text/plain"}, 415},
		{[]string{"Content-Type", "application/json;;"}, 415},
		{[]string{"Content-Type", "application/json; charset=latin1"}, 415},
		{[]string{"Content-Type", "application/xml"}, 415},
		{[]string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 415},
	} {
		wantStatus(t, strings.Join(test.headers, " "), s.send("POST", "/v2/events", contentUpdated, test.headers...), test.want)
	}
	wantStatus(t, "lines for a subscription", s.send("POST", "/v2/webhooks/subscriptions", fields(nil), "Content-Type",
		"application/x-ndjson"), 415)
	r := s.request("POST", "/v2/events", strings.NewReader(contentUpdated))
	r.Header["Content-Type"] = []string{"application/json", "application/json"}
	wantStatus(t, "two headers", s.serve(r), 415)
}

func TestTooLargeBodies(t *testing.T) {
	s := start(t)
	batch := `{"events":[` + contentUpdated + strings.Repeat(" ", webhook.MaxBodyBytes-len(contentUpdated)-13) + `]}`
	for _, test := range []struct {
		body string
		want int
	}{{batch, 201}, {batch + " ", 413}, {batch + strings.Repeat(" ", 1<<20), 413}} {
		wantStatus(t, fmt.Sprint(len(test.body), " bytes"), s.send("POST", "/v2/events", test.body), test.want)
		r := s.request("POST", "/v2/events", io.MultiReader(strings.NewReader(test.body))) // of unknown length
		wantStatus(t, fmt.Sprint(len(test.body), " bytes of no known length"), s.serve(r), test.want)
	}
}

// TestEventIDInCapitals checks that an event is found by the ID as its publisher wrote it.
func TestEventIDInCapitals(t *testing.T) {
	s := start(t)
	const id = "A03B938A-AEAA-4FEA-A25F-6DB74DE4AD99"
	wantStatus(t, "publish", s.send("POST", "/v2/events",
		`{"id":"`+id+`","name":"content_updated","version":"1","content_id":7}`), 201)
	for _, path := range []string{id, strings.ToLower(id), id + "/deliveries"} {
		wantStatus(t, path, s.send("GET", "/v2/events/"+path, ""), 200)
	}
}

// The event of a delivery can be had from each record of it, whatever its fields contain.
func TestDeliveredEvent(t *testing.T) {
	for _, event := range []string{
		`{"id":"a","name":"n"}`, `{"id":"a", "x":{"y" : 1e2,"é":"\u00e9"}}`, `{"text":",\"seq\":7,","seq":7,"seq_":{"a":1,"seq":8}}`,
		`{"a":1,"seq":1,"received_at":"2026-03-14T08:24:57.901Z","delivery_status":"none"}`,
	} {
		e := webhook.Event{JSON: []byte(event), Seq: 12, ReceivedAt: time.Now()}
		page := &store.LogPage{Events: []webhook.Event{e}}
		page.Statuses = append(page.Statuses, "waiting")
		for _, record := range [][]byte{eventRecord{&e}.appendJSON(nil), logRecords{page}.append(nil, 0)} {
			if !json.Valid(record) {
				t.Errorf("%s is not JSON", record)
			}
			if got, ok := DeliveredEvent(record); !ok || string(got) != event {
				t.Errorf("%s: got %s, %t, want %s", record, got, ok, event)
			}
		}
	}
	if got, ok := DeliveredEvent([]byte(`{"id":"a"}`)); ok {
		t.Errorf("got %s of another record", got)
	}
}

package webhook

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// subscriptionFieldTests are values of one field in an otherwise valid request.
var subscriptionFieldTests = []struct {
	field, value    string
	code, parameter string // "" if it is valid
}{
	{"url", `null`, InvalidType, "url"},
	{"url", `5`, InvalidType, "url"},
	{"url", `["https://example.com"]`, InvalidType, "url"},
	{"url", `""`, InvalidRequired, "url"},
	{"url", `"example.com/hook"`, InvalidFormat, "url"},
	{"url", `"/hook"`, InvalidFormat, "url"},
	{"url", `"//example.com/hook"`, InvalidFormat, "url"},
	{"url", `"https:///hook"`, InvalidFormat, "url"},
	{"url", `"https:example.com"`, InvalidFormat, "url"},
	{"url", `"https://:443/"`, InvalidFormat, "url"},
	{"url", `"http://example.com/hook"`, InvalidFormat, "url"},
	{"url", `"ftp://example.com/hook"`, InvalidFormat, "url"},
	{"url", `"file:///etc/passwd"`, InvalidFormat, "url"},
	{"url", `"javascript:alert(1)"`, InvalidFormat, "url"},
	{"url", `"https://user@example.com"`, InvalidFormat, "url"},
	{"url", `"https://user:secret@example.com"`, InvalidFormat, "url"},
	{"url", `"https://@example.com"`, InvalidFormat, "url"},
	{"url", `"https://example.com/#f"`, InvalidFormat, "url"},
	{"url", `"https://example.com/#"`, InvalidFormat, "url"},
	{"url", `"https://example.com:0/"`, InvalidFormat, "url"},
	{"url", `"https://example.com:65536/"`, InvalidFormat, "url"},
	{"url", `"https://example.com:/"`, InvalidFormat, "url"},
	{"url", `"https://example.com:x/"`, InvalidFormat, "url"},
	{"url", `"https://exa mple.com/"`, InvalidFormat, "url"},
	{"url", `" https://example.com/"`, InvalidFormat, "url"},
	{"url", `"https://example.com/a b"`, InvalidFormat, "url"},
	{"url", `"https://example.com/\n"`, InvalidFormat, "url"},
	{"url", `"https://example.com/\u0000"`, InvalidFormat, "url"},
	{"url", `"https://example.com\\@evil.example/"`, InvalidFormat, "url"},
	{"url", `"https://example.com/%zz"`, InvalidFormat, "url"},
	{"url", `"https://[::1"`, InvalidFormat, "url"},
	{"url", `"https://a..example.com/"`, InvalidFormat, "url"},
	{"url", `"https://.example.com/"`, InvalidFormat, "url"},
	{"url", `"https://example.com../"`, InvalidFormat, "url"},
	{"url", `"https://./"`, InvalidFormat, "url"},
	{"url", `"https://example.com./"`, "", ""},
	{"url", `"https://` + repeatX(63) + `.example.com/"`, "", ""},
	{"url", `"https://` + repeatX(64) + `.example.com/"`, InvalidFormat, "url"},
	{"url", `"https://` + strings.Repeat(repeatX(49)+".", 5) + `com/"`, "", ""},
	{"url", `"https://` + strings.Repeat(repeatX(49)+".", 5) + `comm/"`, InvalidFormat, "url"},
	{"url", `"https://127.0.0.1/"`, InvalidBlockedDestination, "url"},
	{"url", `"https://[::1]:8443/"`, InvalidBlockedDestination, "url"},
	{"url", `"https://localhost/"`, InvalidBlockedDestination, "url"},
	{"url", `"https://169.254.169.254/latest"`, InvalidBlockedDestination, "url"},
	{"url", `"https://example.com/` + repeatX(MaxURLBytes-20) + `"`, "", ""},
	{"url", `"https://example.com/` + repeatX(MaxURLBytes-19) + `"`, InvalidTooLong, "url"},
	{"url", `"HTTPS://Example.COM:8443/a%20b?c=d&e=%23"`, "", ""},
	{"url", `"https://[2606:4700:4700::1111]/"`, "", ""},

	{"events", `null`, InvalidType, "events"},
	{"events", `"ping"`, InvalidType, "events"},
	{"events", `{"name":"ping"}`, InvalidType, "events"},
	{"events", `[]`, InvalidRequired, "events"},
	{"events", `["ping"]`, InvalidType, "events[0]"},
	{"events", `[{"name":"ping"},null]`, InvalidType, "events[1]"},
	{"events", `[{}]`, InvalidRequired, "events[0].name"},
	{"events", `[{"version":"1"}]`, InvalidRequired, "events[0].name"},
	{"events", `[{"name":null}]`, InvalidType, "events[0].name"},
	{"events", `[{"name":7}]`, InvalidType, "events[0].name"},
	{"url", `"https://example.com/?q=ä"`, InvalidFormat, "url"},
	{"url", `"https://exämple.com/"`, InvalidFormat, "url"},
	{"events", `[{"name":""}]`, InvalidRequired, "events[0].name"},
	{"events", `[{"name":"Ping"}]`, InvalidUnknownEvent, "events[0].name"},
	{"events", `[{"name":"ping"},{"name":"content_exploded"}]`, InvalidUnknownEvent, "events[1].name"},
	{"events", `[{"name":"ping"},{"name":"ping"}]`, InvalidDuplicate, "events[1].name"},
	{"events", `[{"name":"ping","name":"ping"}]`, InvalidDuplicate, "events[0].name"},
	{"events", `[{"name":"ping","Name":"ping"}]`, InvalidUnknownField, "events[0].Name"},
	{"events", `[{"name":"ping","version":1}]`, InvalidType, "events[0].version"},
	{"events", `[{"name":"ping","version":null}]`, InvalidType, "events[0].version"},
	{"events", `[{"name":"ping","version":"2"}]`, InvalidValue, "events[0].version"},
	{"events", `[{"name":"ping","version":"1"}]`, "", ""},
	{"events", eventList(len(specEvents)), "", ""},
	{"events", eventList(MaxSubscriptionEvents + 1), InvalidTooMany, "events"},
	{"events", eventList(100000), InvalidTooMany, "events"},

	{"authorization_header", `5`, InvalidType, "authorization_header"},
	{"authorization_header", `false`, InvalidType, "authorization_header"},
	{"authorization_header", `""`, InvalidValue, "authorization_header"},
	{"authorization_header", `"Bearer a\r\nX-Other: b"`, InvalidFormat, "authorization_header"},
	{"authorization_header", `"Bearer\ta"`, InvalidFormat, "authorization_header"},
	{"authorization_header", `"Bearer a\u0000"`, InvalidFormat, "authorization_header"},
	{"authorization_header", `"Bearer a\u007f"`, InvalidFormat, "authorization_header"},
	{"authorization_header", `"Bearer a\u0085"`, InvalidFormat, "authorization_header"},
	{"authorization_header", `" Bearer a"`, InvalidFormat, "authorization_header"},
	{"authorization_header", `"Bearer a "`, InvalidFormat, "authorization_header"},
	{"authorization_header", `"` + repeatX(MaxAuthorizationHeaderBytes+1) + `"`, InvalidTooLong, "authorization_header"},
	{"authorization_header", `"` + repeatX(MaxAuthorizationHeaderBytes) + `"`, "", ""},
	{"authorization_header", `"Bearer  ä€😀\"\\"`, "", ""},
	{"authorization_header", `null`, "", ""},

	{"description", `null`, InvalidType, "description"},
	{"description", `{}`, InvalidType, "description"},
	{"description", `"` + repeatX(MaxDescriptionBytes+1) + `"`, InvalidTooLong, "description"},
	{"description", `"` + repeatX(MaxDescriptionBytes) + `"`, "", ""},
	{"description", `""`, "", ""},

	{"active", `null`, InvalidType, "active"},
	{"active", `"true"`, InvalidType, "active"},
	{"active", `1`, InvalidType, "active"},
	{"active", `false`, "", ""},
	{"ordered", `null`, InvalidType, "ordered"},
	{"ordered", `"false"`, InvalidType, "ordered"},
	{"ordered", `0`, InvalidType, "ordered"},
	{"ordered", `true`, "", ""},

	{"max_in_flight", `null`, InvalidType, "max_in_flight"},
	{"max_in_flight", `"8"`, InvalidType, "max_in_flight"},
	{"max_in_flight", `8.0`, InvalidType, "max_in_flight"},
	{"max_in_flight", `1e1`, InvalidType, "max_in_flight"},
	{"max_in_flight", `true`, InvalidType, "max_in_flight"},
	{"max_in_flight", `-1`, InvalidValue, "max_in_flight"},
	{"max_in_flight", `257`, InvalidValue, "max_in_flight"},
	{"max_in_flight", `4294967304`, InvalidValue, "max_in_flight"}, // its lower 32 bits are 8
	{"max_in_flight", `99999999999999999999`, InvalidValue, "max_in_flight"},
	{"max_in_flight", `1e999999999`, InvalidValue, "max_in_flight"},
	{"max_in_flight", `0`, "", ""},
	{"max_in_flight", `256`, "", ""},
	{"max_per_second", `null`, "", ""},
	{"max_per_second", `0.1`, "", ""},
	{"max_per_second", `1e3`, "", ""},
	{"max_per_second", `0`, InvalidValue, "max_per_second"},
	{"max_per_second", `-0.0`, InvalidValue, "max_per_second"},
	{"max_per_second", `0.099`, InvalidValue, "max_per_second"},
	{"max_per_second", `1000.5`, InvalidValue, "max_per_second"},
	{"max_per_second", `1e400`, InvalidValue, "max_per_second"},
	{"max_per_second", `"1"`, InvalidType, "max_per_second"},
	{"max_per_second", `true`, InvalidType, "max_per_second"},
	{"max_events", `null`, "", ""},
	{"max_events", `0`, "", ""},
	{"max_events", `1`, "", ""},
	{"max_events", `1000`, "", ""},
	{"max_events", `1001`, InvalidValue, "max_events"},
	{"max_events", `-1`, InvalidValue, "max_events"},
	{"max_events", `4294967297`, InvalidValue, "max_events"}, // its lower 32 bits are 1
	{"max_events", `99999999999999999999`, InvalidValue, "max_events"},
	{"max_events", `1.0`, InvalidType, "max_events"},
	{"max_events", `1e2`, InvalidType, "max_events"},
	{"max_events", `"1"`, InvalidType, "max_events"},
	{"max_events", `true`, InvalidType, "max_events"},
	{"max_events", `[]`, InvalidType, "max_events"},

	{"URL", `"https://example.com"`, InvalidUnknownField, "URL"},
	{"event", `[]`, InvalidUnknownField, "event"},
	{"program_id", `"acme"`, InvalidUnknownField, "program_id"},
}

// eventList returns the JSON of n events of a subscription.
func eventList(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"name":"%s"},`, specEvents[i%len(specEvents)])
	}
	return "[" + strings.TrimSuffix(b.String(), ",") + "]"
}

func repeatX(n int) string { return strings.Repeat("x", n) }

func TestSubscriptionFields(t *testing.T) {
	rules := &SubscriptionRules{Catalog: testCatalog(t)}
	httpToo := &SubscriptionRules{Catalog: rules.Catalog, AllowHTTP: true}
	for _, test := range subscriptionFieldTests {
		fields := map[string]string{"url": `"https://example.com/hook"`, "events": `[{"name":"ping"}]`}
		fields[test.field] = test.value
		var b strings.Builder
		for name, value := range fields {
			fmt.Fprintf(&b, "%q:%s,", name, value)
		}
		create := "{" + strings.TrimSuffix(b.String(), ",") + "}"
		update := fmt.Sprintf("{%q:%s}", test.field, test.value)
		for _, raw := range []string{create, update} {
			_, err := rules.Parse([]byte(raw), raw == create)
			if test.code == "" && err != nil || test.code != "" && !only(err, test.code, test.parameter) {
				t.Errorf("%.200s:\ngot %v, want %q for %q", raw, err, test.code, test.parameter)
			}
		}
		// A duplicate field, whatever its values.
		if _, err := rules.Parse(fmt.Appendf(nil, `{%q:1,%[1]q:2}`, test.field), false); !only(err, InvalidDuplicate, test.field) {
			t.Errorf("%s twice: got %v", test.field, err)
		}
	}

	if _, err := httpToo.Parse([]byte(`{"url":"http://example.com"}`), false); err != nil {
		t.Errorf("http with AllowHTTP: %v", err)
	}
	if _, err := httpToo.Parse([]byte(`{"url":"ftp://example.com"}`), false); !only(err, InvalidFormat, "url") ||
		err.Validations[0].Detail != "must begin with https:// or http://" {
		t.Errorf("ftp with AllowHTTP: got %v", err)
	}
	for url, want := range map[string]string{
		"http://127.0.0.1:9000/": ", or start the service with --allow-http --allow-destination 127.0.0.0/8",
		"http://localhost/":      ", or start the service with --allow-http --allow-destination 127.0.0.0/8",
		"https://[::1]/":         ", or start the service with --allow-destination ::1",
		"https://10.1.2.3/":      ", or start the service with --allow-destination 10.1.2.3",
		"http://example.com/":    ", or start the service with --allow-http",
		"ftp://example.com/":     "must begin with https://",
	} {
		own := SubscriptionRules{Catalog: rules.Catalog, ShowFlags: true}
		if v := own.CheckURL(url); len(v) != 1 || !strings.HasSuffix(v[0].Detail, want) {
			t.Errorf("%s: got %v, want %q", url, v, want)
		}
		if v := rules.CheckURL(url); len(v) != 1 || strings.Contains(v[0].Detail, "--") {
			t.Errorf("%s for a partner elsewhere: got %v", url, v)
		}
	}
	if _, err := rules.Parse([]byte(`{"events":[{"name":"ping"}]}`), true); !only(err, InvalidRequired, "url") {
		t.Errorf("without url: got %v", err)
	}
	if _, err := rules.Parse([]byte(`{"url":"https://example.com"}`), true); !only(err, InvalidRequired, "events") {
		t.Errorf("without events: got %v", err)
	}
}

func TestParseSubscription(t *testing.T) {
	rules := &SubscriptionRules{Catalog: testCatalog(t)}
	f, err := rules.Parse([]byte(` { "url" : "https:\/\/example.com/h\u006fok",
		"events":[{"version":"1","name":"content_published"},{"name":"ping"}],
		"authorization_header":"Bearer \u0061", "description":"d", "active":false, "ordered":true, "max_in_flight":12,
		"max_per_second":0.5, "max_events":7 } `), true)
	if err != nil {
		t.Fatal(err)
	}
	got := []any{*f.URL, *f.Events, **f.AuthorizationHeader, *f.Description, *f.Active, *f.Ordered, *f.MaxInFlight, *f.MaxPerSecond,
		*f.MaxEvents}
	want := []any{"https://example.com/hook", []string{"content_published", "ping"}, "Bearer a", "d", false, true, 12, 0.5, 7}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	f, err = rules.Parse([]byte(`{}`), false)
	if err != nil || !reflect.DeepEqual(f, SubscriptionFields{}) {
		t.Errorf("empty update: got %+v (%v)", f, err)
	}
	for value, want := range map[string]int{"null": 0, "0": 0, "1000": 1000} {
		f, err = rules.Parse([]byte(`{"max_events":`+value+`}`), false)
		if err != nil || f.MaxEvents == nil || *f.MaxEvents != want {
			t.Errorf("max_events %s: got %+v (%v)", value, f, err)
		}
	}
	f, err = rules.Parse([]byte(`{"authorization_header":null}`), false)
	if err != nil || f.AuthorizationHeader == nil || *f.AuthorizationHeader != nil {
		t.Errorf("removal of authorization_header: got %+v (%v)", f, err)
	}
	for _, raw := range []string{`[]`, `null`, `"x"`, `5`} {
		if _, err := rules.Parse([]byte(raw), true); err == nil || err.Error() != "The body must be a JSON object." {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, err := rules.Parse([]byte(`{"url":}`), true); err == nil || err.Code != CodeInvalid ||
		err.Error() != "The body is not valid JSON: line 1, column 8: unexpected '}'." {
		t.Errorf("malformed: got %v", err)
	}
}

// An update ignores read-only fields of a record that is sent back; a creation
// rejects them.
func TestSubscriptionReadOnlyFields(t *testing.T) {
	rules := &SubscriptionRules{Catalog: testCatalog(t)}
	for _, field := range readOnlyFields {
		raw := fmt.Appendf(nil, `{"url":"https://example.com","events":[{"name":"ping"}],%q:"x"}`, field)
		if _, err := rules.Parse(raw, true); !only(err, InvalidUnknownField, field) {
			t.Errorf("%s: create: got %v, want an unknown field", field, err)
		}
		f, err := rules.Parse(raw, false)
		if err != nil || (f.ID != nil) != (field == "id") {
			t.Errorf("%s: update: got %+v, %v", field, f, err)
		}
	}
	secret := NewSigningSecret().Reveal()
	f, err := rules.Parse([]byte(`{"url":"https://example.com","events":[{"name":"ping"}],"signing_secret":"`+secret+`"}`), true)
	if err != nil || f.SigningSecret.Reveal() != secret {
		t.Errorf("create with a secret: %v", err)
	}
	if f, err = rules.Parse([]byte(`{"signing_secret":"`+secret+`"}`), false); err != nil || f.SigningSecret.Reveal() != secret {
		t.Errorf("update with a secret: %+v, %v", f, err)
	}
	if _, err = rules.Parse([]byte(`{"signing_secret":"x"}`), false); !only(err, InvalidValue, "signing_secret") {
		t.Errorf("update with a malformed secret: %v", err)
	}
}

// All errors are reported at once, each once.
func TestSubscriptionReportsAllErrors(t *testing.T) {
	rules := &SubscriptionRules{Catalog: testCatalog(t)}
	_, err := rules.Parse([]byte(`{"description":5,"x":1,"url":7,"max_in_flight":1000,
		"events":[{"name":"nope"},5,{"name":7},{},{"name":"ping","version":"2"},{"name":"ping","x":1}],"authorization_header":" "}`), true)
	if err == nil {
		t.Fatal("got no error")
	}
	var got []string
	for _, v := range err.Validations {
		got = append(got, v.Parameter+" "+v.Code)
	}
	want := []string{
		"description invalid_type", "x unknown_field", "url invalid_type",
		"events[1] invalid_type", "events[2].name invalid_type", "events[3].name required", "events[4].version invalid_value",
		"events[5].x unknown_field",
		"events[0].name unknown_event", "events[5].name duplicate",
		"authorization_header invalid_format", "max_in_flight invalid_value",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
}

// No error repeats a value that may be secret.
func TestSubscriptionErrorsContainNoSecret(t *testing.T) {
	rules := &SubscriptionRules{Catalog: testCatalog(t)}
	for _, raw := range []string{
		`{"authorization_header":"Bearer hunter2 "}`, `{"authorization_header":["hunter2"]}`, `{"authorization_header":"hunter2` + "\n" + `"}`,
		`{"url":"https://user:hunter2@example.com"}`, `{"authorization_header":"hunter2\u0001"}`,
		`{"authorization_header":"hunter2","authorization_header":"hunter2"}`,
	} {
		if _, err := rules.Parse([]byte(raw), false); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v", raw, err)
		}
	}
}

func FuzzParseSubscription(f *testing.F) {
	rules := &SubscriptionRules{Catalog: testCatalog(f)}
	f.Add([]byte(`{"url":"https://example.com/hook","events":[{"name":"content_published","version":"1"}],` +
		`"authorization_header":"Bearer a","description":"d","active":true,"ordered":false,"max_in_flight":8,"max_events":8}`))
	f.Add([]byte(`{"url":"https://[::1]:443/\u0061?b#c","events":[{},5],"authorization_header":null}`))
	f.Add([]byte(`{"url":5,"events":[{"name":1e999999999}],"x":"\ud800"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		fields, err := rules.Parse(raw, true)
		if err == nil {
			if fields.URL == nil || fields.Events == nil || len(rules.Check(&fields, true)) > 0 {
				t.Fatalf("got fields accepted that break the rules: %+v", fields)
			}
			if h := fields.AuthorizationHeader; h != nil && *h != nil && strings.ContainsAny(**h, "\r\n\x00") {
				t.Fatalf("got a header accepted that HTTP cannot carry: %q", **h)
			}
			return
		}
		if err.Detail == "" || err.Code != CodeInvalid || len(err.Validations) > maxValidations {
			t.Fatalf("got a malformed error: %#v", err)
		}
		seen := make(map[Validation]bool)
		for _, v := range err.Validations {
			if v.Code == "" || v.Detail == "" || seen[v] {
				t.Fatalf("got an incomplete or duplicate validation: %#v", v)
			}
			seen[v] = true
		}
	})
}

func TestEndpoint(t *testing.T) {
	for _, tt := range []struct{ raw, host, path, whole string }{
		{"https://a.example", "a.example", "", "https://a.example"},
		{"https://a.example/", "a.example", "", "https://a.example/"},
		{"https://a.example:8443/x%2Fy?key=secret", "a.example:8443", "/x%2Fy", "https://a.example:8443/x%2Fy?…"},
		{"https://[2001:db8::1]/x", "[2001:db8::1]", "/x", "https://[2001:db8::1]/x"},
		{"", "", "", ""},
		{"::", "::", "", "::"},
	} {
		host, path, whole := Endpoint(tt.raw)
		if host != tt.host || path != tt.path || whole != tt.whole {
			t.Errorf("endpoint(%q): got %q, %q, %q", tt.raw, host, path, whole)
		}
	}
}

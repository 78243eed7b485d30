package webhook

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// shipped is orderShipped with another name.
func shipped(name string) string { return strings.ReplaceAll(orderShipped, "order_shipped", name) }

func TestEventNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "order": true, "order.shipped": true, "order_2.shipped.3": true, "a._": true, "order.json": true,
		"a.": true, "a..b": true, "1a": true, "A": true, "a-b": true, "a:b": true, "invoice.payment_failed": true, "PullRequest:opened-v2": true,
		strings.Repeat("a", 128): true, strings.Repeat("a", 63) + "." + strings.Repeat("b", 64): true,
		"": false, ".": false, ".a": false, "_a": false, "-a": false, ":a": false, "a b": false, "a/b": false, "a,b": false, "a%": false,
		"a\n": false, "ä": false, strings.Repeat("a", 129): false, strings.Repeat("a", 64) + "." + strings.Repeat("b", 64): false,
	} {
		if IsEventName(name) != ok {
			t.Errorf("%q: want %t", name, ok)
		}
		_, err := NewEventType(t.Context(), name, []byte(shipped(name)))
		if (err == nil) != ok {
			t.Errorf("%q: got %v, want it accepted %t", name, err, ok)
		}
		if _, err := LoadCatalog(SchemaFile{name + ".json", []byte(shipped(name))}); (err == nil) != ok {
			t.Errorf("file %q: got %v, want it accepted %t", name, err, ok)
		}
	}
}

// Everything that a file must have, an event type over the API must have.
func TestParseEventType(t *testing.T) {
	const name = "order.shipped"
	schema := shipped(name)
	for _, test := range []struct{ body, code, parameter, detail string }{
		{`{"schema":` + schema + `}`, "", "", ""},
		{`{"name":"order.shipped","version":"1","source":"api","title":"x","description":1,"schema":` + schema + `,"example":null}`, "", "", ""},
		{`{"name":"order_shipped","schema":` + schema + `}`, InvalidValue, "name", "must be the name in the URL"},
		{`{"name":7,"schema":` + schema + `}`, InvalidValue, "name", "must be the name in the URL"},
		{`{}`, InvalidRequired, "schema", "is required"},
		{`{"schema":true}`, InvalidType, "schema", "must be a JSON Schema, an object"},
		{`{"schema":"{}"}`, InvalidType, "schema", "must be a JSON Schema, an object"},
		{`{"schema":` + schema + `,"colour":"red"}`, InvalidUnknownField, "colour", "it has: schema"},
		{`{"schema":{}}`, InvalidValue, "schema", "must have a title, a description and at least one example"},
		{`{"schema":` + orderShipped + `}`, InvalidValue, "schema", "the schema must define the field name like every event"},
		{`{"schema":` + strings.Replace(schema, `"additionalProperties": false`, `"additionalProperties": true`, 1) + `}`,
			InvalidValue, "schema", `add "additionalProperties": false`},
		{`{"schema":` + strings.Replace(schema, `{ "enum": ["post", "bike"] }`, `{ "$ref": "file:///etc/passwd" }`, 1) + `}`,
			InvalidValue, "schema", "cannot refer to another file"},
		{`{"schema":` + strings.Replace(schema, `{ "enum": ["post", "bike"] }`, `{ "type": "strnig" }`, 1) + `}`,
			InvalidValue, "schema", "is not a usable schema"},
		{`{"schema":` + strings.Replace(schema, `"Order shipped"`, `"`+strings.Repeat("x", MaxEventTypeBytes)+`"`, 1) + `}`,
			InvalidTooLong, "schema", "must be at most 1048576 bytes"},
	} {
		et, err := ParseEventType(t.Context(), name, []byte(test.body))
		if test.code == "" {
			if err != nil || et.Name != name || et.Source != SourceAPI || et.Title != "Order shipped" {
				t.Errorf("%.100s: got %+v, %v", test.body, et, err)
			}
			continue
		}
		if !only(err, test.code, test.parameter) || !strings.Contains(err.Error(), test.detail) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.100s:\n got %v\nwant %s %s: %s", test.body, err, test.code, test.parameter, test.detail)
		}
	}
	for _, body := range []string{``, `[]`, `null`, `{"schema":{},"schema":{}}`, `{"schema":{}} x`} {
		if _, err := ParseEventType(t.Context(), name, []byte(body)); err == nil || err.Code != CodeInvalid {
			t.Errorf("%s: got %v", body, err)
		}
	}
	if _, err := ParseEventType(t.Context(), "Order shipped", []byte(`{"schema":`+schema+`}`)); !only(err, InvalidFormat, "name") {
		t.Errorf("a wrong name: got %v", err)
	}
}

func TestCheckChange(t *testing.T) {
	newType := func(schema string) *EventType {
		t.Helper()
		et, err := NewEventType(t.Context(), "order.shipped", []byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		return et
	}
	schema := shipped("order.shipped")
	before := newType(schema)
	if err := before.CheckChange(nil); err != nil {
		t.Errorf("new: %v", err)
	}
	wider := newType(strings.NewReplacer(`["post", "bike"]`, `["post", "bike", "drone"]`,
		`"order_id": {`, `"weight": {"type": "number"}, "order_id": {`).Replace(schema))
	if err := wider.CheckChange(before); err != nil {
		t.Errorf("wider: %v", err)
	}
	err := before.CheckChange(wider)
	if err == nil || err.Code != CodeConflict || !strings.Contains(err.Detail, `/properties/carrier/enum no longer allows "drone"`) ||
		!strings.Contains(err.Detail, "/properties/weight was removed") {
		t.Errorf("narrower: got %v", err)
	}
	c := testCatalog(t, SchemaFile{"order.shipped.json", []byte(schema)})
	for name, detail := range map[string]string{
		"order.shipped": "event_types/order.shipped.json", "ping": "built-in", "content_updated": "built-in",
	} {
		et, _ := c.Type(name)
		if err := wider.CheckChange(et); err == nil || err.Code != CodeConflict || !strings.Contains(err.Detail, detail) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Schemas whose references multiply are refused, wherever they come from, before they
// can make the check of an event take hours.
func TestSchemaWork(t *testing.T) {
	chain := func(format string, n int) string {
		var defs []string
		for i := range n {
			defs = append(defs, fmt.Sprintf(`"a%d":`+format, i, fmt.Sprintf(`{"$ref":"#/$defs/a%d"}`, i+1)))
		}
		return strings.Join(defs, ",") + fmt.Sprintf(`,"a%d":{"type":"string"}`, n)
	}
	for _, test := range []struct {
		name, carrier, defs string
		ok                  bool
	}{
		{"many alternatives", `{"anyOf":[{"const":"bike"},` + listOf(1000, `{"const":"%d"}`) + `]}`, `"a":{}`, true},
		{"a chain", `{"$ref":"#/$defs/a0"}`, chain(`%s`, 1000), true},
		{"a tree", `{"anyOf":[{"const":"bike"},{"$ref":"#/$defs/a"}]}`,
			`"a":{"type":"object","properties":{"left":{"$ref":"#/$defs/a"},"right":{"$ref":"#/$defs/a"},"all":{"items":{"$ref":"#/$defs/a"}}}}`, true},
		{"doubling", `{"$ref":"#/$defs/a0"}`, chain(`{"allOf":[%s,%[2]s]}`, 30), false},
		{"doubling deeper in the event", `{"anyOf":[{"const":"bike"},{"$ref":"#/$defs/a"}]}`,
			`"a":{"allOf":[{"properties":{"x":{"$ref":"#/$defs/a"}}},{"properties":{"x":{"$ref":"#/$defs/a"}}}]}`, false},
		{"without end", `{"anyOf":[{"const":"bike"},{"$ref":"#/$defs/a"}]}`, `"a":{"$ref":"#/$defs/a"}`, false},
		{"wide", `{"anyOf":[{"const":"bike"},{"$ref":"#/$defs/a0"}]}`,
			chain(`{"properties":{"p":%s,"q":%[2]s,"r":%[2]s,"s":%[2]s,"t":%[2]s,"u":%[2]s,"v":%[2]s,"w":%[2]s}}`, 14), true},
	} {
		schema := []byte(withCarrier(test.carrier, test.defs))
		_, err := NewEventType(t.Context(), "order_shipped", schema)
		if (err == nil) != test.ok || err != nil && !strings.Contains(err.Error(), "too complex") {
			t.Errorf("%s: got %v, want it accepted %t", test.name, err, test.ok)
		}
		if _, err := LoadCatalog(SchemaFile{"order_shipped.json", schema}); (err == nil) != test.ok {
			t.Errorf("%s in a file: got %v, want it accepted %t", test.name, err, test.ok)
		}
	}
}

// Readers of a catalog see each change at once and never half of it. They check events concurrently.
func TestCatalogChanges(t *testing.T) {
	builtIn := testCatalog(t).Types()
	c := NewCatalog(builtIn...)
	et, invalid := NewEventType(t.Context(), "order.shipped", []byte(shipped("order.shipped")))
	if invalid != nil {
		t.Fatal(invalid)
	}
	et.ID = 7
	n, version := len(c.Types()), c.Version()
	var readers sync.WaitGroup
	var stop atomic.Bool
	until := func(read func()) {
		readers.Go(func() {
			for ended := false; !ended; ended = stop.Load() {
				read()
			}
		})
	}
	for range 4 {
		until(func() { checkExamples(t, c, builtIn) })
		until(func() {
			if got := len(c.Types()); got != n && got != n+1 {
				t.Errorf("got %d types", got)
			}
			e, err := c.NewEvent(et.Example, "", time.Now())
			if err == nil && e.TypeID != 7 || err != nil && !only(err, InvalidUnknownEvent, "name") {
				t.Errorf("got %+v, %v", e, err)
			}
		})
	}
	for range 100 {
		c.Set(et)
		if !c.Has("order.shipped") {
			t.Error("Set is not seen")
		}
		c.Remove("order.shipped")
		if c.Has("order.shipped") {
			t.Error("Remove is not seen")
		}
	}
	stop.Store(true)
	readers.Wait()
	if c.Version() != version+200 || len(c.Types()) != n {
		t.Errorf("got version %d and %d types, want %d and %d", c.Version(), len(c.Types()), version+200, n)
	}
}

// checkExamples checks that a catalog accepts the example of each type that can be published.
func checkExamples(t *testing.T, c *Catalog, types []*EventType) {
	t.Helper()
	for _, known := range types {
		e, err := c.NewEvent(known.Example, "", testNow)
		if known.Name != EventPing && (err != nil || !bytes.Equal(e.JSON, known.Example)) {
			t.Errorf("got %s, %v, want %s", e.JSON, err, known.Example)
		}
	}
}

// FuzzParseEventType checks that no body causes a panic, and that an accepted event type can be
// published, tested and compared with itself.
func FuzzParseEventType(f *testing.F) {
	f.Add(`{"schema":` + shipped("order.shipped") + `}`)
	f.Add(`{"schema":{"$ref":"#"}}`)
	f.Add(`{"name":"order.shipped","schema":{"$defs":{"a":{"$ref":"#/$defs/a"}}}}`)
	for _, keyword := range []string{`"$dynamicRef":"#"`, `"unevaluatedProperties":false`, `"dependencies":{"a":["b"]}`, `"$id":"https://a/b"`, `"not":{}`,
		`"if":true,"then":true`, `"oneOf":[true]`, `"patternProperties":{"^x":{}}`, `"minProperties":2e0`, `"$defs":{"a/b":{"$ref":"#/%24defs/a~1b"}}`} {
		f.Add(`{"schema":` + strings.Replace(shipped("order.shipped"), `"type"`, keyword+`,"type"`, 1) + `}`)
	}
	f.Fuzz(func(t *testing.T, body string) {
		et, err := ParseEventType(t.Context(), "order.shipped", []byte(body))
		if err != nil {
			if err.Code != CodeInvalid && err.Code != CodeTooLarge {
				t.Errorf("got %v", err)
			}
			return
		}
		c := NewCatalog(et)
		if _, err := c.TestEvent("order.shipped", time.Now()); err != nil {
			t.Errorf("its test event: %v", err)
		}
		if changes := CompareSchemas(et.Schema, et.Schema); changes != nil {
			t.Errorf("differs from itself: %v", changes)
		}
		again, err := NewEventType(t.Context(), "order.shipped", et.Schema)
		if err != nil || string(again.Schema) != string(et.Schema) || string(again.Example) != string(et.Example) {
			t.Errorf("its stored schema: %v", err)
		}
	})
}

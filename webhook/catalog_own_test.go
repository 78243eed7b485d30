package webhook

import (
	"strings"
	"testing"
	"time"
)

// A minimal event type of an operator.
const orderShipped = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "Order shipped",
  "description": "Emitted when an order leaves the warehouse.",
  "type": "object",
  "properties": {
    "id": { "type": "string", "format": "uuid" },
    "timestamp": { "type": "string", "format": "date-time" },
    "name": { "const": "order_shipped" },
    "version": { "const": "1" },
    "order_id": { "type": "integer", "format": "int64" },
    "carrier": { "enum": ["post", "bike"] }
  },
  "required": ["id", "timestamp", "name", "version", "order_id"],
  "additionalProperties": false,
  "examples": [
    { "id": "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", "timestamp": "2026-03-14T08:24:48.644Z",
      "name": "order_shipped", "version": "1", "order_id": 7, "carrier": "bike" }
  ]
}`

func TestOwnEventTypes(t *testing.T) {
	c := testCatalog(t, SchemaFile{"order_shipped.json", []byte(orderShipped)})
	own, ok := c.Type("order_shipped")
	if !ok || own.Title != "Order shipped" || !strings.Contains(string(own.Schema), `"order_id"`) {
		t.Errorf("order_shipped: got the title %q and %d bytes of schema, want Order shipped with order_id", own.Title, len(own.Schema))
	}
	if got, want := len(c.Types()), len(specEvents)+1; got != want {
		t.Errorf("got %d event types, want %d: those of specEvents and order_shipped", got, want)
	}
	publish := func(fields string) *Error {
		_, err := c.NewEvent([]byte(`{"name":"order_shipped","version":"1"`+fields+`}`), "", time.Now())
		return err
	}
	if err := publish(`,"order_id":8,"carrier":"post"`); err != nil {
		t.Error(err)
	}
	if err := publish(`,"order_id":8,"carier":"post"`); !only(err, InvalidUnknownField, "carier") {
		t.Errorf("misspelled field: got %v", err)
	}
	if err := publish(``); !only(err, InvalidRequired, "order_id") {
		t.Errorf("missing field: got %v", err)
	}
	if err := publish(`,"order_id":8,"carrier":"drone"`); !only(err, InvalidValue, "carrier") {
		t.Errorf("invalid value: got %v", err)
	}
	sub := &SubscriptionRules{Catalog: c}
	if v := sub.checkEvents([]string{"order_shipped", "content_updated"}); v != nil {
		t.Errorf("subscribe: %v", v)
	}
}

// Keywords that the embedded schemas do not use work too, but more slowly.
func TestOwnEventTypesSupportJSONSchema(t *testing.T) {
	schema := strings.NewReplacer(
		`"additionalProperties": false`, `"unevaluatedProperties": false, "dependentRequired": {"carrier": ["weight"]},`+
			` "allOf": [{"properties": {"weight": {"type": "number", "exclusiveMinimum": 0}}}]`,
		`"carrier": "bike"`, `"carrier": "bike", "weight": 0.5`,
		`"format": "uuid"`, `"format": "uuid", "pattern": "^[0-9A-Fa-f-]+$"`,
	).Replace(orderShipped)
	c := testCatalog(t, SchemaFile{"order_shipped.json", []byte(schema)})
	for fields, ok := range map[string]bool{
		`,"carrier":"post","weight":2`: true, `,"weight":2`: true, ``: true,
		`,"carrier":"post"`: false, `,"weight":0`: false, `,"wieght":1`: false,
	} {
		_, err := c.NewEvent([]byte(`{"name":"order_shipped","version":"1","order_id":1`+fields+`}`), "", time.Now())
		if (err == nil) != ok {
			t.Errorf("%s: got %v, want it accepted %t", fields, err, ok)
		}
	}
}

func TestInvalidOwnEventTypes(t *testing.T) {
	const file = "order_shipped.json"
	for _, c := range []struct{ name, old, new, want string }{
		{file, `"title"`, `title`, `the file is not valid JSON: line 3, column 4: unexpected 'i'.`},
		{file, orderShipped, ``, `the file is not valid JSON: column 1: unexpected end.`},
		{file, `"version": { "const": "1" },`, `"version": { "const": "1" }, "version": {},`, `occurs twice`},
		{file, orderShipped, `true`, `the schema must have a title, a description and at least one example in examples`},
		{file, `"examples"`, `"$comment": "", "default"`, `the schema must have a title, a description and at least one example in examples`},
		{file, `"Order shipped"`, `""`, `the schema must have a title, a description and at least one example in examples`},
		{"content_updated.json", ``, ``, `an event type with this name already exists`},
		{"ping.json", ``, ``, `an event type with this name already exists`},
		{"Order shipped.json", ``, ``, `the file name must be the event name`},
		{"order.yaml", ``, ``, `the file name must be the event name`},
		{"order/shipped.json", ``, ``, `the file name must be the event name`},
		{"../order.json", ``, ``, `the file name must be the event name`},
		{".json", ``, ``, `the file name must be the event name`},
		{"order_sent.json", ``, ``, `the schema must define the field name like every event: {"const": "order_sent"}`},
		{file, `/2020-12/`, `/2019-09/`, `its $schema must be https://json-schema.org/draft/2020-12/schema`},
		{file, `"additionalProperties": false`, `"additionalProperties": true`, `add "additionalProperties": false`},
		{file, `"additionalProperties": false,`, ``, `add "additionalProperties": false`},
		{file, `"additionalProperties": false`, `"additionalProperties": {}`, `add "additionalProperties": false`},
		{file, `"order_id": 7`, `"order_id": "7"`, `its first example is invalid: One parameter is not valid. order_id: must be an integer`},
		{file, `"carrier": "bike"`, `"weight": 1`, `its first example is invalid: One parameter is not valid. weight: is not a field`},
		{file, `"name": "order_shipped", "version": "1", `, `"version": "1", `,
			`its first example is invalid: One parameter is not valid. name: is required`},
		{file, `"id": "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", `, ``, `its first example is invalid: One parameter is not valid. id: is required`},
		{file, `"id": { "type": "string", "format": "uuid" },`, ``, `id is missing`},
		{file, `["id", "timestamp", `, `["id", `, `timestamp is missing`},
		{file, `"version", "order_id"]`, `"order_id"]`, `version is missing`},
		{file, `"format": "uuid"`, `"const": "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7"`,
			`the schema must define the field id like every event: {"type": "string", "format": "uuid"}`},
		{file, `, "format": "uuid"`, ``, `the schema must define the field id like every event`},
		{file, `"format": "date-time"`, `"maxLength": 24`, `the schema must define the field timestamp like every event`},
		{file, `, "format": "date-time"`, ``, `the schema must define the field timestamp like every event`},
		{file, `{ "const": "order_shipped" }`, `{ "type": "string" }`, `the schema must define the field name like every event`},
		{file, `{ "const": "1" }`, `{ "enum": ["1", "10"] }`, `the schema must define the field version like every event`},
		{file, `{ "enum": ["post", "bike"] }`, `{ "type": "strnig" }`, ``},
		{file, `{ "enum": ["post", "bike"] }`, `{ "$ref": "carrier.json" }`, `a schema cannot refer to another file`},
		{file, `{ "enum": ["post", "bike"] }`, `{ "$ref": "https://example.com/carrier" }`, `a schema cannot refer to another file`},
		{file, `{ "enum": ["post", "bike"] }`, `{ "$ref": "file:///etc/passwd" }`, `a schema cannot refer to another file`},
		{file, `{ "enum": ["post", "bike"] }`, `{ "pattern": "(" }`, ``},
	} {
		_, err := LoadCatalog(SchemaFile{c.name, []byte(strings.Replace(orderShipped, c.old, c.new, 1))})
		if err == nil || !strings.HasPrefix(err.Error(), "event type "+c.name+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s:\n got %v\nwant %s", c.name, c.new, err, c.want)
		}
	}
	twice := SchemaFile{file, []byte(orderShipped)}
	if _, err := LoadCatalog(twice, twice); err == nil {
		t.Error("got two event types with one name accepted")
	}
}

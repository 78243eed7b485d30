package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"
)

// schemaChanges are pairs of schemas. want is a part of the first difference, "" for none.
var schemaChanges = []struct{ old, new, want string }{
	// Annotations.
	{`{"title":"a","description":"b","examples":[1],"$comment":"c"}`, `{"title":"x","default":7,"x-owner":"y"}`, ""},
	{`true`, `{"title":"a"}`, ""},
	{`false`, `{"type":"string"}`, ""},
	{`{"type":"string"}`, `true`, ""},
	{`{"type":"string"}`, `false`, " no longer allows any value"},

	// Types.
	{`{"type":"integer"}`, `{"type":"number"}`, ""},
	{`{"type":"number"}`, `{"type":"integer"}`, "/type no longer allows number"},
	{`{"type":"string"}`, `{"type":["string","null"]}`, ""},
	{`{"type":["string","null"]}`, `{"type":"string"}`, "/type no longer allows null"},
	{`{}`, `{"type":"string"}`, "/type no longer allows null, boolean, number, array, object"},

	// Values.
	{`{"enum":["a","b"]}`, `{"enum":["b","a","c"]}`, ""},
	{`{"enum":["a","b"]}`, `{"enum":["a"]}`, `/enum no longer allows "b"`},
	{`{"type":"string"}`, `{"enum":["a"]}`, "/enum is new and allows only some values"},
	{`{"enum":[1]}`, `{"enum":[1.0]}`, "/enum no longer allows 1"}, // equal, but that is not worth proving
	{`{"const":"a"}`, `{"const":"b"}`, `/const changed from "a" to "b"`},
	{`{}`, `{"const":null}`, "/const is new: null"},
	{`{"enum":["a"]}`, `{}`, ""},
	{`{"const":{"a":[1,{"b":2}]}}`, `{"const":{"a":[1,{"b":2}]}}`, ""},

	// Bounds.
	{`{"maximum":10,"minimum":0}`, `{"maximum":11,"minimum":-0.5}`, ""},
	{`{"maximum":10}`, `{"maximum":9.99}`, "/maximum changed from 10 to 9.99"},
	{`{"type":"integer"}`, `{"type":"integer","minimum":0}`, "/minimum is new: 0"},
	{`{"maximum":10}`, `{"exclusiveMaximum":10}`, "/exclusiveMaximum is new: 10"},
	{`{"minimum":0}`, `{"exclusiveMinimum":0}`, "/exclusiveMinimum is new: 0"},
	{`{"multipleOf":3}`, `{"multipleOf":6}`, "/multipleOf changed from 3 to 6"},
	{`{"maxLength":5,"minLength":2}`, `{"maxLength":6,"minLength":1}`, ""},
	{`{"maximum":10}`, `{}`, ""},
	{`{"maxLength":5}`, `{"maxLength":4}`, "/maxLength changed from 5 to 4"},
	{`{"type":"string"}`, `{"type":"string","minLength":1}`, "/minLength is new: 1"},
	{`{"maxItems":2}`, `{"maxItems":1}`, "/maxItems changed from 2 to 1"},
	{`{"minProperties":2}`, `{"minProperties":3}`, "/minProperties changed from 2 to 3"},

	// Texts.
	{`{"format":"uuid"}`, `{"format":"uuid"}`, ""},
	{`{}`, `{"format":"uuid"}`, `/format is new: "uuid"`},
	{`{"format":"uuid"}`, `{}`, "/format was removed"},
	{`{"pattern":"a"}`, `{"pattern":"b"}`, `/pattern changed from "a" to "b"`},

	// Members.
	{closed(`"a":{"type":"string"}`), closed(`"a":{"type":"string"},"b":{"type":"string"}`), ""},
	{closed(`"a":{"type":"string"},"b":{}`), closed(`"a":{"type":"string"}`), "/properties/b was removed"},
	{closed(`"a":{"type":"string"}`), closed(`"a":{"type":"integer"}`), "/properties/a/type no longer allows string"},
	{closed(`"a":{}`), closed(`"a":{}`, "a"), `/required now requires a`},
	{closed(`"a":{}`, "a"), closed(`"a":{}`), ""},
	{`{"properties":{"a":{}}}`, `{"properties":{"a":{},"b":true}}`, "/properties/b is new, which needs additionalProperties: false"},
	{`{"patternProperties":{"^x":{"maxLength":9}},"additionalProperties":false}`,
		`{"patternProperties":{"^x":{"maxLength":9}},"properties":{"x1":{"maxLength":3}},"additionalProperties":false}`, "/properties/x1 is new"},
	{closed(`"a":{}`), `{"type":"object","properties":{"a":{}}}`, "/additionalProperties was removed"},
	{closed(`"a":` + closed(`"b":{"maximum":5}`)), closed(`"a":` + closed(`"b":{"maximum":6},"c":{"type":"null"}`)), ""},
	{`{}`, `{"propertyNames":{"maxLength":4}}`, "/propertyNames is new"},
	{`{"dependentRequired":{"a":["b"]}}`, `{"dependentRequired":{"a":["b"]}}`, ""},
	{`{"properties":{"a/b~":{}}}`, `{"properties":{"a/b~":{"type":"null"}}}`, "/properties/a~1b~0/type no longer allows"},

	// unevaluatedProperties alone is additionalProperties; with other keywords those must stay.
	{`{"properties":{"a":{}},"unevaluatedProperties":false}`, `{"properties":{},"unevaluatedProperties":false}`, "/properties/a was removed"},

	// Elements.
	{`{"items":{"type":"integer"}}`, `{"items":{"type":"number"}}`, ""},
	{`{"items":{"type":"number"}}`, `{"items":{"type":"integer"}}`, "/items/type no longer allows number"},
	{`{}`, `{"items":{"type":"integer"}}`, "/items is new"},
	{`{}`, `{"uniqueItems":true}`, "/uniqueItems is new: true"},
	{`{"contains":{"type":"string"},"minContains":2}`, `{"contains":{"type":"string"},"minContains":2}`, ""},
	{`{"contains":{"const":1},"unevaluatedItems":false}`, `{"contains":{"const":1},"unevaluatedItems":false}`, ""},
	{`{"contains":{"const":1},"unevaluatedItems":false}`, `{"contains":{"const":2},"unevaluatedItems":false}`, "/contains changed"},

	// Subschemas of the same value.
	{`{"oneOf":[{"type":"null"},{"type":"string"}]}`, `{"oneOf":[{"type":"null"},{"type":"string"}]}`, ""},
	{`{"oneOf":[{"type":"null"}]}`, `{"oneOf":[{"type":"null"},{}]}`, "/oneOf changed"}, // null would be both
	{`{"not":{"type":"null"}}`, `{"not":{"type":["null","string"]}}`, "/not changed"},
	{`{}`, `{"not":{"type":"null"}}`, "/not is new"},

	{`{"allOf":[{"maximum":5}]}`, `{"allOf":[{"maximum":6}]}`, "/allOf changed"},

	// References.
	{`{"properties":{"a":{"$ref":"#/$defs/a"},"b":{"maximum":5}},"$defs":{"a":{"maximum":5}}}`,
		`{"properties":{"a":{"$ref":"#/$defs/a"},"b":{"maximum":6}},"$defs":{"a":{"maximum":5}}}`, ""},
	{`{"$ref":"#/$defs/a","$defs":{"a":{"maximum":5}}}`, `{"$ref":"#/$defs/a","$defs":{"a":{"maximum":6}}}`, "/$defs changed"},
	{`{"$ref":"#/$defs/a","$defs":{"a":{"maximum":5}}}`, `{"maximum":6}`, "/$defs changed"},
	{tree("integer"), tree("number"), "uses $ref outside $defs"},
	{tree("integer"), tree("integer"), ""},
	{`{"$anchor":"a"}`, `{"$anchor":"a","title":"x"}`, ""},
	{`{"$anchor":"a"}`, `{"$anchor":"a","maximum":6}`, "the schema uses $anchor"},
	{`{"$id":"https://a/b","maximum":5}`, `{"$id":"https://a/c","maximum":6}`, ""},
	{`{"properties":{"a":{"$id":"https://a/b"}}}`, `{"properties":{"a":{"$id":"https://a/c"}}}`, "the schema uses a nested $id"},

	// Unknown keywords have no effect, but the operator may expect one.
	{`{"discriminator":"a"}`, `{"discriminator":"a"}`, ""},
	{`{"discriminator":"a"}`, `{"discriminator":"b"}`, "/discriminator changed"},
}

func TestCompareSchemas(t *testing.T) {
	for _, c := range schemaChanges {
		got := CompareSchemas([]byte(c.old), []byte(c.new))
		if c.want == "" && got != nil || c.want != "" && (got == nil || !strings.Contains(got[0].String(), c.want)) {
			t.Errorf("from %s\n  to %s\n got %v\nwant %q", c.old, c.new, got, c.want)
		}
	}
}

// closed returns a schema without further properties.
func closed(properties string, required ...string) string {
	list, _ := json.Marshal(append([]string{}, required...))
	return `{"type":"object","properties":{` + properties + `},"required":` + string(list) + `,"additionalProperties":false}`
}

// tree returns a schema that refers to itself.
func tree(of string) string {
	return `{"properties":{"value":{"type":"` + of + `"},"left":{"$ref":"#"},"right":{"$ref":"#"}},"additionalProperties":false}`
}

// A comparison ends, whatever the references.
func TestCompareSchemasIsBounded(t *testing.T) {
	var defs []string
	for i := range 25 {
		defs = append(defs, fmt.Sprintf(`"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%[2]d"}]}`, i, i+1))
	}
	schema := func(last string) []byte {
		return []byte(`{"$ref":"#/$defs/a0","$defs":{` + strings.Join(defs, ",") + `,"a25":` + last + `}}`)
	}
	got := CompareSchemas(schema(`{"maximum":5}`), schema(`{"maximum":4}`))
	if got == nil {
		t.Error("got no difference")
	}
	for _, c := range got {
		if len(c.String()) > 500 {
			t.Errorf("a difference is %d bytes long", len(c.String()))
		}
	}
}

// TestCompatibleSchemas draws two schemas and an instance. If the comparison finds no
// difference, an instance that is valid under the old schema is valid under the new one.
func TestCompatibleSchemas(t *testing.T) {
	proven, refuted := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		old := drawRoot(t)
		after := drawRoot(t)
		if rapid.IntRange(0, 9).Draw(t, "unrelated") > 0 {
			after = mutate(t, old, rapid.IntRange(1, 3).Draw(t, "mutations"))
		}
		before, now := compiled(t, old), compiled(t, after)
		if before == nil || now == nil {
			return // a reference to what a mutation removed
		}
		changes := CompareSchemas(marshal(old), marshal(after))
		for range 8 {
			instance := decoded(t, marshal(drawInstance(t, old, 3)))
			if before.Validate(instance) != nil {
				continue
			}
			err := now.Validate(instance)
			if changes == nil && err != nil {
				t.Fatalf("%s\n is valid under %s\nbut not under %s\n%v", marshal(instance), marshal(old), marshal(after), err)
			}
			if changes == nil {
				proven++
			} else if err != nil {
				refuted++
			}
		}
	})
	// With -short there are too few draws for these counts.
	if !testing.Short() && (proven < 100 || refuted < 20) {
		t.Errorf("%d instances were checked against schemas without a difference, and %d became invalid: the test says little", proven, refuted)
	}
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func decoded(t *rapid.T, b []byte) any {
	var d document
	if err := d.parse(b, ""); err != nil {
		t.Fatal(err)
	}
	return d.any(0)
}

// compiled returns a schema compiled as for events, nil if it cannot be compiled or must not
// be used.
func compiled(t *rapid.T, schema any) *jsonschema.Schema {
	s, err := compileSchema("urn:test", marshal(schema))
	if err != nil {
		return nil
	}
	if _, err := schemaWork(t.Context(), s); err != nil {
		return nil
	}
	return s
}

var (
	someNames  = []string{"a", "b", "c"}
	someValues = []any{nil, true, false, 0, 1, 2, 2.5, -1, "", "a", "bc", []any{}, []any{1}, map[string]any{}, map[string]any{"a": 1}}
)

// drawRoot draws a schema with two definitions.
func drawRoot(t *rapid.T) map[string]any {
	root := drawObject(t, 3)
	root["$defs"] = map[string]any{"x": drawSchema(t, 2), "y": drawSchema(t, 1)}
	return root
}

func drawSchema(t *rapid.T, depth int) any {
	if rapid.IntRange(0, 9).Draw(t, "boolean") == 0 {
		return rapid.Bool().Draw(t, "schema")
	}
	return drawObject(t, depth)
}

// drawObject draws a schema of a few keywords.
func drawObject(t *rapid.T, depth int) map[string]any {
	s := make(map[string]any)
	for range rapid.IntRange(0, 4).Draw(t, "keywords") {
		drawKeyword(t, s, depth)
	}
	return s
}

// drawKeyword sets a keyword of a schema.
func drawKeyword(t *rapid.T, s map[string]any, depth int) {
	flat := []string{"type", "type", "enum", "const", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf", "maxLength",
		"minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxProperties", "minProperties", "required", "dependentRequired", "$ref"}
	nested := []string{"properties", "properties", "additionalProperties", "additionalProperties", "patternProperties", "propertyNames",
		"unevaluatedProperties", "unevaluatedItems", "items", "prefixItems", "contains", "allOf", "anyOf", "oneOf", "not", "if",
		"dependentSchemas", "dependencies"}
	if depth == 0 {
		nested = nil
	}
	keyword := rapid.SampledFrom(slices.Concat(flat, nested)).Draw(t, "keyword")
	sub := func() any { return drawSchema(t, depth-1) }
	subs := func() (all []any) {
		for range rapid.IntRange(1, 3).Draw(t, "parts") {
			all = append(all, sub())
		}
		return all
	}
	named := func() map[string]any {
		all := make(map[string]any)
		for _, name := range drawNames(t) {
			all[name] = sub()
		}
		return all
	}
	switch keyword {
	case "type":
		types := []string{"null", "boolean", "integer", "number", "string", "array", "object", "object", "object"}
		s[keyword] = rapid.SampledFrom(types).Draw(t, "type")
		if rapid.Bool().Draw(t, "several") {
			s[keyword] = rapid.SliceOfNDistinct(rapid.SampledFrom(types), 1, 4, rapid.ID).Draw(t, "types")
		}
	case "enum":
		s[keyword] = drawValues(t)
	case "const":
		s[keyword] = rapid.SampledFrom(someValues).Draw(t, "value")
	case "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum":
		s[keyword] = rapid.SampledFrom([]any{-1, 0, 1, 2, 2.5, 3}).Draw(t, "bound")
	case "multipleOf":
		s[keyword] = rapid.SampledFrom([]any{0.5, 1, 2}).Draw(t, "factor")
	case "maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties":
		s[keyword] = rapid.IntRange(0, 3).Draw(t, "length")
	case "pattern":
		s[keyword] = rapid.SampledFrom([]string{"a", "^b", "c$"}).Draw(t, "pattern")
	case "uniqueItems":
		s[keyword] = rapid.Bool().Draw(t, "unique")
	case "required":
		s[keyword] = drawNames(t)
	case "dependentRequired":
		s[keyword] = map[string]any{"a": drawNames(t)}
	case "$ref":
		s[keyword] = rapid.SampledFrom([]string{"#", "#/$defs/x", "#/$defs/y"}).Draw(t, "reference")
	case "properties", "dependentSchemas":
		s[keyword] = named()
	case "dependencies":
		s[keyword] = map[string]any{"a": sub(), "b": drawNames(t)}
	case "patternProperties":
		s[keyword] = map[string]any{rapid.SampledFrom([]string{"a", "^b"}).Draw(t, "names"): sub()}
	case "prefixItems", "allOf", "anyOf", "oneOf":
		s[keyword] = subs()
	case "contains":
		s[keyword] = sub()
		s["minContains"] = rapid.IntRange(0, 2).Draw(t, "least")
	case "if":
		s["if"], s["then"] = sub(), sub()
		if rapid.Bool().Draw(t, "else") {
			s["else"] = sub()
		}
	default:
		s[keyword] = sub()
	}
}

func drawNames(t *rapid.T) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(someNames), 0, 3, rapid.ID).Draw(t, "names")
}

func drawValues(t *rapid.T) (values []any) {
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(someValues)-1), 1, 4, rapid.ID).Draw(t, "values") {
		values = append(values, someValues[i])
	}
	return values
}

// mutate returns a schema with a few changes, most of them small.
func mutate(t *rapid.T, schema map[string]any, times int) map[string]any {
	changed := decoded(t, marshal(schema)).(map[string]any)
	for range times {
		all := objectsIn(changed, nil)
		s := all[rapid.IntRange(0, len(all)-1).Draw(t, "place")]
		keys := slices.Sorted(maps.Keys(s))
		if len(keys) == 0 || rapid.IntRange(0, 3).Draw(t, "add") == 0 {
			drawKeyword(t, s, 1)
			continue
		}
		mutateKeyword(t, s, rapid.SampledFrom(keys).Draw(t, "key"))
	}
	return decoded(t, marshal(changed)).(map[string]any)
}

// mutateKeyword changes a keyword of a schema.
func mutateKeyword(t *rapid.T, s map[string]any, key string) {
	switch value := s[key].(type) {
	case json.Number:
		n, err := value.Float64()
		if err != nil {
			t.Fatal(err)
		}
		s[key] = max(n+float64(rapid.IntRange(-1, 1).Draw(t, "by")), 0.5)
		if strings.HasPrefix(key, "max") && key != "maximum" || strings.HasPrefix(key, "min") && key != "minimum" {
			s[key] = int(n) + rapid.IntRange(0, 1).Draw(t, "by")
		}
	case []any:
		if len(value) > 1 && rapid.Bool().Draw(t, "shorten") {
			s[key] = value[1:]
		} else if key == "enum" {
			s[key] = append(value, "new")
		}
	case map[string]any:
		if key == "properties" {
			value[rapid.SampledFrom(someNames).Draw(t, "property")] = drawSchema(t, 1)
		}
	default:
		if key != "$ref" && key != "type" && rapid.Bool().Draw(t, "remove") {
			delete(s, key)
		}
	}
}

// objectsIn returns the schemas in a schema: objects that are neither values nor maps of
// schemas.
func objectsIn(value any, all []map[string]any) []map[string]any {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			all = objectsIn(element, all)
		}
	case map[string]any:
		all = append(all, v)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if m, ok := v[key].(map[string]any); ok && (subschemasIn(key) == namedSubschemas) {
				for _, name := range slices.Sorted(maps.Keys(m)) {
					all = objectsIn(m[name], all)
				}
			} else if key != "const" && key != "enum" && key != "dependentRequired" {
				all = objectsIn(v[key], all)
			}
		}
	}
	return all
}

// drawInstance draws a value that has a chance to be valid under a schema.
func drawInstance(t *rapid.T, schema any, depth int) any {
	s, _ := schema.(map[string]any)
	if values, ok := s["enum"].([]any); ok {
		return rapid.SampledFrom(values).Draw(t, "value")
	}
	if value, ok := s["const"]; ok {
		return value
	}
	kinds := []string{"object", "object", "array", "value"}
	switch s["type"] {
	case "object":
		kinds = kinds[:1]
	case "array":
		kinds = kinds[2:3]
	}
	if depth == 0 {
		kinds = []string{"value"}
	}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "object":
		properties, _ := s["properties"].(map[string]any)
		object := make(map[string]any)
		for _, name := range drawNames(t) {
			object[name] = drawInstance(t, properties[name], depth-1)
		}
		return object
	case "array":
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list = append(list, drawInstance(t, s["items"], depth-1))
		}
		return list
	}
	return rapid.SampledFrom(someValues).Draw(t, "value")
}

package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// TestSchemaIsCommitted checks the copy of the schema for editors.
func TestSchemaIsCommitted(t *testing.T) {
	const name = "../../docs/apply.schema.json"
	committed, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(committed, Schema()) {
		t.Errorf("%s is out of date: run go run . apply --schema >docs/apply.schema.json", name)
	}
}

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("apply.json", document); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("apply.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// asJSON returns a YAML document as the schema sees it.
func asJSON(t *testing.T, text []byte) any {
	t.Helper()
	var document any
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestSchemaAgrees checks that the schema accepts the complete file, and refuses what the
// parser refuses if a schema can express it.
func TestSchemaAgrees(t *testing.T) {
	schema := compiledSchema(t)
	if err := schema.Validate(asJSON(t, []byte(whole))); err != nil {
		t.Errorf("the complete file: %v", err)
	}
	for _, test := range faults {
		if !test.beyond && schema.Validate(asJSON(t, []byte(test.text))) == nil {
			t.Errorf("%s: the schema accepts it", test.name)
		}
	}
}

// TestSchemaAndParser replaces and removes every value of the complete file and checks that
// parser and schema agree about the result.
func TestSchemaAndParser(t *testing.T) {
	schema, dir := compiledSchema(t), folder(t)
	var document any
	if err := yaml.Unmarshal([]byte(whole), &document); err != nil {
		t.Fatal(err)
	}
	compared, accepted := 0, 0
	check := func(at string, set func(any)) {
		for _, other := range []any{nil, true, "", "text", "a.b", "https://a.example", "2027-01-31T00:00:00Z", -1, 0, 1, 0.5, 70, 2_000_000,
			[]any{}, []any{"ping"}, []any{"events.read"}, []any{1}, map[string]any{}, map[string]any{"env": "A"},
			map[string]any{"file": "a", "env": "A"}} {
			set(other)
			text, err := yaml.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			_, parseErr := parse("f.yml", dir, text)
			schemaErr := schema.Validate(asJSON(t, text))
			compared++
			if parseErr == nil {
				accepted++
			}
			if (parseErr == nil) != (schemaErr == nil) && !beyondSchema(parseErr) {
				t.Errorf("%s = %v: the parser says %v, the schema %v", at, other, parseErr, schemaErr)
			}
		}
	}
	visit(document, "", check)
	if compared < 500 || accepted < 50 {
		t.Errorf("compared %d files, of which %d are accepted: the test compares too little", compared, accepted)
	}
}

// visit calls check for every value below v, with a function that replaces it, and restores it.
func visit(v any, at string, check func(string, func(any))) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			path := at + "." + name
			if name == "schema" {
				continue // any JSON
			}
			before := v[name]
			check(path, func(other any) { v[name] = other })
			v[name] = before
			visit(before, path, check)
		}
	case []any:
		for i, before := range v {
			path := fmt.Sprintf("%s[%d]", at, i)
			check(path, func(other any) { v[i] = other })
			v[i] = before
			visit(before, path, check)
		}
	}
}

// beyondSchema reports whether an error is about a rule that a JSON Schema cannot express.
func beyondSchema(err error) bool {
	if err == nil {
		return false
	}
	for _, text := range []string{"is already in line", "not both", "no such file", "is a directory", "has the url and description"} {
		if bytes.Contains([]byte(err.Error()), []byte(text)) {
			return true
		}
	}
	return false
}

package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"service/webhook"
)

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

// TestSchemaAgrees checks that the schema accepts the complete file, and refuses what the parser
// refuses wherever a schema can express the rule.
func TestSchemaAgrees(t *testing.T) {
	schema := fileSchema()
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
	schema, dir := fileSchema(), folder(t)
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

// beyondSchema reports whether an error concerns a rule that a JSON Schema cannot express.
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

// TestRulesOfTheService checks that the schema refuses nothing that the API accepts, and states the
// same limits.
func TestRulesOfTheService(t *testing.T) {
	program := fileSchema().Properties["programs"].Items2020
	subscription := program.Properties["subscriptions"].Items2020.Properties
	token := program.Properties["tokens"].Items2020.Properties
	for _, schema := range []*jsonschema.Schema{program.Properties["id"], token["user"]} {
		for _, id := range []string{"a", "A.b_c-d", "0", strings.Repeat("z", 64), "", "-a", "a b", "ä", strings.Repeat("z", 65)} {
			if got, want := schema.Validate(id) == nil, webhook.CheckIdentifier("id", id) == nil; got != want {
				t.Errorf("%q: got %t, the API says %t", id, got, want)
			}
		}
	}
	for name, limit := range map[string]struct {
		got  *int
		want int
	}{
		"portal_origins": {program.Properties["portal_origins"].MaxItems, webhook.MaxPortalOrigins},
		"url":            {subscription["url"].MaxLength, webhook.MaxURLBytes},
		"description":    {subscription["description"].MaxLength, webhook.MaxDescriptionBytes},
		"events":         {subscription["events"].MaxItems, webhook.MaxSubscriptionEvents},
		"event_types":    {fileSchema().Properties["event_types"].MaxItems, webhook.MaxEventTypes},
		"scopes":         {token["scopes"].MaxItems, len(webhook.Scopes())},
	} {
		if *limit.got != limit.want {
			t.Errorf("%s: the limit is %d, that of the API %d", name, *limit.got, limit.want)
		}
	}
	for name, max := range map[string]float64{
		"max_in_flight": webhook.MaxInFlightLimit, "max_per_second": webhook.MaxPerSecondLimit, "max_events": webhook.MaxEventsLimit,
	} {
		if got, _ := subscription[name].Maximum.Float64(); got != max {
			t.Errorf("%s: the limit is %g, that of the API %g", name, got, max)
		}
	}
	if least, _ := subscription["max_per_second"].Minimum.Float64(); least != webhook.MinPerSecond {
		t.Errorf("max_per_second: the least is %g, that of the API %g", least, webhook.MinPerSecond)
	}
	var scopes []any
	for _, s := range webhook.Scopes() {
		scopes = append(scopes, string(s))
	}
	if got := token["scopes"].Items2020.Enum.Values; !slices.Equal(got, scopes) {
		t.Errorf("got the scopes %v, want %v", got, scopes)
	}
}

// TestTitles checks that the title of each value, which problems quote, says what the schema
// allows.
func TestTitles(t *testing.T) {
	checked := 0
	var check func(string, *jsonschema.Schema)
	check = func(at string, s *jsonschema.Schema) {
		var parts []string
		if s.Maximum != nil {
			parts = append(parts, trimZeros(s.Maximum))
			if s.Minimum.Sign() > 0 {
				parts = append(parts, trimZeros(s.Minimum)+" to ")
			}
		}
		if s.Pattern != nil || s.Format != nil {
			parts = append(parts, " ")
		}
		if s.Enum != nil {
			parts = append(parts, "one of "+strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Enum.Values), " ", ", "), "[]"))
		}
		if slices.Contains(s.Types.ToStrings(), "null") {
			_, meaning, _ := strings.Cut(s.Description, " null is ")
			parts = append(parts, ", or null for "+strings.TrimSuffix(meaning, "."))
		}
		for _, part := range parts {
			if checked++; !strings.Contains(s.Title, part) {
				t.Errorf("%s: the title %q lacks %q", at, s.Title, part)
			}
		}
		for name, child := range s.Properties {
			check(at+"."+name, child)
		}
		if s.Items2020 != nil {
			check(at+"[]", s.Items2020)
		}
	}
	check("", fileSchema())
	if checked < 20 {
		t.Errorf("checked %d parts of titles, which is too few", checked)
	}
}

// trimZeros returns a decimal number as people write it.
func trimZeros(x *big.Rat) string {
	return strings.TrimSuffix(strings.TrimRight(x.FloatString(3), "0"), ".")
}

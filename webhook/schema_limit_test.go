package webhook

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// listOf returns the texts of 0 to n-1 by format, separated by commas.
func listOf(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ",")
}

// withCarrier returns orderShipped with another schema for the field carrier, and $defs.
func withCarrier(carrier, defs string) string {
	return strings.NewReplacer(`{ "enum": ["post", "bike"] }`, carrier, `"examples"`, `"$defs":{`+defs+`},"examples"`).Replace(orderShipped)
}

// Everything that a check or a page repeats for each part of a schema is bounded, whether the
// schema comes from a file or the API.
func TestSchemaLimits(t *testing.T) {
	const own = 6 // properties of orderShipped, which has as many subschemas and the root
	anything := `{"anyOf":[{"const":"bike"},{"properties":{%s}}]}`
	for _, test := range []struct{ name, carrier, defs, code, detail string }{
		{"the maximum of properties", fmt.Sprintf(anything, listOf(maxProperties-own, `"p%d":{}`)), ``, "", ""},
		{"too many properties", fmt.Sprintf(anything, listOf(maxProperties-own+1, `"p%d":{}`)), ``, InvalidTooMany, "must have at most 2000 properties"},
		{"too many properties in all", `true`,
			`"a":{"properties":{` + listOf(1500, `"p%d":true`) + `}},"b":{"properties":{` + listOf(1500, `"p%d":true`) + `}}`, InvalidTooMany, "must have at most 2000 properties"},
		{"too many alternatives", `{"anyOf":[` + listOf(4000, `{"maxLength":%d}`) + `]}`, ``, InvalidTooMany, "must have at most 4000 subschemas"},
		{"too many true", `{"anyOf":[true` + strings.Repeat(",true", 4000) + `]}`, ``, InvalidTooMany, "must have at most 4000 subschemas"},
		{"too many definitions", `true`, listOf(4000, `"d%d":true`), InvalidTooMany, "must have at most 4000 subschemas"},
		{"too many in other keywords", `true`, `"a":{"items":{"prefixItems":[{"dependentSchemas":{` + listOf(4000, `"d%d":{}`) + `}}]}}`,
			InvalidTooMany, "must have at most 4000 subschemas"},
		{"a long name", fmt.Sprintf(anything, `"`+strings.Repeat("n", 257)+`":{}`), ``, InvalidTooLong,
			"must have names of at most 256 bytes in properties: nnn"},
		{"a long pattern", `{"pattern":"` + strings.Repeat("e|", 512) + `e"}`, ``, InvalidTooLong, "must have patterns of at most 1024 bytes"},
		{"a long pattern of names", `{"patternProperties":{"` + strings.Repeat("e|", 512) + `e":{}}}`, ``, InvalidTooLong,
			"must have patterns of at most 1024 bytes"},
		{"a pattern", `{"pattern":"^(bike|[a-z]{100})$"}`, ``, "", ""},
		{"a large pattern", `{"pattern":"bike|` + listOf(6, "%d{1000}") + `"}`, ``, InvalidValue, "too complex"},
		{"a large pattern of names", `{"patternProperties":{"` + listOf(6, "%d{1000}") + `":{}}}`, ``, InvalidValue, "too complex"},
		{"large patterns", `true`, listOf(200, `"d%d":{"pattern":"a{900}%[1]d"}`), InvalidValue, "too complex"},
		{"an enum", `{"enum":["bike",` + listOf(10_000, `%d`) + `]}`, ``, "", ""},
		{"a large enum", `{"enum":["bike",` + listOf(50_000, `%d`) + `]}`, ``, InvalidValue, "too complex"},
		{"$ref into an example", `{"$ref":"#/examples/0/order_id"}`, ``, InvalidValue, "a $ref must name a subschema, such as #/$defs/address: #/examples"},
		{"$ref to a keyword", `{"$ref":"#/$defs"}`, ``, InvalidValue, "a $ref must name a subschema"},
		{"$ref through keywords", `{"$ref":"#/%24defs/a/items/anyOf/0/properties/b~1c"}`,
			`"a":{"items":{"anyOf":[{"properties":{"b/c":true}}]}}`, "", ""},
	} {
		schema := []byte(withCarrier(test.carrier, test.defs))
		_, err := NewEventType(t.Context(), "order_shipped", schema)
		if test.code == "" && err != nil || test.code != "" && (!only(err, test.code, "schema") || !strings.Contains(err.Error(), test.detail)) {
			t.Errorf("%s:\n got %.300v\nwant %s %s", test.name, err, test.code, test.detail)
		}
		_, fileErr := LoadCatalog(SchemaFile{"order_shipped.json", schema})
		if (fileErr == nil) != (err == nil) || fileErr != nil && !strings.Contains(fileErr.Error(), test.detail) {
			t.Errorf("%s in a file:\n got %.300v\nwant %s", test.name, fileErr, test.detail)
		}
	}
}

// A check ends when its context does.
func TestSchemaCheckEnds(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ParseEventType(ended, "order_shipped", []byte(`{"schema":`+orderShipped+`}`)); err == nil || err.Code != CodeTimeout {
		t.Errorf("new: got %v", err)
	}
}

// The product of a large schema and a large event is bounded: the work, and the errors.
func TestEventWorkIsBounded(t *testing.T) {
	c := testCatalog(t, SchemaFile{"order_shipped.json", []byte(withCarrier(
		`{"anyOf":[{"const":"bike"},{"type":"array","items":{"anyOf":[`+listOf(1000, `{"maximum":%d}`)+`]}},`+
			`{"type":"object","properties":{`+listOf(1000, `"p%d":{"enum":[`+listOf(9, `"%d"`)+`]}`)+`},"additionalProperties":false}]}`, ``))})
	publish := func(carrier string) *Error {
		_, err := c.NewEvent([]byte(`{"name":"order_shipped","version":"1","order_id":1,"carrier":`+carrier+`}`), "", time.Now())
		return err
	}
	if err := publish(`[` + listOf(500, `%d`) + `]`); err != nil {
		t.Errorf("500 values: got %v", err)
	}
	if err := publish(`[` + listOf(20_000, `%d`) + `]`); !only(err, InvalidTooLarge, WholeBody) ||
		!strings.Contains(err.Error(), "because the schema of order_shipped is complex") {
		t.Errorf("20,000 values: got %.300v", err)
	}

	c = testCatalog(t, SchemaFile{"order_shipped.json", []byte(strings.Replace(orderShipped, `"carrier": {`,
		listOf(1500, `"p%d":{"type":"string"}`)+`,"carrier": {`, 1))})
	invalid := publish(`"post",` + listOf(10_000, `"q%d":1`))
	if invalid == nil || len(invalid.Validations) != maxValidations {
		t.Fatalf("10,000 unknown fields: got %.300v", invalid)
	}
	for _, v := range invalid.Validations {
		if v.Code != InvalidUnknownField || len(v.Detail) > 1000 || !strings.Contains(v.Detail, " and 1456 more") {
			t.Fatalf("got %v", v)
		}
	}
	var batch strings.Builder
	for i := range MaxPublishEvents {
		fmt.Fprintf(&batch, `,{"name":"order_shipped","version":"1",%s}`, listOf(100, fmt.Sprintf(`"q%d_%%d":1`, i)))
	}
	_, _, invalid = c.NewEvents([]byte(`{"events":[`+batch.String()[1:]+`]}`), time.Now())
	if invalid == nil || len(invalid.Validations) != maxValidations || !strings.Contains(invalid.Detail, " parameters are not valid") {
		t.Errorf("got %.300v", invalid)
	}
}

// A comparison is not quadratic in the values of one keyword.
func TestCompareLargeKeywords(t *testing.T) {
	schema := func(n int) []byte {
		return []byte(`{"properties":{"a":{"enum":[` + listOf(n, `"%d"`) + `]}},"required":[` + listOf(n, `"%d"`) + `]}`)
	}
	// Pairs of values would take more than an hour.
	if got := CompareSchemas(schema(100_000), schema(100_001)); len(got) != 1 || got[0].String() != `/required now requires 100000` {
		t.Errorf("got %v", got)
	}
	if got := CompareSchemas(schema(100_001), schema(100_000)); len(got) != 1 || got[0].String() != `/properties/a/enum no longer allows "100000"` {
		t.Errorf("got %v", got)
	}
}

package webhook

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestFilterFields checks that a form offers the conditions that the filter check accepts.
func TestFilterFields(t *testing.T) {
	schema := strings.NewReplacer(`"required"`, `"$defs":{"person":{"type":"object","additionalProperties":false,
			"properties":{"vip":{"type":"boolean"},"boss":{"$ref":"#/$defs/person"}}}},"required"`,
		`"carrier": { "enum": ["post", "bike"] }`, `"carrier":{"enum":["post","bike",null,{"x":1}]},
			"tags":{"type":"array","items":{"type":"string"}},"customer":{"$ref":"#/$defs/person"}`).Replace(shipped("order.paid"))
	own, err := NewEventType(t.Context(), "order.paid", []byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	fields, open := own.FilterFields()
	var got []string
	for _, f := range fields {
		got = append(got, f.Path+": "+strings.Join(f.Kinds, " or "))
		if f.Path == "carrier" && fmt.Sprintf("%s", f.Values) != `["post" "bike" null]` {
			t.Errorf("carrier has %s", f.Values)
		}
	}
	want := []string{"carrier: null or string", "customer: ", "customer.boss: ", "customer.boss.boss: ", "customer.boss.boss.boss: ",
		"customer.boss.boss.vip: boolean", "customer.boss.vip: boolean", "customer.vip: boolean", "id: string", "order_id: number",
		"tags: string", "timestamp: string"}
	if !slices.Equal(got, want) || !open {
		t.Errorf("got %q, open %t; want %q, and other ones deeper", got, open, want)
	}
	for _, eventType := range append(testCatalog(t).Types(), own) {
		fields, _ := eventType.FilterFields()
		if len(fields) == 0 {
			t.Errorf("%s has no fields", eventType.Name)
		}
		for _, f := range fields {
			for _, op := range f.Ops {
				if op != OpExists && !slices.ContainsFunc(f.Kinds, func(kind string) bool { return acceptsKind(eventType, f.Path, op, kind) }) {
					t.Errorf("%s: %s %s is offered, but refused with %v", eventType.Name, f.Path, op, f.Kinds)
				}
			}
		}
	}
}

// acceptsKind reports whether a condition with a value of a kind is accepted.
func acceptsKind(t *EventType, path string, op FilterOp, kind string) bool {
	value := map[string]string{"null": "null", "boolean": "true", "number": "7", "string": `"2026-03-14T08:24:48.644Z"`}[kind]
	if op == OpIn || op == OpNotIn {
		value = "[" + value + "]"
	}
	_, refused := ParseFilter(fmt.Appendf(nil, `{"all":[{"path":%q,"op":%q,"value":%s}]}`, path, op, value), t, "f")
	return refused == nil
}

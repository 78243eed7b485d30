//go:build cgo

package planted

// filterBugs are mistakes in filter operations, at least one per operation, which the comparison
// with the model must find.
var filterBugs = func() (all []testBug) {
	const file = "webhook/filter.go"
	for _, b := range [][3]string{
		{"eq compares numbers as they are written", "return n.compare(&s.number) == 0", "return bytes.Equal(f.raw(value), s.text)"},
		{"ne is false for a value of another type", "return truthOf(!event.isOneOf(value, c.values))",
			"return truthOf(event.nodes[value].kind == c.values[0].kind && !event.isOneOf(value, c.values))"},
		{"in looks at the first value", "return truthOf(event.isOneOf(value, c.values))", "return truthOf(event.isOneOf(value, c.values[:1]))"},
		{"not_in looks at the first value", "case OpNotEqual, OpNotIn:\n\t\treturn truthOf(!event.isOneOf(value, c.values))",
			"case OpNotEqual, OpNotIn:\n\t\treturn truthOf(!event.isOneOf(value, c.values[:1]))"},
		{"gt includes its value", "c.op == OpGreater && sign > 0", "c.op == OpGreater && sign >= 0"},
		{"gte excludes its value", "c.op == OpGreaterEqual && sign >= 0", "c.op == OpGreaterEqual && sign > 0"},
		{"lt includes its value", "c.op == OpLess && sign < 0", "c.op == OpLess && sign <= 0"},
		{"lte excludes its value", "c.op == OpLessEqual && sign <= 0", "c.op == OpLessEqual && sign < 0"},
		{"starts_with finds a part anywhere", "bytes.HasPrefix(event.text(value), c.values[0].text)",
			"bytes.Contains(event.text(value), c.values[0].text)"},
		{"contains finds a part at the beginning only", "bytes.Contains(f.text(value), s.text)", "bytes.HasPrefix(f.text(value), s.text)"},
		{"exists with false is exists with true", "truthOf(found == (c.values[0].kind == jsontext.KindTrue))", "truthOf(found)"},
		{"not of unknown is true", "return isTrue - n.nodes[0].decide(event)", "return truthOf(n.nodes[0].decide(event) != isTrue)"},
		{"a missing field is false", "if !found {\n\t\treturn isUnknown", "if !found {\n\t\treturn isFalse"},
		{"numbers are compared without their exponent", "d.exponent += exponent(number[i+1:])", "d.exponent += 0 * exponent(number[i+1:])"},
		{"numbers are compared to 15 digits", "return sign * bytes.Compare(d.digits[:d.length], e.digits[:e.length])",
			"return sign * bytes.Compare(d.digits[:min(d.length, 15)], e.digits[:min(e.length, 15)])"},
	} {
		all = append(all, testBug{bug{b[0], []edit{{file, b[1], b[2]}}}, "TestFilterModel", "want", "webhook"})
	}
	return all
}()

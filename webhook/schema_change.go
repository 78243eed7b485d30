package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// SchemaChange is a difference between two schemas because of which the new one may
// reject a value that the old one accepts.
type SchemaChange struct {
	Path   string // JSON Pointer (RFC 6901) into the new schema; into the old one for what was removed
	Detail string // what changed: no longer allows "bike"
}

func (c SchemaChange) String() string { return whereInSchema(c.Path) + " " + c.Detail }

func whereInSchema(path string) string { return cmp.Or(path, "the schema") }

// Bounds of a comparison.
const (
	maxSchemaSteps   = 200_000 // pairs of subschemas
	maxSchemaChanges = 20      // reported
)

// CompareSchemas returns how new differs from old where a value that is valid under old
// may be invalid under new, nil if every such value is valid. Both are JSON Schemas
// 2020-12 that [NewEventType] accepts. New optional properties, wider bounds and more
// enum values are no differences, nor are annotations such as descriptions.
//
// The comparison may report a difference where there is none, but never the reverse:
// what it cannot prove is a difference. See docs/decisions/0043. It ends early, with a
// difference, when ctx ends.
func CompareSchemas(ctx context.Context, old, new json.RawMessage) []SchemaChange {
	var before, after document
	if before.parse(old, "") != nil || after.parse(new, "") != nil {
		return []SchemaChange{{"", "cannot be read"}}
	}
	o, n := schemaNode{before.any(0), ""}, schemaNode{after.any(0), ""}
	c := &schemaComparison{ctx: ctx, old: o.value, new: n.value, steps: maxSchemaSteps, active: make(map[string]int)}
	if name := cmp.Or(indirect(o.value, true), indirect(n.value, true)); name != "" {
		if !reflect.DeepEqual(withoutTexts(o.value), withoutTexts(n.value)) {
			c.fail("", "uses %s, which only allows title and description to change", name)
		}
	} else if !c.implies(o, n) && c.changes == nil {
		c.fail("", "is too large to be compared")
	}
	slices.SortStableFunc(c.changes, func(a, b SchemaChange) int { return strings.Compare(a.Path, b.Path) })
	return slices.Compact(c.changes)
}

// indirect returns a keyword in the JSON value by which a schema can refer to another in
// a way that the comparison does not follow, "" if there is none.
func indirect(value any, root bool) string {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			if name := indirect(element, false); name != "" {
				return name
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			switch name {
			case "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary":
				return name
			case "$id", "$schema":
				if !root {
					return "a nested " + name
				}
			case "$ref":
				if ref, ok := v[name].(string); ok && ref != "#" && !strings.HasPrefix(ref, "#/") {
					return "$ref to an anchor"
				}
			}
			if name := indirect(v[name], false); name != "" {
				return name
			}
		}
	}
	return ""
}

// withoutTexts returns a schema without the title, description and comment of its root.
func withoutTexts(schema any) any {
	object, ok := schema.(map[string]any)
	if !ok {
		return schema
	}
	object = maps.Clone(object)
	for _, name := range []string{"title", "description", "$comment"} {
		delete(object, name)
	}
	return object
}

// schemaNode is a subschema, true if its value is missing, and its place.
type schemaNode struct {
	value any
	at    string
}

// object returns the keywords of a schema; those of true are none.
func (n schemaNode) object() map[string]any {
	object, _ := n.value.(map[string]any)
	return object
}

// sub returns the subschema in a keyword, true if there is none.
func (n schemaNode) sub(keyword string) schemaNode {
	value, ok := n.object()[keyword]
	if !ok {
		value = true
	}
	return schemaNode{value, n.at + "/" + keyword}
}

// subs returns the subschemas in a keyword with an array.
func (n schemaNode) subs(keyword string) []schemaNode {
	list, _ := n.object()[keyword].([]any)
	all := make([]schemaNode, len(list))
	for i, value := range list {
		all[i] = schemaNode{value, n.at + "/" + keyword + "/" + strconv.Itoa(i)}
	}
	return all
}

// named returns the subschemas in a keyword with an object.
func (n schemaNode) named(keyword string) map[string]schemaNode {
	object, _ := n.object()[keyword].(map[string]any)
	all := make(map[string]schemaNode, len(object))
	for name, value := range object {
		all[name] = schemaNode{value, n.at + "/" + keyword + "/" + pointerToken(name)}
	}
	return all
}

func (n schemaNode) has(keyword string) bool { _, ok := n.object()[keyword]; return ok }

// hasAny reports whether the schema has one of the keywords.
func (n schemaNode) hasAny(keywords ...string) bool { return slices.ContainsFunc(keywords, n.has) }

func pointerToken(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// The keywords with subschemas, by how those are written, and those without an effect on
// what is valid.
var (
	inPlaceKeywords  = []string{"$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas", "dependencies"}
	schemaKeywords   = []string{"not", "if", "then", "else", "additionalProperties", "propertyNames", "items", "contains"}
	unevaluated      = []string{"unevaluatedProperties", "unevaluatedItems"}
	schemaLists      = []string{"allOf", "anyOf", "oneOf", "prefixItems"}
	schemaMaps       = []string{"properties", "patternProperties", "dependentSchemas", "dependencies"}
	annotationWords  = []string{"title", "description", "examples", "default", "deprecated", "readOnly", "writeOnly"}
	structureWords   = []string{"$schema", "$id", "$comment", "$defs", "definitions"}
	contentWords     = []string{"contentEncoding", "contentMediaType", "contentSchema"}
	keywordsInOthers = []string{"then", "else", "minContains", "maxContains"} // compared with if and contains
)

// isAnnotation reports whether a keyword has no effect on what is valid.
func isAnnotation(keyword string) bool {
	return slices.Contains(annotationWords, keyword) || slices.Contains(structureWords, keyword) ||
		slices.Contains(contentWords, keyword) || strings.HasPrefix(keyword, "x-")
}

// schemaComparison compares two schemas.
type schemaComparison struct {
	ctx      context.Context
	old, new any // roots
	steps    int // left
	depth    int // of the instance that is compared
	changes  []SchemaChange

	// active has the pairs that are being compared, with their depth. A pair that
	// is met again deeper in the instance holds if everything else does, because
	// instances are finite.
	active map[string]int
}

// fail reports a difference. It returns false.
func (c *schemaComparison) fail(at, format string, args ...any) bool {
	if len(c.changes) < maxSchemaChanges {
		c.changes = append(c.changes, SchemaChange{at, fmt.Sprintf(format, args...)})
	}
	return false
}

// try reports whether a comparison finds no difference, without reporting any.
func (c *schemaComparison) try(o, n schemaNode) bool {
	changes := c.changes
	c.changes = slices.Clip(c.changes)
	ok := c.implies(o, n)
	c.changes = changes
	return ok
}

// child compares the schemas of a part of the instance.
func (c *schemaComparison) child(o, n schemaNode) bool {
	c.depth++
	defer func() { c.depth-- }()
	return c.implies(o, n)
}

// step counts a step of the comparison. It returns false, with a difference, if there
// were too many.
func (c *schemaComparison) step(at string) bool {
	if !c.more() {
		return c.fail(at, "is too large to be compared")
	}
	return true
}

// more counts a step. It returns false if there were too many, or if the context has ended.
func (c *schemaComparison) more() bool {
	if c.steps--; c.steps >= 0 && c.ctx.Err() != nil {
		c.steps = -1
	}
	return c.steps >= 0
}

// implies reports whether every value that is valid under o is valid under n, as far as
// that can be proven.
func (c *schemaComparison) implies(o, n schemaNode) bool {
	if !c.step(n.at) {
		return false
	}
	o = c.target(o)
	switch {
	case o.value == false || n.value == true:
		return true
	case n.value == false:
		return c.fail(n.at, "no longer allows any value")
	}
	pair := o.at + "\x00" + n.at
	if o.value == true {
		pair = "\x00" + n.at
	}
	if depth, ok := c.active[pair]; ok {
		return c.depth > depth || c.fail(n.at, "refers to itself")
	}
	c.active[pair] = c.depth
	defer delete(c.active, pair)

	allowed := kindsOf(o)
	ok, members, elements := true, false, false
	for _, keyword := range slices.Sorted(maps.Keys(n.object())) {
		if isAnnotation(keyword) || slices.Contains(keywordsInOthers, keyword) {
			continue
		}
		if kinds, some := keywordKinds[keyword]; some && kinds&allowed == 0 {
			continue // it says nothing about the values that were valid
		}
		switch keyword {
		case "properties", "patternProperties", "additionalProperties", "unevaluatedProperties":
			members = true
		case "prefixItems", "items", "unevaluatedItems":
			elements = true
		default:
			ok = c.keyword(o, n, keyword, allowed) && ok
		}
	}
	if members {
		ok = c.members(o, n) && ok
	}
	if elements {
		ok = c.elements(o, n) && ok
	}
	return ok
}

// target follows the references of an old schema that consists of nothing else.
func (c *schemaComparison) target(o schemaNode) schemaNode {
	for range MaxJSONDepth {
		object := o.object()
		if _, ok := object["$ref"]; !ok {
			return o
		}
		for keyword := range object {
			if keyword != "$ref" && !isAnnotation(keyword) {
				return o
			}
		}
		next, ok := resolve(c.old, object["$ref"])
		if !ok {
			return o
		}
		o = next
	}
	return o
}

// resolve returns the schema that a reference in the schema root names.
func resolve(root any, ref any) (schemaNode, bool) {
	text, _ := ref.(string)
	at, err := url.PathUnescape(strings.TrimPrefix(text, "#"))
	if err != nil || !strings.HasPrefix(text, "#") || at != "" && at[0] != '/' {
		return schemaNode{}, false
	}
	value := root
	if at != "" {
		for token := range strings.SplitSeq(at[1:], "/") {
			token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
			ok := false
			switch v := value.(type) {
			case map[string]any:
				value, ok = v[token]
			case []any:
				var i int
				if i, err = strconv.Atoi(token); err == nil && i >= 0 && i < len(v) {
					value, ok = v[i], true
				}
			}
			if !ok {
				return schemaNode{}, false
			}
		}
	}
	return schemaNode{value, at}, true
}

// valueKinds is a set of kinds of JSON values. Numbers with and without a fraction are
// different kinds.
type valueKinds uint8

const (
	kindNull valueKinds = 1 << iota
	kindBoolean
	kindInteger
	kindFraction
	kindString
	kindArray
	kindObject

	kindNumber = kindInteger | kindFraction
	kindAny    = kindNull | kindBoolean | kindNumber | kindString | kindArray | kindObject
)

var kindNames = []struct {
	name  string
	kinds valueKinds
}{
	{"null", kindNull}, {"boolean", kindBoolean}, {"number", kindNumber}, {"integer", kindInteger},
	{"string", kindString}, {"array", kindArray}, {"object", kindObject},
}

// keywordKinds has the kinds of values that a keyword applies to; other keywords apply to
// all.
var keywordKinds = map[string]valueKinds{
	"maxLength": kindString, "minLength": kindString, "pattern": kindString,
	"maximum": kindNumber, "minimum": kindNumber, "exclusiveMaximum": kindNumber, "exclusiveMinimum": kindNumber, "multipleOf": kindNumber,
	"maxItems": kindArray, "minItems": kindArray, "uniqueItems": kindArray, "contains": kindArray,
	"prefixItems": kindArray, "items": kindArray, "unevaluatedItems": kindArray,
	"maxProperties": kindObject, "minProperties": kindObject, "required": kindObject, "propertyNames": kindObject,
	"properties": kindObject, "patternProperties": kindObject, "additionalProperties": kindObject, "unevaluatedProperties": kindObject,
	"dependentRequired": kindObject, "dependentSchemas": kindObject, "dependencies": kindObject,
}

// kindsOf returns the kinds of values that a schema may allow.
func kindsOf(n schemaNode) valueKinds {
	allowed := kindAny
	if value, ok := n.object()["type"]; ok {
		allowed = typeKinds(value)
	}
	if values := valuesOf(n); values != nil {
		var kinds valueKinds
		for _, v := range values {
			kinds |= kindOfValue(v)
		}
		allowed &= kinds
	}
	return allowed
}

// typeKinds returns the kinds that the keyword type allows.
func typeKinds(value any) (kinds valueKinds) {
	names, ok := value.([]any)
	if !ok {
		names = []any{value}
	}
	for _, k := range kindNames {
		if slices.Contains(names, any(k.name)) {
			kinds |= k.kinds
		}
	}
	return kinds
}

func kindOfValue(value any) valueKinds {
	switch value.(type) {
	case nil:
		return kindNull
	case bool:
		return kindBoolean
	case string:
		return kindString
	case []any:
		return kindArray
	case map[string]any:
		return kindObject
	}
	return kindNumber
}

// valuesOf returns the only values that a schema allows, nil for any.
func valuesOf(n schemaNode) []any {
	if value, ok := n.object()["const"]; ok {
		return []any{value}
	}
	values, _ := n.object()["enum"].([]any)
	return values
}

// keyword compares what a keyword of the new schema requires.
func (c *schemaComparison) keyword(o, n schemaNode, keyword string, allowed valueKinds) bool {
	at, value := n.at+"/"+keyword, n.object()[keyword]
	switch keyword {
	case "type":
		var missing []string
		lost := allowed &^ typeKinds(value)
		for _, k := range kindNames {
			if lost&k.kinds == k.kinds && !(k.name == "integer" && lost&kindFraction != 0) || k.name == "number" && lost&kindNumber == kindFraction {
				missing = append(missing, k.name)
			}
		}
		return missing == nil || c.fail(at, "no longer allows %s", strings.Join(missing, ", "))
	case "const", "enum":
		return c.values(o, n, keyword)
	case "maxLength", "maxItems", "maxProperties", "minLength", "minItems", "minProperties",
		"maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf":
		return c.bound(o, n, keyword)
	case "required", "dependentRequired":
		return c.required(o, n, keyword)
	case "uniqueItems":
		return value != true || o.object()[keyword] == true || c.fail(at, "no longer allows equal elements")
	case "pattern", "format":
		return c.text(o, n, keyword)
	case "contains", "not", "oneOf", "dependencies":
		return c.unchanged(o, n, keyword)
	case "propertyNames":
		if !o.has(keyword) {
			return c.fail(at, "is new")
		}
		return c.child(o.sub(keyword), n.sub(keyword))
	case "dependentSchemas":
		return c.dependent(o, n)
	case "$ref":
		return c.reference(o, n)
	case "allOf":
		return c.all(o, n)
	case "anyOf":
		return c.any(o, n)
	case "if":
		return c.conditional(o, n)
	}
	return reflect.DeepEqual(o.object()[keyword], value) || c.fail(at, "is not a keyword that can be compared")
}

// values compares const or enum.
func (c *schemaComparison) values(o, n schemaNode, keyword string) bool {
	allowed := []any{n.object()["const"]}
	if keyword == "enum" {
		allowed, _ = n.object()["enum"].([]any)
	}
	at, old := n.at+"/"+keyword, valuesOf(o)
	if old == nil {
		return c.fail(at, "is new and allows only some values")
	}
	known := make(map[string]bool, len(allowed))
	for _, value := range allowed {
		known[literal(value)] = true
	}
	ok := true
	for _, value := range old {
		if !known[literal(value)] {
			ok = c.fail(at, "no longer allows %s", shortLiteral(value))
		}
	}
	return ok
}

// shortLiteral formats a value as JSON, shortened.
func shortLiteral(value any) string {
	text := literal(value)
	if len(text) > maxQuotedName {
		text = strings.ToValidUTF8(text[:maxQuotedName], "") + "…"
	}
	return text
}

// bound compares a keyword with a number.
func (c *schemaComparison) bound(o, n schemaNode, keyword string) bool {
	bound, was := number(n, keyword), number(o, keyword)
	if bound == nil {
		return c.fail(n.at+"/"+keyword, "cannot be compared")
	}
	atMost := func(name string, limit int) bool { // whether o bounds values from above
		v := number(o, name)
		return v != nil && v.Cmp(bound) <= limit
	}
	atLeast := func(name string, limit int) bool {
		v := number(o, name)
		return v != nil && v.Cmp(bound) >= limit
	}
	var ok bool
	switch keyword {
	case "maxLength", "maxItems", "maxProperties":
		ok = atMost(keyword, 0)
	case "minLength", "minItems", "minProperties":
		ok = bound.Sign() <= 0 || atLeast(keyword, 0)
	case "maximum":
		ok = atMost("maximum", 0) || atMost("exclusiveMaximum", 0)
	case "exclusiveMaximum":
		ok = atMost("exclusiveMaximum", 0) || atMost("maximum", -1)
	case "minimum":
		ok = atLeast("minimum", 0) || atLeast("exclusiveMinimum", 0)
	case "exclusiveMinimum":
		ok = atLeast("exclusiveMinimum", 0) || atLeast("minimum", 1)
	case "multipleOf":
		ok = was != nil && bound.Sign() > 0 && new(big.Rat).Quo(was, bound).IsInt()
	}
	if ok {
		return true
	}
	if was == nil {
		return c.fail(n.at+"/"+keyword, "is new: %s", shortLiteral(n.object()[keyword]))
	}
	return c.fail(n.at+"/"+keyword, "changed from %s to %s", shortLiteral(o.object()[keyword]), shortLiteral(n.object()[keyword]))
}

// number returns the number in a keyword, nil if there is none.
func number(n schemaNode, keyword string) *big.Rat {
	text, ok := n.object()[keyword].(json.Number)
	if !ok {
		return nil
	}
	value, ok := new(big.Rat).SetString(string(text))
	if !ok {
		return nil
	}
	return value
}

// text compares a keyword with a string.
func (c *schemaComparison) text(o, n schemaNode, keyword string) bool {
	was, is := o.object()[keyword], n.object()[keyword]
	switch {
	case reflect.DeepEqual(was, is):
		return true
	case was == nil:
		return c.fail(n.at+"/"+keyword, "is new: %s", shortLiteral(is))
	}
	return c.fail(n.at+"/"+keyword, "changed from %s to %s", shortLiteral(was), shortLiteral(is))
}

// texts returns the strings in an array.
func texts(value any) (all []string) {
	list, _ := value.([]any)
	for _, v := range list {
		if s, ok := v.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// required compares required or dependentRequired.
func (c *schemaComparison) required(o, n schemaNode, keyword string) bool {
	ok, was := true, setOf(texts(o.object()["required"]))
	if keyword == "required" {
		for _, name := range texts(n.object()[keyword]) {
			if !was[name] {
				ok = c.fail(n.at+"/required", "now requires %s", quotedName(name))
			}
		}
		return ok
	}
	before, _ := o.object()[keyword].(map[string]any)
	after, _ := n.object()[keyword].(map[string]any)
	for _, given := range slices.Sorted(maps.Keys(after)) {
		also := setOf(texts(before[given]))
		for _, name := range texts(after[given]) {
			if name != given && !was[name] && !also[name] {
				ok = c.fail(n.at+"/"+keyword+"/"+pointerToken(given), "now requires %s", quotedName(name))
			}
		}
	}
	return ok
}

// unchanged requires a keyword to mean the same in both schemas.
func (c *schemaComparison) unchanged(o, n schemaNode, keyword string) bool {
	keywords := []string{keyword}
	if keyword == "contains" {
		keywords = []string{keyword, "minContains", "maxContains"}
	}
	for _, k := range keywords {
		if o.has(k) != n.has(k) || o.has(k) && !c.sameKeyword(o, n, k, make(map[string]bool)) {
			what := "changed"
			if !o.has(keyword) {
				what = "is new"
			}
			return c.fail(n.at+"/"+keyword, "%s", what)
		}
	}
	return true
}

// dependent compares dependentSchemas.
func (c *schemaComparison) dependent(o, n schemaNode) bool {
	ok, before, after := true, o.named("dependentSchemas"), n.named("dependentSchemas")
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, found := before[name]; found {
			ok = c.implies(before[name], after[name]) && ok
		} else {
			ok = c.implies(o, after[name]) && ok
		}
	}
	return ok
}

// reference compares a $ref of the new schema.
func (c *schemaComparison) reference(o, n schemaNode) bool {
	to, ok := resolve(c.new, n.object()["$ref"])
	if !ok {
		return c.fail(n.at+"/$ref", "cannot be followed")
	}
	if from, ok := resolve(c.old, o.object()["$ref"]); ok {
		if c.try(from, to) || c.try(o, to) {
			return true
		}
		return c.implies(from, to)
	}
	return c.implies(o, to)
}

// all compares allOf. A part must follow from a part of the old schema, or from all of
// it.
func (c *schemaComparison) all(o, n schemaNode) bool {
	ok, before := true, o.subs("allOf")
	for i, part := range n.subs("allOf") {
		if c.steps < 0 {
			return false
		}
		implied := func(b schemaNode) bool { return c.try(b, part) }
		if i < len(before) && implied(before[i]) || slices.ContainsFunc(before, implied) || implied(o) {
			continue
		}
		from := o
		if i < len(before) {
			from = before[i]
		}
		ok = c.implies(from, part) && ok
	}
	return ok
}

// any compares anyOf. Each old alternative must imply a new one.
func (c *schemaComparison) any(o, n schemaNode) bool {
	before := []schemaNode{o}
	if o.has("anyOf") {
		before = o.subs("anyOf")
	} else if o.has("oneOf") {
		before = o.subs("oneOf")
	}
	ok, after := true, n.subs("anyOf")
	for i, b := range before {
		if c.steps < 0 {
			return false
		}
		implies := func(a schemaNode) bool { return c.try(b, a) }
		if i < len(after) && implies(after[i]) || slices.ContainsFunc(after, implies) {
			continue
		}
		if len(before) > 1 && i < len(after) {
			ok = c.implies(b, after[i]) && ok
		} else {
			ok = c.fail(n.at+"/anyOf", "no longer allows all that %s allowed", whereInSchema(b.at))
		}
	}
	return ok
}

// conditional compares if, then and else. The condition must not change.
func (c *schemaComparison) conditional(o, n schemaNode) bool {
	if !n.hasAny("then", "else") {
		return true
	}
	if !o.has("if") || !c.same(o.sub("if"), n.sub("if"), make(map[string]bool)) {
		if c.try(o, n.sub("then")) && c.try(o, n.sub("else")) {
			return true
		}
		return c.fail(n.at+"/if", "is new or changed")
	}
	then := c.implies(o.sub("then"), n.sub("then"))
	return c.implies(o.sub("else"), n.sub("else")) && then
}

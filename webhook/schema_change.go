package webhook

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// SchemaChange is a difference between two schemas that may make the new one reject a value
// that the old one accepts.
type SchemaChange struct {
	Path   string // JSON Pointer (RFC 6901) into the new schema; into the old one for what was removed
	Detail string // what changed: no longer allows "bike"
}

func (c SchemaChange) String() string { return cmp.Or(c.Path, "the schema") + " " + c.Detail }

// maxSchemaChanges bounds the differences that are reported.
const maxSchemaChanges = 20

// CompareSchemas returns the differences between two schemas that are not on the list of
// allowed changes, nil if there are none. Every value that is valid under old is then valid
// under new. Both are JSON Schemas 2020-12 that [NewEventType] accepts.
func CompareSchemas(old, new json.RawMessage) []SchemaChange {
	var before, after document
	if before.parse(old, "") != nil || after.parse(new, "") != nil {
		return []SchemaChange{{"", "cannot be read"}}
	}
	o, n := before.any(0), after.any(0)
	var c schemaComparison
	refs, name := indirect(o, true)
	moreRefs, other := indirect(n, true)
	if name = cmp.Or(name, other); name != "" {
		if !reflect.DeepEqual(withoutAnnotations(o), withoutAnnotations(n)) {
			c.fail("", "uses %s, which only allows annotations of the root to change", name)
		}
		return c.changes
	}
	if refs || moreRefs {
		for _, keyword := range []string{"$defs", "definitions"} {
			if !reflect.DeepEqual(keywordOf(o, keyword), keywordOf(n, keyword)) {
				c.fail("/"+keyword, "changed, which a schema with $ref does not allow")
			}
		}
	}
	c.schema(o, n, "")
	slices.SortStableFunc(c.changes, func(a, b SchemaChange) int { return strings.Compare(a.Path, b.Path) })
	return slices.Compact(c.changes)
}

// indirect reports whether a JSON value has a $ref into the definitions, and returns a
// keyword by which it refers to anything else, "" if there is none.
func indirect(value any, root bool) (refs bool, name string) {
	var parts []any
	switch v := value.(type) {
	case []any:
		parts = v
	case map[string]any:
		for _, keyword := range slices.Sorted(maps.Keys(v)) {
			switch keyword {
			case "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary":
				return refs, keyword
			case "$id", "$schema":
				if !root {
					return refs, "a nested " + keyword
				}
			case "$ref":
				ref, ok := v[keyword].(string)
				if ok && !strings.HasPrefix(ref, "#/$defs/") && !strings.HasPrefix(ref, "#/definitions/") {
					return refs, "$ref outside $defs"
				}
				refs = true
			}
			parts = append(parts, v[keyword])
		}
	}
	for _, part := range parts {
		more, name := indirect(part, false)
		if refs = refs || more; name != "" {
			return refs, name
		}
	}
	return refs, ""
}

func keywordOf(schema any, keyword string) any {
	object, _ := schema.(map[string]any)
	return object[keyword]
}

// withoutAnnotations returns a schema without the annotations of its root.
func withoutAnnotations(schema any) any {
	object, ok := schema.(map[string]any)
	if !ok {
		return schema
	}
	object = maps.Clone(object)
	maps.DeleteFunc(object, func(name string, _ any) bool {
		return isAnnotation(name) && !strings.HasSuffix(name, "efs") && name != "definitions"
	})
	return object
}

func pointerToken(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

var annotationWords = []string{"title", "description", "examples", "default", "deprecated", "readOnly", "writeOnly",
	"$schema", "$id", "$comment", "$defs", "definitions", "contentEncoding", "contentMediaType", "contentSchema"}

// isAnnotation reports whether a keyword has no effect of its own on what is valid.
func isAnnotation(keyword string) bool {
	return slices.Contains(annotationWords, keyword) || strings.HasPrefix(keyword, "x-")
}

// schemaComparison collects the differences of two schemas.
type schemaComparison struct{ changes []SchemaChange }

func (c *schemaComparison) fail(at, format string, args ...any) {
	if len(c.changes) < maxSchemaChanges {
		c.changes = append(c.changes, SchemaChange{at, fmt.Sprintf(format, args...)})
	}
}

// schema compares two schemas for the same values.
func (c *schemaComparison) schema(old, new any, at string) {
	o, isObject := old.(map[string]any)
	n, alsoObject := new.(map[string]any)
	switch {
	case old == false || new == true:
		return
	case new == false:
		c.fail(at, "no longer allows any value")
		return
	case !alsoObject || !isObject && old != true:
		c.fail(at, "cannot be compared")
		return
	}
	both := maps.Clone(n)
	maps.Copy(both, o)
	for _, keyword := range slices.Sorted(maps.Keys(both)) {
		_, had := o[keyword]
		_, has := n[keyword] // null is a value: "const": null
		if !isAnnotation(keyword) && (had != has || !reflect.DeepEqual(o[keyword], n[keyword])) {
			c.keyword(o, n, keyword, at+"/"+pointerToken(keyword))
		}
	}
}

// keyword compares a keyword that differs.
func (c *schemaComparison) keyword(o, n map[string]any, keyword, at string) {
	was, had := o[keyword]
	is, has := n[keyword]
	switch keyword {
	case "type":
		c.types(was, had, is, has, at)
		return
	case "enum":
		c.enum(was, is, had, has, at)
		return
	case "required":
		known := make(map[string]bool)
		for _, name := range texts(was) {
			known[name] = true
		}
		for _, name := range texts(is) {
			if !known[name] {
				c.fail(at, "now requires %s", quotedName(name))
			}
		}
		return
	case "properties":
		c.properties(o, n, at)
		return
	case "items":
		if had && has {
			c.schema(was, is, at)
			return
		}
	case "maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum",
		"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum":
		from, to, sign := number(was), number(is), 1
		if strings.HasPrefix(strings.ToLower(strings.TrimPrefix(keyword, "exclusive")), "min") {
			sign = -1
		}
		if !has || from != nil && to != nil && to.Cmp(from)*sign >= 0 {
			return
		}
	}
	switch {
	case !had:
		c.fail(at, "is new: %s", shortLiteral(is))
	case !has:
		c.fail(at, "was removed")
	default:
		c.fail(at, "changed from %s to %s", shortLiteral(was), shortLiteral(is))
	}
}

func (c *schemaComparison) types(was any, had bool, is any, has bool, at string) {
	if !has {
		return
	}
	allowed := kindAny
	if had {
		allowed = typeKinds(typeNames(was)...)
	}
	var missing []string
	lost := allowed &^ typeKinds(typeNames(is)...)
	for _, k := range kindNames {
		if lost&k.kinds == k.kinds && !(k.name == "integer" && lost&kindFraction != 0) || k.name == "number" && lost&kindNumber == kindFraction {
			missing = append(missing, k.name)
		}
	}
	if missing != nil {
		c.fail(at, "no longer allows %s", strings.Join(missing, ", "))
	}
}

func (c *schemaComparison) enum(was, is any, had, has bool, at string) {
	if !has {
		return
	}
	if !had {
		c.fail(at, "is new and allows only some values")
		return
	}
	before, _ := was.([]any)
	after, _ := is.([]any)
	known := make(map[string]bool, len(after))
	for _, value := range after {
		known[literal(value)] = true
	}
	for _, value := range before {
		if !known[literal(value)] {
			c.fail(at, "no longer allows %s", shortLiteral(value))
		}
	}
}

// properties compares properties. A new one is allowed if no object could have it before.
func (c *schemaComparison) properties(o, n map[string]any, at string) {
	before, _ := o["properties"].(map[string]any)
	after, _ := n["properties"].(map[string]any)
	closed := o["additionalProperties"] == false && o["patternProperties"] == nil
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if is, ok := after[name]; ok {
			c.schema(before[name], is, at+"/"+pointerToken(name))
		} else {
			c.fail(at+"/"+pointerToken(name), "was removed")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[name]; !ok && !closed {
			c.fail(at+"/"+pointerToken(name), "is new, which needs additionalProperties: false in the old schema")
		}
	}
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

// nodeKinds are the kinds of the values of a [document].
var nodeKinds = [256]valueKinds{
	jsontext.KindNull: kindNull, jsontext.KindTrue: kindBoolean, jsontext.KindFalse: kindBoolean, jsontext.KindNumber: kindNumber,
	jsontext.KindString: kindString, jsontext.KindBeginArray: kindArray, jsontext.KindBeginObject: kindObject,
}

// typeNames returns the names in the value of the keyword type.
func typeNames(value any) []string {
	if name, ok := value.(string); ok {
		return []string{name}
	}
	return texts(value)
}

// typeKinds returns the kinds that the keyword type allows with some names.
func typeKinds(names ...string) (kinds valueKinds) {
	for _, k := range kindNames {
		if slices.Contains(names, k.name) {
			kinds |= k.kinds
		}
	}
	return kinds
}

// shortLiteral formats a value as JSON, shortened.
func shortLiteral(value any) string { return Shorten(literal(value), maxQuotedName) }

// number returns the JSON number, nil if there is none.
func number(value any) *big.Rat {
	text, ok := value.(json.Number)
	if !ok {
		return nil
	}
	rat, ok := new(big.Rat).SetString(string(text))
	if !ok {
		return nil
	}
	return rat
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

package api

import (
	"bytes"
	_ "embed" // for openapi.yaml
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"service/webhook"
)

// openapiYAML is the hand-written contract, without the event types.
//
//go:embed openapi.yaml
var openapiYAML []byte

// withPut is the suffix of the operationId of an action's PUT.
const withPut = "WithPut"

// addAction returns a path of the document. If its POST is marked x-action, it adds the
// same operation for PUT.
func addAction(text []byte) []byte {
	var item, post members[json.RawMessage]
	mustDecode(text, &item)
	if item.get("post") == nil {
		return text
	}
	mustDecode(item.get("post"), &post)
	if post.take("x-action") == nil {
		return text
	}
	item.set("post", appendObject(nil, post))
	put := slices.Clone(post)
	var id, summary string
	mustDecode(post.get("operationId"), &id)
	mustDecode(post.get("summary"), &summary)
	put.set("operationId", appendText(nil, id+withPut))
	put.set("summary", appendText(nil, summary+" with PUT"))
	put.set("description", appendText(nil, "The same as `POST`."))
	item.set("put", appendObject(nil, put))
	return appendObject(nil, item)
}

// eventPrefix begins the names of the event types' schemas, and of no schema in openapi.yaml.
const eventPrefix = "event_"

// eventSchemaNames returns the names of the schemas of event types in the document. A dot
// separates the name of a schema from that of a definition, and a component's name has no colon, so
// both become hyphens. Client generators drop hyphens and underscores and change the case, so names
// that differ in nothing else get a suffix, unless they are built in.
func eventSchemaNames(types []*webhook.EventType) map[string]string {
	mark := strings.NewReplacer(".", "", ":", "", "-", "", "_", "")
	letters := func(name string) string { return strings.ToLower(mark.Replace(name)) }
	hyphen := strings.NewReplacer(".", "-", ":", "-")
	alike := make(map[string]int)
	for _, t := range types {
		alike[letters(t.Name)]++
	}
	names := make(map[string]string, len(types))
	for _, t := range types {
		name := eventPrefix + hyphen.Replace(t.Name)
		if alike[letters(t.Name)] > 1 && t.Source != webhook.SourceBuiltIn {
			name += fmt.Sprintf("-%08x", crc32.ChecksumIEEE([]byte(t.Name)))
		}
		names[t.Name] = name
	}
	return names
}

const schemasAt = "#/components/schemas/"

var (
	reference     = regexp.MustCompile(`"\$ref":"#([^"]*)"`) // in compact JSON
	componentName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
)

// eventSchemas returns the schema of an event type for the document. It is equivalent to
// the catalog's, in a form that client generators understand:
//
//   - Definitions become separate schemas, name.definition, because generators treat
//     $defs as a property. References to them change accordingly.
//   - anyOf and oneOf are moved into allOf, because generators treat them as
//     alternatives to the properties.
//   - An object without properties gets additionalProperties, because generators treat
//     it as empty.
func eventSchemas(name string, text []byte) members[json.RawMessage] {
	var schema, own, definitions, stay members[json.RawMessage]
	var also []json.RawMessage // of allOf
	mustDecode(text, &schema)
	all := members[json.RawMessage]{{Name: name}}
	for _, m := range schema {
		switch m.Name {
		case "$schema": // the document has its own
		case "$defs":
			mustDecode(m.Value, &definitions)
			for _, d := range definitions {
				if componentName.MatchString(d.Name) {
					all = append(all, member[json.RawMessage]{name + "." + d.Name, d.Value})
				} else {
					stay = append(stay, d)
				}
			}
		case "allOf":
			mustDecode(m.Value, &also)
		case "properties":
			own = append(own, member[json.RawMessage]{m.Name, openObjects(m.Value)})
		default:
			own = append(own, m)
		}
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		if v := own.take(keyword); v != nil {
			also = append(also, fmt.Appendf(nil, `{%q:%s}`, keyword, v))
		}
	}
	if also != nil {
		own = append(own, member[json.RawMessage]{"allOf", appendArray(nil, also)})
	}
	if stay != nil {
		own = append(own, member[json.RawMessage]{"$defs", appendObject(nil, stay)})
	}
	all[0].Value = appendObject(nil, own)
	for i := range all {
		all[i].Value = reference.ReplaceAllFunc(all[i].Value, func(match []byte) []byte {
			within := string(reference.FindSubmatch(match)[1])
			if rest, ok := strings.CutPrefix(within, "/$defs/"); ok {
				definition, _, _ := strings.Cut(rest, "/")
				if componentName.MatchString(definition) {
					return fmt.Appendf(nil, `"$ref":%q`, schemasAt+name+"."+rest)
				}
			}
			return fmt.Appendf(nil, `"$ref":%q`, schemasAt+name+within)
		})
	}
	return all
}

// withDetails changes the schemas of a notification to those of an accepted notification: its
// details are the object of its category, or any object for other categories. The category selects
// it in allOf, which generators do not read.
func withDetails(schemas members[json.RawMessage]) {
	var schema, properties, details members[json.RawMessage]
	var required []json.RawMessage
	var byCategory []struct {
		Then struct {
			Properties struct{ Details json.RawMessage }
		}
	}
	mustDecode(schemas[0].Value, &schema)
	mustDecode(schema.get("properties"), &properties)
	mustDecode(schema.get("required"), &required)
	mustDecode(schema.get("allOf"), &byCategory)
	mustDecode(properties.get("details"), &details)
	var kinds []json.RawMessage
	for _, c := range byCategory {
		kinds = append(kinds, c.Then.Properties.Details)
	}
	kinds = append(kinds, json.RawMessage(`{"type":"object","additionalProperties":true}`))
	properties.set("details", appendObject(nil, members[json.RawMessage]{
		{"description", details.get("description")}, {"anyOf", appendArray(nil, kinds)},
	}))
	schema.set("properties", appendObject(nil, properties))
	schema.set("required", appendArray(nil, append(required, json.RawMessage(`"details"`))))
	schemas[0].Value = appendObject(nil, schema)
}

// openObjects adds additionalProperties to the objects among the properties that do not
// define their own properties.
func openObjects(text []byte) []byte {
	var properties members[json.RawMessage]
	mustDecode(text, &properties)
	for i := range properties {
		var schema members[json.RawMessage]
		if text := properties[i].Value; text[0] == '{' { // true and false are schemas too
			mustDecode(text, &schema)
		}
		if string(schema.get("type")) == `"object"` && schema.get("properties") == nil && schema.get("additionalProperties") == nil {
			schema.set("additionalProperties", json.RawMessage("true"))
			properties[i].Value = appendObject(nil, schema)
		}
	}
	return appendObject(nil, properties)
}

// mustDecode decodes JSON that this package has produced.
func mustDecode(text []byte, v any) {
	if err := json.Unmarshal(text, v); err != nil {
		panic(fmt.Errorf("the OpenAPI document: %w", err))
	}
}

// appendYAML appends a value of openapi.yaml as JSON.
func appendYAML(dst []byte, n *yaml.Node) []byte {
	switch n.Kind {
	case yaml.DocumentNode:
		return appendYAML(dst, n.Content[0])
	case yaml.AliasNode:
		return appendYAML(dst, n.Alias)
	case yaml.SequenceNode:
		return appendList(dst, len(n.Content), func(dst []byte, i int) []byte { return appendYAML(dst, n.Content[i]) })
	case yaml.MappingNode:
		dst = append(dst, '{')
		for i := 0; i < len(n.Content); i += 2 {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendText(dst, n.Content[i].Value), ':')
			dst = appendYAML(dst, n.Content[i+1])
		}
		return append(dst, '}')
	}
	if n.Value == "" && n.Style == 0 {
		panic(fmt.Errorf("openapi.yaml, line %d: a value is missing; quote values with commas inside braces", n.Line))
	}
	switch n.ShortTag() {
	case "!!int", "!!float", "!!bool", "!!null":
		return append(dst, n.Value...) // written as in JSON, which mustDecode checks
	}
	return appendText(dst, n.Value)
}

// appendText appends a string as JSON.
func appendText(dst []byte, s string) []byte {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(s) // a string can always be encoded
	return append(dst, strings.TrimSuffix(b.String(), "\n")...)
}

// members is a JSON object in its original order.
type members[T any] []member[T]

type member[T any] struct {
	Name  string
	Value T
}

func (m members[T]) index(name string) int {
	return slices.IndexFunc(m, func(one member[T]) bool { return one.Name == name })
}

// get returns the value of a member, or the zero value.
func (m members[T]) get(name string) (v T) {
	if i := m.index(name); i >= 0 {
		v = m[i].Value
	}
	return v
}

// set replaces the value of a member, or appends the member.
func (m *members[T]) set(name string, v T) {
	if i := m.index(name); i >= 0 {
		(*m)[i].Value = v
	} else {
		*m = append(*m, member[T]{name, v})
	}
}

// take removes a member and returns its value, or the zero value.
func (m *members[T]) take(name string) (v T) {
	if i := m.index(name); i >= 0 {
		v = (*m)[i].Value
		*m = slices.Delete(*m, i, i+1)
	}
	return v
}

func (m *members[T]) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("%v is not an object (%w)", t, err)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return fmt.Errorf("%v: %w", name, err)
		}
		*m = append(*m, member[T]{name.(string), v})
	}
	return nil
}

// appendObject appends an object whose values are JSON.
func appendObject(dst []byte, m members[json.RawMessage]) []byte {
	dst = append(dst, '{')
	for i := range m {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendText(dst, m[i].Name), ':')
		dst = append(dst, m[i].Value...)
	}
	return append(dst, '}')
}

// appendArray appends an array of JSON.
func appendArray(dst []byte, elements []json.RawMessage) []byte {
	return appendList(dst, len(elements), func(dst []byte, i int) []byte { return append(dst, elements[i]...) })
}

// header adds the content type and policy.
func (f *file) header(h http.Header) {
	h.Set("Content-Type", f.contentType)
	if f.policy != "" {
		h.Set("Content-Security-Policy", f.policy)
	}
}

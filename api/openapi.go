package api

import (
	"bytes"
	_ "embed" // for openapi.yaml
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"go.yaml.in/yaml/v3"

	"service/webhook"
)

// openapiYAML is the contract, written by hand, without the event types.
//
//go:embed openapi.yaml
var openapiYAML []byte

// openapiDocument returns the whole contract as JSON: openapi.yaml in its own
// order, and the catalog's event types, so that their schemas are stated in one
// place. It panics when openapi.yaml is broken, which every test would see.
func openapiDocument(catalog *webhook.Catalog) []byte {
	var root yaml.Node
	if err := yaml.Unmarshal(openapiYAML, &root); err != nil {
		panic(fmt.Errorf("openapi.yaml: %w", err))
	}
	var document, components, schemas members[json.RawMessage]
	mustDecode(appendYAML(nil, &root), &document)
	mustDecode(document.get("components"), &components)
	mustDecode(components.get("schemas"), &schemas)
	schemas = addEventTypes(schemas, catalog)
	components.set("schemas", appendObject(nil, schemas))
	document.set("components", appendObject(nil, components))
	return append(appendObject(nil, document), '\n')
}

// eventSchema is the name of an event type's schema in the document. No schema
// of openapi.yaml begins so.
func eventSchema(name string) string { return "event_" + name }

// addEventTypes adds the event types' schemas, and says in DeliveredEvent that
// an event is of one of them.
func addEventTypes(schemas members[json.RawMessage], catalog *webhook.Catalog) members[json.RawMessage] {
	var variants, mapping []byte
	for _, t := range catalog.Types() {
		name := eventSchema(t.Name)
		at := "#/components/schemas/" + name
		// What a schema refers to within itself is somewhere else in the document.
		// The catalog's text is compact, so this is how a reference begins.
		text := bytes.ReplaceAll(t.Schema, []byte(`"$ref":"#`), []byte(`"$ref":"`+at))
		schemas = append(schemas, member[json.RawMessage]{name, text})
		if variants != nil {
			variants, mapping = append(variants, ','), append(mapping, ',')
		}
		variants = fmt.Appendf(variants, `{"$ref":%q}`, at)
		mapping = fmt.Appendf(mapping, `%q:%q`, t.Name, at)
	}
	var event members[json.RawMessage]
	mustDecode(schemas.get("DeliveredEvent"), &event)
	event.set("oneOf", fmt.Appendf(nil, "[%s]", variants))
	event.set("discriminator", fmt.Appendf(nil, `{"propertyName":"name","mapping":{%s}}`, mapping))
	schemas.set("DeliveredEvent", appendObject(nil, event))
	return schemas
}

// mustDecode reads what this package has written itself.
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
		dst = append(dst, '[')
		for i, element := range n.Content {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendYAML(dst, element)
		}
		return append(dst, ']')
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
	switch n.ShortTag() {
	case "!!int", "!!float", "!!bool", "!!null":
		return append(dst, n.Value...) // written as JSON has it, which mustDecode sees to
	}
	return appendText(dst, n.Value)
}

// appendText appends a string as JSON, readable in HTML's terms too.
func appendText(dst []byte, s string) []byte {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(s) // a string can always be encoded
	return append(dst, strings.TrimSuffix(b.String(), "\n")...)
}

// members is a JSON object that keeps its order.
type members[T any] []member[T]

type member[T any] struct {
	Name  string
	Value T
}

// get returns a member's value, or the zero value.
func (m members[T]) get(name string) (v T) {
	for i := range m {
		if m[i].Name == name {
			return m[i].Value
		}
	}
	return v
}

// set replaces a member's value, or adds the member at the end.
func (m *members[T]) set(name string, v T) {
	for i := range *m {
		if (*m)[i].Name == name {
			(*m)[i].Value = v
			return
		}
	}
	*m = append(*m, member[T]{name, v})
}

func (m *members[T]) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("%v is no object (%w)", t, err)
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

// file is something that is served as it is, without an envelope.
type file struct {
	contentType string
	policy      string // Content-Security-Policy, or "" for none
	content     []byte
}

// answer is the file as an answer to a GET of it.
func (f *file) answer() (answer, error) { return answer{file: f, tagged: true}, nil }

// header says what the file is.
func (f *file) header(h http.Header) {
	h.Set("Content-Type", f.contentType)
	if f.policy != "" {
		h.Set("Content-Security-Policy", f.policy)
	}
}

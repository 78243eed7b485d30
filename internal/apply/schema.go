package apply

import (
	"bytes"
	"encoding/json"
)

// Schema returns the JSON Schema of the file, for editors. It accepts every file that service
// apply accepts. It also accepts some files that are refused, because it counts characters
// where the limit is in bytes, and knows nothing about duplicate names, missing files and
// unknown events.
func Schema() []byte {
	all := append(properties{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"title", "File of service apply"},
	}, describe(fileFormat)...)
	// An empty file is refused.
	all = append(all, property{"minProperties", 1})
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // texts and numbers cannot fail
	}
	var b bytes.Buffer
	_ = json.Indent(&b, text, "", "  ") // valid, as marshaled
	b.WriteByte('\n')
	return b.Bytes()
}

// properties is a JSON object with its properties in order.
type properties []property

type property struct {
	name  string
	value any
}

func (all properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, p := range all {
		b.WriteByte("{,"[min(i, 1)])
		writeText(&b, p.name)
		b.WriteByte(':')
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(p.value); err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// describe returns the JSON Schema of a format.
func describe(f *format) properties {
	s := properties{{"description", f.about}}
	name := map[kind]string{
		object: "object", secret: "object", anything: "object", list: "array", boolean: "boolean", integer: "integer", number: "number",
	}[f.kind]
	if name == "" {
		name = "string"
	}
	if f.null != "" {
		s[0].value = f.about + " null is " + f.null + "."
		s = append(s, property{"type", []string{name, "null"}})
	} else {
		s = append(s, property{"type", name})
	}
	switch f.kind {
	case object, secret:
		s = append(s, describeObject(f)...)
	case list:
		s = append(s, property{"items", describe(f.item)})
		s = limit(s, f, "minItems", "maxItems")
		if f.unique {
			s = append(s, property{"uniqueItems", true})
		}
	case text:
		s = limit(s, f, "minLength", "maxLength")
		if f.pattern != nil {
			s = append(s, property{"pattern", f.pattern.String()})
		}
		if f.words != nil {
			s = append(s, property{"enum", f.words})
		}
	case timestamp:
		s = append(s, property{"format", "date-time"})
	case integer, number:
		s = append(s, property{"minimum", f.min}, property{"maximum", f.max})
	}
	return s
}

func describeObject(f *format) (s properties) {
	fields, required := properties{}, []string{}
	for _, one := range f.fields {
		fields = append(fields, property{one.name, describe(one.format)})
		if one.required {
			required = append(required, one.name)
		}
	}
	s = append(s, property{"properties", fields}, property{"additionalProperties", false})
	if len(required) > 0 {
		s = append(s, property{"required", required})
	}
	if f.kind == secret { // may be null, to which oneOf would apply
		return append(s, property{"minProperties", 1}, property{"maxProperties", 1})
	}
	var either []properties
	for _, name := range f.either {
		either = append(either, properties{{"required", []string{name}}})
	}
	if either != nil {
		s = append(s, property{"oneOf", either})
	}
	return s
}

// limit adds the limits of a size.
func limit(s properties, f *format, least, most string) properties {
	if f.min > 0 {
		s = append(s, property{least, f.min})
	}
	if f.max > 0 {
		s = append(s, property{most, f.max})
	}
	return s
}

package webhook

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// SameSchema reports whether two JSON Schemas accept the same by their text, except for titles,
// descriptions and examples.
func SameSchema(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var one, other any
	if json.Unmarshal(a, &one) != nil || json.Unmarshal(b, &other) != nil {
		return false
	}
	return reflect.DeepEqual(withoutNotes(one, false), withoutNotes(other, false))
}

// withoutNotes removes the annotations of a schema. The members of named are names that the
// schema's author chose, such as properties.
func withoutNotes(v any, named bool) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if !named && (name == "title" || name == "description" || name == "examples" || name == "$comment") {
				delete(v, name)
				continue
			}
			v[name] = withoutNotes(value, !named && (name == "properties" || name == "$defs" || name == "patternProperties"))
		}
	case []any:
		for i := range v {
			v[i] = withoutNotes(v[i], false)
		}
	}
	return v
}

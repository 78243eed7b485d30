package webhook

import (
	"bytes"
	"encoding/json"
	"strings"
)

// FieldHas reports whether a field of a JSON object has a value: a string, a
// number, true or false, as written. path is the field's name, with dots for nested
// objects. In an array, any element may match. Invalid JSON has no fields.
func FieldHas(object []byte, path, value string) bool {
	// Most events do not contain the value, which a byte search shows without
	// parsing, unless it may be escaped.
	if plainValue(value) && !bytes.Contains(object, []byte(value)) && !bytes.ContainsRune(object, '\\') {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	var fields any
	if d.Decode(&fields) != nil {
		return false
	}
	return has(fields, strings.Split(path, "."), value)
}

// plainValue reports whether JSON contains the value without escapes.
func plainValue(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`"\/<>&`, r) })
}

func has(v any, path []string, value string) bool {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			if has(one, path, value) {
				return true
			}
		}
	case map[string]any:
		if len(path) == 0 {
			return false
		}
		of, ok := v[path[0]]
		return ok && has(of, path[1:], value)
	case string:
		return len(path) == 0 && v == value
	case json.Number:
		return len(path) == 0 && v.String() == value
	case bool:
		return len(path) == 0 && (v && value == "true" || !v && value == "false")
	}
	return false
}

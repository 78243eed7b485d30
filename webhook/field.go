package webhook

import (
	"bytes"
	"encoding/json"
	"strings"
)

// FieldHas reports whether a field of a JSON object has a value: a string, a number, or
// true or false, as they are written. Path names the field, with dots between the names
// of objects in each other. Of an array any element will do. JSON that is not valid has
// no field.
func FieldHas(object []byte, path, value string) bool {
	// Most events do not have it: that is seen without parsing, unless the value could
	// be written with escapes.
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

// plainValue reports whether a value is written in JSON as it is.
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

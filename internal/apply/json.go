package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
)

// maxDifferences bounds the differences of two schemas that are printed.
const maxDifferences = 8

// compareJSON returns how two JSON documents differ, nil if they do not. The order of keys
// does not count.
func compareJSON(before, after json.RawMessage) []string {
	a, errA := decodeJSON(before)
	b, errB := decodeJSON(after)
	if errA != nil || errB != nil {
		return []string{"schema"} // the API reports what is wrong with it
	}
	var all []string
	compareValues(a, b, "schema", &all)
	if n := len(all); n > maxDifferences {
		all = append(all[:maxDifferences], fmt.Sprintf("and %d more", n-maxDifferences))
	}
	return all
}

func decodeJSON(text json.RawMessage) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

// compareValues adds the differences of two values at a path.
func compareValues(a, b any, at string, all *[]string) {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			compareObjects(x, y, at, all)
			return
		}
	case []any:
		if y, ok := b.([]any); ok && len(x) == len(y) {
			for i := range x {
				compareValues(x[i], y[i], fmt.Sprintf("%s[%d]", at, i), all)
			}
			return
		}
	case json.Number:
		if y, ok := b.(json.Number); ok && sameNumber(x, y) {
			return
		}
	default: // comparable: a text, a boolean or null
		if a == b {
			return
		}
	}
	*all = append(*all, at+" "+brief(a)+" → "+brief(b))
}

func compareObjects(a, b map[string]any, at string, all *[]string) {
	both := maps.Clone(a)
	maps.Copy(both, b)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		x, before := a[name]
		y, after := b[name]
		switch {
		case !before:
			*all = append(*all, "+"+at+"."+name)
		case !after:
			*all = append(*all, "-"+at+"."+name)
		default:
			compareValues(x, y, at+"."+name, all)
		}
	}
}

// sameNumber compares numbers exactly: 1 and 1.0 are the same, and large integers do not lose
// digits.
func sameNumber(a, b json.Number) bool {
	if a == b || overflows(string(a)) || overflows(string(b)) {
		return a == b
	}
	x, okX := new(big.Rat).SetString(string(a))
	y, okY := new(big.Rat).SetString(string(b))
	return okX && okY && x.Cmp(y) == 0
}

// brief returns a value as JSON, shortened.
func brief(v any) string {
	b, _ := json.Marshal(v) // decoded JSON
	if r := []rune(string(b)); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return string(b)
}

package apply

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"service/webhook"
)

// settingOrder is the order in which changes of settings are printed.
var settingOrder = []string{"name", "description", "limits", "max_subscriptions", "rate_limit", "portal_origins",
	"events", "active", "ordered", "max_in_flight", "max_per_second", "max_events"}

// settings returns the wanted settings that differ from the current ones, and how they differ.
// Lists compare as sets. current is nil for a new record, which needs all settings. f is the schema
// of the settings and at is the prefix of their names.
func settings(wanted, current Settings, f *jsonschema.Schema, at string) (changed Settings, details []string) {
	changed = make(Settings)
	byOrder := func(a, b string) int {
		return cmp.Or(cmp.Compare(slices.Index(settingOrder, a), slices.Index(settingOrder, b)), cmp.Compare(a, b))
	}
	for _, name := range slices.SortedFunc(maps.Keys(wanted), byOrder) {
		before, after := current[name], wanted[name]
		detail := at + name + " "
		switch after := after.(type) {
		case map[string]any:
			inner, _ := before.(map[string]any)
			if some, more := settings(after, inner, f.Properties[name], at+name+"."); len(some) > 0 {
				changed[name] = some
				details = append(details, more...)
			}
			continue
		case []any:
			text := strings.Join(texts(after), " ")
			if current != nil {
				if text = setChange(texts(before), texts(after)); text == "" {
					continue
				}
			}
			detail += text
		default:
			if current != nil && before == after {
				continue
			} else if current != nil {
				detail += show(before, f.Properties[name]) + " → "
			}
			detail += show(after, f.Properties[name])
		}
		changed[name] = after
		details = append(details, detail)
	}
	return changed, details
}

// texts returns the items of a list of texts, or of a subscription's events in the API's form.
func texts(list any) (all []string) {
	items, _ := list.([]any)
	for _, one := range items {
		if event, ok := one.(map[string]any); ok {
			one = event["name"]
		}
		text, _ := one.(string)
		all = append(all, text)
	}
	return all
}

// show formats the value of a setting. The title of its schema says what null means.
func show(v any, f *jsonschema.Schema) string {
	if _, meaning, ok := strings.Cut(f.Title, ", or null for "); ok && v == nil {
		return meaning
	}
	return brief(v)
}

// setChange returns the items that are added and removed, "" for none.
func setChange(before, after []string) string {
	var words []string
	for _, name := range after {
		if !slices.Contains(before, name) {
			words = append(words, "+"+name)
		}
	}
	for _, name := range before {
		if !slices.Contains(after, name) {
			words = append(words, "-"+name)
		}
	}
	return strings.Join(words, " ")
}

// maxDifferences bounds the differences of two schemas that are printed.
const maxDifferences = 8

// compareJSON returns how two JSON documents differ, nil if they do not. The order of keys is
// insignificant.
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
		if y, ok := b.(json.Number); ok && (x == y || webhook.SameNumber(string(x), string(y))) {
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

// brief returns a value as JSON, shortened.
func brief(v any) string {
	if s, ok := v.(string); ok {
		return quoted(s)
	}
	b, _ := json.Marshal(v) // decoded JSON
	if r := []rune(string(b)); len(r) > 64 {
		return string(r[:64]) + "…"
	}
	return string(b)
}

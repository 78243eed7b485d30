package webhook

import (
	"encoding/json"
	"testing"
)

func TestSameSchema(t *testing.T) {
	const base = `{"title":"A","properties":{"title":{"type":"string","description":"one"}}}`
	for other, want := range map[string]bool{
		base: true,
		`{"title":"B","properties":{"title":{"description":"two","type":"string"}}}`: true,
		`{"title":"A","properties":{"name":{"type":"string"}}}`:                      false, // a property is no annotation
		`{"title":"A","properties":{"title":{"type":"number"}}}`:                     false,
		`not JSON`: false,
	} {
		if got := SameSchema(json.RawMessage(base), json.RawMessage(other)); got != want {
			t.Errorf("%s: got %t, want %t", other, got, want)
		}
	}
}

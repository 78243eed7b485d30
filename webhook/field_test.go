package webhook

import "testing"

func TestFieldHas(t *testing.T) {
	const object = `{"id":"e","content_id":4711,"title":"a\u0041","details":{"owner":{"name":"Ada"},"tags":["x",{"k":true}]},"price":1.50}`
	for _, tt := range []struct {
		path, value string
		want        bool
	}{
		{"content_id", "4711", true},
		{"content_id", "471", false},
		{"content_id", "", false},
		{"title", "aA", true},
		{"details.owner.name", "Ada", true},
		{"details.owner", "Ada", false},
		{"details.tags", "x", true},
		{"details.tags.k", "true", true},
		{"price", "1.50", true},
		{"price", "1.5", false},
		{"name", "Ada", false},
		{"content_id.more", "4711", false},
		{"", "4711", false},
	} {
		if got := FieldHas([]byte(object), tt.path, tt.value); got != tt.want {
			t.Errorf("FieldHas(%s, %s) = %t", tt.path, tt.value, got)
		}
	}
	for _, broken := range []string{"", "{", "null", "[]", `"content_id:4711"`} {
		if FieldHas([]byte(broken), "content_id", "4711") {
			t.Errorf("FieldHas(%q) = true, want false for invalid JSON", broken)
		}
	}
}

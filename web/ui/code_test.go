package ui

import (
	"encoding/json"
	"strings"
	"testing"
)

func joined(tokens []codeToken) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString(t.text)
	}
	return b.String()
}

func TestPrettyJSON(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{`{}`, `{}`},
		{` [ ] `, `[]`},
		{`"a\"b{"`, `"a\"b{"`},
		{`{"a":1.50e3,"b":[true,null,{"c":"d: ,"}]}`, "{\n  \"a\": 1.50e3,\n  \"b\": [\n    true,\n    null,\n    {\n      \"c\": \"d: ,\"\n  " +
			"  }\n  ]\n}"},
		{"{\"\u202e\":\"\\u202e\u200b\"}", "{\n  \"⟨U+202E⟩\": \"\\u202e⟨U+200B⟩\"\n}"},
		{`9007199254740993`, `9007199254740993`},
	} {
		if got := joined(prettyJSON([]byte(tt.in))); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.in, got, tt.want)
		}
	}
}

// FuzzPrettyJSON checks that pretty JSON has the same value, unless something in it was escaped,
// and contains no misleading character.
func FuzzPrettyJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,2,{"b":"c\\"}],"d":"\u202e"}`))
	f.Add([]byte(`[[[[[]]]]]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := &Body{Data: data, Size: -1}
		for _, tokens := range [][]codeToken{b.raw(), b.pretty()} {
			for _, r := range joined(tokens) {
				if r != '\n' && r != '\t' && r != '\r' && IsHidden(r) {
					t.Fatalf("%q is shown as %q, with %U", data, joined(tokens), r)
				}
			}
		}
		if !json.Valid(data) || strings.ContainsFunc(string(data), IsHidden) {
			return
		}
		var was, is any
		got := joined(prettyJSON(data))
		if err := json.Unmarshal([]byte(got), &is); err != nil {
			t.Fatalf("%q became %q: %v", data, got, err)
		}
		must(t, json.Unmarshal(data, &was))
		a, _ := json.Marshal(was)
		z, _ := json.Marshal(is)
		if string(a) != string(z) {
			t.Fatalf("%s became %s", a, z)
		}
	})
}

func TestBody(t *testing.T) {
	for _, tt := range []struct {
		name         string
		body         Body
		binary, json bool
		told         string
	}{
		{"JSON", Body{Data: []byte(`{"a":1}`), Size: -1}, false, true, "7 B"},
		{"text", Body{Data: []byte("no"), Size: -1}, false, false, "2 B"},
		{"cut in a character", Body{Data: []byte("gr\xc3"), Cut: true, Size: 2000}, false, false, "the first 3 B of 1.9 KiB"},
		{"cut", Body{Data: []byte("gr"), Cut: true, Size: -1}, false, false, "truncated at 2 B"},
		{"unpacked", Body{Data: []byte(`{"a":1}`), Packed: 31, Size: -1}, false, true, "7 B, unpacked from 31 B of gzip"},
		{"not UTF-8", Body{Data: []byte("gr\xc3x"), Size: -1}, true, false, "4 B"},
		{"a NUL", Body{Data: []byte("a\x00"), Size: -1}, true, false, "2 B"},
		{"all marks", Body{Data: []byte(strings.Repeat("\u202e", 200)), Size: -1}, true, false, "600 B"},
		{"long", Body{Data: []byte(strings.Repeat("é", maxCode)), Size: -1}, false, false, "128 KiB, 64.0 KiB shown"},
		{"long JSON", Body{Data: []byte(`"` + strings.Repeat("a", maxCode) + `"`), Size: -1}, false, false,
			"64.0 KiB, 64.0 KiB shown"},
		{"long and binary", Body{Data: make([]byte, maxCode), Size: -1}, true, false, "64.0 KiB, 4.0 KiB shown"},
	} {
		if got := tt.body.binary(); got != tt.binary {
			t.Errorf("%s: binary: got %v, want %v", tt.name, got, tt.binary)
		}
		if got := tt.body.pretty() != nil; got != tt.json {
			t.Errorf("%s: JSON: got %v, want %v", tt.name, got, tt.json)
		}
		if got := tt.body.SizeText(); got != tt.told {
			t.Errorf("%s: told %q, want %q", tt.name, got, tt.told)
		}
		if n := len(joined(tt.body.raw())); n > 2*maxCode && !tt.binary {
			t.Errorf("%s: %d bytes are shown", tt.name, n)
		}
	}
}

package web

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func joined(tokens []token) string {
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
		{`{"a":1.50e3,"b":[true,null,{"c":"d: ,"}]}`, "{\n  \"a\": 1.50e3,\n  \"b\": [\n    true,\n    null,\n    {\n      \"c\": \"d: ,\"\n    }\n  ]\n}"},
		{"{\"\u202e\":\"\\u202e\u200b\"}", "{\n  \"⟨U+202E⟩\": \"\\u202e⟨U+200B⟩\"\n}"},
		{`9007199254740993`, `9007199254740993`},
	} {
		if got := joined(prettyJSON([]byte(tt.in))); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.in, got, tt.want)
		}
	}
}

// FuzzPrettyJSON holds that pretty JSON is the same value, unless something in
// it was spelt out, and that no character is left that misleads.
func FuzzPrettyJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,2,{"b":"c\\"}],"d":"\u202e"}`))
	f.Add([]byte(`[[[[[]]]]]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := &body{data: data, size: -1}
		for _, tokens := range [][]token{b.raw(), b.pretty()} {
			for _, r := range joined(tokens) {
				if r != '\n' && r != '\t' && r != '\r' && deceptive(r) {
					t.Fatalf("%q is shown as %q, with %U", data, joined(tokens), r)
				}
			}
		}
		if !json.Valid(data) || strings.ContainsFunc(string(data), deceptive) {
			return
		}
		var was, is any
		got := joined(prettyJSON(data))
		if err := json.Unmarshal([]byte(got), &is); err != nil {
			t.Fatalf("%q became %q: %v", data, got, err)
		}
		if err := json.Unmarshal(data, &was); err != nil {
			t.Fatal(err)
		}
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
		body         body
		binary, json bool
		told         string
	}{
		{"JSON", body{data: []byte(`{"a":1}`), size: -1}, false, true, "7 B"},
		{"text", body{data: []byte("no"), size: -1}, false, false, "2 B"},
		{"cut in a character", body{data: []byte("gr\xc3"), cut: true, size: 2000}, false, false, "the first 3 B of 1.9 KiB"},
		{"cut", body{data: []byte("gr"), cut: true, size: -1}, false, false, "cut at 2 B"},
		{"not UTF-8", body{data: []byte("gr\xc3x"), size: -1}, true, false, "4 B"},
		{"a NUL", body{data: []byte("a\x00"), size: -1}, true, false, "2 B"},
		{"all marks", body{data: []byte(strings.Repeat("\u202e", 200)), size: -1}, true, false, "600 B"},
		{"long", body{data: []byte(strings.Repeat("é", maxCode)), size: -1}, false, false, "128 KiB, of which 64.0 KiB are shown"},
		{"long JSON", body{data: []byte(`"` + strings.Repeat("a", maxCode) + `"`), size: -1}, false, false, "64.0 KiB, of which 64.0 KiB are shown"},
		{"long and binary", body{data: make([]byte, maxCode), size: -1}, true, false, "64.0 KiB, of which 4.0 KiB are shown"},
	} {
		if got := tt.body.binary(); got != tt.binary {
			t.Errorf("%s: binary: got %v, want %v", tt.name, got, tt.binary)
		}
		if got := tt.body.pretty() != nil; got != tt.json {
			t.Errorf("%s: JSON: got %v, want %v", tt.name, got, tt.json)
		}
		if got := tt.body.told(); got != tt.told {
			t.Errorf("%s: told %q, want %q", tt.name, got, tt.told)
		}
		if n := len(joined(tt.body.raw())); n > 2*maxCode && !tt.binary {
			t.Errorf("%s: %d bytes are shown", tt.name, n)
		}
	}
}

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"plain, grün, 日本":            "plain, grün, 日本",
		"a\u202eb":                   "a⟨U+202E⟩b",
		"a\nb\x00":                   "a⟨U+000A⟩b⟨U+0000⟩",
		"\xff\uFFFD":                 "⟨FF⟩⟨U+FFFD⟩",
		"a\u3164b\u2800\u2028":       "a⟨U+3164⟩b⟨U+2800⟩⟨U+2028⟩",
		"a\u200bb\ufeff":             "a⟨U+200B⟩b⟨U+FEFF⟩",
		strings.Repeat("x", maxLine): strings.Repeat("x", maxLine),
	} {
		if got := visible(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got := visible(strings.Repeat("é", 1<<20)); len([]rune(got)) != maxLine+1 {
		t.Errorf("a long line has %d characters, want %d and a mark", len([]rune(got)), maxLine)
	}
}

func TestCharts(t *testing.T) {
	c := chart{labels: []string{"a", "b", "c"}, series: []series{{"x", "success", []float64{1, math.NaN(), 7}}, {"y", "failed", []float64{2, -4, math.Inf(1)}}}}
	if got := c.top(true); got != 10 {
		t.Errorf("the top is %v, want 10", got)
	}
	for _, b := range c.bars() {
		if strings.Contains(b.x+b.y+b.wide+b.high, "N") || strings.Contains(b.high, "-") {
			t.Errorf("a bar that cannot be drawn: %+v", b)
		}
	}
	if got, want := c.path(&c.series[0], 10), "M0 108h120M480 36h120"; got != want {
		t.Errorf("the line is %s, want %s", got, want)
	}
	empty := chart{series: []series{{"x", "", nil}}}
	if got := len(empty.bars()) + len(empty.path(&empty.series[0], empty.top(false))); got != 0 {
		t.Errorf("of nothing %d things are drawn", got)
	}
	for v, want := range map[float64]float64{1: 1, 1.5: 2, 3: 5, 7: 10, 10: 10, 11: 20, 480: 500} {
		if got := nice(v); got != want {
			t.Errorf("nice(%v): got %v, want %v", v, got, want)
		}
	}
}

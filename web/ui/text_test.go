package ui

import (
	"strings"
	"testing"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"plain, grün, 日本":               "plain, grün, 日本",
		"a\u202eb":                      "a⟨U+202E⟩b",
		"a\nb\x00":                      "a⟨U+000A⟩b⟨U+0000⟩",
		"\xff\uFFFD":                    "⟨FF⟩⟨U+FFFD⟩",
		"a\u3164b\u2800\u2028":          "a⟨U+3164⟩b⟨U+2800⟩⟨U+2028⟩",
		"a\u200bb\ufeff":                "a⟨U+200B⟩b⟨U+FEFF⟩",
		strings.Repeat("x", MaxVisible): strings.Repeat("x", MaxVisible),
	} {
		if got := Visible(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got := Visible(strings.Repeat("é", 1<<20)); len([]rune(got)) != MaxVisible+1 {
		t.Errorf("a long line has %d characters, want %d and a mark", len([]rune(got)), MaxVisible)
	}
}

package web

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// maxLine is how many characters of one line of text from outside a page shows.
const maxLine = 300

// visible renders text from outside for one line of a page: bounded in length,
// and with what a reader would not see, or be misled by, spelt out: control
// characters, marks that turn the direction of writing, characters of no width
// and bytes that are not UTF-8. An ordinary text comes back as it is.
func visible(s string) string {
	plain := len(s) <= maxLine
	for _, r := range s {
		if !plain {
			break
		}
		plain = !deceptive(r)
	}
	if plain {
		return s
	}
	var b strings.Builder
	n := 0
	for i, r := range s {
		if n++; n > maxLine {
			b.WriteString("…")
			break
		}
		b.WriteString(spelt(s[i:], r))
	}
	return b.String()
}

// spelt is how the character r, which s begins with, is shown.
func spelt(s string, r rune) string {
	switch {
	case r == utf8.RuneError && !strings.HasPrefix(s, "\uFFFD"):
		return fmt.Sprintf("⟨%02X⟩", s[0])
	case deceptive(r):
		return fmt.Sprintf("⟨U+%04X⟩", r)
	default:
		return string(r)
	}
}

// deceptive says whether a character is shown by its number: it has no look of
// its own, or changes that of others.
func deceptive(r rune) bool {
	if r < utf8.RuneSelf {
		return r < ' ' || r == 0x7f
	}
	return r == utf8.RuneError || !unicode.IsGraphic(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || r == '\u2800' // a blank of Braille
}

// seenJSON renders JSON of the same meaning, in which the characters that visible
// would spell out are escaped.
func seenJSON(b []byte) []byte {
	var out []byte
	for _, r := range string(b) {
		switch {
		case r >= utf8.RuneSelf && deceptive(r) && r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		case r >= utf8.RuneSelf && deceptive(r):
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

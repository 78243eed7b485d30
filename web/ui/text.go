package ui

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxVisible is the maximum length in characters of the text that Visible returns.
const MaxVisible = 300

// Visible formats text from outside for one line of a page. It truncates the text and escapes
// invisible or misleading characters: control characters, direction marks, zero-width characters,
// and invalid UTF-8. It returns ordinary text unchanged.
func Visible(s string) string { return visible(s, MaxVisible) }

// VisibleText is Visible for a text of the service that contains text from outside and may be
// longer than a line.
func VisibleText(s string) string { return visible(s, 10*MaxVisible) }

func visible(s string, most int) string {
	plain := len(s) <= most
	for _, r := range s {
		if !plain {
			break
		}
		plain = !IsHidden(r)
	}
	if plain {
		return s
	}
	var b strings.Builder
	n := 0
	for i, r := range s {
		if n++; n > most {
			b.WriteString("…")
			break
		}
		b.WriteString(escapeRune(s[i:], r))
	}
	return b.String()
}

// escapeRune returns the escape of the character r, with which s begins.
func escapeRune(s string, r rune) string {
	switch {
	case r == utf8.RuneError && !strings.HasPrefix(s, "\uFFFD"):
		return fmt.Sprintf("⟨%02X⟩", s[0])
	case IsHidden(r):
		return fmt.Sprintf("⟨U+%04X⟩", r)
	default:
		return string(r)
	}
}

// IsHidden reports whether Visible escapes a character: it is invisible, or changes how others
// are displayed.
func IsHidden(r rune) bool {
	if r < utf8.RuneSelf {
		return r < ' ' || r == 0x7f
	}
	// Braille blank
	return r == utf8.RuneError || !unicode.IsGraphic(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || r == '\u2800'
}

// EscapeJSONText returns JSON with the same value, without the characters that Visible would escape,
// except white space. The text may be invalid JSON.
func EscapeJSONText(text string) string {
	return EscapeUnits(text, func(r rune) bool { return IsHidden(r) && !strings.ContainsRune("\n\r\t", r) })
}

// EscapeUnits returns JSON with \u escapes for the characters for which hidden returns true.
func EscapeUnits(text string, hidden func(rune) bool) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if !hidden(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

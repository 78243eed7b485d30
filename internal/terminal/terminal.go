// Package terminal writes to the terminal of a command: text from outside, escaped so that the
// terminal does not obey its control characters, and a progress line.
package terminal

import (
	"fmt"
	"strings"
	"unicode"
)

// Line returns s as a single line: without the white space around it, and escaped as by [Escape].
func Line(s string) string { return Escape(strings.TrimSpace(s)) }

// Escape returns s with every character for which [Unsafe] is true escaped as in Go source, so that
// a terminal shows the character and does not obey it.
func Escape(s string) string {
	if !strings.ContainsFunc(s, Unsafe) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if !Unsafe(r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(escape(r))
	}
	return b.String()
}

// Unsafe reports whether a terminal may obey r instead of showing it: control characters, and
// characters that change the direction of writing.
func Unsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control) || r == unicode.ReplacementChar ||
		r == '\u2028' || r == '\u2029'
}

func escape(r rune) string {
	switch {
	case r == '\n':
		return `\n`
	case r == '\t':
		return `\t`
	case r < 0x100:
		return fmt.Sprintf(`\x%02x`, r)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

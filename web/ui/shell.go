package ui

import (
	"strconv"
	"strings"
)

// ShellQuote quotes an argument for a POSIX shell.
func ShellQuote(arg string) string {
	plain := func(c rune) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("_-./:@%+=,", c)
	}
	if arg != "" && strings.IndexFunc(arg, func(c rune) bool { return !plain(c) }) < 0 {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

// ShellQuoteText is ShellQuote for text from outside. It escapes invisible and misleading
// characters byte by byte, in a syntax of bash and zsh.
func ShellQuoteText(s string) string {
	if Visible(s) == s || len(s) > MaxVisible && !strings.ContainsFunc(s, IsHidden) {
		return ShellQuote(s)
	}
	var b strings.Builder
	b.WriteString("$'")
	for i, r := range s {
		switch {
		case r == '\'' || r == '\\':
			b.WriteString(`\` + string(r))
		case IsHidden(r):
			n := len(string(r))
			if !strings.HasPrefix(s[i:], string(r)) {
				n = 1 // not valid UTF-8
			}
			for _, c := range []byte(s[i : i+n]) {
				b.WriteString(`\x` + strconv.FormatInt(int64(c)|0x100, 16)[1:])
			}
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + "'"
}

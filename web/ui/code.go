package ui

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// maxCode is how many bytes of a body a page shows; maxHex of one that is no
// text.
const (
	maxCode  = 64 << 10
	maxHex   = 4 << 10
	maxDepth = 32 // levels that are set in from the edge
)

// Body is the body of a request or a response, as far as it was kept. All of it
// comes from outside.
type Body struct {
	ID       string // of the section, which the page has once
	Name     string // what it is: Response body
	Data     []byte // as far as it was kept
	Cut      bool   // there was more than was kept
	Size     int64  // of the whole, -1 when it is not known
	Download string // the address that sends it as a file, "" for none
}

// codeToken is a piece of a body, with what it is in JSON: key, string, number,
// word (true, false, null), odd (escaped, see Visible), or "".
type codeToken struct{ class, text string }

// binary says whether a body is no text: then it is shown as hex. So is a text
// that is full of what would have to be spelt out, which makes it long.
func (b *Body) binary() bool {
	shown := TrimPartialRune(b.Data[:min(len(b.Data), maxCode)])
	if bytes.IndexByte(shown, 0) >= 0 || !utf8.Valid(shown) {
		return true
	}
	odd := 0
	for _, r := range string(shown) {
		if r != '\n' && r != '\t' && r != '\r' && IsHidden(r) {
			odd++
		}
	}
	return odd > 100 && odd > len(shown)/20
}

// TrimPartialRune returns b without an incomplete UTF-8 sequence at its end.
func TrimPartialRune(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// pretty returns the tokens of a body that is JSON, a value a line; nil when it
// is not, or is too long.
func (b *Body) pretty() []codeToken {
	if len(b.Data) > maxCode || !json.Valid(b.Data) {
		return nil
	}
	return prettyJSON(b.Data)
}

// raw returns the tokens of a text as it is.
func (b *Body) raw() []codeToken {
	return spellOut(nil, "", string(TrimPartialRune(b.Data[:min(len(b.Data), maxCode)])), true)
}

// hex returns a body as hex, 16 bytes a line.
func (b *Body) hex() string { return hex.Dump(b.Data[:min(len(b.Data), maxHex)]) }

// SizeText says how large the body is, and how much of it is shown.
func (b *Body) SizeText() string {
	shown := min(len(b.Data), maxCode)
	if b.binary() {
		shown = min(len(b.Data), maxHex)
	}
	s := ByteSize(int64(len(b.Data)))
	switch {
	case b.Cut && b.Size >= 0:
		s = "the first " + s + " of " + ByteSize(b.Size)
	case b.Cut:
		s = "truncated at " + s
	}
	if shown < len(b.Data) {
		s += ", " + ByteSize(int64(shown)) + " shown"
	}
	return s
}

// prettyJSON divides valid JSON into tokens, each value on a line of its own.
// What the text says is not changed: numbers and strings stay as they were
// written.
func prettyJSON(data []byte) []codeToken {
	var out []codeToken
	depth := 0
	line := func() { out = append(out, codeToken{"", "\n" + strings.Repeat("  ", min(depth, maxDepth))}) }
	for i := 0; i < len(data); {
		switch c := data[i]; c {
		case ' ', '\t', '\n', '\r':
			i++
		case '{', '[':
			if j := skipBlanks(data, i+1); data[j] == c+2 { // ] and } follow [ and { by two
				out, i = append(out, codeToken{"", string(c) + string(c+2)}), j+1
				continue
			}
			out = append(out, codeToken{"", string(c)})
			depth++
			line()
			i++
		case '}', ']':
			depth--
			line()
			out = append(out, codeToken{"", string(c)})
			i++
		case ',':
			out = append(out, codeToken{"", ","})
			line()
			i++
		case ':':
			out = append(out, codeToken{"", ": "})
			i++
		case '"':
			end := i + 1
			for data[end] != '"' {
				if data[end] == '\\' {
					end++
				}
				end++
			}
			end++
			class := "string"
			if j := skipBlanks(data, end); j < len(data) && data[j] == ':' {
				class = "key"
			}
			out = spellOut(out, class, string(data[i:end]), false)
			i = end
		default:
			end := i
			for end < len(data) && !strings.ContainsRune(" \t\r\n,]}", rune(data[end])) {
				end++
			}
			class := "number"
			if c == 't' || c == 'f' || c == 'n' {
				class = "word"
			}
			out, i = append(out, codeToken{class, string(data[i:end])}), end
		}
	}
	return out
}

// skipBlanks is the place of the next byte that is no blank.
func skipBlanks(data []byte, i int) int {
	for i < len(data) && strings.IndexByte(" \t\r\n", data[i]) >= 0 {
		i++
	}
	return i
}

// spellOut appends a text, with a token of its own for each character that has
// no look of its own. Lines and tabs may stay as they are.
func spellOut(out []codeToken, class, s string, lines bool) []codeToken {
	start := 0
	for i, r := range s {
		if lines && (r == '\n' || r == '\t') || !IsHidden(r) {
			continue
		}
		if lines && r == '\r' && strings.HasPrefix(s[i:], "\r\n") {
			continue
		}
		if start < i {
			out = append(out, codeToken{class, s[start:i]})
		}
		out = append(out, codeToken{"odd", escapeRune(s[i:], r)})
		_, n := utf8.DecodeRuneInString(s[i:])
		start = i + n
	}
	if start < len(s) {
		out = append(out, codeToken{class, s[start:]})
	}
	return out
}

package ui

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// maxCode is how many bytes of a body a page shows; maxHex applies to binary data.
const (
	maxCode  = 64 << 10
	maxHex   = 4 << 10
	maxDepth = 32 // maximum indentation levels
)

// Body is the stored part of a request or response body. It is text from outside.
type Body struct {
	ID       string // ID of the section, unique on the page
	Name     string // title: Response body
	Data     []byte // the stored part
	Cut      bool   // the body was truncated
	Size     int64  // of the full body, -1 if unknown
	Packed   int    // size in gzip format, from which Data was unpacked; 0 if it was not
	Download string // address of the body as a file, "" for none
}

// codeToken is a part of a body with its kind in JSON: key, string, number, word (true, false,
// null), odd (escaped, see Visible), or "".
type codeToken struct{ class, text string }

// binary reports whether a body is shown as hex: it is not text, or so many characters need
// escaping that hex is shorter.
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

// pretty returns the tokens of an indented JSON body, one value per line; nil if it is not JSON, or
// is too long.
func (b *Body) pretty() []codeToken {
	if len(b.Data) > maxCode || !json.Valid(b.Data) {
		return nil
	}
	return prettyJSON(b.Data)
}

// raw returns the tokens of a text without changes.
func (b *Body) raw() []codeToken {
	return spellOut(nil, "", string(TrimPartialRune(b.Data[:min(len(b.Data), maxCode)])), true)
}

// hex returns a body as hex, 16 bytes per line.
func (b *Body) hex() string { return hex.Dump(b.Data[:min(len(b.Data), maxHex)]) }

// SizeText describes the size of the body, and how much of it is shown.
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
	if b.Packed > 0 {
		s += ", unpacked from " + ByteSize(int64(b.Packed)) + " of gzip"
	}
	if shown < len(b.Data) {
		s += ", " + ByteSize(int64(shown)) + " shown"
	}
	return s
}

// prettyJSON divides valid JSON into tokens, with each value on its own line. It keeps the text
// of numbers and strings.
func prettyJSON(data []byte) []codeToken {
	var out []codeToken
	depth := 0
	line := func() { out = append(out, codeToken{"", "\n" + strings.Repeat("  ", min(depth, maxDepth))}) }
	for i := 0; i < len(data); {
		switch c := data[i]; c {
		case ' ', '\t', '\n', '\r':
			i++
		case '{', '[':
			if j := skipBlanks(data, i+1); data[j] == c+2 { // ] and } have the code of [ and { plus two
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

// skipBlanks returns the index of the next byte that is not white space.
func skipBlanks(data []byte, i int) int {
	for i < len(data) && strings.IndexByte(" \t\r\n", data[i]) >= 0 {
		i++
	}
	return i
}

// spellOut appends a text, with a separate token for each invisible or misleading character.
// Newlines and tabs can be kept.
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

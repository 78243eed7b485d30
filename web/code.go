package web

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

// body is the body of a request or an answer, as kept. All of it is text from
// outside.
type body struct {
	id       string // of the section, which the page has once
	name     string // what it is: Response body
	data     []byte // as far as it was kept
	cut      bool   // there was more than was kept
	size     int64  // of the whole, -1 when it is not known
	download string // the address that sends it as a file, "" for none
}

// token is a piece of a body, with what it is in JSON: key, string, number,
// word (true, false, null), odd (spelt out, see visible), or "".
type token struct{ class, text string }

// binary says whether a body is no text: then it is shown as hex. So is a text
// that is full of what would have to be spelt out, which makes it long.
func (b *body) binary() bool {
	shown := trimRune(b.data[:min(len(b.data), maxCode)])
	if bytes.IndexByte(shown, 0) >= 0 || !utf8.Valid(shown) {
		return true
	}
	odd := 0
	for _, r := range string(shown) {
		if r != '\n' && r != '\t' && r != '\r' && deceptive(r) {
			odd++
		}
	}
	return odd > 100 && odd > len(shown)/20
}

// trimRune takes a character away that a cut left unfinished.
func trimRune(b []byte) []byte {
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
func (b *body) pretty() []token {
	if len(b.data) > maxCode || !json.Valid(b.data) {
		return nil
	}
	return prettyJSON(b.data)
}

// raw returns the tokens of a text as it is.
func (b *body) raw() []token {
	return spellOut(nil, "", string(trimRune(b.data[:min(len(b.data), maxCode)])), true)
}

// hex returns a body as hex, 16 bytes a line.
func (b *body) hex() string { return hex.Dump(b.data[:min(len(b.data), maxHex)]) }

// told is what to say of a body's size, and of what is not shown.
func (b *body) told() string {
	shown := min(len(b.data), maxCode)
	if b.binary() {
		shown = min(len(b.data), maxHex)
	}
	s := size(int64(len(b.data)))
	switch {
	case b.cut && b.size >= 0:
		s = "the first " + s + " of " + size(b.size)
	case b.cut:
		s = "cut at " + s
	}
	if shown < len(b.data) {
		s += ", of which " + size(int64(shown)) + " are shown"
	}
	return s
}

// prettyJSON divides valid JSON into tokens, each value on a line of its own.
// What the text says is not changed: numbers and strings stay as they were
// written.
func prettyJSON(data []byte) []token {
	var out []token
	depth := 0
	line := func() { out = append(out, token{"", "\n" + strings.Repeat("  ", min(depth, maxDepth))}) }
	for i := 0; i < len(data); {
		switch c := data[i]; c {
		case ' ', '\t', '\n', '\r':
			i++
		case '{', '[':
			if j := next(data, i+1); data[j] == c+2 { // ] and } follow [ and { by two
				out, i = append(out, token{"", string(c) + string(c+2)}), j+1
				continue
			}
			out = append(out, token{"", string(c)})
			depth++
			line()
			i++
		case '}', ']':
			depth--
			line()
			out = append(out, token{"", string(c)})
			i++
		case ',':
			out = append(out, token{"", ","})
			line()
			i++
		case ':':
			out = append(out, token{"", ": "})
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
			if j := next(data, end); j < len(data) && data[j] == ':' {
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
			out, i = append(out, token{class, string(data[i:end])}), end
		}
	}
	return out
}

// next is the place of the next byte that is no blank.
func next(data []byte, i int) int {
	for i < len(data) && strings.IndexByte(" \t\r\n", data[i]) >= 0 {
		i++
	}
	return i
}

// spellOut appends a text, with a token of its own for each character that has
// no look of its own. Lines and tabs may stay as they are.
func spellOut(out []token, class, s string, lines bool) []token {
	start := 0
	for i, r := range s {
		if lines && (r == '\n' || r == '\t') || !deceptive(r) {
			continue
		}
		if lines && r == '\r' && strings.HasPrefix(s[i:], "\r\n") {
			continue
		}
		if start < i {
			out = append(out, token{class, s[start:i]})
		}
		out = append(out, token{"odd", spelt(s[i:], r)})
		_, n := utf8.DecodeRuneInString(s[i:])
		start = i + n
	}
	if start < len(s) {
		out = append(out, token{class, s[start:]})
	}
	return out
}

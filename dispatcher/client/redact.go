package client

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"html"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"service/webhook"
)

const (
	// redacted replaces a secret.
	redacted = "[redacted]"
	// minSecret is the length in bytes of the shortest secret that is redacted:
	// shorter ones protect nothing and occur in ordinary words.
	minSecret = 6
	// minPrefix is the length in bytes of the shortest prefix of a secret that is
	// redacted at the end of truncated text.
	minPrefix = 4
	// maxEscapes is how many layers of escaping are undone, for example JSON in
	// JSON in HTML.
	maxEscapes = 3
	// maxEntity is the length in bytes of the longest HTML character reference that
	// is decoded.
	maxEntity = 12
)

// redact removes the secrets of the request from the stored part of the response,
// since receivers echo requests and error pages show headers. A secret is found
//
//   - literally, and with escapes of JSON, URLs and HTML, even nested;
//   - in hexadecimal and both base64 alphabets, even within a longer text and with
//     escapes; the whole encoded text is then removed;
//   - truncated at the end of the stored part;
//   - in a body in gzip format, which pages show unpacked. The body is then stored
//     unpacked.
//
// The values of the Authorization header and the subscription's own headers are searched for as a
// whole and without their scheme, and for Basic the password too; a signing secret in its text form
// and as bytes. A secret that the receiver compressed otherwise, encrypted, wrapped or reversed is not
// found.
func (r *Request) redact(a *webhook.Attempt) {
	secrets := r.secrets()
	if header := secrets.redact([]byte(a.ResponseHeader), len(a.ResponseHeader) > maxResponseHeader-utf8.UTFMax); header != nil {
		a.ResponseHeader = string(header)
	}
	body, cut := a.ResponseBody, a.ResponseTruncated
	if text, textCut := webhook.Unpack(body); text != nil {
		if text = secrets.redact(text, textCut); text != nil {
			body, cut = text, textCut
		}
	}
	if text := secrets.redact(body, cut); text != nil {
		body = text
	}
	if len(body) > webhook.MaxStoredBody { // redaction may have made it longer
		body, cut = body[:webhook.MaxStoredBody], true
	}
	a.ResponseBody, a.ResponseTruncated = body, cut
}

// secrets are byte strings that must not be stored, in no particular order.
type secrets [][]byte

func (r *Request) secrets() secrets {
	list := make(secrets, 0, 8)
	add := func(secret []byte) {
		if len(secret) < minSecret {
			return
		}
		list = append(list, secret)
		if bytes.IndexByte(secret, ' ') >= 0 {
			list = append(list, bytes.ReplaceAll(secret, []byte(" "), []byte("+"))) // as in form encoding
		}
	}
	addHeader := func(value string) {
		add([]byte(value))
		if scheme, credentials, ok := strings.Cut(value, " "); ok {
			credentials = strings.TrimSpace(credentials)
			add([]byte(credentials))
			if strings.EqualFold(scheme, "Basic") {
				if plain, err := base64.StdEncoding.DecodeString(credentials); err == nil {
					add(plain)
					_, password, _ := bytes.Cut(plain, []byte(":"))
					add(password)
				}
			}
		}
	}
	addHeader(r.Authorization)
	for _, h := range r.Headers {
		addHeader(h.Value)
	}
	for _, secret := range r.Secrets {
		add(secret)
		add(base64.RawStdEncoding.AppendEncode(nil, secret))
	}
	return list
}

// redact returns text without secrets, nil if it contains none. cut means that text is
// truncated, so its end may be a part of a secret.
func (list secrets) redact(text []byte, cut bool) []byte {
	if len(list) == 0 || len(text) < minPrefix {
		return nil
	}
	var scratch [maxEscapes + 1]unescaped
	readings := layers(scratch[:0], text)
	found := list.find(nil, readings, cut)
	shortest := len(list[0])
	for _, secret := range list {
		shortest = min(shortest, len(secret))
	}
	for i := range readings {
		if i == 0 || i == len(readings)-1 {
			found = list.findEncoded(found, &readings[i], shortest, cut)
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var out []byte
	end := 0
	for i, s := range found {
		if i == 0 || s.from > end {
			out = append(out, text[end:s.from]...)
			out = append(out, redacted...)
		}
		end = max(end, s.to)
	}
	return append(out, text[end:]...)
}

// find appends the positions of secrets.
func (list secrets) find(found []span, readings []unescaped, cut bool) []span {
	for _, secret := range list {
		for i := range readings {
			found = readings[i].find(found, secret, cut)
		}
	}
	return found
}

// findEncoded appends the positions of hexadecimal and base64 texts that decode to
// a secret. shortest is the length of the shortest secret.
func (list secrets) findEncoded(found []span, r *unescaped, shortest int, cut bool) []span {
	for end := 0; end < len(r.text); end++ {
		from := end
		inHex := true
		for ; end < len(r.text) && isBase64(r.text[end]); end++ {
			inHex = inHex && isHex(r.text[end])
		}
		last := cut && end == len(r.text)
		if digits := r.text[from:end]; len(digits) >= shortest || last && len(digits) >= minPrefix {
			if list.decodesToSecret(digits, inHex, last) {
				found = append(found, span{r.original(from), r.original(end)})
			}
		}
	}
	return found
}

// decodesToSecret reports whether digits decode to a text with a secret. The
// encoded text may start at any digit, since the text before it may look like
// digits.
func (list secrets) decodesToSecret(digits []byte, inHex, cut bool) bool {
	var scratch [512]byte
	var layerScratch [maxEscapes + 1]unescaped
	holds := func(plain []byte) bool {
		return len(list.find(nil, layers(layerScratch[:0], plain), cut)) > 0
	}
	if inHex {
		for skip := range min(2, len(digits)) {
			plain, err := hex.AppendDecode(scratch[:0], digits[skip:][:(len(digits)-skip)/2*2])
			if err == nil && holds(plain) {
				return true
			}
		}
	}
	standard := bytes.Map(standardAlphabet, digits)
	for skip := range min(4, len(digits)) {
		part := standard[skip:]
		if len(part)%4 == 1 {
			part = part[:len(part)-1]
		}
		plain, err := base64.RawStdEncoding.AppendDecode(scratch[:0], part)
		if err == nil && holds(plain) {
			return true
		}
	}
	return false
}

func isBase64(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '+' || c == '/' || c == '-' || c == '_'
}

func isHex(c byte) bool {
	return 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' || '0' <= c && c <= '9'
}

func standardAlphabet(r rune) rune {
	switch r {
	case '-':
		return '+'
	case '_':
		return '/'
	}
	return r
}

// span is a part of a text.
type span struct{ from, to int }

// unescaped is a text with some layers of escapes undone.
type unescaped struct {
	text    []byte
	offsets []int32 // offset in the original of each byte, and of the end; nil if text is the original
}

func (r *unescaped) original(i int) int {
	if r.offsets == nil {
		return i
	}
	return int(r.offsets[i])
}

// layers appends text, and text with one more layer of escapes undone each.
func layers(dst []unescaped, text []byte) []unescaped {
	dst = append(dst, unescaped{text: text})
	for range maxEscapes {
		next, ok := dst[len(dst)-1].unescape()
		if !ok {
			break
		}
		dst = append(dst, next)
	}
	return dst
}

// find appends the positions of secret in the original text. If cut, a prefix of secret
// at the end of the text counts too.
func (r *unescaped) find(found []span, secret []byte, cut bool) []span {
	for from := 0; ; {
		i := bytes.Index(r.text[from:], secret)
		if i < 0 {
			break
		}
		i += from
		from = i + len(secret)
		found = append(found, span{r.original(i), r.original(from)})
	}
	if cut {
		for n := min(len(secret)-1, len(r.text)); n >= minPrefix; n-- {
			if i := len(r.text) - n; bytes.Equal(r.text[i:], secret[:n]) {
				return append(found, span{r.original(i), r.original(len(r.text))})
			}
		}
	}
	return found
}

// unescape undoes one layer of escapes; it returns false if there is none. An
// escape that is truncated at the end is dropped.
func (r *unescaped) unescape() (unescaped, bool) {
	first := bytes.IndexAny(r.text, `\%&`)
	if first < 0 {
		return unescaped{}, false
	}
	next := unescaped{text: make([]byte, 0, len(r.text)), offsets: make([]int32, 0, len(r.text)+1)}
	changed := false
	for i := 0; i < len(r.text); {
		n := 1
		var scratch [utf8.UTFMax]byte
		plain := append(scratch[:0], r.text[i])
		if c := r.text[i]; i >= first && (c == '\\' || c == '%' || c == '&') {
			plain, n = unescapeOne(scratch[:0], r.text[i:])
			changed = changed || n != len(plain)
		}
		for _, b := range plain {
			next.text = append(next.text, b)
			next.offsets = append(next.offsets, int32(r.original(i)))
		}
		i += n
	}
	next.offsets = append(next.offsets, int32(r.original(len(r.text))))
	return next, changed
}

// unescapeOne appends the first character of text, which may be escaped, and
// returns how many bytes of text it takes. An escape that is truncated at the end
// of text takes the rest and appends nothing.
func unescapeOne(dst, text []byte) ([]byte, int) {
	n := 0
	switch text[0] {
	case '%':
		if len(text) < 3 {
			return dst, len(text)
		}
		if b, ok := hexByte(text[1:3]); ok {
			return append(dst, b), 3
		}
	case '&':
		dst, n = unescapeReference(dst, text)
	default:
		dst, n = unescapeBackslash(dst, text)
	}
	if n == 0 {
		return append(dst, text[0]), 1
	}
	return dst, n
}

// unescapeReference is unescapeOne for an HTML character reference; it returns 0 if
// text does not start with one.
func unescapeReference(dst, text []byte) ([]byte, int) {
	end := bytes.IndexByte(text[:min(len(text), maxEntity)], ';')
	if end >= 0 {
		if plain := html.UnescapeString(string(text[:end+1])); len(plain) <= utf8.UTFMax {
			return append(dst, plain...), end + 1
		}
		return dst, 0
	}
	other := func(r rune) bool { return r != '#' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	if len(text) < maxEntity && bytes.IndexFunc(text[1:], other) < 0 {
		return dst, len(text)
	}
	return dst, 0
}

// unescapeBackslash is unescapeOne for a JSON escape; it returns 0 if text does not
// start with one.
func unescapeBackslash(dst, text []byte) ([]byte, int) {
	switch {
	case len(text) == 1:
		return dst, 1
	case text[1] == 'u' && len(text) < 6:
		return dst, len(text)
	case text[1] == 'u':
		u, err := strconv.ParseUint(string(text[2:6]), 16, 16)
		if err != nil {
			return dst, 0
		}
		if utf16.IsSurrogate(rune(u)) && len(text) >= 12 && text[6] == '\\' && text[7] == 'u' {
			if low, err := strconv.ParseUint(string(text[8:12]), 16, 16); err == nil {
				return utf8.AppendRune(dst, utf16.DecodeRune(rune(u), rune(low))), 12
			}
		}
		return utf8.AppendRune(dst, rune(u)), 6
	case text[1] == 'x' && len(text) >= 4:
		if b, ok := hexByte(text[2:4]); ok {
			return append(dst, b), 4
		}
	case strings.IndexByte(`"'\/`, text[1]) >= 0:
		return append(dst, text[1]), 2
	}
	return dst, 0
}

func hexByte(digits []byte) (byte, bool) {
	var b [1]byte
	_, err := hex.Decode(b[:], digits)
	return b[0], err == nil
}

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
	// redacted stands where a secret stood.
	redacted = "[redacted]"
	// minSecret is the length of the shortest secret that is looked for, in
	// bytes: shorter ones guard nothing, and stand in ordinary words.
	minSecret = 6
	// minPrefix is the length of the shortest beginning of a secret that is
	// removed where what is kept of an answer breaks off.
	minPrefix = 4
	// maxEscapes is how often a text can be escaped and its secrets be found:
	// JSON in JSON in HTML, say.
	maxEscapes = 3
	// maxEntity is the length of the longest character reference of HTML that
	// is looked at, in bytes.
	maxEntity = 12
)

// redact removes the secrets that the request was sent with from what is kept
// of its answer, before that is kept: receivers echo requests, and their error
// pages show the headers. A secret is found
//
//   - as it is, and with the escapes of JSON, URLs and HTML, in each other too;
//   - in hexadecimal and in base64 of either alphabet, also within a longer
//     text, and that with escapes; the whole of it is removed then;
//   - where it is cut off by the end of what is kept.
//
// The Authorization header is looked for whole and without its scheme, and of
// the scheme Basic the password too; a signing secret as it is shown and as its
// bytes. What a receiver has compressed, encrypted, broken into lines or
// spelled backwards is not found.
func (r *Request) redact(a *webhook.Attempt) {
	secrets := r.secrets()
	if header := secrets.redact([]byte(a.ResponseHeader), len(a.ResponseHeader) > maxResponseHeader-utf8.UTFMax); header != nil {
		a.ResponseHeader = string(header)
	}
	if body := secrets.redact(a.ResponseBody, a.ResponseTruncated); body != nil {
		if len(body) > webhook.MaxKeptBody { // it may have grown
			body, a.ResponseTruncated = body[:webhook.MaxKeptBody], true
		}
		a.ResponseBody = body
	}
}

// secrets are what must not be kept, in no order.
type secrets [][]byte

func (r *Request) secrets() secrets {
	list := make(secrets, 0, 8)
	add := func(secret []byte) {
		if len(secret) < minSecret {
			return
		}
		list = append(list, secret)
		if bytes.IndexByte(secret, ' ') >= 0 {
			list = append(list, bytes.ReplaceAll(secret, []byte(" "), []byte("+"))) // as forms are sent
		}
	}
	if r.Authorization != "" {
		add([]byte(r.Authorization))
		if scheme, credentials, ok := strings.Cut(r.Authorization, " "); ok {
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
	for _, secret := range r.Secrets {
		add(secret)
		add(base64.RawStdEncoding.AppendEncode(nil, secret))
	}
	return list
}

// redact returns the text without secrets, nil when there are none in it. With
// cut, it is the beginning of a longer one.
func (list secrets) redact(text []byte, cut bool) []byte {
	if len(list) == 0 || len(text) < minPrefix {
		return nil
	}
	var scratch [maxEscapes + 1]reading
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

// find adds where secrets stand.
func (list secrets) find(found []span, readings []reading, cut bool) []span {
	for _, secret := range list {
		for i := range readings {
			found = readings[i].find(found, secret, cut)
		}
	}
	return found
}

// findEncoded adds the runs of digits that stand for texts with secrets, of
// which the shortest has so many bytes.
func (list secrets) findEncoded(found []span, r *reading, shortest int, cut bool) []span {
	for end := 0; end < len(r.text); end++ {
		from := end
		inHex := true
		for ; end < len(r.text) && isBase64(r.text[end]); end++ {
			inHex = inHex && isHex(r.text[end])
		}
		last := cut && end == len(r.text)
		if digits := r.text[from:end]; len(digits) >= shortest || last && len(digits) >= minPrefix {
			if list.encodedIn(digits, inHex, last) {
				found = append(found, span{r.original(from), r.original(end)})
			}
		}
	}
	return found
}

// encodedIn says whether a run of digits stands for a text with a secret.
// Where it begins is not known: what stands before it may look like digits.
func (list secrets) encodedIn(digits []byte, inHex, cut bool) bool {
	var scratch [512]byte
	var layerScratch [maxEscapes + 1]reading
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

// reading is a text as it is read once its escapes are undone.
type reading struct {
	text []byte
	at   []int32 // where in the original each byte begins, and the end; nil: it is the original
}

func (r *reading) original(i int) int {
	if r.at == nil {
		return i
	}
	return int(r.at[i])
}

// layers appends the text as it is, and as it is read when its escapes are
// undone, a layer each.
func layers(dst []reading, text []byte) []reading {
	dst = append(dst, reading{text: text})
	for range maxEscapes {
		next, ok := dst[len(dst)-1].unescape()
		if !ok {
			break
		}
		dst = append(dst, next)
	}
	return dst
}

// find adds where in the original the secret stands. With cut, a beginning of
// it at the end counts too.
func (r *reading) find(found []span, secret []byte, cut bool) []span {
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

// unescape returns the reading with one layer of escapes undone; false when it
// has none. An escape that is cut off by the end is left out.
func (r *reading) unescape() (reading, bool) {
	first := bytes.IndexAny(r.text, `\%&`)
	if first < 0 {
		return reading{}, false
	}
	next := reading{text: make([]byte, 0, len(r.text)), at: make([]int32, 0, len(r.text)+1)}
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
			next.at = append(next.at, int32(r.original(i)))
		}
		i += n
	}
	next.at = append(next.at, int32(r.original(len(r.text))))
	return next, changed
}

// unescapeOne appends the character that the text begins with, which may be
// escaped, and returns how many bytes of the text it takes. An escape that is cut
// off by the end of the text takes the rest and appends nothing.
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

// unescapeReference is unescapeOne for a character reference of HTML; it returns
// 0 if the text does not begin with one.
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

// unescapeBackslash is unescapeOne for an escape of JSON; it returns 0 if the
// text does not begin with one.
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

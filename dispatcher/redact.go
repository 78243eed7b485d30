package dispatcher

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
//   - in hexadecimal, and in base64 of either alphabet, also within a longer text;
//   - where it is cut off by the end of what is kept.
//
// The Authorization header is looked for whole and without its scheme, and of
// the scheme Basic the password too; a signing secret as it is shown and as its
// bytes. What a receiver has compressed, encrypted or spelled backwards is not
// found.
func (r *request) redact(a *webhook.Attempt) {
	if header := r.redactText([]byte(a.ResponseHeader), len(a.ResponseHeader) > maxResponseHeader-utf8.UTFMax); header != nil {
		a.ResponseHeader = string(header)
	}
	if body := r.redactText(a.ResponseBody, a.ResponseTruncated); body != nil {
		if len(body) > webhook.MaxKeptBody { // it may have grown
			body, a.ResponseTruncated = body[:webhook.MaxKeptBody], true
		}
		a.ResponseBody = body
	}
}

// redactText returns the text without secrets, nil when there are none in it.
// With cut, it is the beginning of a longer one.
func (r *request) redactText(text []byte, cut bool) []byte {
	if len(text) < minPrefix {
		return nil
	}
	var room [maxEscapes + 1]reading
	readings := append(room[:0], reading{text: text})
	for range maxEscapes {
		next, ok := readings[len(readings)-1].unescape()
		if !ok {
			break
		}
		readings = append(readings, next)
	}
	var found []span
	r.spellings(func(secret []byte) {
		for i := range readings {
			found = readings[i].find(found, secret, cut)
		}
	})
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

// spellings calls yield with every spelling of every secret of the request.
// The bytes are valid during the call.
func (r *request) spellings(yield func([]byte)) {
	var room [512]byte
	scratch := room[:0]
	text := func(secret string) {
		if len(secret) < minSecret {
			return
		}
		scratch = append(scratch[:0], secret...)
		yield(scratch)
		if bytes.IndexByte(scratch, ' ') >= 0 {
			yield(bytes.ReplaceAll(scratch, []byte(" "), []byte("+"))) // as forms are sent
		}
		scratch = hex.AppendEncode(scratch[:0], []byte(secret))
		yield(scratch)
		yield(bytes.ToUpper(scratch))
		for before := range 3 {
			// Base64 of a text that holds the secret after so many bytes,
			// without the characters that its neighbours have a part in.
			whole := (before + len(secret)) / 3 * 3
			plain := append(append(make([]byte, 0, 64), "\x00\x00"[:before]...), secret...)
			first := (before*8 + 5) / 6
			scratch = base64.StdEncoding.AppendEncode(scratch[:0], plain[:whole])[first:]
			if len(scratch) < minSecret {
				continue
			}
			yield(scratch)
			if bytes.ContainsAny(scratch, "+/") {
				yield(bytes.Map(urlAlphabet, scratch))
			}
		}
	}
	if r.Authorization != "" {
		text(r.Authorization)
		if scheme, credentials, ok := strings.Cut(r.Authorization, " "); ok {
			credentials = strings.TrimSpace(credentials)
			text(credentials)
			if strings.EqualFold(scheme, "Basic") {
				if plain, err := base64.StdEncoding.DecodeString(credentials); err == nil {
					text(string(plain))
					_, password, _ := bytes.Cut(plain, []byte(":"))
					text(string(password))
				}
			}
		}
	}
	for _, secret := range r.Secrets {
		text(string(secret))
		text(base64.RawStdEncoding.EncodeToString(secret))
	}
}

func urlAlphabet(r rune) rune {
	switch r {
	case '+':
		return '-'
	case '/':
		return '_'
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
		var room [utf8.UTFMax]byte
		plain := append(room[:0], r.text[i])
		if c := r.text[i]; i >= first && (c == '\\' || c == '%' || c == '&') {
			plain, n = unescapeOne(room[:0], r.text[i:])
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

// unescapeOne appends what the text begins with, an escape perhaps, and
// returns how long that is in the text.
func unescapeOne(dst, text []byte) ([]byte, int) {
	switch {
	case text[0] == '%':
		if len(text) < 3 {
			return dst, len(text)
		}
		if b, ok := hexByte(text[1:3]); ok {
			return append(dst, b), 3
		}
	case text[0] == '&':
		end := bytes.IndexByte(text[:min(len(text), maxEntity)], ';')
		if end < 0 {
			if len(text) < maxEntity && bytes.IndexFunc(text[1:], func(r rune) bool { return r != '#' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) < 0 {
				return dst, len(text)
			}
			break
		}
		if plain := html.UnescapeString(string(text[:end+1])); len(plain) <= utf8.UTFMax {
			return append(dst, plain...), end + 1
		}
	case len(text) == 1:
		return dst, 1
	case text[1] == 'u':
		if len(text) < 6 {
			return dst, len(text)
		}
		u, err := strconv.ParseUint(string(text[2:6]), 16, 16)
		if err != nil {
			break
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
	return append(dst, text[0]), 1
}

func hexByte(digits []byte) (byte, bool) {
	var b [1]byte
	_, err := hex.Decode(b[:], digits)
	return b[0], err == nil
}

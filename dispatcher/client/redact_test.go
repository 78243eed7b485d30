package client

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"service/webhook"
)

// encodings are the ways in which a receiver may encode an echoed secret.
var encodings = map[string]func(string) string{
	"literal":     func(s string) string { return s },
	"within text": func(s string) string { return "<td>authorization</td><td>" + s + "</td>" },
	"JSON":        inJSON,
	"JSON, ASCII": func(s string) string {
		var b strings.Builder
		for _, r := range s {
			fmt.Fprintf(&b, `\u%04X`, r)
		}
		return b.String()
	},
	"JSON, slashes":   func(s string) string { return strings.ReplaceAll(inJSON(s), "/", `\/`) },
	"JSON in JSON":    func(s string) string { return inJSON(inJSON(s)) },
	"URL, query":      url.QueryEscape,
	"URL, path":       url.PathEscape,
	"URL, lower case": func(s string) string { return strings.ToLower(url.PathEscape(strings.ToLower(s))) },
	"URL, every byte": func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			fmt.Fprintf(&b, "%%%02x", s[i])
		}
		return b.String()
	},
	"HTML":          html.EscapeString,
	"HTML of JSON":  func(s string) string { return html.EscapeString(inJSON(s)) },
	"HTML, numbers": func(s string) string { return strings.ReplaceAll(html.EscapeString(s), "/", "&#x2F;") },
	"hex":           func(s string) string { return hex.EncodeToString([]byte(s)) },
	"HEX":           func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) },
	"base64":        func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	"base64, URL":   func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) },
	"base64 of JSON": func(s string) string {
		return base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(inJSON(s), "/", `\/`)))
	},
	"hex of HTML":      func(s string) string { return hex.EncodeToString([]byte(html.EscapeString(s))) },
	"base64, path":     func(s string) string { return "https://a.example/x/" + base64.RawURLEncoding.EncodeToString([]byte(s)) },
	"base64, 1 before": func(s string) string { return base64.StdEncoding.EncodeToString([]byte("{" + s + "}")) },
	"base64, 2 before": func(s string) string { return base64.URLEncoding.EncodeToString([]byte(`{"` + s + `"}`)) },
}

func inJSON(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return strings.Trim(string(b), `"`)
}

// redactCases are requests, and the part of their secret that must not be stored.
func redactCases() map[string]struct {
	request Request
	shown   string // as the receiver knows it
	core    string
} {
	signing := webhook.NewSigningSecret()
	text := base64.RawStdEncoding.EncodeToString(signing)
	return map[string]struct {
		request     Request
		shown, core string
	}{
		"Authorization": {Request{Authorization: "Bearer canary/5f1d+7<é>&"}, "Bearer canary/5f1d+7<é>&", "canary"},
		"credentials":   {Request{Authorization: "Bearer canary/5f1d+7<é>&"}, "canary/5f1d+7<é>&", "canary"},
		"no scheme":     {Request{Authorization: "canary/5f1d"}, "canary/5f1d", "canary"},
		"password": {Request{Authorization: "Basic " + base64.StdEncoding.EncodeToString([]byte("me:canary5f1d"))}, "canary5f1d",
			"canary"},
		"user and password": {Request{Authorization: "Basic " + base64.StdEncoding.EncodeToString([]byte("me:canary5f1d"))}, "me:canary5f1d",
			"canary"},
		"signing secret":     {Request{Secrets: []webhook.SigningSecret{signing}}, signing.Reveal(), text[:12]},
		"its bytes":          {Request{Secrets: []webhook.SigningSecret{signing}}, string(signing), string(signing[:12])},
		"old signing secret": {Request{Secrets: []webhook.SigningSecret{webhook.NewSigningSecret(), signing}}, signing.Reveal(), text[:12]},
	}
}

// hasSpelling reports whether the secret of a case can be encoded this way: JSON
// and HTML cannot contain arbitrary bytes, and lower case changes a secret with
// upper-case letters.
func hasSpelling(name, shown, spelling string) bool {
	if name == "its bytes" && (strings.Contains(spelling, "JSON") || strings.Contains(spelling, "HTML")) {
		return false
	}
	return spelling != "URL, lower case" || shown == strings.ToLower(shown)
}

// checkRedacted checks the stored form of a text that contains a secret twice.
func checkRedacted(t *testing.T, got, text, core string) {
	t.Helper()
	if !strings.Contains(got, "before ") || !strings.Contains(got, " after, ") || strings.Count(got, redacted) < 2 {
		t.Errorf("got %q for %q, want only both secrets replaced", got, text)
	}
	for other, encode := range encodings {
		if strings.HasPrefix(other, "base64, ") { // the neighboring characters differ
			continue
		}
		if strings.Contains(got, encode(core)) {
			t.Errorf("got %q, which contains the secret (%s)", got, other)
		}
	}
}

// Secrets that a receiver echoes are not stored, in any encoding.
func TestRedact(t *testing.T) {
	for name, c := range redactCases() {
		for spelling, encode := range encodings {
			if !hasSpelling(name, c.shown, spelling) {
				continue
			}
			t.Run(name+"/"+spelling, func(t *testing.T) {
				shown, core := c.shown, c.core
				text := "before " + encode(shown) + " after, " + encode(shown) + "."
				a := webhook.Attempt{ResponseHeader: "Echo: " + text + "\n", ResponseBody: []byte(text)}
				c.request.redact(&a)
				checkRedacted(t, a.ResponseHeader, text, core)
				checkRedacted(t, string(a.ResponseBody), text, core)
			})
		}
	}
}

// A secret that is truncated at the end of the stored text is removed too.
func TestRedactTruncated(t *testing.T) {
	r := Request{Authorization: "Bearer canary-5f1d/7+88aa"}
	for spelling, encode := range encodings {
		if strings.HasPrefix(spelling, "URL, lower") {
			continue
		}
		whole := encode("canary-5f1d/7+88aa")
		for n := range len(whole) {
			a := webhook.Attempt{ResponseBody: []byte("before " + whole[:n]), ResponseTruncated: true}
			r.redact(&a)
			got := strings.TrimPrefix(string(a.ResponseBody), "before ")
			left := unescaped{text: []byte(got)}
			for range maxEscapes {
				if next, ok := left.unescape(); ok {
					left = next
				}
			}
			for _, s := range []string{"canary", hex.EncodeToString([]byte("canary")), base64.RawStdEncoding.EncodeToString([]byte("canary"))} {
				if bytes.Contains(left.text, []byte(s)) {
					t.Errorf("%s, truncated after %d bytes: got %q, want no part of the secret", spelling, n, got)
				}
			}
		}
	}
	// Complete text may end with what looks like a prefix of the secret.
	a := webhook.Attempt{ResponseBody: []byte("a can of Bear")}
	if r.redact(&a); string(a.ResponseBody) != "a can of Bear" {
		t.Errorf("got %q, want it unchanged", a.ResponseBody)
	}
}

// A body in gzip format is stored as received, unless it contains a secret.
func TestRedactUnpacks(t *testing.T) {
	pack := func(text string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		io.WriteString(z, text)
		z.Close()
		return b.Bytes()
	}
	r := Request{Authorization: "Bearer canary-5f1d"}
	long := strings.Repeat("-", webhook.MaxStoredBody-len(" Bearer canary"))
	for _, tt := range []struct {
		name string
		body []byte
		cut  bool
		want string // "" for the body
	}{
		{"no secret", pack("all is well"), false, ""},
		{"secret", pack("you sent Bearer canary-5f1d."), false, "you sent [redacted]."},
		{"secret, encoded", pack("you sent Q2FuYXJ5 " + hex.EncodeToString([]byte("canary-5f1d"))), false, "you sent Q2FuYXJ5 [redacted]"},
		{"secret across the limit", pack(long + " Bearer canary-5f1d" + long), true, long + " [redacted]"},
		{"secret beyond the limit", pack(long + long + " Bearer canary-5f1d"), false, ""},
	} {
		a := webhook.Attempt{ResponseBody: bytes.Clone(tt.body)}
		r.redact(&a)
		want := cmp.Or(tt.want, string(tt.body))
		if len(want) > webhook.MaxStoredBody {
			want = want[:webhook.MaxStoredBody]
		}
		if string(a.ResponseBody) != want || a.ResponseTruncated != tt.cut {
			t.Errorf("%s: got %q, truncated %t; want %q, %t", tt.name, a.ResponseBody, a.ResponseTruncated, want, tt.cut)
		}
	}
}

func TestRedactKeepsTheRest(t *testing.T) {
	r := Request{Authorization: "Bearer abc", Secrets: []webhook.SigningSecret{webhook.NewSigningSecret()}}
	for _, text := range []string{"", "ok", `{"error":"abc is no word"}`, "100 % &amp; more \\", "\xff\xfe\x00", `\u12`, "&#x41;%41"} {
		a := webhook.Attempt{ResponseHeader: text, ResponseBody: []byte(text), ResponseTruncated: true}
		if r.redact(&a); a.ResponseHeader != text || string(a.ResponseBody) != text {
			t.Errorf("got %q and %q, want %q unchanged", a.ResponseHeader, a.ResponseBody, text)
		}
	}
	long := Request{Authorization: "secret"}
	a := webhook.Attempt{ResponseBody: bytes.Repeat([]byte("secret,"), webhook.MaxStoredBody/7)}
	if long.redact(&a); len(a.ResponseBody) > webhook.MaxStoredBody || !a.ResponseTruncated ||
		bytes.Contains(a.ResponseBody, []byte("secret")) {
		t.Errorf("got %d bytes, truncated %t; want at most %d and no secret", len(a.ResponseBody), a.ResponseTruncated, webhook.MaxStoredBody)
	}
}

// Send returns an attempt without the secrets.
func TestSendRedacts(t *testing.T) {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		fmt.Fprintf(w, "you sent %s", r.Header.Get("Authorization"))
	}))
	defer receiver.Close()
	q := testRequest(receiver.URL, 10)
	q.Authorization = "Bearer canary-5f1d"
	a := loopbackClient(t).Send(t.Context(), q)
	if a.ResponseStatus != 200 || !strings.Contains(a.ResponseHeader, "X-Echo: [redacted]\n") ||
		string(a.ResponseBody) != "you sent [redacted]" {
		t.Errorf("got status %d, headers %q, body %q; want the secret replaced in both", a.ResponseStatus, a.ResponseHeader, a.ResponseBody)
	}
}

func FuzzRedact(f *testing.F) {
	for _, encode := range encodings {
		f.Add([]byte(encode("Bearer canary-5f1d")), "Bearer canary-5f1d", true)
	}
	f.Fuzz(func(t *testing.T, text []byte, authorization string, cut bool) {
		r := Request{Authorization: authorization}
		before := bytes.Clone(text)
		got := r.secrets().redact(text, cut)
		if !bytes.Equal(text, before) {
			t.Fatal("redact changed the text in place")
		}
		if got == nil {
			got = text
		}
		if len(authorization) >= minSecret && !strings.Contains(redacted, authorization) && !strings.ContainsAny(authorization, redacted) &&
			bytes.Contains(got, []byte(authorization)) {
			t.Errorf("got %q, which contains %q", got, authorization)
		}
	})
}

func BenchmarkRedact(b *testing.B) {
	r := Request{Authorization: "Bearer " + strings.Repeat("k7", 20), Secrets: []webhook.SigningSecret{webhook.NewSigningSecret()}}
	header := "Content-Length: 2\nContent-Type: text/plain; charset=utf-8\nDate: Mon, 02 Mar 2026 10:00:00 GMT\n"
	for name, body := range map[string]string{
		"ok":   "ok",
		"16K":  strings.Repeat("0123456789abcdef", 1024),
		"HTML": strings.Repeat("<p>a &amp; b</p>", 1024),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a := webhook.Attempt{ResponseHeader: header, ResponseBody: []byte(body)}
				r.redact(&a)
			}
		})
	}
}

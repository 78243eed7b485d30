package webhook

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCheckHeaders checks which headers a subscription may have. No error contains a value.
func TestCheckHeaders(t *testing.T) {
	const secret = "canary-4f2b"
	many := make([]Header, MaxHeaders+1)
	for i := range many {
		many[i] = Header{fmt.Sprint("X-", i), "a"}
	}
	for _, tt := range []struct {
		name    string
		headers []Header
		want    []Validation
	}{
		{"none", nil, nil},
		{"most", many[:MaxHeaders], nil},
		{"too many", many, []Validation{{InvalidTooMany, "must have at most 16 headers", "headers"}}},
		{"any text", []Header{{"x_api.KEY~1", "ü é: a  b\"'<>"}}, nil},
		{"no name", []Header{{"", secret}}, []Validation{{InvalidFormat, "must be named with letters, digits and !#$%&'*+-.^_`|~", `headers.""`}}},
		{"name with a line", []Header{{"X\r\nY", secret}},
			[]Validation{{InvalidFormat, "must be named with letters, digits and !#$%&'*+-.^_`|~", "headers.X\r\nY"}}},
		{"long name", []Header{{strings.Repeat("x", MaxHeaderName+1), secret}},
			[]Validation{{InvalidTooLong, "must have a name of at most 128 bytes", "headers." + quotedName(strings.Repeat("x", MaxHeaderName+1))}}},
		{"twice", []Header{{"X-A", secret}, {"x-a", secret}},
			[]Validation{{InvalidDuplicate, "is given twice: upper and lower case are the same", "headers.x-a"}}},
		{"Authorization", []Header{{"AUTHORIZATION", secret}},
			[]Validation{{InvalidValue, "has a field of its own: authorization_header", "headers.AUTHORIZATION"}}},
		{"no value", []Header{{"X-A", ""}}, []Validation{{InvalidValue, "must not be empty", "headers.X-A"}}},
		{"CR", []Header{{"X-A", secret + "\rX-B: c"}}, []Validation{{InvalidFormat, "must be UTF-8 without control characters", "headers.X-A"}}},
		{"NUL", []Header{{"X-A", secret + "\x00"}}, []Validation{{InvalidFormat, "must be UTF-8 without control characters", "headers.X-A"}}},
		{"space", []Header{{"X-A", secret + " "}}, []Validation{{InvalidFormat, "must not start or end with a space", "headers.X-A"}}},
		{"long values", []Header{{"X-A", strings.Repeat("a", MaxHeaderValues)}, {"X-B", "a"}},
			[]Validation{{InvalidTooLong, "must have values of at most 4096 bytes together", "headers"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := CheckHeaders(tt.headers)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			if strings.Contains(fmt.Sprint(got), secret) {
				t.Errorf("got %v, which contains the value", got)
			}
		})
	}
}

// TestOwnHeaders checks that a subscription may set no header that every delivery sends.
func TestOwnHeaders(t *testing.T) {
	head := RequestHead{Authorization: "a", Signature: "v1,a", Trace: "a", Test: true}
	own := head.AppendHeader([][2]string{{"Host"}, {"Content-Length"}, {"Transfer-Encoding"}, {"Proxy-Authorization"}, {"TE"}, {"tracestate"}})
	for _, line := range own {
		for _, name := range []string{line[0], strings.ToUpper(line[0]), http.CanonicalHeaderKey(line[0])} {
			if len(CheckHeaders([]Header{{name, "a"}})) == 0 {
				t.Errorf("%s is permitted", name)
			}
		}
	}
	if len(own)+MaxHeaders-6 != MaxRequestHeader {
		t.Errorf("got %d lines without headers of the subscription, want %d", len(own)-6, MaxRequestHeader-MaxHeaders)
	}
}

// TestParseHeaders checks headers from JSON and from a form.
func TestParseHeaders(t *testing.T) {
	want := []Header{{"X-A", "a: b"}, {"X-B", "c"}}
	got, fault := ParseHeaders("\r\n X-B:c \r\nX-A: a: b\n")
	if diff := cmp.Diff(want, got); diff != "" || fault != nil {
		t.Errorf("%v, want -, got +:\n%s", fault, diff)
	}
	if _, fault := ParseHeaders("X-A: a\ncanary"); fault == nil || strings.Contains(fault.Detail, "canary") {
		t.Errorf("got %v, want a fault without the line", fault)
	}
	rules := &SubscriptionRules{Catalog: testCatalog(t)}
	for body, want := range map[string]*[]Header{
		`{"headers": {"X-B": "c", "X-A": "a: b"}}`: &want, `{"headers": {}}`: {}, `{"headers": null}`: {}, `{}`: nil,
	} {
		f, err := rules.Parse([]byte(body), false)
		if diff := cmp.Diff(want, f.Headers); diff != "" || err != nil {
			t.Errorf("%s: %v, want -, got +:\n%s", body, err, diff)
		}
	}
	for body, want := range map[string]Validation{
		`{"headers": {"X-A": 1}}`:                     {InvalidType, "must be a string", "headers.X-A"},
		`{"headers": ["X-A"]}`:                        {InvalidType, `must be an object, such as {"X-Api-Key": "…"}, or null for none`, "headers"},
		`{"headers": {"Content-Encoding": "gzip"}}`:   {InvalidValue, "is set by the service itself, or by HTTP", "headers.Content-Encoding"},
		`{"headers": {"X-Service-Anything": "gzip"}}`: {InvalidValue, "is set by the service itself, or by HTTP", "headers.X-Service-Anything"},
	} {
		_, err := rules.Parse([]byte(body), false)
		if err == nil || len(err.Validations) != 1 || err.Validations[0] != want {
			t.Errorf("%s: got %v, want %v", body, err, want)
		}
	}
}

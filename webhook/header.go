package webhook

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/http/httpguts"
)

// Limits of the static headers of a subscription.
const (
	MaxHeaders      = 16
	MaxHeaderName   = 128  // bytes
	MaxHeaderValues = 4096 // bytes of all values together
)

// Header is a header that a subscription sends with each delivery. The name is not secret, the
// value is.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// HeaderNames returns the names of headers.
func HeaderNames(headers []Header) []string {
	names := make([]string, len(headers))
	for i := range headers {
		names[i] = headers[i].Name
	}
	return names
}

// ownHeaders are the headers that the service or HTTP itself sets, in lower case. A name that ends
// with a hyphen stands for all that begin with it.
var ownHeaders = []string{
	"accept-encoding", "authorization", "connection", "content-", "expect", "host", "http2-settings", "keep-alive", "proxy-", "te",
	"traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade", "user-agent", "webhook-", "x-service-",
}

// isOwnHeader reports whether a subscription may not set the header.
func isOwnHeader(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(ownHeaders, func(own string) bool {
		return name == own || strings.HasSuffix(own, "-") && strings.HasPrefix(name, own)
	})
}

// CheckHeaders returns what is wrong with the headers of a subscription: names that HTTP does not
// permit, that differ only in case or that every delivery sends, and values that HTTP cannot carry
// unchanged. No error contains a value.
func CheckHeaders(headers []Header) []Validation {
	if len(headers) > MaxHeaders {
		return []Validation{{InvalidTooMany, fmt.Sprintf("must have at most %d headers", MaxHeaders), "headers"}}
	}
	var v []Validation
	size := 0
	seen := make(map[string]bool, len(headers))
	for _, h := range headers {
		at, name := join("headers", h.Name), strings.ToLower(h.Name)
		add := func(code, detail string) { v = append(v, Validation{code, detail, at}) }
		switch {
		case len(h.Name) > MaxHeaderName:
			add(InvalidTooLong, fmt.Sprintf("must have a name of at most %d bytes", MaxHeaderName))
		case !httpguts.ValidHeaderFieldName(h.Name):
			add(InvalidFormat, "must be named with letters, digits and !#$%&'*+-.^_`|~")
		case name == "authorization":
			add(InvalidValue, "has a field of its own: authorization_header")
		case isOwnHeader(name):
			add(InvalidValue, "is set by the service itself, or by HTTP")
		case seen[name]:
			add(InvalidDuplicate, "is given twice: upper and lower case are the same")
		}
		seen[name] = true
		if code, detail := checkHeaderValue(h.Value); code != "" {
			add(code, detail)
		}
		size += len(h.Value)
	}
	if size > MaxHeaderValues {
		v = append(v, Validation{InvalidTooLong, fmt.Sprintf("must have values of at most %d bytes together", MaxHeaderValues), "headers"})
	}
	return v
}

// checkHeaderValue returns why HTTP cannot carry a value unchanged, "" if it can.
func checkHeaderValue(s string) (code, detail string) {
	switch {
	case s == "":
		return InvalidValue, "must not be empty"
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return InvalidFormat, "must be UTF-8 without control characters"
	case strings.Trim(s, " ") != s:
		return InvalidFormat, "must not start or end with a space"
	}
	return "", ""
}

// ParseHeaders parses a form's headers, one Name: value per line, and sorts them by name. The fault
// contains no value.
func ParseHeaders(lines string) (all []Header, fault *Validation) {
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, &Validation{InvalidFormat, "must have one header on each line, as Name: value", "headers"}
		}
		all = append(all, Header{strings.TrimSpace(name), strings.TrimSpace(value)})
	}
	sortHeaders(all)
	return all, nil
}

func sortHeaders(all []Header) {
	slices.SortFunc(all, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
}

// headers returns the headers at a node, sorted by name: none for null and an empty object.
func (p *subscriptionParser) headers(value int32) *[]Header {
	all := []Header{}
	switch p.nodes[value].kind {
	case jsontext.KindNull:
	case jsontext.KindBeginObject:
		for name, value := range p.members(value) {
			h := Header{Name: string(p.text(name))}
			if text := p.string(join("headers", h.Name), value); text != nil {
				h.Value = *text
				all = append(all, h)
			}
		}
	default:
		p.fail(InvalidType, "headers", `must be an object, such as {"X-Api-Key": "…"}, or null for none`)
		return nil
	}
	sortHeaders(all)
	return &all
}

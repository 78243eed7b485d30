package client

import (
	"errors"
	"net"
	"net/url"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/idna"
)

// origin identifies which requests may share a connection: requests of one program to one
// address. A receiver that sends a response unasked can thus only affect other requests of
// its own program.
type origin struct {
	secure  bool
	address string // host:port
	program string
}

// Target is the parsed URL of a subscription. It is immutable, so attempts can
// share it.
type Target struct {
	origin
	host string // value of the Host header
	path string // with the query
	err  error  // why nothing can be sent to the URL
}

// NewTarget parses the URL of a subscription. If it is unusable, attempts fail.
func NewTarget(url string) *Target {
	to, err := parseTarget(url)
	to.err = err
	return &to
}

func parseTarget(text string) (to Target, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return to, err
	}
	port := ""
	switch u.Scheme {
	case "https":
		to.secure, port = true, "443"
	case "http":
		port = "80"
	default:
		return to, errors.New("URL scheme must be https or http")
	}
	name := u.Hostname()
	if strings.IndexFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		// webhook.Destinations maps names in the same way.
		if name, err = idna.Lookup.ToASCII(name); err != nil {
			return to, err
		}
	}
	to.host = name
	if strings.Contains(name, ":") {
		to.host = "[" + name + "]"
	}
	if p := u.Port(); p != "" {
		port = p
		to.host += ":" + p
	}
	if name == "" || !httpguts.ValidHostHeader(to.host) {
		return to, errors.New("URL host is invalid")
	}
	to.address = net.JoinHostPort(name, port)
	to.path = u.RequestURI()
	if strings.ContainsFunc(to.path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return to, errors.New("URL path has invalid characters")
	}
	return to, nil
}

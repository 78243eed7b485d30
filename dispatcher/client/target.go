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

// origin is where a connection leads, and for which program. It serves requests
// of that program to there: a receiver that sends a response without a request may
// answer another request of its own program, and of no other.
type origin struct {
	secure  bool
	address string // host and port
	program string
}

// Target is where requests go: the URL of a subscription, parsed once. It is not
// changed, so that attempts can share it.
type Target struct {
	origin
	host string // value of the header
	path string // with the query
	err  error  // why nothing can be sent there
}

// NewTarget parses the URL of a subscription. When nothing can be sent to the URL,
// attempts fail.
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
		return to, errors.New("the scheme is neither https nor http")
	}
	name := u.Hostname()
	if strings.IndexFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		// The same mapping that webhook.Destinations judges a name by.
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
		return to, errors.New("the host cannot be sent")
	}
	to.address = net.JoinHostPort(name, port)
	to.path = u.RequestURI()
	if strings.ContainsFunc(to.path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return to, errors.New("the path cannot be sent")
	}
	return to, nil
}

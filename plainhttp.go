package main

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	"service/api"
	"service/internal/certs"
)

// isPartners says whether a path is the API's; all others are the admin UI's.
func isPartners(path string) bool {
	switch path {
	case "/v2", "/docs", "/healthz", "/readyz", "/metrics":
		return true
	}
	return strings.HasPrefix(path, "/v2/") || strings.HasPrefix(path, "/docs/")
}

// plainDoor answers requests that have come in the clear to a service that
// speaks HTTPS: challenges of issuers, and for all else the way to the right
// door. What could hold a token or a password is refused instead: a redirect
// would make a client that sends it in the clear look as if it were right.
type plainDoor struct {
	certificates *certs.Manager // nil when there are none
	partners     *api.API
	hosts        []string // that the service is reached by; others are led to the first; nil: whatever was asked for
	port         string   // of the HTTPS door; "" when it is not known whether there is one, and nobody is led there
}

// ServeHTTP implements [http.Handler].
func (d *plainDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.certificates != nil && d.certificates.AnswerChallenge(w, r) {
		return
	}
	p := r.URL.Path
	switch {
	case p == "/v2", strings.HasPrefix(p, "/v2/"), p == "/metrics", len(r.Header["Authorization"]) > 0:
		d.partners.Insecure(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead, d.port == "":
		refuseInsecure(w)
	default:
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.Trim(host, "[]")
		if d.hosts != nil && !slices.ContainsFunc(d.hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			host = d.hosts[0]
		}
		http.Redirect(w, r, "https://"+joinHostPort(host, d.port)+r.URL.RequestURI(), http.StatusPermanentRedirect)
	}
}

// refuseInsecure tells a client that is not the API's that it must speak HTTPS.
func refuseInsecure(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusForbidden)
	_, _ = io.WriteString(w, "This is plain HTTP, which anybody on the way can read: use https://.\n") // a client that has gone cannot be told
}

// joinHostPort is the host and port of an https URL.
func joinHostPort(host, port string) string {
	if port != "443" {
		return net.JoinHostPort(host, port)
	}
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// hstsLife is how long browsers speak nothing but HTTPS with a domain.
const hstsLife = "max-age=31536000" // a year

// withHSTS tells browsers to speak nothing but HTTPS with any of these names.
// They hold it against all ports of a name, so localhost must not be among them.
func withHSTS(h http.Handler, names []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, host) }) {
			w.Header().Set("Strict-Transport-Security", hstsLife)
		}
		h.ServeHTTP(w, r)
	})
}

package server

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	"service/api"
	"service/internal/certs"
)

// isAPIPath reports whether a path belongs to the API; all others belong to the
// admin UI.
func isAPIPath(path string) bool {
	switch path {
	case "/v2", "/docs", "/healthz", "/readyz", "/metrics":
		return true
	}
	return strings.HasPrefix(path, "/v2/") || strings.HasPrefix(path, "/docs/")
}

// redirectHandler answers plain HTTP requests of a service that speaks HTTPS: it
// answers challenges of issuers, and redirects the rest to HTTPS. A request that
// could hold a token or a password is refused instead, since a redirect would make
// a client that sends it unencrypted look right.
type redirectHandler struct {
	certificates *certs.Manager // nil when there are none
	api          *api.API
	hosts        []string // of the service; a request for another is redirected to the first. nil: any host
	port         string   // of HTTPS; "" if it is not known, and requests are refused
}

// ServeHTTP implements [http.Handler].
func (h *redirectHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.certificates != nil && h.certificates.AnswerChallenge(w, r) {
		return
	}
	p := r.URL.Path
	switch {
	case p == "/v2", strings.HasPrefix(p, "/v2/"), p == "/metrics", len(r.Header["Authorization"]) > 0:
		h.api.Insecure(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead, h.port == "":
		refuseInsecure(w)
	default:
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.Trim(host, "[]")
		if h.hosts != nil && !slices.ContainsFunc(h.hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			host = h.hosts[0]
		}
		http.Redirect(w, r, "https://"+joinHostPort(host, h.port)+r.URL.RequestURI(), http.StatusPermanentRedirect)
	}
}

// refuseInsecure tells a client that is not one of the API that it must use HTTPS.
func refuseInsecure(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusForbidden)
	_, _ = io.WriteString(w, "This is plain HTTP, which others can read. Use https://.\n") // a client that has gone cannot be told
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

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

// isAPIPath reports whether a path belongs to the API. All others belong to the admin UI.
func isAPIPath(path string) bool {
	switch path {
	case "/v2", "/docs", "/docs.md", "/llms.txt", "/healthz", "/readyz", "/metrics":
		return true
	}
	// A base URL that ends in a slash makes //v2/.
	return strings.HasPrefix(strings.TrimLeft(path, "/"), "v2/") || strings.HasPrefix(path, "/docs/")
}

// redirectHandler handles plain HTTP requests to an HTTPS service. It answers ACME
// challenges and redirects other requests to HTTPS. It refuses requests that may contain a
// token or a password: a redirect would hide that the client sends them unencrypted.
type redirectHandler struct {
	certificates *certs.Manager // nil for none
	api          *api.API
	hosts        []string // redirects for any other host go to the first; nil allows any host
	port         string   // of HTTPS; if empty, it is unknown and requests are refused
}

// ServeHTTP implements [http.Handler].
func (h *redirectHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.certificates != nil && h.certificates.AnswerChallenge(w, r) {
		return
	}
	p := r.URL.Path
	switch {
	case p == "/v2", strings.HasPrefix(strings.TrimLeft(p, "/"), "v2/"), p == "/metrics", len(r.Header["Authorization"]) > 0:
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

// refuseInsecure responds that HTTPS is required, for requests outside the API.
func refuseInsecure(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusForbidden)
	_, _ = io.WriteString(w, "This is plain HTTP, which others can read. Use https://.\n") // an error means that the client has disconnected
}

// joinHostPort returns the host and port of an https URL.
func joinHostPort(host, port string) string {
	if port != "443" {
		return net.JoinHostPort(host, port)
	}
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// hstsPolicy makes browsers use only HTTPS for a domain, for a year.
const hstsPolicy = "max-age=31536000"

// withHSTS sets the HSTS header for the given names. Browsers apply HSTS to all ports of a
// name, so names must not include localhost.
func withHSTS(h http.Handler, names []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, host) }) {
			w.Header().Set("Strict-Transport-Security", hstsPolicy)
		}
		h.ServeHTTP(w, r)
	})
}

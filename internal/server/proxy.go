package server

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// TrustedProxies are the networks of the proxies whose headers say who a request is
// from.
type TrustedProxies []netip.Prefix

// Contains reports whether an address is that of a trusted proxy.
func (p TrustedProxies) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

// sender is the address that a request's connection is from; not valid when it
// has none.
func sender(r *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}

// client returns who a request of a trusted proxy is from: the last address of
// X-Forwarded-For that is not a trusted proxy's, since each proxy appends who
// called it, and all before could be the client's own words. It is not valid
// when the proxies do not say.
func (p TrustedProxies) client(h http.Header) (last netip.Addr) {
	all := strings.Split(strings.Join(h.Values("X-Forwarded-For"), ","), ",")
	for _, s := range slices.Backward(all) {
		a, ok := forwardedAddress(strings.TrimSpace(s))
		if !ok {
			return last
		}
		if last = a; !p.Contains(a) {
			return last
		}
	}
	return last
}

// forwardedAddress reads an address as proxies write it, some with a port.
func forwardedAddress(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return a.Unmap().WithZone(""), err == nil
}

// unencrypted says whether a proxy tells that a request, or one on its way to
// it, was not encrypted.
func unencrypted(h http.Header) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(h.Values("X-Forwarded-Proto"), ","), ","), func(s string) bool {
		return strings.EqualFold(strings.TrimSpace(s), "http")
	})
}

// proxyHandler sets the remote address of a request to that of the client it is
// from. The headers that say so count only if a trusted proxy has sent them.
type proxyHandler struct {
	trusted  TrustedProxies
	insecure http.Handler // of requests that a proxy received unencrypted
	direct   http.Handler // of requests that come neither from a proxy nor from this machine, except those for its health; nil is handler
	handler  http.Handler
}

// ServeHTTP implements [http.Handler].
func (h *proxyHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from := sender(r)
	switch {
	case h.trusted.Contains(from):
		if client := h.trusted.client(r.Header); client.IsValid() {
			r = r.WithContext(r.Context()) // a copy: the request is the server's
			r.RemoteAddr = net.JoinHostPort(client.String(), "0")
		}
		if unencrypted(r.Header) {
			h.insecure.ServeHTTP(w, r)
			return
		}
	case h.direct != nil && !from.IsLoopback() && r.URL.Path != "/healthz" && r.URL.Path != "/readyz":
		h.direct.ServeHTTP(w, r)
		return
	}
	h.handler.ServeHTTP(w, r)
}

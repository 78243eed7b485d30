package server

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// TrustedProxies are the networks of proxies that are trusted to state the client's address.
type TrustedProxies []netip.Prefix

// Contains reports whether an address belongs to a trusted proxy.
func (p TrustedProxies) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

// peerAddress returns the address at the other end of a request's connection, invalid if there is
// none.
func peerAddress(r *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}

// client returns the client address of a request from a trusted proxy: the last address in
// X-Forwarded-For that is not a trusted proxy's. Each proxy appends its peer; the client may have
// forged all addresses before. The result is invalid without such a header.
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

// forwardedAddress parses an address in X-Forwarded-For, with or without a port.
func forwardedAddress(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return a.Unmap().WithZone(""), err == nil
}

// unencrypted reports whether X-Forwarded-Proto names a plain HTTP hop.
func unencrypted(h http.Header) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(h.Values("X-Forwarded-Proto"), ","), ","), func(s string) bool {
		return strings.EqualFold(strings.TrimSpace(s), "http")
	})
}

// proxyHandler sets the remote address of a request to the client's address, if a trusted proxy
// forwarded the request.
type proxyHandler struct {
	trusted  TrustedProxies
	insecure http.Handler // for requests that a proxy received unencrypted
	direct   http.Handler // for requests from neither a proxy nor loopback, except health checks; nil is handler
	handler  http.Handler
}

// ServeHTTP implements [http.Handler].
func (h *proxyHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from := peerAddress(r)
	switch {
	case h.trusted.Contains(from):
		if client := h.trusted.client(r.Header); client.IsValid() {
			r = r.WithContext(r.Context()) // a shallow copy, since handlers must not change the request
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

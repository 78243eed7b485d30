package main

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// proxies are those whose word is taken for who a request is from.
type proxies []netip.Prefix

// proxies reads the addresses and networks of trusted proxies.
func (f *faults) proxies(flag string, list []string) (p proxies) {
	for _, s := range list {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(s); err == nil && a.Zone() == "" {
				prefix = netip.PrefixFrom(a, a.BitLen())
			}
		}
		switch {
		case err != nil || !prefix.IsValid():
			f.add(flag, "must be addresses or networks such as 10.0.0.7 or 10.0.0.0/24, not %q", s)
		case prefix.Bits() == 0:
			f.add(flag, "%s is every address there is, and whoever calls could say to be anyone", s)
		case prefix.Addr().Is4In6():
			f.add(flag, "%s is written as 10.0.0.0/24 is", s)
		default:
			p = append(p, prefix.Masked())
		}
	}
	return p
}

// trust says whether the word of an address is taken.
func (p proxies) trust(a netip.Addr) bool {
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
func (p proxies) client(h http.Header) (last netip.Addr) {
	all := strings.Split(strings.Join(h.Values("X-Forwarded-For"), ","), ",")
	for _, s := range slices.Backward(all) {
		a, ok := forwardedAddress(strings.TrimSpace(s))
		if !ok {
			return last
		}
		if last = a; !p.trust(a) {
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

// inTheClear says whether a proxy tells that a request, or one on its way to
// it, was not encrypted.
func inTheClear(h http.Header) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(h.Values("X-Forwarded-Proto"), ","), ","), func(s string) bool {
		return strings.EqualFold(strings.TrimSpace(s), "http")
	})
}

// proxyDoor has requests seen as those of the clients that they are from.
// Headers that tell so count when a trusted proxy has sent them, and for
// nothing otherwise.
type proxyDoor struct {
	trusted   proxies
	insecure  http.Handler // of requests that a proxy was sent in the clear
	strangers http.Handler // of requests that come neither from a proxy nor from this machine, but to be asked for its health; nil is handler
	handler   http.Handler
}

// ServeHTTP implements [http.Handler].
func (d *proxyDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from := sender(r)
	switch {
	case d.trusted.trust(from):
		if client := d.trusted.client(r.Header); client.IsValid() {
			r = r.WithContext(r.Context()) // a copy: the request is the server's
			r.RemoteAddr = net.JoinHostPort(client.String(), "0")
		}
		if inTheClear(r.Header) {
			d.insecure.ServeHTTP(w, r)
			return
		}
	case d.strangers != nil && !from.IsLoopback() && r.URL.Path != "/healthz" && r.URL.Path != "/readyz":
		d.strangers.ServeHTTP(w, r)
		return
	}
	d.handler.ServeHTTP(w, r)
}

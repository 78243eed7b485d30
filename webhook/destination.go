package webhook

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Destinations are the addresses that deliveries may be sent to: the public
// internet and what the operator permits in addition. The zero value is the public
// internet only. A Destinations is immutable.
type Destinations struct {
	extra []netip.Prefix // permitted by the operator; neither IPv4-mapped nor with a zone
}

// special4 is IANA's IPv4 Special-Purpose Address Registry, including ranges that are
// globally reachable (they have no subscribers), plus two that the registry lacks:
// multicast, and a public-looking address of a cloud's internal services.
var special4 = prefixes(
	"0.0.0.0/8",        // this network
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // shared between carriers; metadata of Alibaba Cloud
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // platform services of Azure
	"169.254.0.0/16",   // link-local; metadata of most clouds
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // IETF protocol assignments; metadata of Oracle Cloud
	"192.0.2.0/24",     // documentation
	"192.31.196.0/24",  // AS112
	"192.52.193.0/24",  // AMT
	"192.88.99.0/24",   // 6to4 relays
	"192.168.0.0/16",   // private
	"192.175.48.0/24",  // AS112
	"198.18.0.0/15",    // benchmarks
	"198.51.100.0/24",  // documentation
	"203.0.113.0/24",   // documentation
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, and limited broadcast
)

// public6 is the range that IANA has assigned as global unicast. Everything else is
// blocked: loopback, unique-local, link-local, multicast, IPv4-mapped and
// -compatible, NAT64, segment routing, and ranges without a meaning yet.
var public6 = netip.MustParsePrefix("2000::/3")

// special6 is the part of IANA's IPv6 Special-Purpose Address Registry within
// public6.
var special6 = prefixes(
	"2001::/23",         // IETF protocol assignments: Teredo, benchmarks, ORCHID
	"2001:db8::/32",     // documentation
	"2002::/16",         // 6to4: contains an IPv4 address
	"2620:4f:8000::/48", // AS112
	"3fff::/20",         // documentation
)

func prefixes(s ...string) []netip.Prefix {
	p := make([]netip.Prefix, len(s))
	for i := range s {
		p[i] = netip.MustParsePrefix(s[i])
	}
	return p
}

// ParseDestinations parses the operator's additional destinations: CIDRs
// (10.1.0.0/16, fd00:1::/32) and single addresses. The error names the entry and
// what is wrong with it.
func ParseDestinations(cidrs []string) (Destinations, error) {
	var d Destinations
	for _, s := range cidrs {
		p, err := parseDestination(s)
		if err != nil {
			return Destinations{}, fmt.Errorf("allowed destination %q: %w", s, err)
		}
		d.extra = append(d.extra, p)
	}
	return d, nil
}

func parseDestination(s string) (netip.Prefix, error) {
	var p netip.Prefix
	if strings.Contains(s, "/") {
		var err error
		if p, err = netip.ParsePrefix(s); err != nil {
			return p, fmt.Errorf("must be an address or a CIDR such as 10.1.0.0/16")
		}
	} else {
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			return p, fmt.Errorf("must be an address or a CIDR such as 10.1.0.0/16")
		case a.Zone() != "":
			return p, fmt.Errorf("must not have a zone (%%%s)", a.Zone())
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	switch {
	case p.Addr().Is4In6():
		return p, fmt.Errorf("must be written as IPv4")
	case p != p.Masked():
		// A typo here would permit more than was intended.
		return p, fmt.Errorf("has host bits set; write %s, or %s for the single address", p.Masked(), p.Addr())
	}
	return p, nil
}

// Allows reports whether deliveries may be sent to the address. An IPv4-mapped
// address is only allowed if the operator permits the IPv4 address; one with a zone
// is never allowed.
func (d Destinations) Allows(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	if contains(d.extra, a.Unmap()) {
		return true
	}
	if a.Is4() {
		return !contains(special4, a)
	}
	return public6.Contains(a) && !contains(special6, a)
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// AllowsHost reports whether a URL may have this host, as returned by
// [net/url.URL.Hostname]. An IPv4 address is checked in every spelling that some
// resolver or C library accepts (127.1, 0x7f000001, 017700000001, fullwidth digits,
// …). If parsers disagree (010.0.0.1), every interpretation must be allowed.
// Localhost is checked as loopback. Any other name is allowed, since its addresses
// are checked each time it is dialed.
func (d Destinations) AllowsHost(host string) bool {
	// The dialer maps names in the same way.
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "" {
		return false
	}
	if addrs := Loopback(host); addrs != nil {
		return slices.ContainsFunc(addrs, d.Allows)
	}
	if strings.Contains(host, ":") {
		a, err := netip.ParseAddr(host)
		return err == nil && d.Allows(a)
	}
	if !endsInNumber(host) {
		return true
	}
	// No public name ends in a number. A host that no parser accepts as an address
	// is blocked, since some parsers let numbers overflow.
	readings := 0
	for _, octal := range []bool{true, false} {
		if a, ok := parseIPv4(host, octal); ok {
			if !d.Allows(a) {
				return false
			}
			readings++
		}
	}
	return readings > 0
}

// Loopback returns the loopback addresses for localhost and names under it, nil for
// other hosts. Such names are never resolved by DNS (RFC 6761, section 6.3).
func Loopback(host string) []netip.Addr {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host != "localhost" && !strings.HasSuffix(host, ".localhost") {
		return nil
	}
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
}

// Reaches reports whether a connection to the address to reaches a listener on this
// machine, judging only by the two addresses: a listener on the unspecified address
// is also reached by the machine's own addresses.
func Reaches(to, listener netip.Addr) bool {
	to, listener = to.Unmap(), listener.Unmap().WithZone("")
	// An unspecified address connects to this machine, and all of 127.0.0.0/8 is
	// this machine.
	return to == listener || to.IsUnspecified() || listener.IsUnspecified() && to.IsLoopback()
}

// endsInNumber is the test by which browsers distinguish an IPv4 address, valid or
// not, from a name.
func endsInNumber(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// parseIPv4 parses an address like C's inet_aton: one to four numbers, the last of
// which fills the remaining bytes. A prefix of 0x means hexadecimal; a leading 0
// means octal if octal is set, else decimal.
func parseIPv4(host string, octal bool) (netip.Addr, bool) {
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var n uint64
	for i, s := range parts {
		base := 10
		if hex, ok := strings.CutPrefix(s, "0x"); ok {
			base, s = 16, hex
			if s == "" {
				s = "0"
			}
		} else if octal && strings.HasPrefix(s, "0") {
			base = 8
		}
		bits := 8
		if i == len(parts)-1 {
			bits = 8 * (4 - i)
		}
		v, err := strconv.ParseUint(s, base, bits)
		if err != nil {
			return netip.Addr{}, false
		}
		n = n<<bits | v
	}
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), true
}

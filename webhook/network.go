package webhook

import "net/netip"

// Network returns the network that one sender may control: an IPv4 address, or the
// /64 of an IPv6 address. Limits by address are counted per network. The network of
// the zero address is zero.
func Network(a netip.Addr) netip.Prefix {
	a = a.Unmap()
	bits := 64
	if a.Is4() {
		bits = 32
	}
	network, _ := a.Prefix(bits) // fails only for the zero address
	return network
}

package webhook

import "net/netip"

// Network is what one sender can be taken to have of the address space: an IPv4
// address, or the /64 of an IPv6 address. Limits for addresses are counted by
// it. The zero address has the zero network.
func Network(a netip.Addr) netip.Prefix {
	a = a.Unmap()
	bits := 64
	if a.Is4() {
		bits = 32
	}
	network, _ := a.Prefix(bits) // it fails for the zero address alone
	return network
}

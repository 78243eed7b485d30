package webhook

import (
	"net/netip"
	"testing"
)

func TestNetwork(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1":           "192.0.2.1/32",
		"::ffff:192.0.2.1":    "192.0.2.1/32",
		"2001:db8:0:1::1":     "2001:db8:0:1::/64",
		"2001:db8:0:1:ffff::": "2001:db8:0:1::/64",
		"2001:db8:0:2::1":     "2001:db8:0:2::/64",
		"fe80::1%eth0":        "fe80::/64",
		"::1":                 "::/64",
	} {
		if got := Network(netip.MustParseAddr(address)); got.String() != want {
			t.Errorf("Network(%s) = %s, want %s", address, got, want)
		}
	}
	if got := Network(netip.Addr{}); got != (netip.Prefix{}) {
		t.Errorf("Network(zero address) = %s, want the zero network", got)
	}
}

package webhook

import (
	"net/netip"
	"strings"
	"testing"
)

func TestDestinationsAllows(t *testing.T) {
	for _, tt := range []struct {
		addrs string
		want  bool
	}{
		// Public addresses, and the neighbors of special ranges.
		{"1.0.0.0 1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 93.184.216.34", true},
		{"100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0", true},
		{"168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.0", true},
		{"172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0", true},
		{"192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0", true},
		{"198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0", true},
		{"203.0.112.255 203.0.114.0 223.255.255.255", true},
		{"2001:200:: 2001:4860:4860::8888 2606:4700:4700::1111 2a00:1450::1", true},
		{"2000:: 2001:db7:ffff:: 2001:db9:: 2003:: 2620:4f:7fff:: 2620:4f:8001:: 3fff:1000:: 3ffe:ffff::", true},

		// First and last addresses of IANA's special IPv4 ranges.
		{"0.0.0.0 0.0.0.1 0.255.255.255", false},
		{"10.0.0.0 10.255.255.255", false},
		{"100.64.0.0 100.100.100.200 100.127.255.255", false},
		{"127.0.0.0 127.0.0.1 127.255.255.255", false},
		{"168.63.129.16", false},
		{"169.254.0.0 169.254.169.254 169.254.170.2 169.254.255.255", false},
		{"172.16.0.0 172.31.255.255", false},
		{"192.0.0.0 192.0.0.9 192.0.0.192 192.0.0.255", false},
		{"192.0.2.0 192.0.2.255 192.31.196.1 192.52.193.1 192.175.48.1", false},
		{"192.88.99.0 192.88.99.255 192.168.0.0 192.168.255.255", false},
		{"198.18.0.0 198.19.255.255 198.51.100.0 198.51.100.255", false},
		{"203.0.113.0 203.0.113.255", false},
		{"224.0.0.0 239.255.255.255 240.0.0.0 255.255.255.254 255.255.255.255", false},

		// IPv6 addresses that are not global unicast.
		{":: ::1 ::7f00:1 ::8.8.8.8 ::ffff:0:127.0.0.1", false},
		{"::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:169.254.169.254", false},
		{"64:ff9b::7f00:1 64:ff9b::8.8.8.8 64:ff9b:1::1 100::1 100:0:0:1::1", false},
		{"fc00:: fd00:ec2::254 fdff:ffff::1 fe80::1 febf::1 fec0::1 ff00:: ff02::1", false},
		{"1fff:ffff:: 4000:: 5f00::1 8000:: e000::", false},
		// Special ranges within global unicast.
		{"2001:: 2001:0:7f00:1:: 2001:1::1 2001:2::1 2001:3::1 2001:10::1 2001:20::1 2001:30::1 2001:1ff:ffff::", false},
		{"2001:db8:: 2001:db8:ffff:ffff:: 2002:: 2002:7f00:1:: 2002:ffff::", false},
		{"2620:4f:8000:: 3fff:: 3fff:fff:ffff::", false},

		// Zones.
		{"fe80::1%eth0 2606:4700:4700::1111%eth0 ::1%lo", false},
	} {
		for s := range strings.FieldsSeq(tt.addrs) {
			if got := (Destinations{}).Allows(netip.MustParseAddr(s)); got != tt.want {
				t.Errorf("Allows(%s) = %v, want %v", s, got, tt.want)
			}
		}
	}
	if (Destinations{}).Allows(netip.Addr{}) {
		t.Error("Allows(zero address) = true, want false")
	}
}

// permitted returns destinations that are permitted in addition to the public internet.
func permitted(t *testing.T, entries ...string) Destinations {
	t.Helper()
	d, err := ParseDestinations(entries)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDestinationsExtra(t *testing.T) {
	d := permitted(t, "10.1.0.0/16", "127.0.0.1", "fd00:1::/32", "fe80::/64", "0.0.0.0/32")
	for s, want := range map[string]bool{
		"10.1.0.0": true, "10.1.255.255": true, "10.0.255.255": false, "10.2.0.0": false,
		"127.0.0.1": true, "127.0.0.2": false, "0.0.0.0": true, "0.0.0.1": false,
		"::ffff:10.1.2.3": true, "::ffff:10.2.2.3": false, "::ffff:127.0.0.1": true,
		"::10.1.2.3": false, "64:ff9b::10.1.2.3": false, "2002:a01:203::": false,
		"fd00:1::1": true, "fd00:1:ffff::1": true, "fd00:2::1": false,
		"fe80::1": true, "fe80::1%eth0": false,
		"8.8.8.8": true, "::ffff:8.8.8.8": false,
	} {
		if got := d.Allows(netip.MustParseAddr(s)); got != want {
			t.Errorf("Allows(%s) = %v, want %v", s, got, want)
		}
	}
	all := permitted(t, "0.0.0.0/0", "::/0")
	for _, s := range []string{"127.0.0.1", "::1", "169.254.169.254", "::ffff:1.2.3.4", "ff02::1"} {
		if !all.Allows(netip.MustParseAddr(s)) {
			t.Errorf("Allows(%s) = false, want true if everything is permitted", s)
		}
	}
}

func TestParseDestinationsErrors(t *testing.T) {
	for s, want := range map[string]string{
		"":                  "must be an address or a CIDR",
		"localhost":         "must be an address or a CIDR",
		"10.0.0.0/33":       "must be an address or a CIDR",
		"10.0.0.0/":         "must be an address or a CIDR",
		"10.0.0/8":          "must be an address or a CIDR",
		"010.0.0.1":         "must be an address or a CIDR",
		" 10.0.0.1":         "must be an address or a CIDR",
		"10.0.0.1,10.0.0.2": "must be an address or a CIDR",
		"fe80::%eth0/64":    "must be an address or a CIDR",
		"fe80::1%eth0":      "must not have a zone",
		"10.1.2.3/16":       "write 10.1.0.0/16, or 10.1.2.3 for",
		"fd00::1/8":         "write fd00::/8, or fd00::1 for",
		"::ffff:10.0.0.1":   "must be written as IPv4",
		"::ffff:0:0/96":     "must be written as IPv4",
	} {
		_, err := ParseDestinations([]string{"192.168.1.1", s})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"`+s+`"`) {
			t.Errorf("ParseDestinations(%q): got %v, want the entry and %q", s, err, want)
		}
	}
	if d, err := ParseDestinations(nil); err != nil || d.Allows(netip.MustParseAddr("10.0.0.1")) {
		t.Errorf("ParseDestinations(nil) = %v, %v; want only the public internet", d, err)
	}
}

// allowedHosts are hosts in URLs, and whether they are allowed.
var allowedHosts = []struct {
	host             string
	public, withName bool // by default, and with 127.0.0.1 and 10.0.0.0/8 permitted
}{
	// Host names.
	{"example.com", true, true},
	{"EXAMPLE.com.", true, true},
	{"bücher.example", true, true},
	{"under_score.example", true, true},
	{"metadata.google.internal", true, true}, // checked when it is dialed
	{"localhost.example.com", true, true},
	{"notlocalhost", true, true},
	{"10.0.0.1.example", true, true},
	{"0x7f.example", true, true},
	{"1.2.3.4a", true, true},
	{"", false, false},
	{".", false, false},

	// Localhost.
	{"localhost", false, true},
	{"LocalHost", false, true},
	{"localhost.", false, true},
	{"a.b.localhost", false, true},
	{"ｌｏｃａｌｈｏｓｔ", false, true},
	{"ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", false, true},

	// IPv4 in usual and unusual spellings.
	{"93.184.216.34", true, true},
	{"93.184.216.34.", true, true},
	{"1572395042", true, true},      // 93.184.216.34
	{"0x5db8d822", true, true},      // the same
	{"0135.184.216.34", true, true}, // octal 93, decimal 135: both public
	{"127.0.0.1", false, true},
	{"127.0.0.1.", false, true},
	{"127.1", false, true},
	{"127.0.1", false, true},
	{"127.1.", false, true},
	{"2130706433", false, true},
	{"017700000001", false, true}, // octal only: too large as decimal
	{"0x7f000001", false, true},
	{"0X7F000001", false, true},
	{"0x7f.1", false, true},
	{"0x7f.0x0.0x0.0x1", false, true},
	{"0177.0.0.1", false, true}, // 127.0.0.1, or 177.0.0.1
	{"0127.0.0.1", false, true}, // 87.0.0.1, or 127.0.0.1
	{"010.0.0.1", false, true},  // 8.0.0.1, or 10.0.0.1
	{"012.0.0.1", false, true},  // 10.0.0.1, or 12.0.0.1
	{"127.0.0.0x1", false, true},
	{"127.00.00.01", false, true},
	{"127.0.0.08", false, false}, // decimal only
	{"0", false, false},
	{"0x", false, false},
	{"0.0.0.0", false, false},
	{"169.254.169.254", false, false},
	{"2852039166", false, false},          // 169.254.169.254
	{"0xa9fea9fe", false, false},          // the same
	{"0251.0376.0251.0376", false, false}, // the same
	{"169.254.43518", false, false},       // the same
	{"１２７.０.０.１", false, true},
	{"127。0。0。1", false, true},
	{"①②⑦.0.0.1", false, true},
	{"127.0.0.\u00ad1", false, true}, // a soft hyphen, which IDNA drops

	// Not an address for any parser, or one that overflows.
	{"256.0.0.1", false, false},
	{"383.0.0.1", false, false},
	{"4294967297", false, false},
	{"1.2.3.4.5", false, false},
	{"1..2", false, false},
	{"example.1", false, false},
	{"example.0x1", false, false},

	// IPv6.
	{"2606:4700:4700::1111", true, true},
	{"::1", false, false},
	{"::", false, false},
	{"0:0:0:0:0:0:0:1", false, false},
	{"::ffff:127.0.0.1", false, true},
	{"::FFFF:7F00:1", false, true},
	{"::127.0.0.1", false, false},
	{"::ffff:8.8.8.8", false, false},
	{"64:ff9b::7f00:1", false, false},
	{"fe80::1%eth0", false, false},
	{"2606:4700:4700::1111%eth0", false, false},
	{"2606:4700:4700::1111.", true, true},
	{":1", false, false},
	{"1:2", false, false},
}

func TestDestinationsAllowsHost(t *testing.T) {
	named := permitted(t, "127.0.0.1", "10.0.0.0/8")
	for _, tt := range allowedHosts {
		if got := (Destinations{}).AllowsHost(tt.host); got != tt.public {
			t.Errorf("AllowsHost(%q) = %v, want %v", tt.host, got, tt.public)
		}
		if got := named.AllowsHost(tt.host); got != tt.withName {
			t.Errorf("AllowsHost(%q) with 127.0.0.1 and 10.0.0.0/8 permitted = %v, want %v", tt.host, got, tt.withName)
		}
	}
}

// A host that netip.ParseAddr accepts is checked as that address.
func FuzzAllowsHost(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "::1", "8.8.8.8", "0x7f.1", "example.com", "[", "1.2.3.4."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		got := (Destinations{}).AllowsHost(host)
		if a, err := netip.ParseAddr(host); err == nil && got && !(Destinations{}).Allows(a) {
			t.Errorf("AllowsHost(%q) = true for a forbidden address", host)
		}
	})
}

// A URL with an address that the service listens on is rejected.
func TestOwnAddress(t *testing.T) {
	named := permitted(t, "127.0.0.0/8", "::1", "10.0.0.0/8")
	for _, tt := range []struct {
		listener, url string
		refused       bool
	}{
		{"127.0.0.1:8443", "https://127.0.0.1:8443/in", true},
		{"127.0.0.1:8443", "https://localhost:8443/in", true},
		{"127.0.0.1:8443", "https://LOCALHOST.:8443/in", true},
		{"127.0.0.1:8443", "https://127.0.0.1:8444/in", false},
		{"127.0.0.1:8443", "https://127.0.0.2:8443/in", false},
		{"127.0.0.1:8443", "https://partner.example:8443/in", false},
		{"[::]:443", "https://127.0.0.9/in", true},
		{"[::]:443", "https://[::1]/in", true},
		{"[::]:443", "https://10.1.2.3/in", false},
		{"[::]:443", "http://127.0.0.1/in", false},
		{"0.0.0.0:80", "http://localhost/in", true},
	} {
		r := SubscriptionRules{AllowHTTP: true, Destinations: named, Own: []netip.AddrPort{netip.MustParseAddrPort(tt.listener)}}
		got := r.CheckURL(tt.url)
		if refused := got != nil; refused != tt.refused || refused && got[0].Code != InvalidBlockedDestination {
			t.Errorf("%s, listening on %s: got %+v, want refused %t", tt.url, tt.listener, got, tt.refused)
		}
	}
}

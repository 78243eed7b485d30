package cli

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"service/internal/server"
	"service/store/doctor"
)

func TestClockFinding(t *testing.T) {
	for _, year := range []int{1970, 2024, 2201} {
		var d diagnosis
		if d.clock(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)); d[0].Level != doctor.LevelFail {
			t.Errorf("in %d: got %v, want FAIL", year, d)
		}
	}
	var d diagnosis
	if d.clock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)); d[0].Level == doctor.LevelFail {
		t.Errorf("in 2026: got %v, want no FAIL", d)
	}
}

// TestListenerFinding checks an address in use, and then a free one.
func TestListenerFinding(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server.Config{Listen: l.Addr().String()}
	var d diagnosis
	d.listener(t.Context(), s, false)
	l.Close()
	d.listener(t.Context(), s, false)
	levels := []doctor.Level{d[0].Level, d[1].Level}
	want := []doctor.Level{doctor.LevelFail, doctor.LevelOK}
	if !slices.Equal(levels, want) || !strings.Contains(d[0].Detail, "address already in use") {
		t.Errorf("got %v, want %v", d, want)
	}
}

func TestFrontFinding(t *testing.T) {
	tests := []struct {
		s    server.Config
		want string // level and detail of the only finding; empty for none
	}{
		{server.Config{TLS: true}, ""},
		{server.Config{}, "WARN HTTPS is off, and no proxy is trusted"},
		{server.Config{Listen: "10.0.0.1:8080", TrustedProxies: server.TrustedProxies{netip.MustParsePrefix("10.0.0.0/8")}},
			"OK 10.0.0.0/8 is trusted" +
				"WARN links of the portal, invitations and alerts have the address 10.0.0.1:8080, which only the proxy reaches"},
		{server.Config{TrustedProxies: server.TrustedProxies{netip.MustParsePrefix("10.0.0.0/8")}, PublicURL: "https://hooks.example.com"},
			"OK 10.0.0.0/8 is trusted"},
		{server.Config{TLS: true, TrustedProxies: server.TrustedProxies{netip.MustParsePrefix("0.0.0.0/0")}},
			"FAIL 0.0.0.0/0 trusts every client to state its own address"},
		{server.Config{TLS: true, TrustedProxies: server.TrustedProxies{netip.MustParsePrefix("::/0")}},
			"FAIL ::/0 trusts every client to state its own address"},
		{server.Config{TLS: true, Domains: []string{"nowhere.invalid"}}, "WARN nowhere.invalid has no address"},
		{server.Config{TLS: true, Domains: []string{"localhost"}}, "OK localhost resolves to "},
		{server.Config{TLS: true, Domains: []string{"127.0.0.1"}}, "OK 127.0.0.1 is an address of this host"},
		{server.Config{TLS: true, Domains: []string{"203.0.113.7"}}, "OK 203.0.113.7 is not an address of this host; behind NAT"},
	}
	for _, test := range tests {
		var d diagnosis
		d.front(t.Context(), &test.s)
		got := ""
		for _, f := range d {
			got += string(f.Level) + " " + f.Detail
		}
		if got != test.want && !(test.want != "" && strings.HasPrefix(got, test.want)) {
			t.Errorf("%v: got %q, want %q", test.s, got, test.want)
		}
	}
}

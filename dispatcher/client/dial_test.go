package client

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"

	"service/test/harness"
	"service/webhook"
)

// nameServer is a DNS server on a UDP loopback port. names[name] lists the
// addresses of a name, or a CNAME as "=other.". A name with an empty list has no A
// or AAAA record; a name that is not in the map does not exist.
type nameServer struct {
	names map[string][]string
	rcode dnsmessage.RCode // of every response, unless success
	asked atomic.Int32
}

// resolver returns Go's resolver, configured to query only s.
func (s *nameServer) resolver(t testing.TB) *net.Resolver {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			s.asked.Add(1)
			if packet, err := s.answer(buf[:n]); err != nil {
				t.Errorf("name server: %v", err)
			} else {
				c.WriteTo(packet, from)
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

func (s *nameServer) answer(question []byte) ([]byte, error) {
	var q dnsmessage.Message
	if err := q.Unpack(question); err != nil {
		return nil, err
	}
	a := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true, Authoritative: true, RCode: s.rcode},
		Questions: q.Questions,
	}
	name, kind := q.Questions[0].Name, q.Questions[0].Type
	for range 8 { // aliases may form a loop
		list, ok := s.names[strings.ToLower(name.String())]
		if !ok && s.rcode == dnsmessage.RCodeSuccess {
			a.RCode = dnsmessage.RCodeNameError
		}
		if len(list) == 1 && strings.HasPrefix(list[0], "=") {
			next := dnsmessage.MustNewName(list[0][1:])
			a.Answers = append(a.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET},
				Body:   &dnsmessage.CNAMEResource{CNAME: next},
			})
			name = next
			continue
		}
		for _, text := range list {
			addr := netip.MustParseAddr(text)
			var body dnsmessage.ResourceBody = &dnsmessage.AAAAResource{AAAA: addr.As16()}
			of := dnsmessage.TypeAAAA
			if addr.Is4() {
				body, of = &dnsmessage.AResource{A: addr.As4()}, dnsmessage.TypeA
			}
			if of == kind {
				a.Answers = append(a.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET},
					Body:   body,
				})
			}
		}
		break
	}
	return a.Pack()
}

// resolveNames are the names for TestResolve with their addresses.
func resolveNames() map[string][]string {
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("1.1.1.%d", i))
	}
	return map[string][]string{
		"public.test.":      {"1.1.1.1"},
		"both.test.":        {"1.1.1.1", "1.1.1.2", "2606:4700::1", "2606:4700::2"},
		"six.test.":         {"2606:4700::1"},
		"alias.test.":       {"=public.test."},
		"private.test.":     {"10.0.0.1"},
		"loopback.test.":    {"127.0.0.1"},
		"loopback6.test.":   {"::1"},
		"metadata.test.":    {"169.254.169.254"},
		"azure.test.":       {"168.63.129.16"},
		"unspecified.test.": {"0.0.0.0"},
		"mapped.test.":      {"::ffff:1.1.1.1"},
		"mappedin.test.":    {"::ffff:127.0.0.1"},
		"mappedmixed.test.": {"1.1.1.1", "::ffff:8.8.8.8"},
		// This is how the resolver returns an IPv4 address from the hosts file.
		"mappedsame.test.":  {"1.1.1.1", "::ffff:1.1.1.1"},
		"nat64.test.":       {"64:ff9b::a00:1"},
		"sixtofour.test.":   {"2002:7f00:1::"},
		"ula.test.":         {"fd00::1"},
		"linklocal.test.":   {"fe80::1"},
		"first.test.":       {"10.0.0.1", "1.1.1.1"},
		"last.test.":        {"1.1.1.1", "1.1.1.2", "10.0.0.1"},
		"other.test.":       {"1.1.1.1", "::1"},
		"many.test.":        append(many, "192.168.0.1"),
		"aliasin.test.":     {"=private.test."},
		"named.test.":       {"10.9.0.1"},
		"namedmapped.test.": {"::ffff:10.9.0.1"},
		"nothing.test.":     {},
	}
}

var resolveTests = []struct {
	host string
	want string // sorted addresses, or an error code
}{
	{"public.test", "1.1.1.1"},
	{"PUBLIC.test.", "1.1.1.1"},
	{"both.test", "1.1.1.1 1.1.1.2 2606:4700::1 2606:4700::2"},
	{"six.test", "2606:4700::1"},
	{"alias.test", "1.1.1.1"},
	{"private.test", "dns"},
	{"loopback.test", "dns"},
	{"loopback6.test", "::1"}, // permitted
	{"metadata.test", "dns"},
	{"azure.test", "dns"},
	{"unspecified.test", "dns"},
	{"mapped.test", "dns"},
	{"mappedin.test", "dns"},
	{"mappedmixed.test", "dns"},
	{"mappedsame.test", "1.1.1.1 1.1.1.1"},
	{"nat64.test", "dns"},
	{"sixtofour.test", "dns"},
	{"ula.test", "dns"},
	{"linklocal.test", "dns"},
	{"first.test", "dns"},
	{"last.test", "dns"},
	{"other.test", "1.1.1.1 ::1"},
	{"many.test", "dns"},
	{"aliasin.test", "dns"},
	{"named.test", "10.9.0.1"},
	{"namedmapped.test", "10.9.0.1"},
	{"nothing.test", "dns"},
	{"unknown.test", "dns"},
	{"an invalid name", "dns"},
	{strings.Repeat("a", 300) + ".test", "dns"},

	// Not looked up in DNS.
	{"8.8.8.8", "8.8.8.8"},
	{"2606:4700::1", "2606:4700::1"},
	{"10.0.0.1", "blocked"},
	{"10.9.0.1", "10.9.0.1"},
	{"::ffff:10.9.0.1", "10.9.0.1"},
	{"::ffff:8.8.8.8", "blocked"},
	{"fe80::1%eth0", "blocked"},
	{"localhost", "::1"}, // permitted; 127.0.0.1 is not
	{"a.localhost.", "::1"},
}

// TestResolve checks the result of each DNS answer. Nothing is dialed.
func TestResolve(t *testing.T) {
	server := &nameServer{names: resolveNames()}
	resolver := server.resolver(t)
	named := permitted(t, "10.9.0.0/16", "::1")
	for _, tt := range resolveTests {
		t.Run(tt.host, func(t *testing.T) {
			d := newDialer(named, nil)
			d.resolver = resolver
			got := ""
			d.connect = func(context.Context, netip.AddrPort) (net.Conn, error) {
				t.Error("got a connection attempt, want none")
				return nil, errors.New("not connected")
			}
			addrs, err := d.resolve(t.Context(), tt.host)
			if err == nil {
				slices.SortFunc(addrs, netip.Addr.Compare)
				got = strings.Trim(fmt.Sprint(addrs), "[]")
			} else if _, err = d.dialTCP(t.Context(), net.JoinHostPort(tt.host, "80")); err != nil { // which dials nothing
				got = string(err.(*dialError).code)
			}
			if got != tt.want {
				t.Errorf("got %s (%v), want %s", got, err, tt.want)
			}
		})
	}
}

// destination is a line of testdata/destinations.txt: a URL and the expected result
// of an attempt to it.
type destination struct{ verdict, url string }

// readDestinations reads testdata/destinations.txt, with the names in DNS, except
// those whose answers need a special server.
func readDestinations(t *testing.T) (names map[string][]string, lines []destination) {
	t.Helper()
	text, err := os.ReadFile("testdata/destinations.txt")
	if err != nil {
		t.Fatal(err)
	}
	names = make(map[string][]string)
	special := regexp.MustCompile(`[|]| (cut|silent|servfail|alone)\b`)
	for l := range strings.Lines(string(text)) {
		words := strings.Fields(l)
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case words[0] == "at" && !special.MatchString(l):
			for i, w := range words[2:] {
				if strings.HasPrefix(w, "=") {
					words[2+i] = w + "."
				}
			}
			names[words[1]+"."] = words[2:]
		case len(words) == 2:
			lines = append(lines, destination{words[0], words[1]})
		}
	}
	return names, lines
}

// TestDestinations checks testdata/destinations.txt as far as possible without the
// network of TestEgress: URLs that are refused, URLs that are blocked without
// dialing, and URLs that are dialed.
func TestDestinations(t *testing.T) {
	names, lines := readDestinations(t)
	server := &nameServer{names: names}
	resolver := server.resolver(t)
	rules := webhook.SubscriptionRules{AllowHTTP: true}
	tried := 0
	for _, l := range lines {
		faults := rules.Check(&webhook.SubscriptionFields{URL: &l.url}, false)
		if refused := len(faults) > 0; refused != (l.verdict == "refused") {
			t.Errorf("%s: got refused %t (%v), want %s", l.url, refused, faults, l.verdict)
			continue
		} else if refused {
			tried++
			continue
		}
		u, err := url.Parse(l.url)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
		if _, err := netip.ParseAddr(name); err != nil && server.names[name+"."] == nil {
			continue // its name exists only in that network
		}
		tried++
		s := New(&Config{AllowHTTP: true, Timeout: harness.Timeout()})
		s.dialer.resolver = resolver
		var dialed []netip.AddrPort
		s.dialer.connect = func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
			dialed = append(dialed, to)
			return nil, errors.New("not connected")
		}
		a := s.Send(t.Context(), testRequest(l.url, 10))
		// This test does not go beyond the dial.
		want, dials := webhook.ErrorCode(l.verdict), false
		if status, err := strconv.Atoi(l.verdict); err == nil && status > 0 {
			want, dials = webhook.ErrorConnect, true
		}
		if a.Error != want || (len(dialed) > 0) != dials {
			t.Errorf("%s: got error %q, dialed %v; want %s", l.url, a.Error, dialed, l.verdict)
		}
	}
	if tried < 250 {
		t.Errorf("got %d of %d lines tested, want at least 250", tried, len(lines))
	}
}

// TestSendDNS checks the error for each DNS failure.
func TestSendDNS(t *testing.T) {
	for _, tt := range []struct {
		name   string
		server *nameServer
		want   webhook.ErrorCode
	}{
		{"no such name", &nameServer{}, webhook.ErrorDNS},
		{"no address", &nameServer{names: map[string][]string{"a.test.": {}}}, webhook.ErrorDNS},
		{"server failure", &nameServer{rcode: dnsmessage.RCodeServerFailure}, webhook.ErrorDNS},
		{"refused", &nameServer{rcode: dnsmessage.RCodeRefused}, webhook.ErrorDNS},
		{"a private address", &nameServer{names: map[string][]string{"a.test.": {"10.0.0.1"}}}, webhook.ErrorDNS},
		{"loopback", &nameServer{names: map[string][]string{"a.test.": {"127.0.0.1"}}}, webhook.ErrorDNS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(&Config{AllowHTTP: true, Timeout: harness.Timeout(), MaxIdle: 8})
			defer s.CloseIdle()
			s.dialer.resolver = tt.server.resolver(t)
			a := s.Send(t.Context(), testRequest("http://a.test/", 10))
			if a.Error != tt.want || a.Result != webhook.Classify(0, tt.want) {
				t.Errorf("got error %q, result %s; want error %q", a.Error, a.Result, tt.want)
			}
			if tt.server.asked.Load() == 0 {
				t.Error("got no DNS query, want at least 1")
			}
		})
	}
}

// TestSendDNSSilence checks that the timeout of an attempt includes the DNS lookup.
func TestSendDNSSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 3 * time.Second
		s := New(&Config{AllowHTTP: true, Timeout: timeout, MaxIdle: 8})
		defer s.CloseIdle()
		var asked atomic.Int64
		s.dialer.resolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			c, server := net.Pipe()
			go func() {
				n, _ := io.Copy(io.Discard, server)
				asked.Add(n)
			}()
			return c, nil
		}}
		a := s.Send(t.Context(), testRequest("http://a.test/", 10))
		if a.Error != webhook.ErrorTimeout || a.Result != webhook.Classify(0, webhook.ErrorTimeout) || a.Duration != timeout {
			t.Errorf("got error %q, result %s after %s; want a timeout after %s", a.Error, a.Result, a.Duration, timeout)
		}
		time.Sleep(time.Minute) // until Go's resolver gives up
		if asked.Load() == 0 {
			t.Error("got no DNS query, want at least 1")
		}
	})
}

// DNS rebinding: a name whose address is forbidden later is checked at each dial.
func TestSendRebinding(t *testing.T) {
	var hits atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	names := &nameServer{names: map[string][]string{"a.test.": {"127.0.0.1"}}}

	s := loopbackClient(t)
	s.dialer.resolver = names.resolver(t)
	q := testRequest("http://a.test:"+port+"/", 10)
	if a := s.Send(t.Context(), q); a.Result != webhook.ResultSuccess {
		t.Fatalf("permitted address: got %+v, want success", a)
	}
	s.CloseIdle()
	s.dialer.destinations = webhook.Destinations{}
	if a := s.Send(t.Context(), q); a.Error != webhook.ErrorDNS || a.Result != webhook.ResultRetryable {
		t.Errorf("address no longer permitted: got %+v, want an error of DNS", a)
	}
	if n := hits.Load(); n != 1 {
		t.Errorf("got %d requests, want 1", n)
	}
}

// An address is checked again when it is dialed, however it was chosen.
func TestDialChecksAddressAgain(t *testing.T) {
	to := netip.MustParseAddrPort(listen(t).Addr().String())
	mapped := netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())

	for _, a := range []netip.AddrPort{to, mapped} {
		d := newDialer(webhook.Destinations{}, nil)
		if c, err := d.connectTCP(t.Context(), a); !errors.Is(err, errBlocked) {
			t.Errorf("%s: got %v (%v), want blocked", a, c, err)
		}
		d.destinations = permitted(t, "127.0.0.1")
		c, err := d.connectTCP(t.Context(), a)
		if err != nil {
			t.Errorf("%s, permitted: got %v, want a connection", a, err)
			continue
		}
		c.Close()
	}
}

// The service's own listeners are blocked in every form of their address, even if
// all destinations are permitted. Neighboring addresses are not.
func TestOwnAddressesAreBlocked(t *testing.T) {
	all := permitted(t, "0.0.0.0/0", "::/0")
	machine := "127.0.0.1" // replaced by an address that is not loopback, if there is one
	local, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range local {
		if n, ok := l.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			machine = n.IP.String()
		}
	}
	for _, tt := range []struct {
		own     string
		blocked string
		allowed string
	}{
		{"127.0.0.1:8443", "127.0.0.1:8443 [::ffff:127.0.0.1]:8443 0.0.0.0:8443 [::]:8443 localhost:8443",
			"127.0.0.1:8444 127.0.0.2:8443 1.1.1.1:8443"},
		{"[::ffff:127.0.0.1]:8443", "127.0.0.1:8443", "127.0.0.1:8444 127.0.0.2:8443"},
		{"[::1]:8443", "[::1]:8443 [::]:8443 localhost:8443", "[::1]:8444 [::2]:8443 127.0.0.1:8443"},
		{"0.0.0.0:443", "127.0.0.1:443 127.1.2.3:443 [::1]:443 0.0.0.0:443 " + machine + ":443 [::ffff:" + machine + "]:443", machine +
			":444 1.1.1.1:443"},
		{"[::]:443", "127.0.0.1:443 127.1.2.3:443 [::1]:443 [::]:443 " + machine + ":443", machine + ":80 1.1.1.1:443 [2606:4700::1]:443"},
		{"1.2.3.4:80", "1.2.3.4:80 0.0.0.0:80", "1.2.3.5:80 127.0.0.1:80"},
	} {
		dial := func(address string) (tried bool, err error) {
			s := New(&Config{Destinations: all, Own: []netip.AddrPort{netip.MustParseAddrPort(tt.own)}})
			s.dialer.connect = func(context.Context, netip.AddrPort) (net.Conn, error) {
				tried = true
				return nil, errors.New("not connected")
			}
			_, err = s.dialer.dialTCP(t.Context(), address)
			return tried, err
		}
		for address := range strings.FieldsSeq(tt.blocked) {
			if tried, err := dial(address); tried || !errors.Is(err, errBlocked) {
				t.Errorf("listening on %s: got %s dialed %t (%v), want blocked", tt.own, address, tried, err)
			}
		}
		for address := range strings.FieldsSeq(tt.allowed) {
			if tried, err := dial(address); !tried {
				t.Errorf("listening on %s: got %s not dialed (%v), want it dialed", tt.own, address, err)
			}
		}
	}

	// The address is also checked right before connecting.
	l := listen(t)
	s := New(&Config{Destinations: all, Own: []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}})
	if c, err := s.dialer.connectTCP(t.Context(), netip.MustParseAddrPort(l.Addr().String())); !errors.Is(err, errBlocked) {
		t.Errorf("connectTCP to an own listener: got %v (%v), want blocked", c, err)
	}
}

// All forbidden addresses look alike, whether or not a server listens there, and a name with
// a forbidden address looks like a name that does not exist. The client connects to none of
// them. Only the fact, for admins, tells them apart.
func TestBlockedAddressesLookAlike(t *testing.T) {
	_, open, _ := net.SplitHostPort(listen(t).Addr().String())
	server := &nameServer{names: map[string][]string{
		"one.test.":      {"127.0.0.1"},
		"mixed.test.":    {"1.1.1.1", "127.0.0.1"},
		"alias.test.":    {"=one.test."},
		"dead.test.":     {"10.255.255.1"},
		"own.test.":      {"1.1.1.1"},
		"intranet.":      {"10.0.0.1"},
		"wiki.test.":     {"10.0.0.2"},
		"nothing.test.":  {},
		"public.test.":   {"1.1.1.2"},
		"intranet.test.": {"10.0.0.1"},
	}}
	s := New(&Config{AllowHTTP: true, Timeout: harness.Timeout(), MaxIdle: 8, Own: []netip.AddrPort{netip.MustParseAddrPort("1.1.1.1:8443")}})
	defer s.CloseIdle()
	s.dialer.resolver = server.resolver(t)
	s.dialer.connect = func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
		if to.Addr() == netip.MustParseAddr("1.1.1.2") {
			return nil, errBlocked // as the operating system's check of the address just before it connects
		}
		t.Errorf("connected to %s", to)
		return nil, net.ErrClosed
	}

	local := ":" + open + "/"
	for _, tt := range []struct{ urls, fact string }{
		{"http://127.0.0.1" + local + " http://127.0.0.1:1/ http://10.255.255.1/ http://169.254.169.254/ http://[::1]" + local +
			" http://localhost" + local + " https://127.0.0.1" + local + " https://10.255.255.1/ http://a.localhost/", "address not allowed"},
		{"https://1.1.1.1:8443/", "this service listens on the address"},
		{"http://one.test" + local + " http://one.test:1/ http://mixed.test" + local + " http://alias.test/ http://dead.test/" +
			" https://dead.test/ http://intranet/ http://wiki.test/ http://intranet.test/ http://public.test/",
			"the host name has an address that is not allowed"},
		{"https://own.test:8443/", "this service listens on the address of the host name"},
		{"http://unknown.test/ https://unknown.test/ http://wiki/", "no such host"},
	} {
		for url := range strings.FieldsSeq(tt.urls) {
			a := s.Send(t.Context(), testRequest(url, 10))
			want := webhook.Attempt{Number: 1, StartedAt: a.StartedAt, Duration: a.Duration, Result: webhook.ResultFailed,
				Error: webhook.ErrorBlocked, ErrorFact: tt.fact}
			if strings.Contains(tt.fact, "host") {
				want.Result, want.Error, want.Phases.DNS = webhook.ResultRetryable, webhook.ErrorDNS, a.Phases.DNS
			}
			if diff := cmp.Diff(want, a); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", url, diff)
			}
		}
	}
}

// panicConn is a connection whose methods panic.
type panicConn struct {
	net.Conn
	read, write bool
}

func (c *panicConn) Read(p []byte) (int, error) {
	if c.read {
		panic("read")
	}
	return c.Conn.Read(p)
}

func (c *panicConn) Write(p []byte) (int, error) {
	if c.write {
		panic("write")
	}
	return c.Conn.Write(p)
}

// A panic in any goroutine of an attempt costs only that attempt, which ends
// immediately, and is logged with the delivery.
func TestSendPanic(t *testing.T) {
	server := &nameServer{names: map[string][]string{"two.test.": {"1.1.1.1", "1.1.1.2"}}}
	pipe := func(read, write bool) func(context.Context, netip.AddrPort) (net.Conn, error) {
		return func(context.Context, netip.AddrPort) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				respondAndClose("HTTP/1.1 200 OK\r\n\r\n")(&peer{there, bufio.NewReader(there)})
			}()
			return &panicConn{here, read, write}, nil
		}
	}
	for _, tt := range []struct {
		name, url string
		connect   func(context.Context, netip.AddrPort) (net.Conn, error)
	}{
		{"dialing", "http://1.1.1.1/", func(context.Context, netip.AddrPort) (net.Conn, error) { panic("dial") }},
		{"dialing one of two", "http://two.test/", func(context.Context, netip.AddrPort) (net.Conn, error) { panic("dial") }},
		{"a nil connection", "http://1.1.1.1/", func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, nil }},
		{"reading", "http://1.1.1.1/", pipe(true, false)},
		{"writing", "http://1.1.1.1/", pipe(false, true)},
		{"reading in a handshake", "https://1.1.1.1/", pipe(true, false)},
		{"writing in a handshake", "https://1.1.1.1/", pipe(false, true)},
	} {
		for _, size := range []int{10, 200_000} {
			t.Run(fmt.Sprintf("%s, %d bytes", tt.name, size), func(t *testing.T) {
				var log strings.Builder
				s := New(&Config{AllowHTTP: true, Timeout: harness.Timeout(), MaxIdle: 8,
					Logger: slog.New(slog.NewTextHandler(&log, nil))})
				defer s.CloseIdle()
				s.dialer.resolver = server.resolver(t)
				s.dialer.connect = tt.connect
				a := s.Send(t.Context(), testRequest(tt.url, size))
				if a.Error != webhook.ErrorInterrupted || a.Result != webhook.ResultRetryable {
					t.Errorf("got error %q, result %s; want interrupted", a.Error, a.Result)
				}
				if n := strings.Count(log.String(), "panic in an attempt"); n != 1 || !strings.Contains(log.String(), "delivery=d-1") {
					t.Errorf("got %d panics in the log, want 1 with its delivery:\n%s", n, &log)
				}
			})
		}
	}
}

func TestInterleave(t *testing.T) {
	for in, want := range map[string]string{
		"1.1.1.1":                         "1.1.1.1",
		"::1 ::2 1.1.1.1 1.1.1.2":         "::1 1.1.1.1 ::2 1.1.1.2",
		"1.1.1.1 1.1.1.2 1.1.1.3 ::1":     "1.1.1.1 ::1 1.1.1.2 1.1.1.3",
		"::1 1.1.1.1 1.1.1.2 1.1.1.3 ::2": "::1 1.1.1.1 ::2 1.1.1.2 1.1.1.3",
	} {
		var addrs []netip.Addr
		for s := range strings.FieldsSeq(in) {
			addrs = append(addrs, netip.MustParseAddr(s))
		}
		if got := strings.Trim(fmt.Sprint(interleave(addrs)), "[]"); got != want {
			t.Errorf("interleave(%s) = %s, want %s", in, got, want)
		}
	}
}

// dialHost is how a host accepts connections.
type dialHost struct {
	delay         time.Duration
	err           error
	ignoresCancel bool // continues after its context has ended
}

// wait waits until the host has accepted or refused a connection.
func (h *dialHost) wait(ctx context.Context) error {
	if h.ignoresCancel {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-time.After(h.delay):
		return h.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connectTest is a name with several hosts, and the host that a client should connect to.
type connectTest struct {
	name     string
	hosts    []dialHost
	winner   int // -1 for none
	err      error
	duration time.Duration
	tried    int
}

// Each address is tried alone for attemptDelay, the first that responds wins, and
// no connection is left open.
func TestConnectAny(t *testing.T) {
	refused := errors.New("refused")
	const never = time.Hour
	for _, tt := range []connectTest{
		{"only one", []dialHost{{delay: time.Second}}, 0, nil, time.Second, 1},
		{"only one, refused", []dialHost{{err: refused}}, -1, refused, 0, 1},
		{"first immediately", []dialHost{{}, {}}, 0, nil, 0, 1},
		{"first within attemptDelay", []dialHost{{delay: 200 * time.Millisecond}, {}}, 0, nil, 200 * time.Millisecond, 1},
		{"first dead", []dialHost{{delay: never}, {delay: 10 * time.Millisecond}}, 1, nil, attemptDelay + 10*time.Millisecond, 2},
		{"first refused", []dialHost{{delay: 10 * time.Millisecond, err: refused}, {}}, 1, nil, 10 * time.Millisecond, 2},
		{"first slow, second slower", []dialHost{{delay: 300 * time.Millisecond}, {delay: 300 * time.Millisecond}}, 0, nil,
			300 * time.Millisecond, 2},
		{"second late", []dialHost{{delay: 260 * time.Millisecond}, {delay: 300 * time.Millisecond, ignoresCancel: true}}, 0, nil,
			attemptDelay + 300*time.Millisecond, 2},
		{"two dead", []dialHost{{delay: never}, {delay: never}, {}}, 2, nil, 2 * attemptDelay, 3},
		{"all refused", []dialHost{{err: refused}, {err: io.EOF}, {err: io.EOF}}, -1, refused, 0, 3},
		{"all dead", []dialHost{{delay: never}, {delay: never}}, -1, context.DeadlineExceeded, 10 * time.Second, 2},
		{"too many", []dialHost{{err: refused}, {err: refused}, {err: refused}, {err: refused}, {err: refused}, {err: refused}, {}}, -1,
			refused, 0, maxDialed},
	} {
		runInBubble(t, tt.name, tt.run)
	}
}

func (tt *connectTest) run(t *testing.T) {
	var tried, open atomic.Int32
	d := newDialer(webhook.Destinations{}, nil)
	d.connect = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
		tried.Add(1)
		if err := tt.hosts[a.Addr().As4()[3]].wait(ctx); err != nil {
			return nil, err
		}
		open.Add(1)
		c, _ := net.Pipe()
		return &countedConn{c, a, &open}, nil
	}
	var addrs []netip.Addr
	for i := range tt.hosts {
		addrs = append(addrs, netip.AddrFrom4([4]byte{1, 1, 1, byte(i)}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	started := time.Now()
	c, err := d.connectAny(ctx, addrs, 80)
	if took := time.Since(started); took != tt.duration {
		t.Errorf("connecting took %v, want %v", took, tt.duration)
	}
	if !errors.Is(err, tt.err) || (c == nil) != (tt.winner < 0) {
		t.Fatalf("got %v (%v), want host %d (%v)", c, err, tt.winner, tt.err)
	}
	if c != nil {
		if got := int(c.(*countedConn).to.Addr().As4()[3]); got != tt.winner {
			t.Errorf("got host %d, want %d", got, tt.winner)
		}
		c.Close()
	}
	if n := open.Load(); n != 0 {
		t.Errorf("got %d connections left open, want 0", n)
	}
	if n := tried.Load(); int(n) != tt.tried {
		t.Errorf("got %d addresses tried, want %d", n, tt.tried)
	}
}

type countedConn struct {
	net.Conn
	to   netip.AddrPort
	open *atomic.Int32
}

func (c *countedConn) Close() error { c.open.Add(-1); return c.Conn.Close() }

// An attempt to an address that never responds takes exactly its timeout.
func TestSendDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int32
		s := New(&Config{AllowHTTP: true, Timeout: testTimeout, MaxIdle: 8})
		s.dialer.connect = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			defer ended.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		a := s.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
		if a.Error != webhook.ErrorTimeout || a.Duration != testTimeout {
			t.Errorf("got error %q after %v, want timeout after %v", a.Error, a.Duration, testTimeout)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if a := s.Send(ctx, testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorInterrupted || a.Duration != time.Second {
			t.Errorf("got error %q after %v, want interrupted after 1s", a.Error, a.Duration)
		}
		synctest.Wait()
		if n := ended.Load(); n != 2 {
			t.Errorf("got %d dials ended, want 2: no dial outlives its attempt", n)
		}
	})
}

// authority is a certificate authority for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	a := &authority{}
	c := a.issue(t, "authority.test", func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	a.cert, a.key = c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// issue creates a certificate for name. The first one, of the authority itself, is
// self-signed.
func (a *authority) issue(t testing.TB, name string, change func(*x509.Certificate)) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-48 * time.Hour),
		NotAfter:     time.Now().Add(48 * time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		c.IPAddresses = []net.IP{ip}
	} else {
		c.DNSNames = []string{name}
	}
	if change != nil {
		change(c)
	}
	parent, signer := c, key
	if a.key != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// tlsTest is a server, and the outcome of an attempt to it.
type tlsTest struct {
	name   string
	host   string
	config *tls.Config // nil for plain HTTP
	fact   string      // behind the error; "" for a success. An ellipsis stands for the rest
}

// Only a server that proves to be the host in the URL receives a request, and admins see why another
// does not.
func TestSendTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	valid := func(from, to time.Duration) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(to) }
	}
	clientOnly := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	with := func(c tls.Certificate) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{c}} }
	good, chain := ca.issue(t, "good.test", nil), other.issue(t, "good.test", nil)
	chain.Certificate = append(chain.Certificate, other.cert.Raw)
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + ".test"
	const unknown = "the certificate is from an unknown authority"

	for _, tt := range []tlsTest{
		{"valid", "good.test", with(good), ""},
		{"name with a trailing dot", "good.test.", with(good), ""},
		{"IP address", "127.0.0.1", with(ca.issue(t, "127.0.0.1", nil)), ""},
		{"TLS 1.2", "good.test", &tls.Config{Certificates: []tls.Certificate{good}, MaxVersion: tls.VersionTLS12}, ""},
		{"server with HTTP/2", "good.test", &tls.Config{Certificates: []tls.Certificate{good}, NextProtos: []string{"h2", "http/1.1"}}, ""},
		{"TLS 1.1", "good.test", &tls.Config{Certificates: []tls.Certificate{good}, MinVersion: tls.VersionTLS10,
			MaxVersion: tls.VersionTLS11}, "…"},
		{"expired", "good.test", with(ca.issue(t, "good.test", valid(-99*24*time.Hour, -73*time.Hour))),
			"the certificate expired 3 days ago, on …"},
		{"expired today", "good.test", with(ca.issue(t, "good.test", valid(-99*time.Hour, -90*time.Minute))),
			"the certificate expired 1 hour ago, on …"},
		{"not yet valid", "good.test", with(ca.issue(t, "good.test", valid(24*time.Hour, 48*time.Hour))),
			"the certificate is not valid before …"},
		{"for another name", "good.test", with(ca.issue(t, "bad.test", nil)), "the certificate is for another name: bad.test"},
		{"for a long name", "good.test", with(ca.issue(t, long, nil)), "the certificate is for another name: aaa…"},
		{"for a subdomain", "good.test", with(ca.issue(t, "*.good.test", nil)), "…"},
		{"for another address", "127.0.0.1", with(ca.issue(t, "127.0.0.2", nil)), "…"},
		{"self-signed", "good.test", with(new(authority).issue(t, "good.test", nil)), unknown},
		{"unknown authority", "good.test", with(other.issue(t, "good.test", nil)),
			unknown + ", and the server sent no intermediate certificate"},
		{"unknown authority, with its chain", "good.test", with(chain), unknown},
		{"for clients only", "good.test", with(ca.issue(t, "good.test", clientOnly)), "…"},
		{"requires a client certificate", "good.test",
			&tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAnyClientCert}, "…"},
		{"requires a client certificate, TLS 1.2", "good.test",
			&tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAnyClientCert,
				MaxVersion: tls.VersionTLS12}, "…"},
		{"plain HTTP", "good.test", nil, "the server does not speak TLS on this port"},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.verify(t, ca) })
	}
}

func (tt *tlsTest) verify(t *testing.T, ca *authority) {
	var hits atomic.Int32
	url := serveHTTPS(t, tt.host, tt.config, func(_ http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		if r.ProtoMajor != 1 {
			t.Errorf("got %s, want HTTP/1.1", r.Proto)
		}
		if tt.config.NextProtos != nil && r.TLS.NegotiatedProtocol != "http/1.1" {
			t.Errorf("got %q negotiated, want http/1.1", r.TLS.NegotiatedProtocol)
		}
	})
	a := tlsClient(t, ca).Send(t.Context(), testRequest(url, 10))
	want := webhook.ErrorTLS
	if tt.fact == "" {
		want = webhook.ErrorNone
	}
	if a.Error != want || a.Result != webhook.Classify(a.ResponseStatus, want) {
		t.Errorf("got error %q, status %d; want error %q", a.Error, a.ResponseStatus, want)
	}
	start, open := strings.CutSuffix(tt.fact, "…")
	if !strings.HasPrefix(a.ErrorFact, start) || !open && a.ErrorFact != start || len(a.ErrorFact) > maxFact+len("…") {
		t.Errorf("got fact %q, want %q", a.ErrorFact, tt.fact)
	}
	if got := hits.Load() > 0; got != (want == webhook.ErrorNone) {
		t.Errorf("got a request at the server %t, want the opposite", got)
	}
}

// serveHTTPS starts a server with a TLS configuration, nil for plain HTTP, and returns its URL with a
// host that resolves to its address.
func serveHTTPS(t *testing.T, host string, config *tls.Config, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // discards failed handshakes
	if config != nil {
		server.Listener = tls.NewListener(server.Listener, config)
	}
	server.Start()
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	return "https://" + host + ":" + port + "/"
}

// TestSendClientCertificate checks attempts to servers that ask for a client
// certificate. A server that requires one may end the connection in any way.
func TestSendClientCertificate(t *testing.T) {
	ca := newAuthority(t)
	good := ca.issue(t, "good.test", nil)
	const required = "the server requires a client certificate"
	reset := func(c *tls.Conn) { c.NetConn().(*net.TCPConn).SetLinger(0) }
	read := func(c *tls.Conn) { readRequest(c) }
	for _, tt := range []struct {
		name string
		auth tls.ClientAuthType
		then func(*tls.Conn) // after the handshake
		want webhook.ErrorCode
		fact string
	}{
		{"requires", tls.RequireAnyClientCert, nil, webhook.ErrorTLS, required},
		{"requires, then resets", tls.RequireAnyClientCert, reset, webhook.ErrorTLS, required},
		{"asks, then closes", tls.RequestClientCert, read, webhook.ErrorTLS, required},
		{"asks, then resets", tls.RequestClientCert, reset, webhook.ErrorTLS, required},
		{"asks, then reads and resets", tls.RequestClientCert, func(c *tls.Conn) { read(c); reset(c) }, webhook.ErrorTLS, required},
		{"asks, then closes within the response", tls.RequestClientCert,
			func(c *tls.Conn) { read(c); io.WriteString(c, "HTTP/1.1 200") }, webhook.ErrorConnect, "the server closed the connection"},
		{"asks, then responds", tls.RequestClientCert,
			func(c *tls.Conn) { read(c); io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n") }, "", ""},
		{"does not ask, then closes", tls.NoClientCert, read, webhook.ErrorConnect, "the server closed the connection"},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			for _, size := range []int{10, 200_000} {
				t.Run(fmt.Sprintf("%s, %s, %d bytes", tt.name, tls.VersionName(version), size), func(t *testing.T) {
					config := &tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tt.auth, MaxVersion: version}
					url := serveURL(t, func(c net.Conn) {
						secure := tls.Server(c, config)
						if secure.Handshake(); tt.then != nil {
							tt.then(secure)
						}
						secure.Close()
					})
					a := tlsClient(t, ca).Send(t.Context(), testRequest("https://good.test:"+url[strings.LastIndex(url, ":")+1:]+"/", size))
					if a.Error != tt.want || a.ErrorFact != tt.fact {
						t.Errorf("got %q: %q, want %q: %q", a.Error, a.ErrorFact, tt.want, tt.fact)
					}
				})
			}
		}
	}
}

// TestSendTLSLongChains checks the length limit of certificate chains, and the
// number of long handshakes in parallel.
func TestSendTLSLongChains(t *testing.T) {
	ca := newAuthority(t)
	chain := func(length int) *tls.Config {
		c := ca.issue(t, "good.test", nil)
		size := len(c.Certificate[0])
		for n := size; n < length; n += size {
			c.Certificate = append(c.Certificate, ca.cert.Raw)
		}
		return &tls.Config{Certificates: []tls.Certificate{c}}
	}
	for _, tt := range []struct {
		name   string
		length int
		others int // long handshakes in progress
		want   webhook.ErrorCode
	}{
		{"usual", 4 << 10, maxLongHandshakes, ""},
		{"long", longHandshake + 4<<10, maxLongHandshakes - 1, ""},
		{"long, with too many in progress", longHandshake + 4<<10, maxLongHandshakes, webhook.ErrorTLS},
		{"too long", maxHandshake + 4<<10, 0, webhook.ErrorTLS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serveHTTPS(t, "good.test", chain(tt.length), func(http.ResponseWriter, *http.Request) {})
			s := tlsClient(t, ca)
			for range tt.others {
				s.dialer.longHandshakes <- struct{}{}
			}
			for range 2 { // each returns its slot
				s.CloseIdle()
				if a := s.Send(t.Context(), testRequest(url, 10)); a.Error != tt.want {
					t.Errorf("got error %q, want %q", a.Error, tt.want)
				}
			}
			if n := len(s.dialer.longHandshakes); n != tt.others {
				t.Errorf("got %d long handshakes in progress at the end, want %d", n, tt.others)
			}
		})
	}
}

// tlsClient returns a client that trusts the authority and resolves good.test to
// 127.0.0.1.
func tlsClient(t testing.TB, ca *authority) *Client {
	s := loopbackClient(t)
	s.dialer.tls.RootCAs = x509.NewCertPool()
	s.dialer.tls.RootCAs.AddCert(ca.cert)
	s.dialer.resolver = (&nameServer{names: map[string][]string{"good.test.": {"127.0.0.1"}}}).resolver(t)
	return s
}

// TestSendTLSHandshake checks failures during the handshake.
func TestSendTLSHandshake(t *testing.T) {
	testHandshake(t, "silence", (*peer).hang, webhook.ErrorTimeout, testTimeout)
	testHandshake(t, "close", func(*peer) {}, webhook.ErrorTLS, 0)
	for name, answer := range map[string]string{"HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "SSH": "SSH-2.0-OpenSSH_9.9\r\n",
		"alert": "\x15\x03\x03\x00\x02\x02\x28"} {
		testHandshake(t, name, func(r *peer) { r.in.ReadByte(); r.write(answer); r.hang() }, webhook.ErrorTLS, 0)
	}
	testHandshake(t, "trickling handshake", func(r *peer) {
		r.in.ReadByte()
		for r.write("\x16") {
			time.Sleep(3 * time.Second)
			if !r.write("\x03\x03\x40\x00") {
				return
			}
			for r.write("\x02") {
				time.Sleep(time.Second)
			}
		}
	}, webhook.ErrorTimeout, testTimeout)
}

// testHandshake sends an attempt to a server that fails the handshake.
func testHandshake(t *testing.T, name string, serve func(*peer), code webhook.ErrorCode, takes time.Duration) {
	runInBubble(t, name, func(t *testing.T) {
		p := newTestClient(t, serve)
		a := p.Send(t.Context(), testRequest("https://1.1.1.1/", 10))
		if a.Error != code || a.Duration != takes {
			t.Errorf("got error %q after %v, want %q after %v", a.Error, a.Duration, code, takes)
		}
		time.Sleep(settle)
		if n := p.open.Load(); n != 0 {
			t.Errorf("got %d connections left open, want 0", n)
		}
	})
}

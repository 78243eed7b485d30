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

	"service/webhook"
)

// nameServer answers questions over UDP on loopback: names[name] lists the
// addresses of a name, or a CNAME as "=other.". A name with no list has no
// record of either kind; a name that is not in the map does not exist.
type nameServer struct {
	names  map[string][]string
	rcode  dnsmessage.RCode // of every answer, if not success
	silent bool
	asked  atomic.Int32
}

// resolver returns Go's resolver, made to ask s and nobody else.
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
			if s.silent {
				continue
			}
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
	for range 8 { // aliases may lead in a circle
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

// resolveNames are the names that TestResolve resolves, with their addresses.
func resolveNames() map[string][]string {
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("1.1.1.%d", i))
	}
	return map[string][]string{
		"public.test.":       {"1.1.1.1"},
		"both.test.":         {"1.1.1.1", "1.1.1.2", "2606:4700::1", "2606:4700::2"},
		"six.test.":          {"2606:4700::1"},
		"alias.test.":        {"=public.test."},
		"private.test.":      {"10.0.0.1"},
		"loopback.test.":     {"127.0.0.1"},
		"loopback6.test.":    {"::1"},
		"metadata.test.":     {"169.254.169.254"},
		"azure.test.":        {"168.63.129.16"},
		"unspecified.test.":  {"0.0.0.0"},
		"mapped.test.":       {"::ffff:1.1.1.1"},
		"mappedin.test.":     {"::ffff:127.0.0.1"},
		"mappedbeside.test.": {"1.1.1.1", "::ffff:8.8.8.8"},
		// As the resolver renders an IPv4 address of the hosts file.
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
	want string // addresses, sorted; or an error code
}{
	{"public.test", "1.1.1.1"},
	{"PUBLIC.test.", "1.1.1.1"},
	{"both.test", "1.1.1.1 1.1.1.2 2606:4700::1 2606:4700::2"},
	{"six.test", "2606:4700::1"},
	{"alias.test", "1.1.1.1"},
	{"private.test", "blocked"},
	{"loopback.test", "blocked"},
	{"loopback6.test", "::1"}, // named
	{"metadata.test", "blocked"},
	{"azure.test", "blocked"},
	{"unspecified.test", "blocked"},
	{"mapped.test", "blocked"},
	{"mappedin.test", "blocked"},
	{"mappedbeside.test", "blocked"},
	{"mappedsame.test", "1.1.1.1 1.1.1.1"},
	{"nat64.test", "blocked"},
	{"sixtofour.test", "blocked"},
	{"ula.test", "blocked"},
	{"linklocal.test", "blocked"},
	{"first.test", "blocked"},
	{"last.test", "blocked"},
	{"other.test", "1.1.1.1 ::1"},
	{"many.test", "blocked"},
	{"aliasin.test", "blocked"},
	{"named.test", "10.9.0.1"},
	{"namedmapped.test", "10.9.0.1"},
	{"nothing.test", "dns"},
	{"unknown.test", "dns"},
	{"a name that cannot be", "dns"},
	{strings.Repeat("a", 300) + ".test", "dns"},

	// Not asked of a server.
	{"8.8.8.8", "8.8.8.8"},
	{"2606:4700::1", "2606:4700::1"},
	{"10.0.0.1", "blocked"},
	{"10.9.0.1", "10.9.0.1"},
	{"::ffff:10.9.0.1", "10.9.0.1"},
	{"::ffff:8.8.8.8", "blocked"},
	{"fe80::1%eth0", "blocked"},
	{"localhost", "::1"}, // as named; 127.0.0.1 is not
	{"a.localhost.", "::1"},
}

// TestResolve: what each answer of a name server comes to. Nothing is dialled.
func TestResolve(t *testing.T) {
	server := &nameServer{names: resolveNames()}
	resolver := server.resolver(t)
	named, err := webhook.ParseDestinations([]string{"10.9.0.0/16", "::1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range resolveTests {
		t.Run(tt.host, func(t *testing.T) {
			d := newDialer(named, nil)
			d.resolver = resolver
			got := ""
			d.connect = func(context.Context, netip.AddrPort) (net.Conn, error) {
				t.Error("dialled")
				return nil, errors.New("not here")
			}
			addrs, err := d.resolve(t.Context(), tt.host)
			if err != nil {
				got = string(classDial(t.Context(), err, webhook.ErrorDNS).(*dialError).code)
			} else {
				slices.SortFunc(addrs, netip.Addr.Compare)
				got = strings.Trim(fmt.Sprint(addrs), "[]")
			}
			if got != tt.want {
				t.Errorf("got %s (%v), want %s", got, err, tt.want)
			}
			if tt.want == string(webhook.ErrorBlocked) {
				// And that is what the attempt says, with nothing dialled.
				if _, err := d.dialTCP(t.Context(), net.JoinHostPort(tt.host, "80")); err == nil || err.(*dialError).code != webhook.ErrorBlocked {
					t.Errorf("dialTCP: %v, want blocked", err)
				}
			}
		})
	}
}

// destination is a line of testdata/destinations.txt: a URL, and what is to become
// of an attempt to it.
type destination struct{ verdict, url string }

// readDestinations reads testdata/destinations.txt, with the names that its name
// server knows, except those that it answers with a fault.
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

// TestDestinations walks testdata/destinations.txt, as far as it can be walked
// without the network that TestEgress has: what is refused, what is blocked
// with nothing dialled, and what is dialled.
func TestDestinations(t *testing.T) {
	names, lines := readDestinations(t)
	server := &nameServer{names: names}
	resolver := server.resolver(t)
	rules := webhook.SubscriptionRules{AllowHTTP: true}
	tried := 0
	for _, l := range lines {
		faults := rules.Check(&webhook.SubscriptionFields{URL: &l.url}, false)
		if refused := len(faults) > 0; refused != (l.verdict == "refused") {
			t.Errorf("%s: refused %v (%v), want %s", l.url, refused, faults, l.verdict)
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
		if _, err := netip.ParseAddr(name); err != nil && server.names[name+"."] == nil || !strings.Contains(name, ".") && !strings.Contains(name, ":") {
			continue // its name is known to that network alone, or is made whole there
		}
		tried++
		s := New(&Config{AllowHTTP: true, Timeout: attemptTime})
		s.dialer.resolver = resolver
		var dialled []netip.AddrPort
		s.dialer.connect = func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
			dialled = append(dialled, to)
			return nil, errors.New("not here")
		}
		a := s.Send(t.Context(), testRequest(l.url, 10))
		// Beyond the dial this test does not go.
		want, dials := webhook.ErrorCode(l.verdict), false
		if status, err := strconv.Atoi(l.verdict); err == nil && status > 0 {
			want, dials = webhook.ErrorConnect, true
		}
		if a.Error != want || (len(dialled) > 0) != dials {
			t.Errorf("%s: error %q, dialled %v; want %s", l.url, a.Error, dialled, l.verdict)
		}
	}
	if tried < 250 {
		t.Errorf("%d of %d lines were tried, want most of them", tried, len(lines))
	}
}

// TestSendDNS: the failures of name servers, as attempts know them.
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
		{"silence", &nameServer{silent: true}, webhook.ErrorTimeout},
		{"a private address", &nameServer{names: map[string][]string{"a.test.": {"10.0.0.1"}}}, webhook.ErrorBlocked},
		{"loopback", &nameServer{names: map[string][]string{"a.test.": {"127.0.0.1"}}}, webhook.ErrorBlocked},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(&Config{AllowHTTP: true, Timeout: 300 * time.Millisecond, MaxIdle: 8})
			defer s.CloseIdle()
			s.dialer.resolver = tt.server.resolver(t)
			a := s.Send(t.Context(), testRequest("http://a.test/", 10))
			if a.Error != tt.want || a.Result != webhook.Classify(0, tt.want) {
				t.Errorf("error %q, result %s; want %q", a.Error, a.Result, tt.want)
			}
			if tt.want == webhook.ErrorTimeout && a.Duration < 300*time.Millisecond || a.Duration > 5*time.Second {
				t.Errorf("took %v", a.Duration)
			}
			if tt.server.asked.Load() == 0 {
				t.Error("the name server was not asked")
			}
		})
	}
}

// TestSendRebinding: a name that leads outside at first, and inside later, is
// judged at each dial.
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
		t.Fatalf("named: %+v", a)
	}
	s.CloseIdle()
	s.dialer.destinations = webhook.Destinations{}
	if a := s.Send(t.Context(), q); a.Error != webhook.ErrorBlocked || a.Result != webhook.ResultFailed {
		t.Errorf("no more named: %+v, want blocked", a)
	}
	if n := hits.Load(); n != 1 {
		t.Errorf("the server was reached %d times, want 1", n)
	}
}

// TestControl: an address is judged again when it is dialled, whatever chose it.
func TestControl(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := netip.MustParseAddrPort(l.Addr().String())
	mapped := netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())

	for _, a := range []netip.AddrPort{to, mapped} {
		d := newDialer(webhook.Destinations{}, nil)
		if c, err := d.connectTCP(t.Context(), a); !errors.Is(err, errBlocked) {
			t.Errorf("%s: %v, %v; want blocked", a, c, err)
		}
		named, err := webhook.ParseDestinations([]string{"127.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		d.destinations = named
		c, err := d.connectTCP(t.Context(), a)
		if err != nil {
			t.Errorf("%s, named: %v", a, err)
			continue
		}
		c.Close()
	}
}

// TestOwn: the service's own listeners are refused in every form in which they
// can be reached, also where everything is named; its neighbours are not.
func TestOwn(t *testing.T) {
	all, err := webhook.ParseDestinations([]string{"0.0.0.0/0", "::/0"})
	if err != nil {
		t.Fatal(err)
	}
	machine := "127.0.0.1" // or better, an address that is not loopback
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
		{"0.0.0.0:443", "127.0.0.1:443 127.1.2.3:443 [::1]:443 0.0.0.0:443 " + machine + ":443 [::ffff:" + machine + "]:443", machine + ":444 1.1.1.1:443"},
		{"[::]:443", "127.0.0.1:443 127.1.2.3:443 [::1]:443 [::]:443 " + machine + ":443", machine + ":80 1.1.1.1:443 [2606:4700::1]:443"},
		{"1.2.3.4:80", "1.2.3.4:80 0.0.0.0:80", "1.2.3.5:80 127.0.0.1:80"},
	} {
		dial := func(address string) (tried bool, err error) {
			s := New(&Config{Destinations: all, Own: []netip.AddrPort{netip.MustParseAddrPort(tt.own)}})
			s.dialer.connect = func(context.Context, netip.AddrPort) (net.Conn, error) {
				tried = true
				return nil, errors.New("not here")
			}
			_, err = s.dialer.dialTCP(t.Context(), address)
			return tried, err
		}
		for address := range strings.FieldsSeq(tt.blocked) {
			if tried, err := dial(address); tried || !errors.Is(err, errBlocked) {
				t.Errorf("listening on %s, %s is dialled: %v (%v), want blocked", tt.own, address, tried, err)
			}
		}
		for address := range strings.FieldsSeq(tt.allowed) {
			if tried, err := dial(address); !tried {
				t.Errorf("listening on %s, %s is not dialled: %v", tt.own, address, err)
			}
		}
	}

	// And at the last moment there is.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := New(&Config{Destinations: all, Own: []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}})
	if c, err := s.dialer.connectTCP(t.Context(), netip.MustParseAddrPort(l.Addr().String())); !errors.Is(err, errBlocked) {
		t.Errorf("connectTCP to our own listener: %v, %v; want blocked", c, err)
	}
}

// TestSendBlockedAlike: no forbidden address can be told from another by the
// answer or by the time it takes, whether somebody listens there or not.
func TestSendBlockedAlike(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, open, _ := net.SplitHostPort(l.Addr().String())
	server := &nameServer{names: map[string][]string{
		"one.test.":   {"127.0.0.1"},
		"mixed.test.": {"1.1.1.1", "127.0.0.1"},
		"alias.test.": {"=one.test."},
		"dead.test.":  {"10.255.255.1"},
	}}
	s := New(&Config{AllowHTTP: true, Timeout: attemptTime, MaxIdle: 8})
	defer s.CloseIdle()
	s.dialer.resolver = server.resolver(t)

	const tries = 15
	fastest := make(map[string]time.Duration)
	urls := strings.Fields("http://127.0.0.1:" + open + "/ http://127.0.0.1:1/ http://10.255.255.1/ http://169.254.169.254/ http://[::1]:" + open +
		"/ http://localhost:" + open + "/ https://127.0.0.1:" + open + "/ https://10.255.255.1/" +
		" http://one.test:" + open + "/ http://one.test:1/ http://mixed.test:" + open + "/ http://alias.test/ http://dead.test/ https://dead.test/")
	for range tries {
		for _, url := range urls {
			a := s.Send(t.Context(), testRequest(url, 10))
			want := webhook.Attempt{Number: 1, StartedAt: a.StartedAt, Duration: a.Duration, Result: webhook.ResultFailed, Error: webhook.ErrorBlocked, ErrorFact: "address not allowed"}
			if diff := cmp.Diff(want, a); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", url, diff)
			}
			if best, ok := fastest[url]; !ok || a.Duration < best {
				fastest[url] = a.Duration
			}
		}
	}
	// A machine that is busy can be slow, but not each time.
	for url, took := range fastest {
		if took > 20*time.Millisecond {
			t.Errorf("%s took %v at the least, want what it takes to ask a name server nearby", url, took)
		}
	}
}

// panicConn is a connection whose methods panic in the library's goroutines.
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

// TestSendPanic: a panic in whatever goroutine a request is made costs that
// attempt, which ends at once, and is logged with its delivery.
func TestSendPanic(t *testing.T) {
	server := &nameServer{names: map[string][]string{"two.test.": {"1.1.1.1", "1.1.1.2"}}}
	pipe := func(read, write bool) func(context.Context, netip.AddrPort) (net.Conn, error) {
		return func(context.Context, netip.AddrPort) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				answerAndClose("HTTP/1.1 200 OK\r\n\r\n")(&peer{there, bufio.NewReader(there)})
			}()
			return &panicConn{here, read, write}, nil
		}
	}
	for _, tt := range []struct {
		name, url string
		connect   func(context.Context, netip.AddrPort) (net.Conn, error)
	}{
		{"dialling", "http://1.1.1.1/", func(context.Context, netip.AddrPort) (net.Conn, error) { panic("dial") }},
		{"dialling one of two", "http://two.test/", func(context.Context, netip.AddrPort) (net.Conn, error) { panic("dial") }},
		{"a nil connection", "http://1.1.1.1/", func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, nil }},
		{"reading", "http://1.1.1.1/", pipe(true, false)},
		{"writing", "http://1.1.1.1/", pipe(false, true)},
		{"reading in a handshake", "https://1.1.1.1/", pipe(true, false)},
		{"writing in a handshake", "https://1.1.1.1/", pipe(false, true)},
	} {
		for _, size := range []int{10, 200_000} {
			t.Run(fmt.Sprintf("%s, %d bytes", tt.name, size), func(t *testing.T) {
				var log strings.Builder
				s := New(&Config{AllowHTTP: true, Timeout: attemptTime, MaxIdle: 8,
					Logger: slog.New(slog.NewTextHandler(&log, nil))})
				defer s.CloseIdle()
				s.dialer.resolver = server.resolver(t)
				s.dialer.connect = tt.connect
				a := s.Send(t.Context(), testRequest(tt.url, size))
				if a.Error != webhook.ErrorInterrupted || a.Result != webhook.ResultRetryable || a.Duration > attemptTime/2 {
					t.Errorf("error %q, result %s after %v; want interrupted at once", a.Error, a.Result, a.Duration)
				}
				if n := strings.Count(log.String(), "panic in an attempt"); n != 1 || !strings.Contains(log.String(), "delivery=d-1") {
					t.Errorf("logged %d panics, want 1 with its delivery:\n%s", n, &log)
				}
			})
		}
	}
}

func TestAlternate(t *testing.T) {
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
		if got := strings.Trim(fmt.Sprint(alternate(addrs)), "[]"); got != want {
			t.Errorf("alternate(%s) = %s, want %s", in, got, want)
		}
	}
}

// dialHost is how a host takes connections.
type dialHost struct {
	after    time.Duration
	err      error
	stubborn bool // does not give up when told to
}

// wait waits until the host has taken a connection, or refused it.
func (h *dialHost) wait(ctx context.Context) error {
	if h.stubborn {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-time.After(h.after):
		return h.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connectTest is a name with several hosts, and which of them a client connects to.
type connectTest struct {
	name  string
	hosts []dialHost
	won   int // -1: none
	err   error
	takes time.Duration
	tried int
}

// TestConnectAny: addresses get a head start each, the first that answers
// wins, and nothing is left open.
func TestConnectAny(t *testing.T) {
	refused := errors.New("refused")
	const never = time.Hour
	for _, tt := range []connectTest{
		{"the only one", []dialHost{{after: time.Second}}, 0, nil, time.Second, 1},
		{"the only one refuses", []dialHost{{err: refused}}, -1, refused, 0, 1},
		{"the first at once", []dialHost{{}, {}}, 0, nil, 0, 1},
		{"the first within its head start", []dialHost{{after: 200 * time.Millisecond}, {}}, 0, nil, 200 * time.Millisecond, 1},
		{"the first is dead", []dialHost{{after: never}, {after: 10 * time.Millisecond}}, 1, nil, headStart + 10*time.Millisecond, 2},
		{"the first refuses", []dialHost{{after: 10 * time.Millisecond, err: refused}, {}}, 1, nil, 10 * time.Millisecond, 2},
		{"the first is slow, the second slower", []dialHost{{after: 300 * time.Millisecond}, {after: 300 * time.Millisecond}}, 0, nil, 300 * time.Millisecond, 2},
		{"the second comes late", []dialHost{{after: 260 * time.Millisecond}, {after: 300 * time.Millisecond, stubborn: true}}, 0, nil, headStart + 300*time.Millisecond, 2},
		{"two are dead", []dialHost{{after: never}, {after: never}, {}}, 2, nil, 2 * headStart, 3},
		{"all refuse", []dialHost{{err: refused}, {err: io.EOF}, {err: io.EOF}}, -1, refused, 0, 3},
		{"all are dead", []dialHost{{after: never}, {after: never}}, -1, context.DeadlineExceeded, 10 * time.Second, 2},
		{"too many", []dialHost{{err: refused}, {err: refused}, {err: refused}, {err: refused}, {err: refused}, {err: refused}, {}}, -1, refused, 0, maxDialled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, tt.run)
		})
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
	ctx, cancel := context.WithTimeout(t.Context(), attemptTime)
	defer cancel()
	started := time.Now()
	c, err := d.connectAny(ctx, addrs, 80)
	if took := time.Since(started); took != tt.takes {
		t.Errorf("took %v, want %v", took, tt.takes)
	}
	if !errors.Is(err, tt.err) || (c == nil) != (tt.won < 0) {
		t.Fatalf("got %v, %v; want host %d, %v", c, err, tt.won, tt.err)
	}
	if c != nil {
		if got := int(c.(*countedConn).to.Addr().As4()[3]); got != tt.won {
			t.Errorf("host %d won, want %d", got, tt.won)
		}
		c.Close()
	}
	if n := open.Load(); n != 0 {
		t.Errorf("%d connections are left open", n)
	}
	if n := tried.Load(); int(n) != tt.tried {
		t.Errorf("%d addresses were tried, want %d", n, tt.tried)
	}
}

type countedConn struct {
	net.Conn
	to   netip.AddrPort
	open *atomic.Int32
}

func (c *countedConn) Close() error { c.open.Add(-1); return c.Conn.Close() }

// TestSendDialTimeout: an address that never answers takes an attempt's time,
// and no longer than it.
func TestSendDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int32
		s := New(&Config{AllowHTTP: true, Timeout: attemptTime, MaxIdle: 8})
		s.dialer.connect = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			defer ended.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		a := s.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
		if a.Error != webhook.ErrorTimeout || a.Duration != attemptTime {
			t.Errorf("error %q after %v, want timeout after %v", a.Error, a.Duration, attemptTime)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if a := s.Send(ctx, testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorInterrupted || a.Duration != time.Second {
			t.Errorf("error %q after %v, want interrupted after 1s", a.Error, a.Duration)
		}
		synctest.Wait()
		if n := ended.Load(); n != 2 {
			t.Errorf("%d dials have ended, want 2: a dial outlives its attempt", n)
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

// issue makes a certificate for name; without a key of its own yet, the
// authority makes one that is signed by itself.
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

// TestSendTLS: only a server that proves to be the one in the URL is sent anything.
func TestSendTLS(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-24 * time.Hour) }
	future := func(c *x509.Certificate) { c.NotBefore = time.Now().Add(24 * time.Hour) }
	clientOnly := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	with := func(c tls.Certificate) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{c}} }
	good := ca.issue(t, "good.test", nil)

	for _, tt := range []struct {
		name   string
		host   string
		config *tls.Config // nil: plain HTTP
		want   webhook.ErrorCode
	}{
		{"as it should be", "good.test", with(good), ""},
		{"a name with a dot at its end", "good.test.", with(good), ""},
		{"by address", "127.0.0.1", with(ca.issue(t, "127.0.0.1", nil)), ""},
		{"TLS 1.2", "good.test", &tls.Config{Certificates: []tls.Certificate{good}, MaxVersion: tls.VersionTLS12}, ""},
		{"a server that also speaks HTTP/2", "good.test", &tls.Config{Certificates: []tls.Certificate{good}, NextProtos: []string{"h2", "http/1.1"}}, ""},
		{"TLS 1.1", "good.test", &tls.Config{Certificates: []tls.Certificate{good}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, webhook.ErrorTLS},
		{"expired", "good.test", with(ca.issue(t, "good.test", expired)), webhook.ErrorTLS},
		{"not yet valid", "good.test", with(ca.issue(t, "good.test", future)), webhook.ErrorTLS},
		{"for another name", "good.test", with(ca.issue(t, "bad.test", nil)), webhook.ErrorTLS},
		{"for a name under it", "good.test", with(ca.issue(t, "*.good.test", nil)), webhook.ErrorTLS},
		{"for another address", "127.0.0.1", with(ca.issue(t, "127.0.0.2", nil)), webhook.ErrorTLS},
		{"signed by itself", "good.test", with(new(authority).issue(t, "good.test", nil)), webhook.ErrorTLS},
		{"signed by a stranger", "good.test", with(stranger.issue(t, "good.test", nil)), webhook.ErrorTLS},
		{"for clients alone", "good.test", with(ca.issue(t, "good.test", clientOnly)), webhook.ErrorTLS},
		{"wants a client's certificate", "good.test", &tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAnyClientCert}, webhook.ErrorTLS},
		{"the same with TLS 1.2", "good.test", &tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}, webhook.ErrorTLS},
		{"plain HTTP", "good.test", nil, webhook.ErrorTLS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var hits atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				hits.Add(1)
				if r.ProtoMajor != 1 {
					t.Errorf("%s, want HTTP/1.1", r.Proto)
				}
				if tt.config.NextProtos != nil && r.TLS.NegotiatedProtocol != "http/1.1" {
					t.Errorf("%q was negotiated, want http/1.1", r.TLS.NegotiatedProtocol)
				}
			}))
			server.Config.ErrorLog = log.New(io.Discard, "", 0) // failed handshakes
			if tt.config != nil {
				server.Listener = tls.NewListener(server.Listener, tt.config)
			}
			server.Start()
			defer server.Close()
			_, port, _ := net.SplitHostPort(server.Listener.Addr().String())

			s := tlsClient(t, ca)
			a := s.Send(t.Context(), testRequest("https://"+tt.host+":"+port+"/", 10))
			if a.Error != tt.want || a.Result != webhook.Classify(a.ResponseStatus, tt.want) {
				t.Errorf("error %q, status %d; want %q", a.Error, a.ResponseStatus, tt.want)
			}
			if got := hits.Load() > 0; got != (tt.want == "") {
				t.Errorf("the server has seen a request: %v", got)
			}
		})
	}
}

// TestSendTLSLong: how long a chain of certificates may be, and how many long
// ones are heard at once.
func TestSendTLSLong(t *testing.T) {
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
		others int // long handshakes that are under way
		want   webhook.ErrorCode
	}{
		{"as chains are", 4 << 10, maxLongHandshakes, ""},
		{"long", longHandshake + 4<<10, maxLongHandshakes - 1, ""},
		{"long, beside too many", longHandshake + 4<<10, maxLongHandshakes, webhook.ErrorTLS},
		{"too long", maxHandshake + 4<<10, 0, webhook.ErrorTLS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.Listener = tls.NewListener(server.Listener, chain(tt.length))
			server.Start()
			defer server.Close()
			_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
			s := tlsClient(t, ca)
			for range tt.others {
				s.dialer.long <- struct{}{}
			}
			for range 2 { // each gives back what it took
				s.CloseIdle()
				if a := s.Send(t.Context(), testRequest("https://good.test:"+port+"/", 10)); a.Error != tt.want {
					t.Errorf("error %q, want %q", a.Error, tt.want)
				}
			}
			if n := len(s.dialer.long); n != tt.others {
				t.Errorf("%d long handshakes are under way at the end, want %d", n, tt.others)
			}
		})
	}
}

// tlsClient returns a client that trusts the authority, and finds every name
// under .test on 127.0.0.1.
func tlsClient(t testing.TB, ca *authority) *Client {
	s := loopbackClient(t)
	s.dialer.tls.RootCAs = x509.NewCertPool()
	s.dialer.tls.RootCAs.AddCert(ca.cert)
	s.dialer.resolver = (&nameServer{names: map[string][]string{"good.test.": {"127.0.0.1"}}}).resolver(t)
	return s
}

// TestSendTLSReceivers: what may happen instead of a handshake.
func TestSendTLSReceivers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		serve func(*peer)
		code  webhook.ErrorCode
		takes time.Duration
	}{
		{"silence", (*peer).hang, webhook.ErrorTimeout, attemptTime},
		{"the end", func(*peer) {}, webhook.ErrorTLS, 0},
		{"HTTP", func(r *peer) { r.in.ReadByte(); r.write("HTTP/1.1 400 Bad Request\r\n\r\n"); r.hang() }, webhook.ErrorTLS, 0},
		{"SSH", func(r *peer) { r.in.ReadByte(); r.write("SSH-2.0-OpenSSH_9.9\r\n"); r.hang() }, webhook.ErrorTLS, 0},
		{"an alert", func(r *peer) { r.in.ReadByte(); r.write("\x15\x03\x03\x00\x02\x02\x28"); r.hang() }, webhook.ErrorTLS, 0},
		{"a handshake that trickles", func(r *peer) {
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
		}, webhook.ErrorTimeout, attemptTime},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, tt.serve)
				a := p.Send(t.Context(), testRequest("https://1.1.1.1/", 10))
				if a.Error != tt.code || a.Duration != tt.takes {
					t.Errorf("error %q after %v, want %q after %v", a.Error, a.Duration, tt.code, tt.takes)
				}
				time.Sleep(settle)
				if n := p.open.Load(); n != 0 {
					t.Errorf("%d connections are left open", n)
				}
			})
		})
	}
}

// TestDialErrorIsPlain: what an attempt says of a failure to connect names no
// address of the operator's network.
func TestDialErrorIsPlain(t *testing.T) {
	s := New(&Config{AllowHTTP: true, Timeout: attemptTime, MaxIdle: 8})
	defer s.CloseIdle()
	a := s.Send(t.Context(), testRequest("http://169.254.169.254/latest/meta-data", 10))
	want := webhook.Attempt{Number: 1, StartedAt: a.StartedAt, Duration: a.Duration, Result: webhook.ResultFailed, Error: webhook.ErrorBlocked, ErrorFact: "address not allowed"}
	if diff := cmp.Diff(want, a); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

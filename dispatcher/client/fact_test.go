package client

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"service/webhook"
)

// serveURL serves each connection with do, and returns the URL.
func serveURL(t *testing.T, do func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			do(c)
			c.Close()
		}
	}()
	return "http://" + l.Addr().String()
}

// readRequest reads the request: closing a connection with unread bytes would reset
// it.
func readRequest(c net.Conn) {
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err == nil {
		io.Copy(io.Discard, req.Body)
	}
}

// TestErrorFacts checks the fact behind each kind of error.
func TestErrorFacts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := "http://" + l.Addr().String()
	l.Close()
	answer := func(text string) string {
		return serveURL(t, func(c net.Conn) { readRequest(c); io.WriteString(c, text) })
	}
	s := loopbackClient(t)
	s.dialer.resolver = (&nameServer{names: map[string][]string{"private.test.": {"10.0.0.1"}}}).resolver(t)
	for _, tt := range []struct{ name, url, code, fact string }{
		{"refused", refused, "connect", "connection refused"},
		{"reset", serveURL(t, func(c net.Conn) { readRequest(c); c.(*net.TCPConn).SetLinger(0) }), "connect", "connection reset"},
		{"closed", serveURL(t, readRequest), "connect", "the server closed the connection"},
		{"no HTTP", answer("hello\r\n\r\n"), "protocol", "the response is not HTTP/1.1"},
		{"half a header", answer("HTTP/1.1 200 OK\r\nA: b\r\n"), "", ""},
		{"no such host", "http://nothing.test/", "dns", "no such host"},
		{"a private address", "http://private.test/", "dns", "the host name has an address that is not allowed"},
		{"a private address, literally", "http://10.0.0.1/", "blocked", "address not allowed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := s.Send(t.Context(), testRequest(tt.url, 10))
			if tt.code == "" { // net/http decides how it treats a truncated header
				if a.ErrorFact == "" {
					t.Errorf("got error %s without a fact", a.Error)
				}
				return
			}
			if string(a.Error) != tt.code || a.ErrorFact != tt.fact {
				t.Errorf("got %s: %q, want %s: %q", a.Error, a.ErrorFact, tt.code, tt.fact)
			}
		})
	}
	s.allowHTTP = false
	if a := s.Send(t.Context(), testRequest("http://127.0.0.1/", 10)); a.ErrorFact != "http:// is not allowed" {
		t.Errorf("plain HTTP: got %s: %q, want http:// is not allowed", a.Error, a.ErrorFact)
	}
}

// TestCertificateFacts checks the fact behind each kind of certificate error.
func TestCertificateFacts(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	with := func(c tls.Certificate) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{c}} }
	chain := other.issue(t, "good.test", nil)
	chain.Certificate = append(chain.Certificate, other.cert.Raw)
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + ".test"
	for _, tt := range []struct {
		name   string
		config *tls.Config // nil for plain HTTP
		fact   string
	}{
		{"expired", with(ca.issue(t, "good.test", func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-99*24*time.Hour), time.Now().Add(-73*time.Hour)
		})), "the certificate expired 3 days ago, on "},
		{"expired today", with(ca.issue(t, "good.test", func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-99*time.Hour), time.Now().Add(-90*time.Minute)
		})), "the certificate expired 1 hour ago, on "},
		{"not yet valid", with(ca.issue(t, "good.test", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(24 * time.Hour) })),
			"the certificate is not valid before "},
		{"for another name", with(ca.issue(t, "bad.test", nil)), "the certificate is for another name: bad.test"},
		{"for a long name", with(ca.issue(t, long, nil)), "the certificate is for another name: aaa"},
		{"from an unknown authority", with(other.issue(t, "good.test", nil)),
			"the certificate is from an unknown authority, and the server sent no intermediate certificate"},
		{"from an unknown authority, with its chain", with(chain), "the certificate is from an unknown authority"},
		{"self-signed", with(new(authority).issue(t, "good.test", nil)), "the certificate is from an unknown authority"},
		{"plain HTTP", nil, "the server does not speak TLS on this port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			if tt.config != nil {
				server.Listener = tls.NewListener(server.Listener, tt.config)
			}
			server.Start()
			defer server.Close()
			_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
			a := tlsClient(t, ca).Send(t.Context(), testRequest("https://good.test:"+port+"/", 10))
			open := strings.HasSuffix(tt.fact, " ") || strings.HasSuffix(tt.fact, "aaa") // a date or a long name follows
			if a.Error != webhook.ErrorTLS || !strings.HasPrefix(a.ErrorFact, tt.fact) || !open && a.ErrorFact != tt.fact ||
				len(a.ErrorFact) > maxFact+len("…") {
				t.Errorf("got %s: %q, want %q", a.Error, a.ErrorFact, tt.fact)
			}
		})
	}
}

// TestTimeoutFacts checks that a timeout says what the attempt waited for.
func TestTimeoutFacts(t *testing.T) {
	dial := &dialError{webhook.ErrorTimeout, io.EOF}
	for _, tt := range []struct {
		err    error
		phases webhook.Phases
		want   string
	}{
		{io.EOF, webhook.Phases{Connect: 1}, "no response"},
		{io.EOF, webhook.Phases{Connect: 1, FirstByte: 1}, "the response headers were incomplete"},
		{dial, webhook.Phases{}, "no response from the DNS server"},
		{dial, webhook.Phases{DNS: 1, Connect: 1}, "no TCP connection"},
		{dial, webhook.Phases{DNS: 1, Connect: 1, TLS: 1}, "the TLS handshake did not complete"},
	} {
		if got := timeoutFact(tt.err, tt.phases); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.phases, got, tt.want)
		}
	}
}

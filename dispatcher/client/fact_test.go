package client

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"service/webhook"
)

// serveURL serves each connection with do, and returns the URL.
func serveURL(t *testing.T, do func(net.Conn)) string {
	t.Helper()
	l := listen(t)
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

// TestErrorFacts checks the fact behind each kind of error, except for those of addresses
// (TestBlockedAddressesLookAlike) and certificates (TestSendTLS).
func TestErrorFacts(t *testing.T) {
	l := listen(t)
	refused := "http://" + l.Addr().String()
	l.Close()
	answer := func(text string) string {
		return serveURL(t, func(c net.Conn) { readRequest(c); io.WriteString(c, text) })
	}
	s := loopbackClient(t)
	for _, tt := range []struct{ name, url, code, fact string }{
		{"refused", refused, "connect", "connection refused"},
		{"reset", serveURL(t, func(c net.Conn) { readRequest(c); c.(*net.TCPConn).SetLinger(0) }), "connect", "connection reset"},
		{"closed", serveURL(t, readRequest), "connect", "the server closed the connection"},
		{"no HTTP", answer("hello\r\n\r\n"), "protocol", "the response is not HTTP/1.1"},
		{"half a header", answer("HTTP/1.1 200 OK\r\nA: b\r\n"), "", ""},
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

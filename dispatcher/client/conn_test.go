package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"https://a.test":                  {origin{true, "a.test:443", ""}, "a.test", "/", nil},
		"https://a.test:8443/b?c=d#e":     {origin{true, "a.test:8443", ""}, "a.test:8443", "/b?c=d", nil},
		"http://a.test:/":                 {origin{false, "a.test:80", ""}, "a.test", "/", nil},
		"http://a.test:80":                {origin{false, "a.test:80", ""}, "a.test:80", "/", nil},
		"http://user:word@a.test/?":       {origin{false, "a.test:80", ""}, "a.test", "/?", nil},
		"http://a.test//b/%2F":            {origin{false, "a.test:80", ""}, "a.test", "//b/%2F", nil},
		"http://a.test/ü":                 {origin{false, "a.test:80", ""}, "a.test", "/%C3%BC", nil},
		"https://BÜCHER.test/":            {origin{true, "xn--bcher-kva.test:443", ""}, "xn--bcher-kva.test", "/", nil},
		"https://[2606:4700::1111]":       {origin{true, "[2606:4700::1111]:443", ""}, "[2606:4700::1111]", "/", nil},
		"https://[2606:4700::1111]:8443/": {origin{true, "[2606:4700::1111]:8443", ""}, "[2606:4700::1111]:8443", "/", nil},
	} {
		if got, err := parseTarget(text); err != nil || got != want {
			t.Errorf("%s: got %+v (%v), want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a.test", "ftp://a.test/", "https://", "https:a.test", "https://a.test:b/", "https://a.test/\r\nX: y",
		"https://a b/", "https://a.test/?b c", "https://\u00ad/"} {
		if got, err := parseTarget(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

// A connection is reused only for one origin: the same port, scheme and program.
func TestPoolOrigins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(8)
		defer p.close()
		origins := []origin{{true, "a.test:443", "p"}, {false, "a.test:443", "p"}, {true, "a.test:444", "p"}, {true, "b.test:443", "p"},
			{true, "a.test:443", "q"}}
		for _, o := range origins {
			here, _ := net.Pipe()
			p.put(newConn(here, o))
			time.Sleep(time.Nanosecond)
		}
		for _, o := range origins {
			if c := p.take(o); c == nil || c.origin != o {
				t.Errorf("take(%+v): got %+v, want a connection to that origin", o, c)
			} else {
				c.Close()
			}
			if c := p.take(o); c != nil {
				t.Errorf("take(%+v): got a second connection, want nil", o)
			}
		}
	})
}

// The most recently used connection is taken first. When the pool is full, the
// oldest connection of all origins is closed. Each connection expires on its own.
func TestPoolOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(3)
		a, b := origin{false, "a", ""}, origin{false, "b", ""}
		ended := make(chan string, 8)
		ends := func(want string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for len(ended) > 0 {
				got = append(got, <-ended)
			}
			slices.Sort(got)
			if strings.Join(got, " ") != want {
				t.Errorf("got %s closed, want %s", got, want)
			}
		}
		put := func(name string, o origin) {
			here, _ := net.Pipe()
			p.put(newConn(&namedConn{here, name, ended}, o))
			time.Sleep(time.Second)
		}
		put("a1", a)
		put("b1", b)
		put("a2", a)
		ends("")
		c := p.take(a)
		if name := c.Conn.(*namedConn).name; name != "a2" {
			t.Errorf("got %s, want a2, the most recently used", name)
		}
		p.put(c)
		ends("")
		put("b2", b)
		ends("a1") // the oldest makes room for b2
		time.Sleep(idleTimeout - 3*time.Second - 1)
		ends("")
		time.Sleep(time.Nanosecond)
		ends("b1")
		time.Sleep(2 * time.Second)
		ends("a2 b2")
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.count != 0 || len(p.conns) != 0 || p.oldest != nil || p.newest != nil {
			t.Errorf("got %d connections left (%v), want 0", p.count, p.conns)
		}
	})
}

type namedConn struct {
	net.Conn
	name   string
	closed chan string
}

func (c *namedConn) Close() error {
	c.closed <- c.name
	return c.Conn.Close()
}

// An idle connection that its server closed, or sent unexpected data on, is not
// reused: the attempt would fail, or take that data for its response.
func TestSendReplacesClosedConnection(t *testing.T) {
	const ok, more = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 418 Unrequested\r\nContent-Length: 0\r\n\r\n"
	none := func(net.Conn) {}
	for _, tt := range []struct {
		name   string
		secure bool
		answer string
		end    func(net.Conn)
	}{
		{"closed", false, ok, func(c net.Conn) { c.Close() }},
		{"half closed", false, ok, func(c net.Conn) { c.(*net.TCPConn).CloseWrite() }},
		{"reset", false, ok, func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Close() }},
		{"unexpected data", false, ok, func(c net.Conn) { io.WriteString(c, more) }},
		{"unexpected data with the response", false, ok + more, none},
		{"data after the body", false, "HTTP/1.1 200 OK\r\nContent-Length: 7000\r\n\r\n" + strings.Repeat("x", 7000) + more, none},
		{"TLS, closed", true, ok, func(c net.Conn) { c.Close() }},
		{"TLS, half closed", true, ok, func(c net.Conn) { c.(*tls.Conn).CloseWrite() }},
		{"TLS, unexpected data", true, ok, func(c net.Conn) { io.WriteString(c, more) }},
		{"TLS, data after the body", true, "HTTP/1.1 200 OK\r\nContent-Length: 7000\r\n\r\n" + strings.Repeat("x", 7000) + more, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, address, accepted := serveThen(t, tt.secure, tt.answer, ok)
			scheme := "http://"
			if tt.secure {
				scheme = "https://"
			}
			q := testRequest(scheme+address, 10)
			if a := s.Send(t.Context(), q); a.Result != webhook.ResultSuccess {
				t.Fatalf("first attempt: got %+v, want success", a)
			}
			first := <-accepted
			defer first.Close()
			tt.end(first)
			if c := s.idle.take(origin{tt.secure, address, q.ProgramID}); c != nil {
				for tt.answer == ok && isQuiet(c.rawConn) {
					runtime.Gosched() // until the data or the close has arrived
				}
				s.idle.put(c)
			}
			if a := s.Send(t.Context(), q); a.Result != webhook.ResultSuccess {
				t.Errorf("second attempt: got %+v, want success", a)
			}
			select {
			case c := <-accepted:
				defer c.Close()
			default:
				t.Error("the second attempt used the first connection, want a new one")
			}
			if a := s.Send(t.Context(), q); a.Result != webhook.ResultSuccess || len(accepted) > 0 {
				t.Errorf("third attempt: got %+v, want success on the second connection", a)
			}
		})
	}
}

// A receiver can send a response unasked, just before the next request is written, and the
// client takes it for the response to that request. Such a response can only affect a
// request of the same program.
func TestSendSeparatesPrograms(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	for _, secure := range []bool{false, true} {
		s, address, accepted := serveThen(t, secure, ok, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		scheme := "http://"
		if secure {
			scheme = "https://"
		}
		q := testRequest(scheme+address, 10)
		if a := s.Send(t.Context(), q); a.ResponseStatus != 200 {
			t.Fatalf("first program: got %+v, want 200", a)
		}
		other := *q
		other.ProgramID = "other"
		if a := s.Send(t.Context(), &other); a.ResponseStatus != 404 || len(accepted) != 2 {
			t.Errorf("other program: got status %d on connection %d, want 404 on the second", a.ResponseStatus, len(accepted))
		}
		s.CloseIdle()
		for len(accepted) > 0 {
			(<-accepted).Close()
		}
	}
}

// serveThen starts a server that answers requests on its first connection with
// first, and on later ones with then. It returns a client that trusts it, its
// address, and the server's side of the connections.
func serveThen(t *testing.T, secure bool, first, then string) (s *Client, address string, accepted chan net.Conn) {
	t.Helper()
	server := httptest.NewTLSServer(nil) // for its certificate
	server.Close()
	l := listen(t)
	address = l.Addr().String()
	s = loopbackClient(t)
	s.dialer.tls.RootCAs = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	if secure {
		// One TLS record per write.
		l = tls.NewListener(l, &tls.Config{Certificates: server.TLS.Certificates, DynamicRecordSizingDisabled: true})
	}
	accepted = make(chan net.Conn, 2)
	go func() {
		for text := first; ; text = then {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
			go respond(text)(&peer{c, bufio.NewReader(c)})
		}
	}()
	return s, address, accepted
}

// Sending close_notify to a server that does not read blocks nothing.
func TestCloseNotifyDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := httptest.NewTLSServer(nil)
		server.Close()
		p := newPool(1)
		here, there := net.Pipe()
		defer there.Close()
		shaken := make(chan error)
		go func() {
			shaken <- tls.Server(there, &tls.Config{Certificates: server.TLS.Certificates}).Handshake()
		}()
		secure := tls.Client(&handshakeConn{Conn: here}, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
		if err := errors.Join(secure.Handshake(), <-shaken); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		p.put(newConn(secure, origin{true, "a", ""}))
		other, _ := net.Pipe()
		p.put(newConn(other, origin{false, "b", ""}))
		p.close()
		if took := time.Since(began); took > 0 {
			t.Errorf("closing took %v, want 0s", took)
		}
	})
}

// A receiver that responds first and then reads the rest of the request keeps its
// connection.
func TestSendReadsAfterResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestClient(t, func(r *peer) {
			for {
				length := 0
				for line := "POST"; line != "\r\n"; {
					var err error
					if line, err = r.in.ReadString('\n'); err != nil {
						return
					}
					fmt.Sscanf(line, "Content-Length: %d", &length)
				}
				r.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				time.Sleep(lateReadTime / 2)
				r.in.Discard(length)
			}
		})
		for range 3 {
			if a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 200_000)); a.Result != webhook.ResultSuccess || a.Duration != 0 {
				t.Errorf("got %+v, want success without delay", a)
			}
			time.Sleep(lateReadTime)
		}
		if n := p.dialed.Load(); n != 1 {
			t.Errorf("got %d connections, want 1", n)
		}
	})
}

// A request with an invalid header value is not sent.
func TestSendRejectsInvalidHeaderValues(t *testing.T) {
	for _, value := range []string{"a\r\nX: y", "a\nb", "a\x00"} {
		for name, put := range map[string]func(*Request){
			"Authorization":   func(q *Request) { q.Authorization = value },
			"id":              func(q *Request) { q.DeliveryID = value },
			"subscription id": func(q *Request) { q.SubscriptionID = value },
			"program id":      func(q *Request) { q.ProgramID = value },
			"trace":           func(q *Request) { q.Trace = webhook.Trace(value) },
		} {
			synctest.Test(t, func(t *testing.T) {
				p := newTestClient(t, respond("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
				q := testRequest("http://1.1.1.1/", 10)
				put(q)
				if a := p.Send(t.Context(), q); a.Error != webhook.ErrorProtocol || p.dialed.Load() != 0 {
					t.Errorf("%s %q: got error %q and %d connections, want protocol and 0", name, value, a.Error, p.dialed.Load())
				}
			})
		}
	}
}

// The end of a context ends only its own attempt. A connection outlives the context
// of an attempt that used it.
func TestSendContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		p := newTestClient(t, func(r *peer) {
			for r.read() && !silent.Load() && r.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") {
			}
			r.hang()
		})
		q := testRequest("http://1.1.1.1/", 10)
		first, endFirst := context.WithCancel(t.Context())
		p.Send(first, q)
		second, endSecond := context.WithCancel(t.Context())
		p.Send(second, q)
		endFirst()
		synctest.Wait()
		if a := p.Send(second, q); a.Result != webhook.ResultSuccess || p.dialed.Load() != 1 {
			t.Errorf("after an earlier context ended: got %+v and %d connections, want success and 1", a, p.dialed.Load())
		}
		silent.Store(true)
		time.AfterFunc(time.Second, endSecond)
		if a := p.Send(second, q); a.Error != webhook.ErrorInterrupted || a.Duration != time.Second {
			t.Errorf("got error %q after %v, want interrupted after 1s", a.Error, a.Duration)
		}
	})
}

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
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a.test", "ftp://a.test/", "https://", "https:a.test", "https://a.test:b/", "https://a.test/\r\nX: y", "https://a b/", "https://a.test/?b c", "https://\u00ad/"} {
		if got, err := parseTarget(text); err == nil {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
}

// A connection serves one origin: neither another port, nor the
// same in the clear, nor another program.
func TestPoolOrigins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(8)
		defer p.close()
		origins := []origin{{true, "a.test:443", "p"}, {false, "a.test:443", "p"}, {true, "a.test:444", "p"}, {true, "b.test:443", "p"}, {true, "a.test:443", "q"}}
		for _, o := range origins {
			here, _ := net.Pipe()
			p.put(newConn(here, o))
			time.Sleep(time.Nanosecond)
		}
		for _, o := range origins {
			if c := p.take(o); c == nil || c.origin != o {
				t.Errorf("%+v: got %+v", o, c)
			} else {
				c.Close()
			}
			if c := p.take(o); c != nil {
				t.Errorf("%+v: there is one more", o)
			}
		}
	})
}

// The connection that was used last is used next; the oldest of all is the first
// to end, whosever it is, and each at its own time.
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
				t.Errorf("ended: %s; want %s", got, want)
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
			t.Errorf("took %s, want a2, the last", name)
		}
		p.put(c)
		ends("")
		put("b2", b)
		ends("a1") // the oldest, in its place
		time.Sleep(idleTimeout - 3*time.Second - 1)
		ends("")
		time.Sleep(time.Nanosecond)
		ends("b1")
		time.Sleep(2 * time.Second)
		ends("a2 b2")
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.count != 0 || len(p.conns) != 0 || p.oldest != nil || p.newest != nil {
			t.Errorf("%d are left: %v", p.count, p.conns)
		}
	})
}

type namedConn struct {
	net.Conn
	name  string
	ended chan string
}

func (c *namedConn) Close() error {
	c.ended <- c.name
	return c.Conn.Close()
}

// A connection that its server has ended, or spoken on, while it was not in use
// is not used again: that would cost an attempt, or answer it with what was said
// before.
func TestSendAfterGoodbye(t *testing.T) {
	const ok, more = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 418 Of nobody\r\nContent-Length: 0\r\n\r\n"
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
		{"spoken on", false, ok, func(c net.Conn) { io.WriteString(c, more) }},
		{"spoken on at once", false, ok + more, none},
		{"a body that is too long", false, "HTTP/1.1 200 OK\r\nContent-Length: 7000\r\n\r\n" + strings.Repeat("x", 7000) + more, none},
		{"TLS, closed", true, ok, func(c net.Conn) { c.Close() }},
		{"TLS, half closed", true, ok, func(c net.Conn) { c.(*tls.Conn).CloseWrite() }},
		{"TLS, spoken on", true, ok, func(c net.Conn) { io.WriteString(c, more) }},
		{"TLS, a body that is too long", true, "HTTP/1.1 200 OK\r\nContent-Length: 7000\r\n\r\n" + strings.Repeat("x", 7000) + more, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, address, accepted := serveThen(t, tt.secure, tt.answer, ok)
			scheme := "http://"
			if tt.secure {
				scheme = "https://"
			}
			q := testRequest(scheme+address, 10)
			if a := s.Send(t.Context(), q); a.Result != webhook.ResultSuccess {
				t.Fatalf("first: %+v", a)
			}
			first := <-accepted
			defer first.Close()
			tt.end(first)
			if c := s.idle.take(origin{tt.secure, address, q.ProgramID}); c != nil {
				for tt.answer == ok && isQuiet(c.socket) {
					runtime.Gosched() // until it has arrived
				}
				s.idle.put(c)
			}
			if a := s.Send(t.Context(), q); a.Result != webhook.ResultSuccess {
				t.Errorf("second: %+v", a)
			}
			select {
			case c := <-accepted:
				defer c.Close()
			default:
				t.Error("there is no second connection")
			}
			if a := s.Send(t.Context(), q); a.Result != webhook.ResultSuccess || len(accepted) > 0 {
				t.Errorf("third, on the connection of the second: %+v", a)
			}
		})
	}
}

// A response that a receiver sends unasked, just before the next request is written,
// is taken for the response to it. It can be a request of the same program only.
func TestSendKeepsProgramsApart(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	for _, secure := range []bool{false, true} {
		s, address, accepted := serveThen(t, secure, ok, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		scheme := "http://"
		if secure {
			scheme = "https://"
		}
		q := testRequest(scheme+address, 10)
		if a := s.Send(t.Context(), q); a.ResponseStatus != 200 {
			t.Fatalf("first program: %+v", a)
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

// serveThen starts a server that answers the requests on its first connection with
// first, and those on later ones with then. It returns a client that trusts it, its
// address, and the server's ends of the connections.
func serveThen(t *testing.T, secure bool, first, then string) (s *Client, address string, accepted chan net.Conn) {
	t.Helper()
	server := httptest.NewTLSServer(nil) // for its certificate
	server.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	address = l.Addr().String()
	s = loopbackClient(t)
	s.dialer.tls.RootCAs = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	if secure {
		// One record for what is written at once.
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
			go answer(text)(&peer{c, bufio.NewReader(c)})
		}
	}()
	return s, address, accepted
}

// The goodbye of TLS to a server that does not read keeps nobody.
func TestSendGoodbyeKeepsNobody(t *testing.T) {
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
			t.Errorf("it took %v", took)
		}
	})
}

// A receiver that answers first and then reads the rest keeps its connection.
func TestSendReadsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(r *peer) {
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
				time.Sleep(lateReading / 2)
				r.in.Discard(length)
			}
		})
		for range 3 {
			if a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 200_000)); a.Result != webhook.ResultSuccess || a.Duration != 0 {
				t.Errorf("attempt: %+v", a)
			}
			time.Sleep(lateReading)
		}
		if n := p.dialled.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}

// What cannot be a header's value is not sent, and nothing else is.
func TestSendHeaderIsLines(t *testing.T) {
	for _, value := range []string{"a\r\nX: y", "a\nb", "a\x00"} {
		for name, put := range map[string]func(*Request){
			"Authorization":   func(q *Request) { q.Authorization = value },
			"id":              func(q *Request) { q.DeliveryID = value },
			"subscription id": func(q *Request) { q.SubscriptionID = value },
			"program id":      func(q *Request) { q.ProgramID = value },
			"trace":           func(q *Request) { q.Trace = webhook.Trace(value) },
		} {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
				q := testRequest("http://1.1.1.1/", 10)
				put(q)
				if a := p.Send(t.Context(), q); a.Error != webhook.ErrorProtocol || p.dialled.Load() != 0 {
					t.Errorf("%s %q: error %q, %d connections; want protocol, none", name, value, a.Error, p.dialled.Load())
				}
			})
		}
	}
}

// The end of an attempt's context ends its own connection and no other; and a
// connection outlives the context of an attempt that was made on it.
func TestSendFollowsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		p := newPost(t, func(r *peer) {
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
		if a := p.Send(second, q); a.Result != webhook.ResultSuccess || p.dialled.Load() != 1 {
			t.Errorf("after the end of a context before: %+v, %d connections", a, p.dialled.Load())
		}
		silent.Store(true)
		time.AfterFunc(time.Second, endSecond)
		if a := p.Send(second, q); a.Error != webhook.ErrorInterrupted || a.Duration != time.Second {
			t.Errorf("in the end: error %q after %v, want interrupted after 1 s", a.Error, a.Duration)
		}
	})
}

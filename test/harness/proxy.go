package harness

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ProxyMode is how a [Proxy] treats its connections.
type ProxyMode int

// The modes of a proxy.
const (
	ProxyForward  ProxyMode = iota
	ProxyHang               // accepts connections and bytes, and forwards them only after a change of mode
	ProxyCut                // resets every connection
	ProxyReadOnly           // forwards, but the S3 server refuses all requests that write
)

// Proxy is a TCP proxy in front of an HTTP server. It records the requests that
// pass through it.
type Proxy struct {
	Address string // host:port

	target string
	delay  atomic.Int64 // nanoseconds, in each direction

	mu       sync.Mutex
	mode     ProxyMode
	changed  chan struct{} // closed and replaced when mode changes
	conns    map[net.Conn]bool
	requests []ProxyRequest
}

// ProxyRequest is a request that a proxy received.
type ProxyRequest struct {
	At           time.Time // arrival of its first bytes at the proxy
	Method, Path string
}

// NewProxy starts a proxy that forwards to target until the test ends.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l := listenLoopback(tb)
	p := &Proxy{Address: l.Addr().String(), target: target, changed: make(chan struct{}), conns: make(map[net.Conn]bool)}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(conn) })
		}
	})
	tb.Cleanup(func() {
		l.Close()
		p.SetMode(ProxyCut)
		serving.Wait()
	})
	return p
}

// SetMode changes the mode, even for open connections.
func (p *Proxy) SetMode(mode ProxyMode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = mode
	close(p.changed)
	p.changed = make(chan struct{})
	if mode == ProxyCut {
		for conn := range p.conns {
			conn.Close()
		}
	}
}

// SetDelay delays every byte by d in each direction.
func (p *Proxy) SetDelay(d time.Duration) { p.delay.Store(int64(d)) }

// Requests returns the requests so far.
func (p *Proxy) Requests() []ProxyRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// await waits while the proxy hangs. It returns true when the proxy forwards, and false when it
// cuts.
func (p *Proxy) await() bool {
	for {
		p.mu.Lock()
		mode, changed := p.mode, p.changed
		p.mu.Unlock()
		if mode != ProxyHang {
			return mode != ProxyCut
		}
		<-changed
	}
}

// add registers a connection, or closes it if the proxy cuts.
func (p *Proxy) add(conn net.Conn) bool {
	if c, ok := conn.(*net.TCPConn); ok {
		c.SetLinger(0) // close with a reset
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == ProxyCut {
		conn.Close()
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *Proxy) remove(conn net.Conn) {
	conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

// serve forwards a connection. It also forwards bytes that the client sent long before it closed
// the connection.
func (p *Proxy) serve(client net.Conn) {
	if !p.add(client) {
		return
	}
	defer p.remove(client)
	server, err := net.Dial("tcp", p.target)
	if err != nil || !p.add(server) {
		return
	}
	defer p.remove(server)
	var copying sync.WaitGroup
	copying.Go(func() { p.copy(server, client, true) })
	copying.Go(func() { p.copy(client, server, false) })
	copying.Wait()
}

// copy forwards bytes until from ends or fails.
func (p *Proxy) copy(to, from net.Conn, requests bool) {
	type chunk struct {
		at    time.Time
		bytes []byte
	}
	chunks := make(chan chunk, 16)
	go func() {
		defer close(chunks)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			now := time.Now()
			if n > 0 {
				if requests && p.record(b[:n], now) {
					// Use an access key of the same length that the server does not know.
					copy(b, bytes.Replace(b[:n], []byte("Credential="+GatewayKey), []byte("Credential="+strings.ToUpper(GatewayKey)), 1))
				}
				chunks <- chunk{now, b[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for c := range chunks { // drain, so that the reader never blocks
		if wait := time.Duration(p.delay.Load()) - time.Since(c.at); !broken && wait > 0 {
			<-time.After(wait)
		}
		if broken || !p.await() {
			broken = true
			continue
		}
		if _, err := to.Write(c.bytes); err != nil {
			broken = true
			from.Close()
		}
	}
	if c, ok := to.(*net.TCPConn); ok {
		c.CloseWrite()
	}
}

// record records the request that b begins with, if any, and reports whether the server must refuse
// it. Go's client sends the head of a request at once, and no second request before the response.
func (p *Proxy) record(b []byte, now time.Time) (refuse bool) {
	line, _, ok := bytes.Cut(b, []byte(" HTTP/1.1\r\n"))
	method, path, ok2 := strings.Cut(string(line), " ")
	if !ok || !ok2 || strings.ContainsAny(path, " \r\n") || !slices.Contains([]string{"GET", "HEAD", "PUT", "POST", "DELETE"}, method) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, ProxyRequest{now, method, path})
	return p.mode == ProxyReadOnly && method != "GET" && method != "HEAD"
}

package server

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds of the frames of an HTTP/2 connection. A client's frame costs 1, except DATA that carries
// bytes. The server's answers earn frames for the client, such as updates of the flow-control
// window; a client that only sends PING, SETTINGS, PRIORITY, empty or unknown frames, or requests
// that it resets, runs out. See docs/decisions/0061.
const (
	frameBurst     = 1000 // frames that no answer has earned
	framesPerSec   = 100  // frames earned by time
	answerFrames   = 4    // frames earned per frame of an answer
	bytesPerUpdate = 2048 // bytes of an answer's content that earn another frame
)

// The types and flags of frames (RFC 9113, section 6).
const (
	frameHeaderSize   = 9
	frameData         = 0
	frameHeaders      = 1
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameWindowUpdate = 8
	frameUnknown      = 0xff // every client ignores it
	flagPadded        = 0x8
	maxPadding        = 256 // in bytes, including its length

	enhanceYourCalm = 0xb // error code
)

// clientPreface is the number of bytes that a client sends before its first frame.
const clientPreface = 24

// frameServer serves the HTTP/2 connections of an http.Server. net/http bounds no frames of a
// client except resets, and hides them, so frameServer puts a frameConn between TLS and a second
// server, which speaks only HTTP/2.
type frameServer struct {
	http  *http.Server
	conns connListener
}

type connHandler struct{}

// serveFrames makes s pass its HTTP/2 connections to the frameServer that it returns.
func serveFrames(s *http.Server) *frameServer {
	f := &frameServer{conns: newConnListener()}
	f.http = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Context().Value(connHandler{}).(http.Handler).ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connHandler{}, c.(*frameConn).handler)
		},
		ReadTimeout: s.ReadTimeout, ReadHeaderTimeout: s.ReadHeaderTimeout, WriteTimeout: s.WriteTimeout, IdleTimeout: s.IdleTimeout,
		MaxHeaderBytes: s.MaxHeaderBytes, HTTP2: s.HTTP2, ErrorLog: s.ErrorLog, Protocols: new(http.Protocols),
	}
	f.http.Protocols.SetUnencryptedHTTP2(true) // TLS ends before the frameConn
	s.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": f.pass}
	return f
}

// pass serves a connection, and returns when it is closed. handler adds the state of the TLS
// connection to each request.
func (f *frameServer) pass(_ *http.Server, c *tls.Conn, handler http.Handler) {
	conn := newFrameConn(c, handler)
	if f.conns.pass(conn) {
		<-conn.closed
	}
}

// connListener is a listener for connections that another listener has accepted.
type connListener struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
}

func newConnListener() connListener {
	l := connListener{conns: make(chan net.Conn), done: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.done) })
	return l
}

// pass waits until c is accepted. It returns false if the listener is closed.
func (l connListener) pass(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.done:
		return false
	}
}

// Accept implements [net.Listener].
func (l connListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l connListener) Close() error {
	l.close()
	return nil
}

// Addr implements [net.Listener].
func (l connListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// frameConn is an HTTP/2 connection that counts its client's frames. When the client runs out,
// reads fail and Close tells the client.
type frameConn struct {
	net.Conn
	handler http.Handler
	closed  chan struct{}
	close   func() error

	in frameScanner // used by one goroutine at a time

	writing sync.Mutex // guards the fields below
	out     frameScanner
	broken  bool // a write failed, so how much the client received is unknown

	mu         sync.Mutex
	left       int       // frames that the client may still send
	forgivenAt time.Time // when left was last increased by time
	lastStream uint32    // of the client
	exhausted  bool
	leaving    bool // sayGoAway has set the final write deadline
}

var errTooManyFrames = errors.New("http2: too many control frames")

func newFrameConn(c net.Conn, handler http.Handler) *frameConn {
	conn := &frameConn{Conn: c, handler: handler, closed: make(chan struct{}), left: frameBurst, forgivenAt: time.Now()}
	conn.in.skip = clientPreface
	conn.close = sync.OnceValue(func() error {
		defer close(conn.closed)
		conn.sayGoAway()
		return conn.Conn.Close()
	})
	return conn
}

// Read reads from the client and counts its frames.
func (c *frameConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	cost, last := 0, uint32(0)
	c.in.scan(p[:n], func(h frameHeader) {
		if h.kind == frameHeaders {
			last = max(last, h.stream)
		}
		if h.kind != frameData || h.length == 0 || h.flags&flagPadded != 0 && h.length <= maxPadding {
			cost++
		}
	})
	if cost > 0 && !c.spend(cost, last) {
		return 0, errTooManyFrames
	}
	return n, err
}

// Write writes to the client. Answers earn frames for the client.
func (c *frameConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	earned := 0
	c.out.scan(p, func(h frameHeader) {
		switch h.kind {
		case frameHeaders:
			earned += answerFrames
		case frameData:
			earned += answerFrames + h.length/bytesPerUpdate
		}
	})
	if earned > 0 {
		c.mu.Lock()
		c.left += earned // without a bound: the client's frames may follow much later
		c.mu.Unlock()
	}
	n, err := c.Conn.Write(p)
	c.broken = c.broken || err != nil
	return n, err
}

// SetWriteDeadline does nothing once the connection ends: the server clears its own deadline after
// a write, so the last write would wait for a client that does not read.
func (c *frameConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// Close closes the connection.
func (c *frameConn) Close() error { return c.close() }

// spend subtracts the cost of frames, and reports whether the client may continue.
func (c *frameConn) spend(cost int, lastStream uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastStream = max(c.lastStream, lastStream)
	if c.left < cost {
		now := time.Now()
		forgiven := int(min(now.Sub(c.forgivenAt), time.Minute) * framesPerSec / time.Second)
		c.left, c.forgivenAt = min(c.left+forgiven, frameBurst), now
	}
	c.left -= cost
	c.exhausted = c.exhausted || c.left < 0
	return !c.exhausted
}

// sayGoAway tells a client that has run out of frames why the connection ends.
func (c *frameConn) sayGoAway() {
	c.mu.Lock()
	exhausted, lastStream := c.exhausted, c.lastStream
	if exhausted {
		c.leaving = true
		c.Conn.SetWriteDeadline(time.Now().Add(time.Second)) // it may not read
	}
	c.mu.Unlock()
	if !exhausted {
		return
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.broken {
		return
	}
	frame := append(c.out.rest(), 0, 0, 8, frameGoAway, 0, 0, 0, 0, 0)
	frame = binary.BigEndian.AppendUint32(frame, lastStream)
	frame = binary.BigEndian.AppendUint32(frame, enhanceYourCalm)
	c.Conn.Write(frame)
}

// frameHeader is the header of a frame.
type frameHeader struct {
	length      int // of the payload
	kind, flags byte
	stream      uint32
}

// frameScanner finds the headers of the frames in a stream of bytes.
type frameScanner struct {
	skip   int // bytes before the next header
	header [frameHeaderSize]byte
	have   int // bytes of header
}

// rest returns the bytes that end the current frame of the stream, because the server may have been
// stopped in the middle of a frame.
func (s *frameScanner) rest() []byte {
	h, left := s.header, s.skip
	if s.have > 0 {
		clear(h[s.have:])
		if s.have <= 3 {
			h[3] = frameUnknown
		}
		switch h[3] {
		case frameSettings, framePing, frameGoAway, frameWindowUpdate:
		default:
			h[8] |= 1 // on stream 0, the connection, it would be an error
		}
		left = int(binary.BigEndian.Uint32(h[:]) >> 8)
	}
	payload := make([]byte, left)
	if left > 0 && h[3] == frameWindowUpdate {
		payload[left-1] = 1 // an update by 0 would be an error
	}
	if s.have == 0 {
		return payload
	}
	return append(h[s.have:], payload...)
}

// scan calls found for each header that ends in p, the next bytes of the stream.
func (s *frameScanner) scan(p []byte, found func(frameHeader)) {
	for {
		n := min(s.skip, len(p))
		s.skip -= n
		p = p[n:]
		n = copy(s.header[s.have:], p)
		s.have += n
		p = p[n:]
		if s.have < frameHeaderSize || s.skip > 0 {
			return
		}
		h := frameHeader{
			length: int(binary.BigEndian.Uint32(s.header[:]) >> 8), kind: s.header[3], flags: s.header[4],
			stream: binary.BigEndian.Uint32(s.header[5:]) &^ (1 << 31),
		}
		s.have, s.skip = 0, h.length
		found(h)
	}
}

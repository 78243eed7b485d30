package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// conn is a connection to a receiver. It belongs to one exchange at a time, and to
// the pool in between.
type conn struct {
	net.Conn
	tcp     net.Conn        // below TLS; the same as Conn without TLS
	rawConn syscall.RawConn // of tcp, nil if it has none
	origin  origin
	in      *bufio.Reader // reads from Read

	ctx  context.Context // its end closes the connection; nil if none is bound
	stop func() bool     // unbinds ctx; returns false if ctx has ended

	head header // the response header being read

	idleSince    time.Time // when it was put into the pool
	older, newer *conn     // neighbors in the pool, by idleSince
}

// newConn takes over a connection made by a dialer.
func newConn(c net.Conn, to origin) *conn {
	y := &conn{Conn: c, tcp: c, origin: to}
	if secure, ok := c.(*tls.Conn); ok {
		y.tcp = secure.NetConn().(*handshakeConn).Conn
	}
	if s, ok := y.tcp.(syscall.Conn); ok {
		y.rawConn, _ = s.SyscallConn()
	}
	y.in = bufio.NewReaderSize(y, readBufferSize)
	return y
}

// closeGracefully closes an unused connection. It sends TLS's close_notify in a
// goroutine, since a server that does not read would block it.
func (c *conn) closeGracefully() {
	c.unbindContext()
	if c.Conn == c.tcp {
		c.closeRaw()
		return
	}
	go func() {
		var err error
		defer recoverPanic(&err)
		c.Conn.Close()
	}()
}

// closeNow closes a connection in any state without blocking.
func (c *conn) closeNow() {
	c.unbindContext()
	c.closeRaw()
}

// closeRaw closes the TCP connection below TLS. It may be called while another
// goroutine reads or writes.
func (c *conn) closeRaw() {
	var err error
	defer recoverPanic(&err)
	c.tcp.Close()
}

// bindContext makes the end of ctx close the connection, and unbinds the context bound
// before. It returns false if that one has already ended. Most attempts share one
// context, so there is usually nothing to do.
func (c *conn) bindContext(ctx context.Context) bool {
	if c.ctx == ctx {
		return true
	}
	inTime := c.unbindContext()
	c.ctx, c.stop = ctx, context.AfterFunc(ctx, c.closeRaw)
	return inTime
}

// unbindContext undoes bindContext. It returns false if the context has already
// ended.
func (c *conn) unbindContext() bool {
	inTime := c.ctx == nil || c.stop()
	c.ctx = nil
	return inTime
}

// prepare sets the deadline of an exchange. It returns false if a reused connection
// was closed by the server, or has bytes that no request asked for.
func (c *conn) prepare(until time.Time, reused bool) bool {
	if reused && c.Conn != c.tcp {
		// TLS may have buffered unread data.
		c.SetReadDeadline(time.Unix(1, 0))
		var b [1]byte
		if _, err := c.Conn.Read(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
	}
	c.SetDeadline(until)
	return !reused || c.rawConn == nil || isQuiet(c.rawConn)
}

// isQuiet reports whether an open socket has nothing to read, not even its end. It
// consumes nothing and does not block.
func isQuiet(socket syscall.RawConn) bool {
	quiet := false
	err := socket.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		quiet = err == syscall.EAGAIN
		return true
	})
	return err == nil && quiet
}

// Read reads from the connection, and fails once a response header exceeds its limits.
func (c *conn) Read(p []byte) (int, error) {
	if c.head.err != nil {
		return 0, c.head.err
	}
	if c.head.reading {
		p = p[:min(len(p), maxResponseHeader-c.head.bytes)]
	}
	n, err := c.Conn.Read(p)
	if c.head.add(p[:n]); c.head.err != nil {
		return 0, c.head.err
	}
	return n, err
}

// startHeader starts to count a response header, part of which may be buffered
// already.
func (c *conn) startHeader() error {
	c.head.reading, c.head.bytes, c.head.line = true, 0, 0
	buffered, _ := c.in.Peek(c.in.Buffered())
	c.head.add(buffered)
	return c.head.err
}

// header limits the memory that a response header takes while it is read, see
// maxResponseHeader.
type header struct {
	reading bool  // the header is being read
	bytes   int   // of this header
	lines   int   // of this header and those of the 1xx responses before it
	line    int   // length of the current line so far, without CR
	err     error // a limit was exceeded; permanent
}

var (
	errLongHeader   = errors.New("response header too long")
	errTooManyLines = errors.New("too many response header lines")
)

// add counts bytes that were read. A blank line ends the header.
func (h *header) add(p []byte) {
	for _, b := range p {
		if !h.reading {
			return
		}
		h.bytes++
		switch b {
		case '\n':
			h.reading = h.line > 0
			h.line = 0
			if h.lines++; h.lines > maxResponseLines {
				h.err = errTooManyLines
				return
			}
		case '\r':
		default:
			h.line++
		}
	}
	if h.reading && h.bytes >= maxResponseHeader {
		h.err = errLongHeader
	}
}

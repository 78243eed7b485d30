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

// conn is a connection to a subscriber. It serves one exchange at a time, which
// owns it; between two it belongs to a pool.
type conn struct {
	net.Conn
	carrier net.Conn        // the connection below TLS; without TLS the same
	socket  syscall.RawConn // its, nil if it has none
	origin  origin
	in      *bufio.Reader // from Read

	ctx  context.Context // whose end interrupts it, nil at first
	stop func() bool     // ends that

	head header // what is read

	since        time.Time // in the pool
	older, newer *conn     // there
}

// newConn takes over a connection that a dialer has made.
func newConn(c net.Conn, to origin) *conn {
	y := &conn{Conn: c, carrier: c, origin: to}
	if secure, ok := c.(*tls.Conn); ok {
		y.carrier = secure.NetConn().(*handshakeConn).Conn
	}
	if s, ok := y.carrier.(syscall.Conn); ok {
		y.socket, _ = s.SyscallConn()
	}
	y.in = bufio.NewReaderSize(y, readBufferSize)
	return y
}

// closeGracefully closes an unused connection. It sends TLS's
// close_notify in a goroutine: a server that does not read can block it.
func (c *conn) closeGracefully() {
	c.unbindContext()
	if c.Conn == c.carrier {
		c.closeRaw()
		return
	}
	go func() {
		var err error
		defer recoverPanic(&err)
		c.Conn.Close()
	}()
}

// closeNow closes a connection in any state, and does not block.
func (c *conn) closeNow() {
	c.unbindContext()
	c.closeRaw()
}

// closeRaw closes the TCP connection below TLS. It may be called while another
// goroutine reads or writes.
func (c *conn) closeRaw() {
	var err error
	defer recoverPanic(&err)
	c.carrier.Close()
}

// bindContext makes the end of ctx close the connection, instead of the context
// bound before. It reports whether no bound context had ended until then. All attempts of a process have the
// same context, so that for most there is nothing to do.
func (c *conn) bindContext(ctx context.Context) bool {
	if c.ctx == ctx {
		return true
	}
	inTime := c.unbindContext()
	c.ctx, c.stop = ctx, context.AfterFunc(ctx, c.closeRaw)
	return inTime
}

// unbindContext undoes bindContext. It reports whether the context had not ended.
func (c *conn) unbindContext() bool {
	inTime := c.ctx == nil || c.stop()
	c.ctx = nil
	return inTime
}

// prepare gets a connection ready for an exchange that ends at until. It returns
// false when the connection is reused and the server has closed it since, or sent
// bytes that no request asked for.
func (c *conn) prepare(until time.Time, reused bool) bool {
	if reused && c.Conn != c.carrier {
		// TLS may have read more than it was asked for.
		c.SetReadDeadline(time.Unix(1, 0))
		var b [1]byte
		if _, err := c.Conn.Read(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
	}
	c.SetDeadline(until)
	return !reused || c.socket == nil || isQuiet(c.socket)
}

// isQuiet reports whether nothing can be read from an open socket, its end
// included. It consumes nothing, and does not block.
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

// Read bounds the headers of responses.
func (c *conn) Read(p []byte) (int, error) {
	if c.head.err != nil {
		return 0, c.head.err
	}
	if c.head.open {
		p = p[:min(len(p), maxResponseHeader-c.head.bytes)]
	}
	n, err := c.Conn.Read(p)
	if c.head.add(p[:n]); c.head.err != nil {
		return 0, c.head.err
	}
	return n, err
}

// expect gets ready to read a header, of which something may be there already.
func (c *conn) expect() error {
	c.head.open, c.head.bytes, c.head.line = true, 0, 0
	there, _ := c.in.Peek(c.in.Buffered())
	c.head.add(there)
	return c.head.err
}

// header bounds the memory that a header takes while it is read: in bytes, and
// in lines together with those of all 1xx before it.
type header struct {
	open  bool // it is being read
	bytes int
	lines int
	line  int   // length of the present one so far, without CR
	err   error // it is beyond them, for good
}

var (
	errLongHeader   = errors.New("the header is too long")
	errTooManyLines = errors.New("too many header lines")
)

// add takes note of what was read. The header ends with a blank line.
func (h *header) add(p []byte) {
	for _, b := range p {
		if !h.open {
			return
		}
		h.bytes++
		switch b {
		case '\n':
			h.open = h.line > 0
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
	if h.open && h.bytes >= maxResponseHeader {
		h.err = errLongHeader
	}
}

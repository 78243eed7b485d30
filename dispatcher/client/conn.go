package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"slices"
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

	head   header // the response header being read
	unread []byte // received, and not yet read by Read
	ready  []byte // output of head, and not yet returned by Read

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
// was closed by the server, or received bytes that no request asked for.
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

// Read reads from the connection. It returns a response header only up to the header's limits.
func (c *conn) Read(p []byte) (int, error) {
	for {
		if len(c.ready) > 0 {
			n := copy(p, c.ready)
			c.ready = c.ready[n:]
			return n, nil
		}
		n, err := c.receive(p)
		if !c.head.reading {
			return n, err
		}
		kept := c.head.filter(p[:n])
		if c.head.err != nil {
			return 0, c.head.err
		}
		n = copy(p, kept)
		if c.ready = kept[n:]; len(c.ready) > 0 {
			return n, nil // the next call returns err
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// receive reads what the receiver sent.
func (c *conn) receive(p []byte) (int, error) {
	if len(c.unread) > 0 {
		n := copy(p, c.unread)
		c.unread = c.unread[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// startHeader starts to read a response header, part of which may have been received
// with the 1xx response before it.
func (c *conn) startHeader() {
	if n := c.in.Buffered(); n > 0 {
		buffered, _ := c.in.Peek(n)
		c.unread = slices.Concat(buffered, c.ready, c.unread)
		c.ready = nil
		c.in.Reset(c)
	}
	c.head.start()
}

// isDrained reports whether everything that was received has been read, and nothing of
// it was cut off.
func (c *conn) isDrained() bool {
	return !c.head.cut && c.in.Buffered() == 0 && len(c.ready) == 0 && len(c.unread) == 0
}

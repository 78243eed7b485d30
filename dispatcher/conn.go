package dispatcher

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/idna"
)

// origin is where a connection leads: it serves requests to the same one.
type origin struct {
	secure  bool
	address string // host and port
}

// target is where a request goes.
type target struct {
	origin
	host string // value of the header
	path string // with the query
}

// parseTarget reads the URL of a subscription.
func parseTarget(text string) (to target, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return to, err
	}
	port := ""
	switch u.Scheme {
	case "https":
		to.secure, port = true, "443"
	case "http":
		port = "80"
	default:
		return to, errors.New("the scheme is neither https nor http")
	}
	name := u.Hostname()
	if strings.IndexFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		// The same mapping that webhook.Destinations judges a name by.
		if name, err = idna.Lookup.ToASCII(name); err != nil {
			return to, err
		}
	}
	to.host = name
	if strings.Contains(name, ":") {
		to.host = "[" + name + "]"
	}
	if p := u.Port(); p != "" {
		port = p
		to.host += ":" + p
	}
	if name == "" || !httpguts.ValidHostHeader(to.host) {
		return to, errors.New("the host cannot be sent")
	}
	to.address = net.JoinHostPort(name, port)
	to.path = u.RequestURI()
	if strings.ContainsFunc(to.path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return to, errors.New("the path cannot be sent")
	}
	return to, nil
}

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

// end ends an unused connection. The goodbye of TLS is said beside: somebody who
// does not read can make it wait.
func (c *conn) end() {
	c.leave()
	if c.Conn == c.carrier {
		c.cut()
		return
	}
	go func() {
		var err error
		defer caught(&err)
		c.Conn.Close()
	}()
}

// abort ends a connection whatever it is doing, and waits for nothing.
func (c *conn) abort() {
	c.leave()
	c.cut()
}

func (c *conn) cut() {
	var err error
	defer caught(&err)
	c.carrier.Close()
}

// follow has the end of ctx end the connection, in place of that of a context
// before, and says whether that came in time. All attempts of a process have the
// same context, so that for most there is nothing to do.
func (c *conn) follow(ctx context.Context) bool {
	if c.ctx == ctx {
		return true
	}
	inTime := c.leave()
	c.ctx, c.stop = ctx, context.AfterFunc(ctx, c.cut)
	return inTime
}

// leave undoes follow, and says whether that came in time.
func (c *conn) leave() bool {
	inTime := c.ctx == nil || c.stop()
	c.ctx = nil
	return inTime
}

// begin gets ready for an exchange that ends at until. It returns false when the
// connection was used before and the other side has hung up since, or said what
// nobody asked for.
func (c *conn) begin(until time.Time, reused bool) bool {
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

// isQuiet says whether nothing can be read from an open socket, its end
// included. It takes nothing from it, and does not wait.
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

// Read bounds the headers of answers.
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

// pool keeps the connections that are not in use, each for idleTimeout at the
// most. It is safe for concurrent use.
type pool struct {
	most int // in all

	mu             sync.Mutex
	count          int
	conns          map[origin][]*conn // of each origin, the one used last at the end
	oldest, newest *conn              // of all
	timer          *time.Timer        // for the oldest, or earlier
}

func newPool(most int) *pool { return &pool{most: most, conns: make(map[origin][]*conn)} }

// take returns the connection that was used last, the most likely one to be
// good, or nil if there is none.
func (p *pool) take(to origin) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := p.conns[to]
	if len(conns) == 0 {
		return nil
	}
	last := len(conns) - 1
	c := conns[last]
	conns[last] = nil
	p.left(c, conns[:last])
	return c
}

// put keeps a connection, and ends the oldest if there are too many.
func (p *pool) put(c *conn) {
	p.mu.Lock()
	c.since = time.Now()
	c.older, p.newest = p.newest, c
	if c.older != nil {
		c.older.newer = c
	} else {
		p.oldest = c
		p.schedule(idleTimeout)
	}
	p.conns[c.origin] = append(p.conns[c.origin], c)
	p.count++
	var many *conn
	if p.count > p.most {
		many = p.takeOldest()
	}
	p.mu.Unlock()
	if many != nil {
		many.end()
	}
}

// takeOldest takes the oldest of all, of which there is one. Owns p.mu.
func (p *pool) takeOldest() *conn {
	c := p.oldest
	p.left(c, slices.Delete(p.conns[c.origin], 0, 1))
	return c
}

// left notes that a connection has left, and which of its origin have not. Owns p.mu.
func (p *pool) left(c *conn, stay []*conn) {
	if p.count--; len(stay) > 0 {
		p.conns[c.origin] = stay
	} else {
		delete(p.conns, c.origin)
	}
	if c.older != nil {
		c.older.newer = c.newer
	} else {
		p.oldest = c.newer
	}
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		p.newest = c.older
	}
	c.older, c.newer = nil, nil
}

// schedule has expire called. Owns p.mu.
func (p *pool) schedule(in time.Duration) {
	if p.timer == nil {
		p.timer = time.AfterFunc(in, p.expire)
	} else {
		p.timer.Reset(in)
	}
}

// expire ends the connections whose time is over.
func (p *pool) expire() {
	p.end(func(c *conn) bool {
		in := idleTimeout - time.Since(c.since)
		if in > 0 {
			p.schedule(in)
		}
		return in <= 0
	})
}

// close ends all connections that are kept now.
func (p *pool) close() { p.end(func(*conn) bool { return true }) }

// end ends connections, from the oldest on, as long as more says so.
func (p *pool) end(more func(*conn) bool) {
	var ended []*conn
	p.mu.Lock()
	for p.oldest != nil && more(p.oldest) {
		ended = append(ended, p.takeOldest())
	}
	p.mu.Unlock()
	for _, c := range ended {
		c.end()
	}
}

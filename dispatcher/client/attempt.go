package client

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"service/webhook"
)

const (
	// maxResponseHeader bounds the header of a response, in bytes, and
	// maxResponseLines it and all 1xx before it, in lines: a thousand short
	// ones take a hundred times the memory of what was sent.
	maxResponseHeader = 32 << 10
	maxResponseLines  = 256
	// maxDrained is how much of a body is read, and dropped, beyond
	// webhook.MaxKeptBody so that the connection can be used again. A longer
	// body costs its sender the connection.
	maxDrained = 64 << 10
	// maxInformational is how many 1xx responses may come before the final one.
	maxInformational = 16
	// idleTimeout is how long an unused connection is kept. It is shorter
	// than the 5 s after which the most impatient of the common servers hang
	// up, because a request that crosses their goodbye on the wire is lost:
	// it may have been read, so it cannot be sent again in the same attempt.
	idleTimeout = 4 * time.Second
	// lateReading is how long a receiver that has answered may read on before
	// its connection is given up.
	lateReading = 50 * time.Millisecond
	// bufferSize is the size of the buffers that requests are written from, and
	// the bodies of responses read through. A server that hangs keeps one.
	bufferSize = 8 << 10
	// maxWrite is how much of a request is written at a time. Before each part the
	// client asks whether it may be sent.
	maxWrite = 64 << 10
	// readBufferSize is that of a connection: responses are short; larger reads
	// bypass it.
	readBufferSize = 2 << 10
)

// exchange is one attempt while it is made, by one goroutine.
type exchange struct {
	*Client
	ctx     context.Context // its end interrupts the attempt
	until   time.Time       // when the attempt's time is over
	request *Request
	attempt *webhook.Attempt

	message message // prepared
	conn    *conn   // that was taken for it

	informational int // 1xx responses so far
}

// do sends the request and records the response in the attempt. The error is
// what ended either early, also when there was a status.
//
// A server may hang up on an unused connection at the moment it is taken for a
// request. While nothing of the request has left, that is no fault of either
// side, and the request is sent on another connection. As soon as one byte
// left, the receiver may have acted on it, and only the next attempt, which is
// counted, may repeat it. The loop ends: each turn uses up a connection that
// was open before, and a new one ends it.
func (x *exchange) do() (err error) {
	defer x.discard() // what was prepared, and not used
	defer recoverPanic(&err)
	if err := x.request.check(); err != nil {
		return err
	}
	for x.ctx.Err() == nil {
		if !x.maySend() {
			return errMayNotSend
		}
		c := x.conn
		if x.conn = nil; c == nil {
			c = x.idle.take(x.request.origin())
		}
		reused := c != nil
		if !reused {
			if c, err = x.dial(x.request.origin()); err != nil {
				return err
			}
		}
		sent, err := x.roundTrip(c, reused)
		if !reused || sent {
			return err
		}
	}
	return x.ctx.Err()
}

// dial makes a connection. The dial ends with the attempt, so that a hanging
// server cannot collect abandoned dials.
func (x *exchange) dial(to origin) (*conn, error) {
	var took phases
	defer func() {
		x.attempt.Phases.DNS, x.attempt.Phases.Connect, x.attempt.Phases.TLS = took.dns, took.connect, took.tls
	}()
	ctx, cancel := context.WithDeadline(context.WithValue(x.ctx, phasesKey{}, &took), x.until)
	defer cancel()
	var c net.Conn
	var err error
	switch {
	case to.secure:
		c, err = x.dialer.dialTLS(ctx, to.address)
	case x.allowHTTP:
		c, err = x.dialer.dialTCP(ctx, to.address)
	default:
		err = &dialError{webhook.ErrorBlocked, errPlainHTTP}
	}
	if err != nil {
		return nil, err
	}
	return newConn(c, to), nil
}

// roundTrip sends the request and reads the response over a connection. It then
// puts the connection into the pool if it can be reused, and closes it if not.
// It reports whether a byte of the request may have been sent.
func (x *exchange) roundTrip(c *conn, reused bool) (sent bool, err error) {
	keep := false
	defer func() { // after a panic too
		if !keep {
			c.closeNow()
		}
	}()
	x.informational, x.attempt.Phases.FirstByte = 0, 0
	ready := time.Now()
	good := c.bindContext(x.ctx) && c.prepare(x.until, reused)
	if err := x.ctx.Err(); err != nil || !good {
		return false, err
	}
	w := x.write(c)
	if w.done == nil && w.err != nil && !w.any {
		return false, w.err
	}
	// A receiver may stop reading in the middle of a request: servers do that
	// when they respond early (413, 401). So the write error decides nothing.
	// Reading does: the response, or the end of the connection.
	resp, err := x.response(c, ready)
	if err != nil {
		c.closeNow()
		w.wait()
		if _, ok := errors.AsType[*panicError](w.err); ok || errors.Is(w.err, errMayNotSend) {
			err = w.err
		}
		return w.any, err
	}
	ended, err := x.receive(resp)
	if ended && !resp.Close && c.in.Buffered() == 0 {
		keep = true
		x.recycle(c, w)
	}
	return true, err
}

// writing is how a request is being written.
type writing struct {
	done chan struct{} // closed when what follows is true; nil: it is
	any  bool          // a byte was sent
	err  error
}

func (w *writing) wait() {
	if w.done != nil {
		<-w.done
	}
}

// write writes a request that fits into one buffer before it returns: the socket
// buffer of a receiver that reads takes that much. It writes a larger one in a
// goroutine, because a receiver may respond before it has read it all, or instead.
func (x *exchange) write(c *conn) *writing {
	x.compose(x.attempt.StartedAt)
	m := x.message
	x.message = message{}
	var w writing
	write := func() {
		defer x.buffers.Put(m.buf)
		n, err := x.send(c, m.first)
		w.any = n > 0
		if err == nil && len(m.rest) > 0 {
			_, err = x.send(c, m.rest)
		}
		w.err = err
	}
	if len(m.rest) == 0 {
		write()
		return &w
	}
	w.done = make(chan struct{})
	go func() {
		defer close(w.done)
		defer recoverPanic(&w.err)
		defer func() {
			if p := recover(); p != nil {
				c.closeRaw() // there will be no response
				panic(p)
			}
		}()
		write()
		if errors.Is(w.err, errMayNotSend) {
			c.closeRaw() // the rest does not follow
		}
	}()
	return &w
}

// message is a request as it is written.
type message struct {
	buf   *[bufferSize]byte // owned, nil of an empty message
	first []byte            // in buf: the header, and as much of the body as fits
	rest  []byte
	at    int64 // the time in the header, in Unix seconds
}

// compose gets the message ready, unless it is and has the time of now.
func (x *exchange) compose(now time.Time) {
	m := &x.message
	if m.buf != nil && m.at == now.Unix() {
		return
	}
	if m.buf == nil {
		m.buf = x.buffers.Get().(*[bufferSize]byte)
	}
	head := x.request.appendHead(m.buf[:0], now)
	body := x.request.Body
	n := min(len(body), max(bufferSize-len(head), 0))
	m.first, m.rest, m.at = append(head, body[:n]...), body[n:], now.Unix()
}

// errMayNotSend says that Config.MaySend returned false.
var errMayNotSend = errors.New("nothing may be sent")

// send writes a part of a request, unless nothing may be sent any more.
func (x *exchange) send(c *conn, p []byte) (n int, err error) {
	for err == nil && len(p) > 0 {
		if !x.maySend() {
			return n, errMayNotSend
		}
		var m int
		m, err = c.Conn.Write(p[:min(len(p), maxWrite)])
		n, p = n+m, p[m:]
	}
	return n, err
}

// recycle returns a connection to the pool after its exchange. A receiver that has
// responded and still reads gets lateReading to read the rest.
func (x *exchange) recycle(c *conn, w *writing) {
	end := func() {
		if w.err != nil {
			c.closeNow()
		} else {
			x.idle.put(c)
		}
	}
	if w.done == nil {
		end()
		return
	}
	go func() {
		c.SetWriteDeadline(time.Now().Add(lateReading))
		<-w.done
		end()
	}()
}

// posted is all that http.ReadResponse wants to know of a request.
var posted = &http.Request{Method: http.MethodPost}

// response reads answers up to the header of the final one. It notes how long
// after ready the first began.
func (x *exchange) response(c *conn, ready time.Time) (*http.Response, error) {
	c.head = header{}
	for {
		if err := c.expect(); err != nil {
			return nil, err
		}
		if x.informational == 0 {
			if _, err := c.in.Peek(1); err != nil {
				return nil, err
			}
			x.attempt.Phases.FirstByte = max(time.Since(ready), 1)
		}
		resp, err := http.ReadResponse(c.in, posted)
		if err != nil || resp.StatusCode < 100 || resp.StatusCode > 199 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
		if x.informational++; x.informational > maxInformational {
			return nil, errTooManyInformational
		}
	}
}

var errTooManyInformational = errors.New("too many 1xx answers")

// receive takes down an answer, and returns whether it was read to its end, and
// what ended it early, nil if it was read as far as it is wanted. Its status
// decides: nothing that happens to the body, a reset or the end of the attempt's
// time, changes the result.
func (x *exchange) receive(resp *http.Response) (ended bool, err error) {
	a := x.attempt
	a.ResponseHeader = headerText(resp)
	if resp.StatusCode < 200 || resp.StatusCode > 999 {
		// 101 is an answer to a question that was not asked. 600 to 999 are none
		// of HTTP's, but an answer that is neither 2xx nor 5xx (spec, section 3).
		a.Error = webhook.ErrorProtocol
		return false, nil
	}
	a.ResponseStatus = resp.StatusCode
	if resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusTooManyRequests {
		a.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	}
	if resp.ContentLength == 0 {
		return true, nil
	}

	buf := x.buffers.Get().(*[bufferSize]byte)
	defer x.buffers.Put(buf)
	var n, dropped int
	for err == nil && len(a.ResponseBody) < webhook.MaxKeptBody {
		n, err = resp.Body.Read(buf[:min(bufferSize, webhook.MaxKeptBody-len(a.ResponseBody))])
		a.ResponseBody = append(a.ResponseBody, buf[:n]...)
	}
	for err == nil && dropped < maxDrained {
		n, err = resp.Body.Read(buf[:])
		dropped += n
	}
	ended = err == io.EOF
	a.ResponseTruncated = dropped > 0 || !ended
	if ended {
		err = nil
	}
	return ended, err
}

// classify returns why there is no response.
func (x *exchange) classify(err error) webhook.ErrorCode {
	var dial *dialError
	var bug *panicError
	switch {
	case x.ctx.Err() != nil, errors.Is(err, errMayNotSend), errors.As(err, &bug):
		return webhook.ErrorInterrupted
	case errors.As(err, &dial):
		return dial.code
	case x.informational > 0:
		// Whatever ended it, the answer began and was not finished.
		return webhook.ErrorProtocol
	case errors.Is(err, os.ErrDeadlineExceeded), !time.Now().Before(x.until):
		return webhook.ErrorTimeout
	case isTLS(err):
		return webhook.ErrorTLS
	case isBroken(err):
		return webhook.ErrorConnect
	}
	return webhook.ErrorProtocol
}

// isTLS tells errors of TLS after the handshake: in TLS 1.3 a server that
// wants a client's certificate says so only then.
func isTLS(err error) bool {
	var op *net.OpError
	var record tls.RecordHeaderError
	return errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") || errors.As(err, &record)
}

// isBroken tells the end of a connection from an answer that makes no sense.
func isBroken(err error) bool {
	var op *net.OpError
	var errno syscall.Errno
	return errors.As(err, &op) || errors.As(err, &errno) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)
}

// phases are how long the parts of a dial took that came to an end.
type phases struct{ dns, connect, tls time.Duration }

type phasesKey struct{}

// phasesOf returns where a dial notes how long its parts take.
func phasesOf(ctx context.Context) *phases {
	if p, ok := ctx.Value(phasesKey{}).(*phases); ok {
		return p
	}
	return new(phases)
}

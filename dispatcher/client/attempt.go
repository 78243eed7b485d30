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
	// maxResponseHeader limits the stored part of a response header, in bytes. maxResponseLines
	// limits its lines, together with those of all 1xx responses before it: a thousand short
	// lines take a hundred times their size in memory. The rest is read and dropped, except a
	// few short lines that the client itself needs (see isFraming).
	maxResponseHeader = 32 << 10
	maxResponseLines  = 256
	maxFramingLine    = 512 // bytes
	maxFramingLines   = 16
	// maxHeaderRead is how many bytes of headers are read, including those of 1xx responses. An
	// endless header would otherwise keep the machine busy until the timeout.
	maxHeaderRead = 1 << 20
	// maxDrained is how many bytes of a body are read and dropped beyond
	// webhook.MaxStoredBody, to reuse the connection. After a longer body the
	// connection is closed.
	maxDrained = 64 << 10
	// maxInterim is the maximum number of 1xx responses before the final one.
	maxInterim = 16
	// idleTimeout is how long an idle connection is kept. It is below 5 s, the
	// shortest keep-alive timeout of common servers: a request that is sent while
	// the server closes the connection is lost, since it may have been read and
	// must not be sent again in the same attempt.
	idleTimeout = 4 * time.Second
	// lateReadTime is how long a receiver that has responded may continue to read
	// the request before its connection is closed.
	lateReadTime = 50 * time.Millisecond
	// bufferSize is the size in bytes of the buffers for requests and response bodies. An
	// attempt that waits for its receiver keeps one.
	bufferSize = 8 << 10
	// maxWrite is how many bytes of a request are written at a time. MaySend is called
	// before each part.
	maxWrite = 64 << 10
	// readBufferSize is the size in bytes of a connection's read buffer. Responses are
	// usually short; larger reads bypass it.
	readBufferSize = 2 << 10
)

// exchange is one attempt in progress, from the dial to the end of the response. One
// goroutine owns it.
type exchange struct {
	*Client
	ctx      context.Context // its end interrupts the attempt
	deadline time.Time       // of the attempt
	request  *Request
	attempt  *webhook.Attempt

	message message // prepared request
	conn    *conn   // idle connection taken for it

	interim    int  // 1xx responses so far
	clientCert bool // the server of the new connection asked for a client certificate
}

// do sends the request and records the response in the attempt. It returns the error
// that ended the exchange early, which may be after the status.
//
// A server may close an idle connection at the moment when a request takes it. As long
// as no byte of the request was sent, the request is sent on another connection.
// Once a byte was sent, the receiver may have acted on it, and only the next
// attempt, which is counted, may repeat it. The loop ends: each turn uses up an idle
// connection, and a new connection ends it.
func (x *exchange) do() (err error) {
	defer x.discard() // releases what was prepared and not used
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
		if x.clientCert = false; !reused {
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

// dial makes a connection. The dial ends with the attempt, so a hanging server
// cannot accumulate abandoned dials.
func (x *exchange) dial(to origin) (*conn, error) {
	var durations phases
	defer func() {
		x.attempt.Phases.DNS, x.attempt.Phases.Connect, x.attempt.Phases.TLS = durations.dns, durations.connect, durations.tls
		x.clientCert = durations.clientCert
	}()
	ctx, cancel := context.WithDeadline(context.WithValue(x.ctx, phasesKey{}, &durations), x.deadline)
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

// roundTrip sends the request and reads the response. It then recycles the
// connection, or closes it if it cannot be reused. It reports whether a byte of the
// request may have been sent, after which the request must not be sent again.
func (x *exchange) roundTrip(c *conn, reused bool) (sent bool, err error) {
	keep := false
	defer func() { // even after a panic
		if !keep {
			c.closeNow()
		}
	}()
	x.interim, x.attempt.Phases.FirstByte = 0, 0
	ready := time.Now()
	good := c.bindContext(x.ctx) && c.prepare(x.deadline, reused)
	if err := x.ctx.Err(); err != nil || !good {
		return false, err
	}
	w := x.write(c)
	if w.done == nil && w.err != nil && !w.sent {
		return false, w.err
	}
	// A receiver that responds early (413, 401) may stop reading the request. So
	// the result depends on reading the response, or the end of the connection, and
	// not on the write error.
	resp, err := x.readResponse(c, ready)
	if err != nil {
		c.closeNow()
		w.wait()
		if _, ok := errors.AsType[*panicError](w.err); ok || errors.Is(w.err, errMayNotSend) {
			err = w.err
		}
		return w.sent, err
	}
	ended, err := x.record(resp)
	if ended && !resp.Close && c.isDrained() {
		keep = true
		x.recycle(c, w)
	}
	return true, err
}

// writing is the state of writing a request.
type writing struct {
	done chan struct{} // closed once the other fields are final; nil if they are already
	sent bool          // at least one byte was sent
	err  error
}

func (w *writing) wait() {
	if w.done != nil {
		<-w.done
	}
}

// write writes the request. One that fits into one buffer is written before write
// returns: a socket takes that much without waiting, unless the receiver does not read.
// A larger request is written in a goroutine, since the receiver may respond before it
// has read everything.
func (x *exchange) write(c *conn) *writing {
	x.compose(x.attempt.StartedAt)
	m := x.message
	x.message = message{}
	var w writing
	write := func() {
		defer x.buffers.Put(m.buf)
		n, err := x.send(c, m.first)
		w.sent = n > 0
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
			c.closeRaw() // the rest will not be sent
		}
	}()
	return &w
}

// message is a request in wire format.
type message struct {
	buf   *[bufferSize]byte // owned; nil for an empty message
	first []byte            // in buf: the headers and as much of the body as fits
	rest  []byte
	at    int64 // signed timestamp in the header, in Unix seconds
}

// compose builds the message, unless it exists and has the timestamp of now.
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

// errMayNotSend means that Config.MaySend returned false.
var errMayNotSend = errors.New("sending is not permitted")

// send writes a part of a request, as long as MaySend permits.
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

// recycle returns a connection to the pool. A receiver that has responded and still
// reads gets lateReadTime to read the rest.
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
		c.SetWriteDeadline(time.Now().Add(lateReadTime))
		<-w.done
		end()
	}()
}

// postRequest is the request as far as http.ReadResponse needs it.
var postRequest = &http.Request{Method: http.MethodPost}

// readResponse reads responses up to the headers of the final one. It records the
// time from ready to the first byte.
func (x *exchange) readResponse(c *conn, ready time.Time) (*http.Response, error) {
	c.head = header{}
	for {
		c.startHeader()
		if x.interim == 0 {
			if _, err := c.in.Peek(1); err != nil {
				return nil, err
			}
			x.attempt.Phases.FirstByte = max(time.Since(ready), 1)
		}
		resp, err := http.ReadResponse(c.in, postRequest)
		if err != nil || resp.StatusCode < 100 || resp.StatusCode > 199 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
		if x.interim++; x.interim > maxInterim {
			return nil, errTooManyInterim
		}
	}
}

var errTooManyInterim = errors.New("too many 1xx responses")

// record records a response in the attempt. It reports whether the body was read to
// its end, and returns the error that cut the body off, nil if reading stopped at
// maxDrained. The result depends on the status only: an error in the body, such as a
// reset or the timeout, does not change it.
func (x *exchange) record(resp *http.Response) (ended bool, err error) {
	a := x.attempt
	a.ResponseHeader = headerText(resp)
	if resp.StatusCode < 200 || resp.StatusCode > 999 {
		// A 101 was not requested. HTTP does not define 600 to 999, but they are
		// responses that are neither 2xx nor 5xx (spec, section 3).
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
	for err == nil && len(a.ResponseBody) < webhook.MaxStoredBody {
		n, err = resp.Body.Read(buf[:min(bufferSize, webhook.MaxStoredBody-len(a.ResponseBody))])
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

// classify returns the error code of an attempt without a usable response.
func (x *exchange) classify(err error) webhook.ErrorCode {
	var dial *dialError
	var bug *panicError
	switch {
	case x.ctx.Err() != nil, errors.Is(err, errMayNotSend), errors.As(err, &bug):
		return webhook.ErrorInterrupted
	case errors.As(err, &dial):
		return dial.code
	case x.interim > 0:
		// The response began and was not completed.
		return webhook.ErrorProtocol
	case errors.Is(err, os.ErrDeadlineExceeded), !time.Now().Before(x.deadline):
		return webhook.ErrorTimeout
	case isTLS(err), x.lacksCertificate() && isBroken(err):
		return webhook.ErrorTLS
	case isBroken(err):
		return webhook.ErrorConnect
	}
	return webhook.ErrorProtocol
}

// lacksCertificate reports whether the server asked for a client certificate, and has not
// responded without one. With TLS 1.3 a server that requires one sends its alert after the
// handshake, and the reset of the connection often overtakes it.
func (x *exchange) lacksCertificate() bool { return x.clientCert && x.attempt.Phases.FirstByte == 0 }

// isTLS reports whether err is a TLS error after the handshake.
func isTLS(err error) bool {
	var op *net.OpError
	var record tls.RecordHeaderError
	return errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") || errors.As(err, &record)
}

// isBroken reports whether err means that the connection ended, as opposed to an
// invalid response.
func isBroken(err error) bool {
	var op *net.OpError
	var errno syscall.Errno
	return errors.As(err, &op) || errors.As(err, &errno) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)
}

// phases are the durations of the completed parts of a dial.
type phases struct {
	dns, connect, tls time.Duration
	clientCert        bool // the server asked for a client certificate
}

type phasesKey struct{}

// phasesOf returns the phases into which a dial records its durations.
func phasesOf(ctx context.Context) *phases {
	if p, ok := ctx.Value(phasesKey{}).(*phases); ok {
		return p
	}
	return new(phases)
}

package dispatcher

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"service/webhook"
)

const (
	// maxResponseHeader bounds the header of an answer, in bytes, and
	// maxResponseLines it and all 1xx before it, in lines: a thousand short
	// ones take a hundred times the memory of what was sent.
	maxResponseHeader = 32 << 10
	maxResponseLines  = 256
	// maxDrained is how much of a body is read, and dropped, beyond
	// webhook.MaxKeptBody so that the connection can be used again. A longer
	// body costs its sender the connection.
	maxDrained = 64 << 10
	// maxInformational is how many 1xx answers may come before the final one.
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
	// the bodies of answers read through. A server that hangs keeps one.
	bufferSize = 8 << 10
	// readBufferSize is that of a connection: answers are short; larger reads
	// pass it by.
	readBufferSize = 2 << 10
)

// request is what one attempt sends, and where.
type request struct {
	DeliveryID     string
	SubscriptionID string
	ProgramID      string
	URL            string
	Authorization  string // the value of the header, byte for byte; "" for none
	Secrets        []webhook.SigningSecret
	Body           []byte // not to be changed any more: it may be read even after send has returned
	Number         int
	Trace          webhook.Trace // that the attempt is a span of, "" for none
}

// sender makes attempts. It is safe for concurrent use.
//
// One attempt is at most one request on the wire, by HTTP/1.1. It is written
// and its answer read by the attempt's own goroutine; the standard library
// parses the answer. An http.Transport would hand each through two further
// goroutines, and may send a request twice.
type sender struct {
	timeout   time.Duration
	allowHTTP bool
	dialer    *dialer
	idle      *pool
	buffers   sync.Pool // of *[bufferSize]byte
	logger    *slog.Logger
}

// newSender returns a sender whose attempts each end within the configured
// timeout, counted from before the lookup of the host to the end of the
// answer. It keeps no more connections open between attempts than there may be
// attempts. It uses no proxy, follows no redirect and speaks HTTP/1.1 alone.
func newSender(cfg *Config) *sender {
	s := &sender{
		timeout: cfg.AttemptTimeout, allowHTTP: cfg.AllowHTTP, dialer: newDialer(cfg.Destinations, cfg.RootCAs),
		idle: newPool(cfg.MaxConnections), logger: cfg.Logger,
	}
	s.dialer.own = cfg.Own
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	s.buffers.New = func() any { return new([bufferSize]byte) }
	return s
}

// close ends the connections that are not in use.
func (s *sender) close() { s.idle.close() }

// send makes one attempt, and returns what came of it: whatever the receiver
// does, that is an attempt and never an error, within the sender's timeout.
// When ctx ends before there is an answer, the attempt is interrupted; so it
// is by a panic, which is logged.
func (s *sender) send(ctx context.Context, r *request) webhook.Attempt {
	a := webhook.Attempt{Number: r.Number, StartedAt: time.Now()}
	x := exchange{sender: s, ctx: ctx, until: a.StartedAt.Add(s.timeout), request: r, attempt: &a}
	err := x.do()
	if p, ok := errors.AsType[*panicError](err); ok {
		s.logger.Error("panic in an attempt", "delivery", r.DeliveryID, "panic", p.value, "stack", p.stack)
	}
	if err != nil && a.ResponseStatus == 0 {
		a.Error = x.class(err)
	} // else the status has decided
	a.Duration = time.Since(a.StartedAt)
	if a.Error == webhook.ErrorBlocked { // of which there is to be nothing but that
		a.Phases = webhook.Phases{}
	}
	a.Result = webhook.Classify(a.ResponseStatus, a.Error)
	r.redact(&a)
	return a
}

// panicError is a panic as the attempt's error.
type panicError struct {
	value any
	stack string
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// caught is deferred, and turns a panic into an error.
func caught(err *error) {
	if p := recover(); p != nil {
		*err = &panicError{p, string(debug.Stack())}
	}
}

// exchange is one attempt while it is made, by one goroutine.
type exchange struct {
	*sender
	ctx     context.Context // its end interrupts the attempt
	until   time.Time       // when the attempt's time is over
	request *request
	attempt *webhook.Attempt

	informational int // 1xx answers so far
}

// do sends the request and takes down the answer. The error is what ended
// either early, also when there was a status.
//
// A server may hang up on an unused connection at the moment it is taken for a
// request. While nothing of the request has left, that is no fault of either
// side, and the request is sent on another connection. As soon as one byte
// left, the receiver may have acted on it, and only the next attempt, which is
// counted, may repeat it. The loop ends: each turn uses up a connection that
// was open before, and a new one ends it.
func (x *exchange) do() (err error) {
	defer caught(&err)
	to, err := parseTarget(x.request.URL)
	if err != nil {
		return &dialError{webhook.ErrorConnect, err}
	}
	if !x.request.canBeSent() {
		return errors.New("the header cannot be sent")
	}
	for x.ctx.Err() == nil {
		c := x.idle.take(to.origin)
		reused := c != nil
		if !reused {
			if c, err = x.dial(to.origin); err != nil {
				return err
			}
		}
		sent, err := x.over(c, reused, &to)
		if !reused || sent {
			return err
		}
	}
	return x.ctx.Err()
}

// dial makes a connection. The dial ends with the attempt, lest a hanging
// server collects dials that nobody waits for.
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
		err = &dialError{webhook.ErrorBlocked, errBlocked}
	}
	if err != nil {
		return nil, err
	}
	return newConn(c, to), nil
}

// over makes the exchange over a connection, which is kept for the next one if
// it can be, and closed if not. It says whether something of the request may
// have left.
func (x *exchange) over(c *conn, reused bool, to *target) (sent bool, err error) {
	keep := false
	defer func() { // after a panic too
		if !keep {
			c.abort()
		}
	}()
	x.informational, x.attempt.Phases.FirstByte = 0, 0
	ready := time.Now()
	good := c.follow(x.ctx) && c.begin(x.until, reused)
	if err := x.ctx.Err(); err != nil || !good {
		return false, err
	}
	w := x.write(c, to)
	if w.done == nil && w.err != nil && !w.any {
		return false, w.err
	}
	// A receiver may stop reading in the midst of a request: servers do that
	// when they have answered early (413, 401). So what ended the writing says
	// nothing. What is true is seen by reading: the answer, or the end of the
	// connection.
	resp, err := x.response(c, ready)
	if err != nil {
		c.abort()
		w.wait()
		if p, ok := errors.AsType[*panicError](w.err); ok {
			err = p
		}
		return w.any, err
	}
	ended, err := x.receive(resp)
	if ended && !resp.Close && c.in.Buffered() == 0 {
		keep = true
		x.keep(c, w)
	}
	return true, err
}

// writing is how a request is being written.
type writing struct {
	done chan struct{} // closed when what follows is true; nil: it is
	any  bool          // something has left
	err  error
}

func (w *writing) wait() {
	if w.done != nil {
		<-w.done
	}
}

// write writes a request that fits into one buffer: the socket of a receiver
// that reads has room for so much. A larger one is written beside what its caller
// does, because a receiver may answer before it has read that, or instead.
func (x *exchange) write(c *conn, to *target) *writing {
	buf := x.buffers.Get().(*[bufferSize]byte)
	first := x.request.appendHead(buf[:0], to, x.attempt.StartedAt)
	body := x.request.Body
	n := min(len(body), max(bufferSize-len(first), 0))
	first, rest := append(first, body[:n]...), body[n:]
	var w writing
	write := func() {
		defer x.buffers.Put(buf)
		n, err := c.Conn.Write(first)
		w.any = n > 0
		if err == nil && len(rest) > 0 {
			_, err = c.Conn.Write(rest)
		}
		w.err = err
	}
	if len(rest) == 0 {
		write()
		return &w
	}
	w.done = make(chan struct{})
	go func() {
		defer close(w.done)
		defer caught(&w.err)
		defer func() {
			if p := recover(); p != nil {
				c.cut() // nothing will answer
				panic(p)
			}
		}()
		write()
	}()
	return &w
}

// keep puts a connection aside whose exchange is at its end. A receiver that has
// answered, and still reads, has a little while to come to the end of it.
func (x *exchange) keep(c *conn, w *writing) {
	end := func() {
		if w.err != nil {
			c.abort()
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

// canBeSent says whether all that comes from elsewhere may be a header's value.
func (r *request) canBeSent() bool {
	for _, value := range [...]string{r.DeliveryID, r.SubscriptionID, r.ProgramID, r.Authorization, string(r.Trace)} {
		if !httpguts.ValidHeaderFieldValue(value) {
			return false
		}
	}
	return true
}

// appendHead appends the first line and the header of a delivery.
func (r *request) appendHead(dst []byte, to *target, now time.Time) []byte {
	dst = append(append(dst, "POST "...), to.path...)
	dst = append(append(dst, " HTTP/1.1\r\nHost: "...), to.host...)
	dst = strconv.AppendInt(append(dst, "\r\nContent-Length: "...), int64(len(r.Body)), 10)
	head := webhook.RequestHead{DeliveryID: r.DeliveryID, SubscriptionID: r.SubscriptionID, ProgramID: r.ProgramID, Authorization: r.Authorization, At: now, Trace: r.Trace.Attempt(r.DeliveryID, r.Number)}
	for i, secret := range r.Secrets {
		if i > 0 {
			head.Signature += " "
		}
		head.Signature += secret.Sign(r.DeliveryID, now, r.Body)
	}
	var room [webhook.MaxRequestHeader][2]string
	for _, line := range head.AppendHeader(room[:0]) {
		dst = append(append(dst, "\r\n"...), line[0]...)
		dst = append(append(dst, ": "...), line[1]...)
	}
	return append(dst, "\r\n\r\n"...)
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
	if resp.StatusCode < 200 || resp.StatusCode > 599 {
		// 101 is an answer to a question that was not asked, and a number
		// outside 100 to 599 is none of HTTP's: a client treats it like a
		// 5xx (RFC 9110, section 15).
		a.Error = webhook.ErrorProtocol
		return false, nil
	}
	a.ResponseStatus = resp.StatusCode
	if resp.StatusCode == http.StatusServiceUnavailable {
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

// headerText renders the header of an answer, a line each, sorted by name: at
// most maxResponseHeader bytes of UTF-8.
func headerText(resp *http.Response) string {
	var room [16]string
	names := room[:0]
	size := 0
	for name, values := range resp.Header {
		names = append(names, name)
		for _, v := range values {
			size += len(name) + len(v) + len(": \n")
		}
	}
	slices.Sort(names)
	var b strings.Builder
	b.Grow(size)
	for _, name := range names {
		for _, v := range resp.Header[name] {
			b.WriteString(name)
			b.WriteString(": ")
			b.WriteString(v)
			b.WriteByte('\n')
		}
	}
	text := strings.ToValidUTF8(b.String(), "\uFFFD")
	if len(text) > maxResponseHeader {
		text = strings.ToValidUTF8(text[:maxResponseHeader], "")
	}
	return text
}

// retryAfter reads the value of a Retry-After header: the wait from now on, 0
// for none, at most webhook.MaxRetryAfter.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(webhook.MaxRetryAfter/time.Second) {
			return webhook.MaxRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), webhook.MaxRetryAfter)
}

// class says why there is no answer.
func (x *exchange) class(err error) webhook.ErrorCode {
	var dial *dialError
	var bug *panicError
	switch {
	case x.ctx.Err() != nil, errors.As(err, &bug):
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

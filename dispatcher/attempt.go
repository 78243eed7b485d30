package dispatcher

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

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
	// bufferSize is the size of the buffers that answers are read through, and
	// large requests copied. A server that hangs keeps one each.
	bufferSize = 8 << 10
)

// request is what one attempt sends, and where.
type request struct {
	DeliveryID     string
	SubscriptionID string
	ProgramID      string
	URL            string
	Authorization  string // the value of the header, byte for byte; "" for none
	Secrets        []webhook.SigningSecret
	Body           []byte // not to be changed any more: net/http may read it even after send has returned
	Number         int
	Trace          webhook.Trace // that the attempt is a span of, "" for none
}

// sender makes attempts. It is safe for concurrent use.
//
// One attempt is at most one request on the wire. net/http would send a
// request a second time only when it is idempotent by its method or by an
// Idempotency-Key header, which a delivery is not; and when nothing of it was
// written and its body can be had again (GetBody), which it is not given. The
// one case in which the repetition is both safe and wanted is decided here:
// see roundTrip.
type sender struct {
	timeout   time.Duration
	dialer    *dialer
	transport *http.Transport
	buffers   sync.Pool // of *[bufferSize]byte
	logger    *slog.Logger
}

// newSender returns a sender whose attempts each end within the configured
// timeout, counted from before the lookup of the host to the end of the
// answer. It keeps no more connections open between attempts than there may be
// attempts. It uses no proxy, follows no redirect and speaks HTTP/1.1 alone.
func newSender(cfg *Config) *sender {
	s := &sender{timeout: cfg.AttemptTimeout, dialer: newDialer(cfg.Destinations, cfg.RootCAs), logger: cfg.Logger}
	s.dialer.own = cfg.Own
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	s.buffers.New = func() any { return new([bufferSize]byte) }
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	plain := (*dialer).dialTCP
	if !cfg.AllowHTTP {
		plain = func(*dialer, context.Context, string) (net.Conn, error) {
			return nil, &dialError{webhook.ErrorBlocked, errBlocked}
		}
	}
	s.transport = &http.Transport{
		Protocols:              protocols,
		DialContext:            s.dial(plain),
		DialTLSContext:         s.dial((*dialer).dialTLS),
		DisableCompression:     true,
		MaxIdleConns:           cfg.MaxConnections,
		MaxIdleConnsPerHost:    cfg.MaxConnections,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		ReadBufferSize:         2 << 10, // answers are short; larger reads pass it by
	}
	return s
}

// close ends the connections that are not in use.
func (s *sender) close() { s.transport.CloseIdleConnections() }

// dial adapts the dialer to net/http, which hands it a context that outlives
// the attempt: a connection may serve the next request. Here it may not, lest
// a hanging server collects dials that nobody waits for.
func (s *sender) dial(dial func(*dialer, context.Context, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, address string) (_ net.Conn, err error) {
		defer caught(&err) // net/http dials in a goroutine of its own
		var took phases
		if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
			ctx = context.WithValue(x.ctx, phasesKey{}, &took)
			defer func() {
				if err != nil {
					x.failed.Store(&took)
				}
			}()
		}
		c, err := dial(s.dialer, ctx, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, took: took, begun: make(chan struct{}), buffers: &s.buffers}, nil
	}
}

// send makes one attempt, and returns what came of it: whatever the receiver
// does, that is an attempt and never an error, within the sender's timeout.
// When ctx ends before there is an answer, the attempt is interrupted; so it
// is by a panic, which is logged.
func (s *sender) send(ctx context.Context, r *request) webhook.Attempt {
	a := webhook.Attempt{Number: r.Number, StartedAt: time.Now()}
	bounded, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	x := &exchange{ctx: bounded}
	err := s.exchange(x, r, &a)
	if p, ok := errors.AsType[*panicError](err); ok {
		s.logger.Error("panic in an attempt", "delivery", r.DeliveryID, "panic", p.value, "stack", p.stack)
	}
	if err != nil && a.ResponseStatus == 0 {
		a.Error = x.class(ctx, err)
	} // else the status has decided
	a.Duration = time.Since(a.StartedAt)
	if a.Error != webhook.ErrorBlocked { // of which there is to be nothing but that
		a.Phases = x.phases()
	}
	a.Result = webhook.Classify(a.ResponseStatus, a.Error)
	r.redact(&a)
	return a
}

// exchange sends the request and takes down the answer. The error is what ended
// either early, also when there was a status.
func (s *sender) exchange(x *exchange, r *request, a *webhook.Attempt) (err error) {
	defer caught(&err)
	resp, err := s.roundTrip(x, r, a.StartedAt)
	if err != nil {
		return err
	}
	return s.receive(resp, a)
}

// panicError is a panic on its way from the goroutine it happened in to the
// attempt it belongs to. In a goroutine of net/http it would end the process.
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

// roundTrip sends the request and returns the answer, its body not yet read.
//
// A server may hang up on an unused connection at the moment it is taken for a
// request. While nothing of the request has left, that is no fault of either
// side, and the request is sent on another connection. As soon as one byte
// left, the receiver may have acted on it, and only the next attempt, which is
// counted, may repeat it. The loop ends: each turn uses up a connection that
// was open before, and a new one ends it.
func (s *sender) roundTrip(x *exchange, r *request, now time.Time) (*http.Response, error) {
	ctx := context.WithValue(x.ctx, exchangeKey{}, x)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: x.gotConn, GotFirstResponseByte: x.gotByte, Got1xxResponse: x.got1xx})
	for {
		// A bytes.Reader lets net/http put header and body into one write.
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL, bytes.NewReader(r.Body))
		if err != nil {
			return nil, &dialError{webhook.ErrorConnect, err}
		}
		req.GetBody = nil
		r.setHeader(req.Header, now)

		x.conn, x.reused = nil, false
		resp, err := s.transport.RoundTrip(req)
		if err == nil || !x.reused || x.conn.sent.Load() || x.ctx.Err() != nil {
			return resp, err
		}
	}
}

// setHeader writes the header of a delivery. Host and Content-Length are
// net/http's; it adds no other.
func (r *request) setHeader(h http.Header, now time.Time) {
	head := webhook.RequestHead{DeliveryID: r.DeliveryID, SubscriptionID: r.SubscriptionID, ProgramID: r.ProgramID, Authorization: r.Authorization, At: now, Trace: r.Trace.Attempt(r.DeliveryID, r.Number)}
	for i, secret := range r.Secrets {
		if i > 0 {
			head.Signature += " "
		}
		head.Signature += secret.Sign(r.DeliveryID, now, r.Body)
	}
	var room [webhook.MaxRequestHeader][2]string
	lines := head.AppendHeader(room[:0])
	values := make([]string, len(lines))
	for i, l := range lines {
		values[i] = l[1]
		h[l[0]] = values[i : i+1 : i+1]
	}
}

// receive takes down an answer, and returns what ended it early, nil if it was
// read as far as it is wanted. Its status decides: nothing that happens to the
// body, a reset or the end of the attempt's time, changes the result.
func (s *sender) receive(resp *http.Response, a *webhook.Attempt) error {
	defer resp.Body.Close()
	a.ResponseHeader = headerText(resp)
	if resp.StatusCode < 200 || resp.StatusCode > 599 {
		// 101 is an answer to a question that was not asked, and a number
		// outside 100 to 599 is none of HTTP's: a client treats it like a
		// 5xx (RFC 9110, section 15).
		a.Error = webhook.ErrorProtocol
		return nil
	}
	a.ResponseStatus = resp.StatusCode
	if resp.StatusCode == http.StatusServiceUnavailable {
		a.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	}
	if resp.ContentLength == 0 {
		return nil
	}

	buf := s.buffers.Get().(*[bufferSize]byte)
	defer s.buffers.Put(buf)
	var n, dropped int
	var err error
	for err == nil && len(a.ResponseBody) < webhook.MaxKeptBody {
		n, err = resp.Body.Read(buf[:min(bufferSize, webhook.MaxKeptBody-len(a.ResponseBody))])
		a.ResponseBody = append(a.ResponseBody, buf[:n]...)
	}
	for err == nil && dropped < maxDrained {
		n, err = resp.Body.Read(buf[:])
		dropped += n
	}
	a.ResponseTruncated = dropped > 0 || err != io.EOF
	if err == io.EOF {
		return nil
	}
	return err
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

// exchange is what one attempt learns about its connections.
type exchange struct {
	ctx           context.Context // ends with the attempt
	conn          *conn           // the last one that was taken, or nil
	reused        bool            // whether conn was open before
	ready         time.Time       // when conn was taken
	firstByte     atomic.Int64    // how long after that the answer began, in nanoseconds; 0: not yet
	failed        atomic.Pointer[phases]
	informational atomic.Int32 // 1xx answers; counted by net/http's reader
}

type exchangeKey struct{}

var errTooManyInformational = errors.New("too many 1xx answers")

func (x *exchange) gotConn(info httptrace.GotConnInfo) {
	x.conn, x.reused = info.Conn.(*conn), info.Reused
	x.ready = time.Now()
	x.conn.begin()
}

func (x *exchange) gotByte() { x.firstByte.Store(max(int64(time.Since(x.ready)), 1)) }

// phases returns where the time of the attempt went, as far as it got.
func (x *exchange) phases() webhook.Phases {
	var p phases
	if x.conn == nil {
		if failed := x.failed.Load(); failed != nil {
			p = *failed
		}
	} else if !x.reused {
		p = x.conn.took
	}
	return webhook.Phases{DNS: p.dns, Connect: p.connect, TLS: p.tls, FirstByte: time.Duration(x.firstByte.Load())}
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

func (x *exchange) got1xx(int, textproto.MIMEHeader) error {
	if x.informational.Add(1) > maxInformational {
		return errTooManyInformational
	}
	return nil
}

// class says why there is no answer. parent is the context that the attempt's
// own was made from.
func (x *exchange) class(parent context.Context, err error) webhook.ErrorCode {
	var dial *dialError
	var bug *panicError
	switch {
	case parent.Err() != nil, errors.As(err, &bug):
		return webhook.ErrorInterrupted
	case errors.As(err, &dial):
		return dial.code
	case x.informational.Load() > 0:
		// Whatever ended it, the answer began and was not finished.
		return webhook.ErrorProtocol
	case x.ctx.Err() != nil:
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

// conn is a connection to a subscriber, as net/http sees it.
type conn struct {
	net.Conn
	took    phases // to make it
	buffers *sync.Pool

	begun chan struct{} // closed when the first request leaves, or on Close
	once  sync.Once     // closes begun

	sent   atomic.Bool // something of the present request has left
	broken bool        // what is written goes nowhere; owned by net/http's writer, and by begin between requests

	answered atomic.Bool // what is read belongs to an answer whose header lines are being counted
	lines    headerLines // owned by net/http's reader
}

// begin marks the start of a request. net/http has no other in hand.
func (c *conn) begin() {
	c.sent.Store(false)
	c.broken = false
	c.answered.Store(false)
}

// Read waits for the first request. A server that speaks first (SSH, SMTP and
// many others do) is then understood as giving a bad answer, always, instead
// of only when net/http had already begun to wait for one.
func (c *conn) Read(p []byte) (n int, err error) {
	defer caught(&err)
	<-c.begun
	n, err = c.Conn.Read(p)
	if !c.answered.Swap(true) {
		c.lines = headerLines{} // the reader may have waited since before the request
	}
	if !c.lines.add(p[:n]) {
		return 0, errTooManyLines
	}
	return n, err
}

var errTooManyLines = errors.New("too many header lines")

// headerLines counts the lines of an answer up to the end of its header, those
// of the 1xx answers before it too.
type headerLines struct {
	count  int
	length int  // of the present line so far, without a CR
	begun  bool // the present header has had its status line
	hint   bool // the present header is of a 1xx, and so not the last
	done   bool
}

// add says whether there are still few enough lines.
func (h *headerLines) add(p []byte) bool {
	const status = len("HTTP/1.1 ") // where the status begins
	for _, b := range p {
		switch {
		case h.done:
			return true
		case b == '\n':
			if h.count++; h.count > maxResponseLines {
				return false
			}
			if h.length == 0 {
				h.done, h.begun = !h.hint, false
			} else {
				h.begun = true
			}
			h.length = 0
		case b != '\r':
			if !h.begun && h.length == status {
				h.hint = b == '1'
			}
			h.length++
		}
	}
	return true
}

// Write hides that the receiver stopped reading in the midst of a request.
// Servers do that when they have answered early (413, 401), and net/http would
// report the failed write, or the answer, whichever it happens to see first.
// What is true is seen by Read: the answer, or the end of the connection.
func (c *conn) Write(p []byte) (_ int, err error) {
	defer caught(&err)
	if c.broken {
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.sent.Store(true)
	}
	c.once.Do(func() { close(c.begun) }) // not before: what Read sees could end the request
	if err != nil && c.sent.Load() {
		c.broken = true
		return len(p), nil
	}
	return n, err
}

// ReadFrom is io.Copy with a buffer that is used again: net/http takes it for
// bodies that do not fit into its own.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	buf := c.buffers.Get().(*[bufferSize]byte)
	defer c.buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{c}, r, buf[:])
}

func (c *conn) Close() (err error) {
	defer caught(&err)
	c.once.Do(func() { close(c.begun) })
	return c.Conn.Close()
}

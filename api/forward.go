package api

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"service/webhook"
)

const (
	// forwardSlack is the time that a forwarded request may take in addition to API.timeout, so
	// that the target can respond that its own timeout has passed.
	forwardSlack = 5 * time.Second

	// forwardConnect is the time limit of a connection to the target, with its TLS handshake.
	forwardConnect = 10 * time.Second

	// maxForwardedBody is the maximum size of a response body that is passed on, in bytes. No
	// response of the API is as large.
	maxForwardedBody = 256 << 20

	// maxForwardedHeader is the maximum size of a target's response header, in bytes.
	maxForwardedHeader = 64 << 10

	// maxInterim is how many interim responses (1xx) of the target are ignored. The API sends none.
	maxInterim = 5

	// maxForwards is how many installations may forward a request, one after another.
	maxForwards = 4

	// viaName begins the name of an installation in the header Via.
	viaName = "service-"
)

// errForwardTimeout ends a forwarded request that takes too long.
var errForwardTimeout = errors.New("the target did not respond in time")

// errForwardSilence ends a forwarded request whose response stops.
var errForwardSilence = errors.New("the target stopped sending its response")

// errForwardShutdown ends a forwarded wait or stream when the service shuts down.
var errForwardShutdown = errors.New("the service is shutting down")

// errForwarded ends the checks of a request that is forwarded.
var errForwarded = errors.New("the request is forwarded")

// The results of forwarded requests, for metrics.
const (
	forwardResponse    = "response"    // of the target, with any status
	forwardUnreachable = "unreachable" // no connection, or it broke before a response
	forwardTimeout     = "timeout"
	forwardLoop        = "loop"
	forwardCancelled   = "cancelled" // by the client
)

var forwardResults = [...]string{forwardResponse, forwardUnreachable, forwardTimeout, forwardLoop, forwardCancelled}

// forwarder passes requests of moved programs on to other installations.
type forwarder struct {
	via string // the name of this process, to recognize its own requests

	mu      sync.Mutex
	targets map[forwardTarget]*http.Transport
}

// forwardTarget is an installation, see [webhook.ProgramMove].
type forwardTarget struct{ url, ca string }

func newForwarder() *forwarder {
	return &forwarder{via: viaName + strings.ToLower(rand.Text()[:12]), targets: make(map[forwardTarget]*http.Transport)}
}

// transport returns the connections to an installation. It verifies the server by the certificates
// of the move, or by the system's if the move has none.
func (f *forwarder) transport(to forwardTarget) (*http.Transport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.targets[to]; t != nil {
		return t, nil
	}
	verify := &tls.Config{MinVersion: tls.VersionTLS12}
	if to.ca != "" {
		verify.RootCAs = x509.NewCertPool()
		if !verify.RootCAs.AppendCertsFromPEM([]byte(to.ca)) {
			return nil, errors.New("the certificates of the move are not PEM")
		}
	}
	t := &http.Transport{
		TLSClientConfig:     verify,
		MaxConnsPerHost:     512,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     time.Minute, // shorter than that of the server
		DisableCompression:  true,        // the body passes unchanged

		MaxResponseHeaderBytes: maxForwardedHeader,
	}
	f.targets[to] = t
	return t, nil
}

// moved handles a request in a program that has moved to another installation. Requests with the
// program's tokens are forwarded: the target has these tokens and checks them itself. A platform
// token is unknown there, and no request is forwarded with more rights than its own token has, so
// requests with a platform token are rejected with the target's address.
func (a *API) moved(req *request, move *webhook.ProgramMove) error {
	switch {
	case !move.Forwards:
		return move.Unavailable(req.program())
	case req.token.Platform():
		return webhook.NewError(webhook.CodeConflict, "The program "+req.program()+" has moved to "+move.URL+
			". Send the request there, with a platform token of that installation.")
	case req.route.pattern == metricsPath:
		return webhook.NewError(webhook.CodeForbidden,
			"The program of the access token has moved to another installation, which has its metrics.")
	}
	req.move = move
	return errForwarded
}

// forward passes a request on to the installation that has its program, and passes the response
// back. Besides [API.write] it is the only method that writes a response.
func (a *API) forward(req *request) (status, size int) {
	f := &forwardedRequest{api: a, req: req, result: forwardUnreachable, response: forwardedResponse{ResponseWriter: req.w}}
	defer func() { a.metrics.forwarded[f.result].Inc() }()
	if seen := viaNames(req.http.Header); len(seen) >= maxForwards || slices.Contains(seen, a.forwarder.via) {
		f.result = forwardLoop
		a.logForward(req, errors.New("the installations forward the program's requests in a loop"))
		return a.write(req, answer{}, webhook.NewError(webhook.CodeUnavailable,
			"The request was forwarded in a loop: the installations do not agree on which of them has the program "+req.program()+"."))
	}
	target, err := url.Parse(req.move.URL)
	if err != nil {
		err = errors.New("the URL of the target is invalid") // without the URL
	}
	var transport *http.Transport
	if err == nil {
		transport, err = a.forwarder.transport(forwardTarget{req.move.URL, req.move.CA})
	}
	if err != nil {
		f.unreachable(err)
		return f.response.status, f.response.size
	}
	f.target = target
	ctx, cancel := context.WithCancelCause(req.http.Context())
	defer cancel(nil)
	f.cancel = cancel
	f.begin()
	if f.follows() {
		defer context.AfterFunc(a.life, func() { cancel(errForwardShutdown) })()
	}
	interim := 0
	in := req.http.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			f.connected.Store(true)
			f.timeout.Reset(a.timeout + forwardSlack + f.wait())
		},
		WroteHeaders: func() { f.sent.Store(true) },
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			if interim++; interim > maxInterim {
				return fmt.Errorf("the target sent more than %d interim responses", maxInterim)
			}
			return nil
		},
	}))
	if in.ContentLength != 0 {
		in.Body = f
	}
	proxy := &httputil.ReverseProxy{
		Transport: withoutTrailers{transport}, Rewrite: f.rewrite, ModifyResponse: f.accept, ErrorHandler: f.fail, FlushInterval: -1,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // fail logs
	}
	defer f.end()
	defer func() {
		if p := recover(); p != nil { // the response broke off, so the client's connection must too
			f.result = forwardUnreachable
			err := errors.New("the target's response broke off")
			if cause := context.Cause(ctx); cause == errForwardSilence {
				f.result, err = forwardTimeout, cause
			}
			a.logForward(req, err)
			panic(p)
		}
	}()
	proxy.ServeHTTP(&f.response, in)
	return f.response.status, f.response.size
}

// forwardedRequest is one forwarded request. It is also the body that the transport reads.
type forwardedRequest struct {
	api      *API
	req      *request
	target   *url.URL
	result   string
	response forwardedResponse
	cancel   context.CancelCauseFunc

	// The goroutine of the transport reads the body, even after the target has responded.
	mu       sync.Mutex // held during each read
	stream   bool       // of events: its duration is not bounded, each pause is
	timeout  *time.Timer
	begun    bool  // part of the body was read
	complete bool  // the whole body was read
	ended    bool  // the body must not be read any more
	err      error // of reading from the client, a *webhook.Error

	sent, connected  atomic.Bool // the target may have received the request; there is a connection
	answered, ending atomic.Bool // the target has responded; end was called
}

// follows reports whether the request may follow a log.
func (f *forwardedRequest) follows() bool {
	list := f.req.route.query.list
	return list != nil && list.Follow
}

// wait returns how long the target may wait for events, for a request that follows a log.
func (f *forwardedRequest) wait() time.Duration {
	if f.follows() && f.req.http.URL.Query().Has("wait") {
		return webhook.MaxWait
	}
	return 0
}

// begin starts the timeout, which cancels the request.
func (f *forwardedRequest) begin() {
	if f.req.route.pattern == eventsPath && f.req.http.Method == http.MethodPost {
		media, err := f.req.mediaType(mediaJSON, mediaNDJSON)
		f.stream = err == nil && media == mediaNDJSON
	}
	if f.stream {
		f.req.writeUntil(time.Time{}) // the server's write timeout does not apply to a stream
	}
	f.timeout = time.AfterFunc(min(forwardConnect, f.api.timeout+forwardSlack), func() { f.cancel(errForwardTimeout) })
}

// Read reads from the client. The time in which the target does not read a stream counts
// toward the timeout; the time in which the client does not send has a read deadline.
func (f *forwardedRequest) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return 0, errors.New("the request has ended")
	}
	if f.stream {
		f.timeout.Stop()
		f.req.readUntil(time.Now().Add(f.api.timeout))
		if f.ending.Load() { // the deadline of end must not be replaced
			f.req.readUntil(time.Now().Add(maxDiscardTime))
		}
	}
	f.begun = true
	n, err := f.req.http.Body.Read(p)
	switch {
	case err == io.EOF:
		f.complete = true
		f.req.readUntil(time.Time{})
	case err != nil && !f.ending.Load():
		f.err = readError(err)
	}
	if f.stream && !f.answered.Load() {
		f.timeout.Reset(f.api.timeout + forwardSlack)
	}
	return n, err
}

// Close does nothing: the server closes the body.
func (f *forwardedRequest) Close() error { return nil }

// end stops reading the body. It waits for a read in progress, and sets a short deadline for it
// because the client may have stopped sending.
func (f *forwardedRequest) end() {
	f.ending.Store(true)
	if !f.mu.TryLock() {
		f.req.readUntil(time.Now().Add(maxDiscardTime))
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	f.ended = true
	f.timeout.Stop()
}

// rewrite makes the request of the target. ReverseProxy has removed hop-by-hop headers and
// X-Forwarded-*, which the client may have forged.
func (f *forwardedRequest) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(f.target)
	r.Out.URL.RawQuery = r.In.URL.RawQuery // including what cannot be parsed: the target rejects it
	h := r.Out.Header
	// Without Accept-Encoding, no proxy in between compresses the response.
	for _, name := range []string{"Connection", "Upgrade", "Expect", "Cookie", "Accept-Encoding"} {
		h.Del(name)
	}
	// The scheme is left out: plain HTTP that must be rejected was rejected here.
	if host, _, err := net.SplitHostPort(f.req.http.RemoteAddr); err == nil {
		h.Set("X-Forwarded-For", host)
	}
	h.Add("Via", fmt.Sprintf("%d.%d %s", r.In.ProtoMajor, r.In.ProtoMinor, f.api.forwarder.via))
}

// accept prepares the target's response for the client. If reading from the client failed, the
// target received half a request and its response is about that half, so the client gets its own
// error.
func (f *forwardedRequest) accept(resp *http.Response) error {
	if f.mu.TryLock() { // otherwise it is being read
		err := f.err
		f.mu.Unlock()
		if err != nil {
			return err
		}
	}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	events := err == nil && media == mediaEvents && f.follows() && resp.StatusCode == http.StatusOK
	if !events && !isOfService(resp) {
		return fmt.Errorf("the response with status %d is not of the service", resp.StatusCode)
	}
	f.answered.Store(true)
	f.timeout.Stop()
	f.result, f.req.targetRequestID = forwardResponse, resp.Header.Get("X-Request-Id")
	resp.Header = f.header(resp)
	if f.req.http.ContentLength != 0 {
		f.leaveBody(resp.Header)
	}
	body := &forwardedBody{resp.Body, f.cancel, f.api.timeout, maxForwardedBody}
	resp.Body = body
	f.req.writeUntil(time.Now().Add(writeTimeout(max(0, int(resp.ContentLength)))))
	if events {
		resp.Header.Set("Content-Type", mediaEvents)
		resp.Header.Set("X-Accel-Buffering", "no")
		body.silence = max(body.silence, 2*streamIdle)
		resp.Body = untilShutdown{body, resp.Request.Context()}
		f.req.readUntil(time.Time{})
		f.req.writeUntil(time.Time{})
	}
	return nil
}

// isOfService reports whether a response can be from the API: JSON, not a redirect, and with the ID
// of the request.
func isOfService(resp *http.Response) bool {
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	isJSON := err == nil && media == mediaJSON
	switch status := resp.StatusCode; {
	case status < 200, status >= 300 && status < 400 && status != http.StatusNotModified, status > 599,
		!isJSON && !hasNoContent(status), resp.Header.Get("Content-Encoding") != "", resp.ContentLength > maxForwardedBody:
		return false
	}
	return webhook.CheckIdentifier("", resp.Header.Get("X-Request-Id")) == nil
}

// hasNoContent reports whether a response with the status has no body.
func hasNoContent(status int) bool {
	return status == http.StatusNoContent || status == http.StatusNotModified
}

// forwardedHeaders are the target's headers that the client gets, if their value begins with the
// prefix: the headers of the API. Any other, such as Set-Cookie, Refresh or Clear-Site-Data, would
// act in the name of this installation.
var forwardedHeaders = map[string]string{
	"Allow": "", "Content-Length": "", "Etag": "", "Idempotency-Replayed": "", "Location": "/v2/", "Ratelimit": "", "Ratelimit-Policy": "",
	"Retry-After": "", "Www-Authenticate": "Bearer ", "X-Request-Id": "",
}

// header returns the header of the response for the client.
func (f *forwardedRequest) header(resp *http.Response) http.Header {
	header := make(http.Header)
	for name, prefix := range forwardedHeaders {
		if value := resp.Header.Get(name); value != "" && strings.HasPrefix(value, prefix) {
			header.Set(name, value)
		}
	}
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if resp.StatusCode != http.StatusUnauthorized { // the target knows the token
		header.Set(programHeader, f.req.program())
		header.Set("X-User-Id", f.req.token.UserID)
	}
	if !hasNoContent(resp.StatusCode) {
		header.Set("Content-Type", "application/json; charset=utf-8")
	}
	return header
}

// forwardedBody is the body of a target's response.
type forwardedBody struct {
	io.ReadCloser
	cancel  context.CancelCauseFunc // of the request
	silence time.Duration           // maximum duration of a read
	left    int64                   // maximum number of bytes that may follow
}

// Read bounds the silence of the target. The time in which the client does not read is bounded by
// the deadline for writing the response.
func (b *forwardedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("the response is too large")
	}
	silence := time.AfterFunc(b.silence, func() { b.cancel(errForwardSilence) })
	defer silence.Stop()
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// untilShutdown is the body of a forwarded stream of events, which shutdown ends.
type untilShutdown struct {
	io.ReadCloser
	ctx context.Context
}

func (b untilShutdown) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && context.Cause(b.ctx) == errForwardShutdown {
		err = io.EOF
	}
	return n, err
}

// withoutTrailers is a transport whose responses have no trailers. The API sends none.
type withoutTrailers struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper]. The transport sets a response's trailers once its body
// has been read.
func (t withoutTrailers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	own := *resp
	own.Trailer = nil
	return &own, nil
}

// leaveBody prepares a response that may be sent before the end of the body.
func (f *forwardedRequest) leaveBody(header http.Header) {
	f.req.started, f.req.unread = true, true
	if f.mu.TryLock() { // otherwise it is being read
		f.req.unread = !f.complete
		f.mu.Unlock()
	}
	if f.req.unread && f.req.http.ProtoMajor == 1 {
		// Otherwise net/http waits for the read in progress before it sends the header.
		_ = http.NewResponseController(f.req.w).EnableFullDuplex()
	}
	f.req.leaveBody(header)
}

// fail responds to a request when the target has not.
func (f *forwardedRequest) fail(_ http.ResponseWriter, r *http.Request, err error) {
	cause := context.Cause(r.Context())
	f.end() // from here on the transport's goroutine does not read
	f.req.started, f.req.unread = f.begun, f.req.unread && !f.complete
	switch {
	case f.err != nil:
		f.result = forwardCancelled
		f.write(f.err)
	case cause == errForwardTimeout && !f.connected.Load():
		f.unreachable(errors.New("the connection was not made in time"))
	case cause == errForwardTimeout:
		f.result = forwardTimeout
		f.api.logForward(f.req, cause)
		f.write(webhook.NewError(webhook.CodeTimeout, fmt.Sprintf("The request took longer than %s.", f.api.timeout)))
	case cause == errForwardShutdown:
		f.result = forwardCancelled
		f.write(webhook.NewError(webhook.CodeUnavailable, "The service is shutting down. Try again in a few seconds."))
	case cause != nil:
		f.result = forwardCancelled
		f.write(cause)
	default:
		f.unreachable(err)
	}
}

// unreachable responds that the target cannot be reached or did not respond, and logs why. The
// response does not describe the target, whose address may be internal.
func (f *forwardedRequest) unreachable(err error) {
	f.result = forwardUnreachable
	f.api.logForward(f.req, err)
	moved := "The program " + f.req.program() + " has moved to another installation, which "
	if method := f.req.http.Method; f.sent.Load() && method != http.MethodGet && method != http.MethodHead {
		f.write(webhook.NewError(webhook.CodeTimeout, moved+"did not respond. The request may have taken effect."))
		return
	}
	f.write(webhook.NewError(webhook.CodeUnavailable, moved+"cannot be reached at the moment. Try again in a few seconds."))
}

func (f *forwardedRequest) write(err error) {
	f.response.status, f.response.size = f.api.write(f.req, answer{}, err)
}

// logForward logs why a request could not be forwarded.
func (a *API) logForward(req *request, err error) {
	a.logger.LogAttrs(req.http.Context(), slog.LevelWarn, "failed to forward a request of a program that has moved",
		slog.String("error", err.Error()), slog.String("program", req.program()), slog.String("target", req.move.URL),
		slog.String("request_id", req.id))
}

// viaNames returns the names of the installations that have forwarded a request.
func viaNames(header http.Header) (names []string) {
	for _, part := range strings.Split(strings.Join(header["Via"], ","), ",") {
		if words := strings.Fields(part); len(words) > 1 && strings.HasPrefix(words[1], viaName) {
			names = append(names, words[1])
		}
	}
	return names
}

// forwardedResponse records the status and size of a response. It drops interim responses.
type forwardedResponse struct {
	http.ResponseWriter
	status, size int
}

func (w *forwardedResponse) WriteHeader(status int) {
	if status < 200 {
		return
	}
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *forwardedResponse) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.size += n
	return n, err
}

// Unwrap is called by [http.ResponseController].
func (w *forwardedResponse) Unwrap() http.ResponseWriter { return w.ResponseWriter }

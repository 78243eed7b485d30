package server

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"service/internal/ratelimit"
	"service/webhook"
)

// Limits of every HTTP server in this binary.
const (
	headerTimeout  = 10 * time.Second // for a TLS handshake, and for the header of a request
	idleTimeout    = 2 * time.Minute  // between two requests on a connection
	maxHeaderBytes = 64 << 10         // above the limit of package api, so that api reports the error

	// requestSlack is the time a request may take in addition to its work, mainly for
	// transferring the response.
	requestSlack = time.Minute
)

// newHTTPServer returns the server of the API and the admin UI. It closes the connections of
// clients that send or read too slowly. A handler that streams must replace these limits
// with its own, through an http.ResponseController.
func newHTTPServer(handler http.Handler, requestTimeout time.Duration) *http.Server {
	return &http.Server{
		Handler:      closeAfterChunks(handler),
		ReadTimeout:  requestTimeout + requestSlack,
		WriteTimeout: requestTimeout + requestSlack,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          100,
			MaxReadFrameSize:              64 << 10,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     256 << 10,
			SendPingTimeout:               30 * time.Second, // detects dead clients
			PingTimeout:                   15 * time.Second,
			WriteByteTimeout:              30 * time.Second,
		},
	}
}

// closeAfterChunks closes an HTTP/1 connection after a request with Transfer-Encoding. This
// prevents request smuggling: such a request may also contain a Content-Length, which net/http
// hides but a proxy may have used (RFC 9112, section 6.1).
func closeAfterChunks(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
			w.Header().Set("Connection", "close")
		}
		handler.ServeHTTP(w, r)
	})
}

// Limits of open connections per listener.
const (
	MaxClientConnections = 4096
	// maxNetworkConnections applies to one client network. Loopback addresses, where a proxy
	// may run, and trusted proxies are exempt.
	maxNetworkConnections = 1024
)

// limitedListener closes new connections beyond its limits.
type limitedListener struct {
	net.Listener
	total, perNetwork int
	trusted           TrustedProxies // exempt from perNetwork
	logger            *slog.Logger

	byNetwork ratelimit.Slots[netip.Prefix]

	mu     sync.Mutex
	open   int
	warned time.Time // when it last logged that total was reached
}

func newLimitedListener(l net.Listener, total, perNetwork int, trusted TrustedProxies, logger *slog.Logger) *limitedListener {
	return &limitedListener{
		Listener: l, total: total, perNetwork: perNetwork, trusted: trusted, logger: logger,
	}
}

// Accept returns the next connection that is within the limits.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var from netip.Addr
		if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			from = a.AddrPort().Addr().Unmap()
		}
		if l.acquire(from) {
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { l.release(from) })}, nil
		}
		c.Close()
	}
}

func (l *limitedListener) acquire(from netip.Addr) bool {
	network, most := webhook.Network(from), l.perNetwork
	if from.IsLoopback() || l.trusted.Contains(from) {
		most = math.MaxInt
	}
	if !l.byNetwork.Take(network, most) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.total {
		l.byNetwork.Leave(network)
		if now := time.Now(); now.Sub(l.warned) >= time.Minute {
			l.warned = now
			l.logger.Warn("too many open connections; refusing new ones", "open", l.open)
		}
		return false
	}
	l.open++
	return true
}

func (l *limitedListener) release(from netip.Addr) {
	l.byNetwork.Leave(webhook.Network(from))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

// limitedConn is a connection that counts toward the limits until it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite lets net/http finish a response to a client that is still sending.
func (c *limitedConn) CloseWrite() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.CloseWrite()
	}
	return nil
}

// serverLog handles the log of an http.Server. It logs TLS and HTTP/2 errors of clients at
// debug level, because any port scan causes them.
type serverLog struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h serverLog) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "http: TLS handshake error") || strings.HasPrefix(r.Message, "http2: ") {
		if r.Level = slog.LevelDebug; !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

// Serve serves until ctx ends. Then it waits up to grace for requests in flight and aborts
// the rest. When it returns, no handler is running.
func Serve(ctx context.Context, s *http.Server, l net.Listener, grace time.Duration) error {
	var gate sync.RWMutex // read-locked by every running handler
	handler := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !gate.TryRLock() {
			panic(http.ErrAbortHandler) // the request arrived after the abort
		}
		defer gate.RUnlock()
		handler.ServeHTTP(w, r)
	})
	s.ReadHeaderTimeout = headerTimeout
	s.IdleTimeout = idleTimeout
	s.MaxHeaderBytes = maxHeaderBytes
	frames := serveFrames(s)
	g, running := errgroup.WithContext(ctx)
	serve := func(s *http.Server, l net.Listener) {
		g.Go(func() error {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	serve(s, l)
	serve(frames.http, frames.conns)
	g.Go(func() error {
		<-running.Done()
		if errors.Is(context.Cause(ctx), errLeaseLost) {
			grace = 0
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		var ending errgroup.Group
		for _, s := range []*http.Server{s, frames.http} {
			ending.Go(func() error {
				if err := s.Shutdown(last); err != nil {
					s.Close() // abort the requests that are still in flight
				}
				return nil
			})
		}
		ending.Wait()
		gate.Lock()
		return nil
	})
	return g.Wait()
}

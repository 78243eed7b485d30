package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"service/webhook"
)

// The bounds of every HTTP server of this binary.
const (
	headerTimeout  = 10 * time.Second // a TLS handshake, and the header of a request
	idleTimeout    = 2 * time.Minute  // between two requests of a connection
	maxHeaderBytes = 64 << 10         // well above what package api takes, so that it can say so itself

	// requestSlack is what a request may take beside its work: for its answer to be
	// read, before all.
	requestSlack = time.Minute
)

// newHTTPServer returns the server of the API and the admin UI. The connection of a
// client that is slow to send or to read is closed. A handler whose request or answer is a stream must
// lift the bounds, and set its own, with an http.ResponseController.
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
			SendPingTimeout:               30 * time.Second, // a client that has gone without a word
			PingTimeout:                   15 * time.Second,
			WriteByteTimeout:              30 * time.Second,
		},
	}
}

// closeAfterChunks ends the connection of HTTP/1 after a request with
// Transfer-Encoding. One that had a Content-Length as well, which net/http does not
// show, can hide a second request in its body from a proxy that believes the length
// (RFC 9112, section 6.1).
func closeAfterChunks(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
			w.Header().Set("Connection", "close")
		}
		handler.ServeHTTP(w, r)
	})
}

// The bounds of open connections of a listener.
const (
	MaxClientConnections  = 4096
	maxNetworkConnections = 1024 // of one network, if it is not this machine, where a proxy may be, nor a trusted proxy's
)

// boundedListener closes connections beyond its bounds as soon as they are
// made.
type boundedListener struct {
	net.Listener
	total, each int
	trusted     TrustedProxies // total alone counts for these
	logger      *slog.Logger

	mu     sync.Mutex
	open   int
	of     map[netip.Prefix]int // never 0
	warned time.Time            // when it was last logged that the total is reached
}

func newBoundedListener(l net.Listener, total, each int, trusted TrustedProxies, logger *slog.Logger) *boundedListener {
	return &boundedListener{Listener: l, total: total, each: each, trusted: trusted, logger: logger, of: make(map[netip.Prefix]int)}
}

// Accept returns the next connection that is within the bounds.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var from netip.Addr
		if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			from = a.AddrPort().Addr().Unmap()
		}
		if l.take(from) {
			return &boundedConn{Conn: c, release: sync.OnceFunc(func() { l.release(from) })}, nil
		}
		c.Close()
	}
}

func (l *boundedListener) take(from netip.Addr) bool {
	network := webhook.Network(from)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[network] >= l.each && !from.IsLoopback() && !l.trusted.Contains(from) {
		return false
	}
	if l.open >= l.total {
		if now := time.Now(); now.Sub(l.warned) >= time.Minute {
			l.warned = now
			l.logger.Warn("connections are refused: too many are open", "open", l.open)
		}
		return false
	}
	l.open++
	l.of[network]++
	return true
}

func (l *boundedListener) release(from netip.Addr) {
	network := webhook.Network(from)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.of[network]--; l.of[network] == 0 {
		delete(l.of, network)
	}
}

// boundedConn is a connection that counts until it is closed.
type boundedConn struct {
	net.Conn
	release func()
}

func (c *boundedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite lets net/http end an answer to a client that is still sending.
func (c *boundedConn) CloseWrite() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.CloseWrite()
	}
	return nil
}

// serverLog is the log of an http.Server. What it has to say of clients that
// fail at speaking TLS or HTTP/2 is for debuggers: anyone who scans a port would
// fill the log with it.
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

// Serve serves until ctx ends, then lets the requests under way end within
// grace and cuts off the rest. No handler runs any more when it returns.
func Serve(ctx context.Context, s *http.Server, l net.Listener, grace time.Duration) error {
	var gate sync.RWMutex // held by every handler that runs
	handler := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !gate.TryRLock() {
			panic(http.ErrAbortHandler) // it came just when all were cut off
		}
		defer gate.RUnlock()
		handler.ServeHTTP(w, r)
	})
	s.ReadHeaderTimeout = headerTimeout
	s.IdleTimeout = idleTimeout
	s.MaxHeaderBytes = maxHeaderBytes
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-running.Done()
		if errors.Is(context.Cause(ctx), errLeaseLost) {
			grace = 0
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if err := s.Shutdown(last); err != nil {
			s.Close() // what is still under way had its time
		}
		gate.Lock()
		return nil
	})
	return g.Wait()
}

// Package client makes attempts: one attempt is one HTTP request for a delivery. It
// is the only code that connects to receivers, the partners' servers.
//
// An attempt resolves the host, checks its addresses, connects, sends one signed
// HTTP/1.1 request, reads the response, and redacts the part that is stored. The
// package guarantees that:
//
//   - an attempt ends within its timeout, whatever the receiver does;
//   - it sends at most one request;
//   - it connects only to addresses that [webhook.Destinations] permits, and never
//     to an address that the service listens on (the egress guard);
//   - no secret of the request is stored with the response.
package client

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"service/webhook"
)

// Config configures a Client.
type Config struct {
	Timeout time.Duration // limit of one attempt, from before the DNS lookup to the end of the response
	MaxIdle int           // maximum number of idle connections, to all hosts together

	// Destinations are the addresses that may be called: the public internet and
	// what the operator permits in addition.
	Destinations webhook.Destinations
	// Own lists the addresses that the service listens on. They are always blocked,
	// even if Destinations permits them. An unspecified address (0.0.0.0, ::)
	// stands for its port on every address of this machine.
	Own []netip.AddrPort
	// AllowHTTP permits http:// URLs. Without it such attempts are blocked.
	AllowHTTP bool
	// RootCAs verify the servers' certificates; nil means the system's.
	RootCAs *x509.CertPool
	// MaySend is called immediately before bytes of a request are written. While it
	// returns false, because the service has lost its lease, nothing is written and
	// attempts are interrupted. nil means always true.
	MaySend func() bool
	// Logger logs panics in attempts; nil discards them.
	Logger *slog.Logger

	// Connect connects to an address that was checked. nil uses the operating
	// system, which checks the address again. Tests in a synctest bubble return one
	// end of a net.Pipe.
	Connect func(context.Context, netip.AddrPort) (net.Conn, error)
}

// Client makes attempts. It is safe for concurrent use.
//
// An attempt writes its request and reads the response in the caller's goroutine; only
// a large request takes a second one. The standard library only parses the response. An
// http.Transport would use two more goroutines per attempt, and may send a
// request twice. The client uses no proxy and follows no redirect.
type Client struct {
	timeout   time.Duration
	allowHTTP bool
	maySend   func() bool
	dialer    *dialer
	idle      *pool
	buffers   sync.Pool // of *[bufferSize]byte
	logger    *slog.Logger
}

// New returns a Client. It opens no connection before the first attempt.
func New(cfg *Config) *Client {
	c := &Client{
		timeout: cfg.Timeout, allowHTTP: cfg.AllowHTTP, dialer: newDialer(cfg.Destinations, cfg.RootCAs),
		idle: newPool(cfg.MaxIdle), maySend: cfg.MaySend, logger: cfg.Logger,
	}
	if c.maySend == nil {
		c.maySend = func() bool { return true }
	}
	c.dialer.own = cfg.Own
	if cfg.Connect != nil {
		c.dialer.connect = cfg.Connect
	}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	c.buffers.New = func() any { return new([bufferSize]byte) }
	return c
}

// CloseIdle closes the idle connections. Attempts in flight continue.
func (c *Client) CloseIdle() { c.idle.close() }

// Send makes one attempt and returns its result; a failure is an attempt, never an error. It
// ends within the client's timeout. The attempt is interrupted, and its connection closed,
// if ctx ends before the response, if MaySend returns false, or if the code panics, which is
// logged.
func (c *Client) Send(ctx context.Context, r *Request) webhook.Attempt { return c.Prepare(r).Send(ctx) }

// run makes the attempt and returns it with its result.
func (x *exchange) run(ctx context.Context) webhook.Attempt {
	c, r := x.Client, x.request
	a := webhook.Attempt{Number: r.Number, StartedAt: time.Now()}
	x.ctx, x.deadline, x.attempt = ctx, a.StartedAt.Add(c.timeout), &a
	err := x.do()
	if p, ok := errors.AsType[*panicError](err); ok {
		c.logger.Error("panic in an attempt", "delivery", r.DeliveryID, "panic", p.value, "stack", p.stack)
	}
	if err != nil && a.ResponseStatus == 0 {
		a.Error = x.classify(err)
		a.ErrorFact = x.fact(a.Error, err)
	} // otherwise the status alone determines the result
	a.Duration = time.Since(a.StartedAt)
	if a.Error == webhook.ErrorBlocked { // must not reveal how far the attempt got
		a.Phases = webhook.Phases{}
	}
	a.Result = webhook.Classify(a.ResponseStatus, a.Error)
	r.redact(&a)
	return a
}

// panicError is a panic that became the error of an attempt.
type panicError struct {
	value any
	stack string
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// recoverPanic turns a panic into the error of the function that defers it.
func recoverPanic(err *error) {
	if p := recover(); p != nil {
		*err = &panicError{p, string(debug.Stack())}
	}
}

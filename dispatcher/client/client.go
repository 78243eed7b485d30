// Package client makes the attempts of deliveries: it is the only code that
// connects to subscribers.
//
// One attempt resolves the host, checks its addresses, connects, sends one
// signed request by HTTP/1.1, reads the response, and redacts what is kept of
// it. The package guarantees that an attempt ends within its timeout, whatever
// the server at the other end does; that it sends at most one request; that it
// connects to no address outside [webhook.Destinations] and to none that the
// service itself listens on; and that no secret of the request is kept with the
// response.
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

// Config is how attempts are made.
type Config struct {
	Timeout time.Duration // of one attempt, from before the lookup of the host to the end of the response
	MaxIdle int           // connections kept open between attempts, to all hosts together

	// Destinations are the addresses outside the public internet that may be
	// called.
	Destinations webhook.Destinations
	// Own are the addresses that the service itself listens on. They are
	// refused, also where Destinations allows them. An unspecified one
	// (0.0.0.0, ::) is its port on every address of this machine.
	Own []netip.AddrPort
	// AllowHTTP permits http:// URLs. Without it an attempt to one is blocked.
	AllowHTTP bool
	// RootCAs verify the servers' certificates; nil is the system's.
	RootCAs *x509.CertPool
	// MaySend is asked immediately before bytes of a request are written. While it
	// returns false none are, and attempts are interrupted; nil is always true.
	MaySend func() bool
	// Logger gets the panics of attempts; nil discards them.
	Logger *slog.Logger

	// Connect makes one TCP connection to an address that was checked; nil
	// uses the operating system, which is told of the address only after a
	// second check. Tests in a synctest bubble return one end of a net.Pipe.
	Connect func(context.Context, netip.AddrPort) (net.Conn, error)
}

// Client makes attempts. It is safe for concurrent use.
//
// One attempt is at most one request on the wire, by HTTP/1.1. It is written
// and its response read by the attempt's own goroutine; the standard library
// parses the response. An http.Transport would hand each through two further
// goroutines, and may send a request twice. The client uses no proxy and
// follows no redirect.
type Client struct {
	timeout   time.Duration
	allowHTTP bool
	maySend   func() bool
	dialer    *dialer
	idle      *pool
	buffers   sync.Pool // of *[bufferSize]byte
	logger    *slog.Logger
}

// New returns a client. It opens no connection before the first attempt.
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

// CloseIdle closes the connections that are not in use. Attempts in flight go
// on.
func (c *Client) CloseIdle() { c.idle.close() }

// Send makes one attempt and returns its outcome. Whatever the receiver does,
// that is an attempt and never an error, and it ends within the client's
// timeout. When ctx ends before there is a response, the attempt is
// interrupted: its connection is closed at once. So it is when nothing may be
// sent, and by a panic, which is logged.
func (c *Client) Send(ctx context.Context, r *Request) webhook.Attempt { return c.Prepare(r).Send(ctx) }

func (x *exchange) run(ctx context.Context) webhook.Attempt {
	c, r := x.Client, x.request
	a := webhook.Attempt{Number: r.Number, StartedAt: time.Now()}
	x.ctx, x.until, x.attempt = ctx, a.StartedAt.Add(c.timeout), &a
	err := x.do()
	if p, ok := errors.AsType[*panicError](err); ok {
		c.logger.Error("panic in an attempt", "delivery", r.DeliveryID, "panic", p.value, "stack", p.stack)
	}
	if err != nil && a.ResponseStatus == 0 {
		a.Error = x.classify(err)
		a.ErrorFact = x.fact(a.Error, err)
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

// recoverPanic turns a panic into the error of the function that defers it.
func recoverPanic(err *error) {
	if p := recover(); p != nil {
		*err = &panicError{p, string(debug.Stack())}
	}
}

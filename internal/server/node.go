package server

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"service/internal/certs"
	"service/store"
)

// teardownLimit limits how long a node that has lost the lease may take to close everything.
const teardownLimit = 10 * time.Second

// errTeardown means that a node that has lost the lease could not close everything in time.
var errTeardown = errors.New("the lease is lost, and the service did not stop within 10 s; exiting immediately")

// Roles contains callbacks for when a node takes a role.
type Roles struct {
	// Primary is called before the server serves. An error ends the node.
	Primary func(ctx context.Context, s *Server) error
	Standby func(b *Standby)
}

// Run runs a node until ctx ends. Without a lease the node is the primary from the start. With a
// lease it is a standby until it acquires the lease, and again after losing it.
//
// Errors about the secret key wrap [store.ErrKey].
func Run(ctx context.Context, cfg *Config, roles Roles) error {
	if cfg.Lease == 0 {
		s, err := Open(ctx, cfg)
		if err != nil {
			return startError(ctx, err)
		}
		return serve(ctx, s, roles)
	}
	if err := cfg.checkPorts(ctx); err != nil {
		return startError(ctx, err)
	}
	for wait := time.Duration(0); ; wait = lockWait {
		s, err := standBy(ctx, cfg, wait, roles)
		if err == nil {
			if s == nil {
				return nil
			}
			err = serveLeased(ctx, s, roles)
		} else if !errors.Is(err, errLeaseLost) {
			return startError(ctx, err)
		}
		if !errors.Is(err, errLeaseLost) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		cfg.Logger.Warn("this node is not the primary any more; starting as a standby", "error", err)
	}
}

// startError returns err, or nil after a signal. A signal during startup makes the current step
// fail, and counts as a normal shutdown.
func startError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// serve runs a server until ctx ends.
func serve(ctx context.Context, s *Server, roles Roles) error {
	if err := roles.Primary(ctx, s); err != nil {
		s.Close()
		return startError(ctx, err)
	}
	return s.Run(ctx)
}

// serveLeased is serve for a server with a lease. It returns an error that wraps errLeaseLost
// once everything is closed after the loss of the lease, or errTeardown if that takes too long.
func serveLeased(ctx context.Context, s *Server, roles Roles) error {
	return limitTeardown(s.lost, func() error { return serve(ctx, s, roles) })
}

// limitTeardown returns the error of run, which must return within teardownLimit after lost is
// closed. Otherwise the error is errTeardown, run continues, and the process must end.
func limitTeardown(lost <-chan struct{}, run func() error) error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	select {
	case err := <-done:
		return err
	case <-lost:
	}
	limit := time.NewTimer(teardownLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return errTeardown
	}
}

// lockWait limits how long a node that changes its role waits for a command that has locked the
// data directory.
const lockWait = 30 * time.Second

// retryLocked calls open again for up to wait while another process has locked the data directory.
// The directory is unlocked for a moment when a node changes its role, so a command such as token
// list may lock it.
func retryLocked[T any](ctx context.Context, wait time.Duration, open func() (T, error)) (T, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(wait); ; {
		opened, err := open()
		if !errors.Is(err, store.ErrLocked) || time.Now().After(deadline) {
			return opened, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return opened, ctx.Err()
		}
	}
}

// standBy follows the primary until this node acquires the lease. It returns the opened server, or
// nil if ctx ends first. wait is how long a command may keep the data directory locked.
func standBy(ctx context.Context, cfg *Config, wait time.Duration, roles Roles) (*Server, error) {
	b, err := retryLocked(ctx, wait, func() (*Standby, error) { return openStandby(ctx, cfg) })
	if err != nil {
		return nil, err
	}
	cfg.keepPort(b.public, b.plain)
	roles.Standby(b)
	return b.run(ctx)
}

// keepPort makes a node that listens on any free port keep its port in every role.
func (cfg *Config) keepPort(public, plain net.Listener) {
	for _, l := range []struct {
		address  *string
		listener net.Listener
	}{{&cfg.Listen, public}, {&cfg.HTTPListen, plain}} {
		if host, port, _ := net.SplitHostPort(*l.address); port == "0" && l.listener != nil {
			_, port, _ = net.SplitHostPort(l.listener.Addr().String())
			*l.address = net.JoinHostPort(host, port)
		}
	}
}

// listeners are what clients connect to, in both roles of a node, with their certificates.
type listeners struct {
	cfg          *Config
	public       net.Listener   // for HTTPS, or plain HTTP without TLS
	plain        net.Listener   // for plain HTTP, nil for none
	certificates *certs.Manager // nil without TLS
	localURL     string         // of the public listener, without a trailing slash
}

// open opens the listeners. If there are domains, it calls domains to complete the configuration of
// their certificates.
func (l *listeners) open(ctx context.Context, domains func(*certs.Config)) (err error) {
	cfg := l.cfg
	if l.public, l.plain, err = cfg.listen(ctx); err != nil {
		return err
	}
	l.localURL = "http://" + reachableAt(l.public.Addr(), cfg.host())
	if !cfg.TLS {
		return nil
	}
	ca, err := certs.OpenCA(cfg.Dir, time.Now())
	if err != nil {
		return err
	}
	cc := certs.Config{
		Hosts: certs.ServerNames(cfg.host()), CA: ca,
		TLSAddr: l.public.Addr(), CheckInterval: cfg.certificateCheck, Logger: cfg.Logger,
	}
	if len(cfg.Domains) > 0 {
		cc.Domains, cc.Issuer = cfg.Domains, cfg.ACMECA
		domains(&cc)
	}
	cc.Hosts = cfg.certifiable(ca, cc.Hosts)
	if l.certificates, err = certs.New(cc); err != nil {
		return err
	}
	l.public = l.certificates.Listen(l.public)
	l.localURL = strings.Replace(l.localURL, "http:", "https:", 1)
	return nil
}

// certifiable returns the hosts that the local CA can certify, and logs the others.
func (cfg *Config) certifiable(ca *certs.CA, hosts []string) []string {
	return slices.DeleteFunc(hosts, func(host string) bool {
		allowed := ca.Allows(host)
		if !allowed {
			cfg.Logger.Warn("local CA cannot certify this name, leaving it out of the certificate; "+
				"to create a new CA, remove ca.pem and ca.key and give the new ca.pem to the clients", "name", host)
		}
		return !allowed
	})
}

// close closes what open has opened.
func (l *listeners) close() {
	if l.certificates != nil {
		l.certificates.Close()
	}
	for _, one := range []net.Listener{l.public, l.plain} {
		if one != nil {
			one.Close()
		}
	}
}

package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"service/webhook"
)

const (
	// attemptDelay is how long an address is tried alone before the next is tried in parallel
	// (Happy Eyeballs, RFC 8305, section 5). So a host with one dead address still responds
	// within an attempt's timeout.
	attemptDelay = 250 * time.Millisecond
	// maxDialed is how many addresses of a host are tried. All of them are checked,
	// but a DNS answer with hundreds must not become a port scan.
	maxDialed = 6
	// maxHandshake limits the bytes read from a server during the TLS handshake,
	// before it is authenticated. Certificate chains are a few thousand bytes; the TLS
	// library would accept 256 KiB. At most maxLongHandshakes servers at once may
	// exceed longHandshake, so stalled handshakes cannot fill the memory.
	maxHandshake      = 64 << 10
	longHandshake     = 16 << 10
	maxLongHandshakes = 32
)

// errBlocked is the cause of a dialError with webhook.ErrorBlocked, or with webhook.ErrorDNS for
// a name with a forbidden address.
var errBlocked = errors.New("address is not an allowed destination")

// Reasons other than the address itself.
var (
	errPlainHTTP = fmt.Errorf("%w: plain HTTP", errBlocked)
	errOwn       = fmt.Errorf("%w: the service listens there", errBlocked)
)

// dialError is the reason why a dial failed, as recorded for an attempt. The cause is for
// tests and debugging; it is never shown or logged.
type dialError struct {
	code  webhook.ErrorCode
	cause error
}

func (e *dialError) Error() string { return string(e.code) + ": " + e.cause.Error() }
func (e *dialError) Unwrap() error { return e.cause }

// dialer connects to receivers. It is the egress guard: it checks every address of
// a DNS answer before it dials one, rejects the whole answer if one address is
// forbidden, and checks again when the socket connects. An address is forbidden if
// destinations does not permit it or if the service listens there. The check is
// here because only here names have become addresses.
//
// A forbidden address in the URL itself is blocked. A name with a forbidden address fails
// like a name that does not exist: otherwise a partner could find out which names exist in
// the operator's network.
//
// It has no timeout of its own: a dial ends with its context.
type dialer struct {
	destinations   webhook.Destinations
	own            []netip.AddrPort // see Config
	resolver       *net.Resolver    // Go's resolver, never the C library's
	tls            *tls.Config      // cloned for each connection, to set ServerName
	longHandshakes chan struct{}    // semaphore: one value per handshake longer than longHandshake

	// connect makes one TCP connection to a checked address. Tests in a synctest
	// bubble replace it with a net.Pipe.
	connect func(context.Context, netip.AddrPort) (net.Conn, error)
}

// newDialer returns a dialer that verifies certificates with roots, nil for the
// system's.
func newDialer(destinations webhook.Destinations, roots *x509.CertPool) *dialer {
	d := &dialer{
		destinations: destinations,
		resolver:     &net.Resolver{PreferGo: true},
		tls: &tls.Config{
			RootCAs:    roots,
			MinVersion: tls.VersionTLS12,
			NextProtos: []string{"http/1.1"},
		},
		longHandshakes: make(chan struct{}, maxLongHandshakes),
	}
	d.connect = d.connectTCP
	return d
}

// dialTCP connects to address, a host name or IP address with a port. Every error
// is a *dialError.
func (d *dialer) dialTCP(ctx context.Context, address string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &dialError{webhook.ErrorConnect, err}
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, &dialError{webhook.ErrorConnect, err}
	}
	durations, began := phasesOf(ctx), time.Now()
	addrs, err := d.resolve(ctx, host)
	_, literal := netip.ParseAddr(host)
	named := literal != nil && webhook.Loopback(host) == nil // DNS or the hosts file was asked
	if literal != nil {
		durations.dns = time.Since(began)
	}
	if err != nil {
		return nil, classifyDial(ctx, err, webhook.ErrorDNS, named)
	}
	for _, a := range addrs {
		if d.isOwn(netip.AddrPortFrom(a, uint16(port))) {
			return nil, classifyDial(ctx, errOwn, webhook.ErrorConnect, named)
		}
	}
	began = time.Now()
	conn, err := d.connectAny(ctx, addrs, uint16(port))
	if !errors.Is(err, errBlocked) { // otherwise nothing was dialed
		durations.connect = time.Since(began)
	}
	if err != nil {
		return nil, classifyDial(ctx, err, webhook.ErrorConnect, named)
	}
	return conn, nil
}

// dialTLS is dialTCP with a TLS handshake that verifies the host in address.
func (d *dialer) dialTLS(ctx context.Context, address string) (net.Conn, error) {
	conn, err := d.dialTCP(ctx, address)
	if err != nil {
		return nil, err
	}
	secured := false
	defer func() {
		if !secured { // even after a panic
			conn.Close()
		}
	}()
	config := d.tls.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address) // dialTCP has parsed it
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		phasesOf(ctx).clientCert = true
		return new(tls.Certificate), nil // none
	}
	limited := &handshakeConn{Conn: conn, semaphore: d.longHandshakes}
	defer limited.end()
	secure := tls.Client(limited, config)
	began := time.Now()
	err = secure.HandshakeContext(ctx)
	phasesOf(ctx).tls = time.Since(began)
	if err != nil {
		return nil, classifyDial(ctx, err, webhook.ErrorTLS, false)
	}
	secured = true
	return secure, nil
}

// handshakeConn is a connection that reads at most maxHandshake bytes until end is
// called. Read and end must not be called concurrently.
type handshakeConn struct {
	net.Conn
	semaphore chan struct{} // dialer.longHandshakes
	received  int           // bytes
	acquired  bool          // holds a value in semaphore
	done      bool          // end was called
}

var errLongHandshake = errors.New("TLS handshake too long")

func (c *handshakeConn) Read(p []byte) (int, error) {
	if c.done {
		return c.Conn.Read(p)
	}
	most := longHandshake
	if c.received >= longHandshake {
		if !c.acquired {
			select {
			case c.semaphore <- struct{}{}:
				c.acquired = true
			default:
				return 0, errLongHandshake
			}
		}
		most = maxHandshake
	}
	if c.received == most {
		return 0, errLongHandshake
	}
	n, err := c.Conn.Read(p[:min(len(p), most-c.received)])
	c.received += n
	return n, err
}

// end ends the handshake, whether it succeeded or not.
func (c *handshakeConn) end() {
	c.done = true
	if c.acquired {
		<-c.semaphore
	}
}

// classifyDial wraps err in a *dialError. The code is ErrorTimeout if the deadline is the
// reason; for a forbidden address it is ErrorDNS if the host is a name, else ErrorBlocked;
// for other errors it is otherwise, the code of the phase that failed.
func classifyDial(ctx context.Context, err error, otherwise webhook.ErrorCode, named bool) error {
	// The socket has its own clock for the same deadline and can be ahead of the
	// context.
	deadline, bounded := ctx.Deadline()
	switch {
	case errors.Is(err, errBlocked) && named:
		return &dialError{webhook.ErrorDNS, err}
	case errors.Is(err, errBlocked):
		return &dialError{webhook.ErrorBlocked, err}
	case ctx.Err() != nil, bounded && !time.Now().Before(deadline):
		return &dialError{webhook.ErrorTimeout, err}
	}
	return &dialError{otherwise, err}
}

// isOwn reports whether a connection to this address and port could reach the
// service itself.
func (d *dialer) isOwn(to netip.AddrPort) bool {
	return slices.ContainsFunc(d.own, func(own netip.AddrPort) bool {
		return to.Port() == own.Port() && reaches(to.Addr().Unmap(), own.Addr().Unmap().WithZone(""))
	})
}

// reaches reports whether a connection to the address to, which is not IPv4-mapped,
// may reach a listener on this machine.
func reaches(to, listener netip.Addr) bool {
	if webhook.Reaches(to, listener) {
		return true
	}
	if !listener.IsUnspecified() {
		return false
	}
	// Addresses change while the service runs, so they are queried each time, but
	// only for the listener's port.
	local, err := net.InterfaceAddrs()
	if err != nil {
		return true // unknown: assume that it may
	}
	return slices.ContainsFunc(local, func(l net.Addr) bool {
		n, ok := l.(*net.IPNet)
		if !ok {
			return false
		}
		a, _ := netip.AddrFromSlice(n.IP)
		return a.Unmap() == to
	})
}

// resolve returns the addresses of a host: at least one, all of them permitted,
// none IPv4-mapped.
func (d *dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		if !d.destinations.Allows(a) {
			return nil, errBlocked
		}
		return []netip.Addr{a.Unmap()}, nil
	}
	if loopback := webhook.Loopback(host); loopback != nil {
		// DNS is not asked: an operator who permits only 127.0.0.1 wants localhost to
		// resolve to it.
		blocked := func(a netip.Addr) bool { return !d.destinations.Allows(a) }
		allowed := slices.DeleteFunc(loopback, blocked)
		if len(allowed) == 0 {
			return nil, errBlocked
		}
		return allowed, nil
	}

	// The trailing dot keeps the resolver from trying this machine's search domains. Names in
	// the hosts file are found with it too.
	if !strings.HasSuffix(host, ".") {
		host += "."
	}
	addrs, err := d.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if err := d.checkAnswer(ctx, host, addrs); err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, errors.New("host has no address")
	}
	return interleave(addrs), nil
}

// checkAnswer returns an error unless all addresses of a DNS answer are permitted.
// It replaces IPv4-mapped addresses by IPv4 addresses.
//
// Go's resolver returns IPv4 addresses from the hosts file as IPv4-mapped, like an AAAA
// record that contains one. Only the addresses from the hosts file are in an IPv4-only
// answer as well; they are checked as IPv4 addresses.
func (d *dialer) checkAnswer(ctx context.Context, host string, addrs []netip.Addr) error {
	var ipv4 []netip.Addr // the IPv4-only answer, once requested
	for i, a := range addrs {
		if a.Is4In6() && !d.destinations.Allows(a) {
			if ipv4 == nil {
				var err error
				if ipv4, err = d.resolver.LookupNetIP(ctx, "ip4", host); err != nil {
					return fmt.Errorf("%w: %s", errBlocked, a)
				}
			}
			if slices.ContainsFunc(ipv4, func(p netip.Addr) bool { return p.Unmap() == a.Unmap() }) {
				a = a.Unmap()
			}
		}
		if !d.destinations.Allows(a) {
			return fmt.Errorf("%w: %s", errBlocked, a)
		}
		addrs[i] = a.Unmap()
	}
	return nil
}

// interleave alternates the addresses of both families and otherwise keeps their
// order, so a network without working IPv6 costs one attemptDelay.
func interleave(addrs []netip.Addr) []netip.Addr {
	first, second := make([]netip.Addr, 0, len(addrs)), []netip.Addr(nil)
	for _, a := range addrs {
		if a.Is4() == addrs[0].Is4() {
			first = append(first, a)
		} else {
			second = append(second, a)
		}
	}
	mixed := make([]netip.Addr, 0, len(addrs))
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			mixed = append(mixed, first[i])
		}
		if i < len(second) {
			mixed = append(mixed, second[i])
		}
	}
	return mixed
}

// connectAny connects to the address that responds first (Happy Eyeballs). The next
// address is tried after attemptDelay, or as soon as one fails. If all fail, it
// returns the first error. It leaves no connection or goroutine behind.
func (d *dialer) connectAny(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, error) {
	addrs = addrs[:min(len(addrs), maxDialed)]
	if len(addrs) == 1 {
		return d.connect(ctx, netip.AddrPortFrom(addrs[0], port))
	}
	ctx, cancel := context.WithCancel(ctx)
	type outcome struct {
		conn net.Conn
		err  error
	}
	outcomes := make(chan outcome)
	pending := 0
	defer func() {
		cancel()
		for ; pending > 0; pending-- {
			if o := <-outcomes; o.conn != nil {
				o.conn.Close() // connected, but too late
			}
		}
	}()
	next := time.NewTimer(attemptDelay)
	defer next.Stop()

	var first error
	for len(addrs) > 0 || pending > 0 {
		var start <-chan time.Time
		if len(addrs) > 0 {
			a := netip.AddrPortFrom(addrs[0], port)
			addrs = addrs[1:]
			pending++
			go func() {
				var o outcome
				defer func() { outcomes <- o }()
				defer recoverPanic(&o.err)
				o.conn, o.err = d.connect(ctx, a)
			}()
			next.Reset(attemptDelay)
			if len(addrs) > 0 {
				start = next.C
			}
		}
		select {
		case <-start:
		case o := <-outcomes:
			pending--
			if o.err == nil {
				return o.conn, nil
			}
			if first == nil {
				first = o.err
			}
		}
	}
	return nil, first
}

// connectTCP makes one connection. It checks the address once more at the last
// moment, in the socket's control function.
func (d *dialer) connectTCP(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
	nd := net.Dialer{Control: func(network, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !strings.HasPrefix(network, "tcp") || !d.destinations.Allows(to.Addr()) || d.isOwn(to) {
			return errBlocked
		}
		return nil
	}}
	return nd.DialContext(ctx, "tcp", a.String())
}

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
	// headStart is how long an address is tried alone before the next one is
	// tried beside it (RFC 8305, section 5), so that a host with one dead
	// address still answers well within an attempt's time.
	headStart = 250 * time.Millisecond
	// maxDialled is how many addresses of one host are tried. All of them are
	// judged; but an answer of hundreds is not a list of ports to knock on.
	maxDialled = 6
	// maxHandshake is how much a server may say before it is trusted, in
	// bytes. A chain of certificates has a few thousand; the library would keep
	// a quarter of a million. What is longer than longHandshake is heard of
	// maxLongHandshakes servers at once, so that silence in the midst of one
	// is not a way to fill the memory.
	maxHandshake      = 64 << 10
	longHandshake     = 16 << 10
	maxLongHandshakes = 32
)

// errBlocked is the cause of a dialError of webhook.ErrorBlocked.
var errBlocked = errors.New("address is not an allowed destination")

// Those of its reasons that are not the address itself.
var (
	errPlainHTTP = fmt.Errorf("%w: plain HTTP", errBlocked)
	errOwn       = fmt.Errorf("%w: the service listens there", errBlocked)
)

// dialError is the reason why there is no connection, as an attempt knows it.
// The cause is for tests and debuggers; it is never shown or logged.
type dialError struct {
	code  webhook.ErrorCode
	cause error
}

func (e *dialError) Error() string { return string(e.code) + ": " + e.cause.Error() }
func (e *dialError) Unwrap() error { return e.cause }

// dialer makes the connections that deliveries travel on, and none to an
// address that destinations does not allow, or where the service itself
// listens: every address of a DNS answer is judged before one is dialled, one
// forbidden address refuses the answer, and the operating system is stopped
// short of any other address. It is the only guard that counts, since it
// stands where names have become addresses.
//
// There is no timeout of its own: a dial ends with the context.
type dialer struct {
	destinations webhook.Destinations
	own          []netip.AddrPort // as in Config
	resolver     *net.Resolver    // Go's own, never the C library's
	tls          *tls.Config      // cloned for each connection; ServerName is set
	long         chan struct{}    // holds a value for each handshake that is long

	// connect makes one TCP connection to a judged address. Tests within a
	// synctest bubble put a net.Pipe here.
	connect func(context.Context, netip.AddrPort) (net.Conn, error)
}

// newDialer returns a dialer that verifies certificates by roots, or by the
// system's when roots is nil.
func newDialer(destinations webhook.Destinations, roots *x509.CertPool) *dialer {
	d := &dialer{
		destinations: destinations,
		resolver:     &net.Resolver{PreferGo: true},
		tls: &tls.Config{
			RootCAs:    roots,
			MinVersion: tls.VersionTLS12,
			NextProtos: []string{"http/1.1"},
		},
		long: make(chan struct{}, maxLongHandshakes),
	}
	d.connect = d.connectTCP
	return d
}

// dialTCP connects to address, a host or literal address with a port. Every
// error is a *dialError.
func (d *dialer) dialTCP(ctx context.Context, address string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &dialError{webhook.ErrorConnect, err}
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, &dialError{webhook.ErrorConnect, err}
	}
	took, began := phasesOf(ctx), time.Now()
	addrs, err := d.resolve(ctx, host)
	if _, literal := netip.ParseAddr(host); literal != nil {
		took.dns = time.Since(began)
	}
	if err != nil {
		return nil, classDial(ctx, err, webhook.ErrorDNS)
	}
	for _, a := range addrs {
		if d.isOwn(netip.AddrPortFrom(a, uint16(port))) {
			return nil, classDial(ctx, errOwn, webhook.ErrorConnect)
		}
	}
	began = time.Now()
	conn, err := d.connectAny(ctx, addrs, uint16(port))
	took.connect = time.Since(began)
	if err != nil {
		return nil, classDial(ctx, err, webhook.ErrorConnect)
	}
	return conn, nil
}

// dialTLS is dialTCP with a TLS handshake, verified for the host in address.
func (d *dialer) dialTLS(ctx context.Context, address string) (net.Conn, error) {
	conn, err := d.dialTCP(ctx, address)
	if err != nil {
		return nil, err
	}
	secured := false
	defer func() {
		if !secured { // also after a panic
			conn.Close()
		}
	}()
	config := d.tls.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address) // dialTCP has read it
	shaking := &handshakeConn{Conn: conn, long: d.long}
	defer shaking.end()
	secure := tls.Client(shaking, config)
	began := time.Now()
	err = secure.HandshakeContext(ctx)
	phasesOf(ctx).tls = time.Since(began)
	if err != nil {
		return nil, classDial(ctx, err, webhook.ErrorTLS)
	}
	secured = true
	return secure, nil
}

// handshakeConn is a connection that hears no more than maxHandshake bytes
// until end is called. Its Read and end are not for concurrent use.
type handshakeConn struct {
	net.Conn
	long  chan struct{}
	heard int
	held  bool // a place in long
	ended bool
}

var errLongHandshake = errors.New("the handshake is too long")

func (c *handshakeConn) Read(p []byte) (int, error) {
	if c.ended {
		return c.Conn.Read(p)
	}
	most := longHandshake
	if c.heard >= longHandshake {
		if !c.held {
			select {
			case c.long <- struct{}{}:
				c.held = true
			default:
				return 0, errLongHandshake
			}
		}
		most = maxHandshake
	}
	if c.heard == most {
		return 0, errLongHandshake
	}
	n, err := c.Conn.Read(p[:min(len(p), most-c.heard)])
	c.heard += n
	return n, err
}

// end ends the handshake, however it went.
func (c *handshakeConn) end() {
	c.ended = true
	if c.held {
		<-c.long
	}
}

// classDial wraps an error of the phase that otherwise names.
func classDial(ctx context.Context, err error, otherwise webhook.ErrorCode) error {
	// A socket has a clock of its own for the same deadline, and can be ahead
	// of the context's.
	deadline, bounded := ctx.Deadline()
	switch {
	case errors.Is(err, errBlocked):
		return &dialError{webhook.ErrorBlocked, err}
	case ctx.Err() != nil, bounded && !time.Now().Before(deadline):
		return &dialError{webhook.ErrorTimeout, err}
	}
	return &dialError{otherwise, err}
}

// isOwn says whether a connection to the address and port could arrive at the
// service itself.
func (d *dialer) isOwn(to netip.AddrPort) bool {
	return slices.ContainsFunc(d.own, func(own netip.AddrPort) bool {
		return to.Port() == own.Port() && reaches(to.Addr().Unmap(), own.Addr().Unmap().WithZone(""))
	})
}

// reaches says whether a connection to the address to, which is not
// IPv4-mapped, may arrive at a listener on the address of this machine.
func reaches(to, listener netip.Addr) bool {
	if webhook.Reaches(to, listener) {
		return true
	}
	if !listener.IsUnspecified() {
		return false
	}
	// Addresses come and go while the service runs, so they are asked for
	// each time; it is done for the listener's port alone.
	local, err := net.InterfaceAddrs()
	if err != nil {
		return true // not known: no
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

// resolve returns the addresses of a host, all of them allowed, none
// IPv4-mapped, at least one.
func (d *dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		if !d.destinations.Allows(a) {
			return nil, errBlocked
		}
		return []netip.Addr{a.Unmap()}, nil
	}
	if loopback := webhook.Loopback(host); loopback != nil {
		// No name server decides this: an operator who allows only 127.0.0.1
		// means localhost to resolve to it.
		blocked := func(a netip.Addr) bool { return !d.destinations.Allows(a) }
		allowed := slices.DeleteFunc(loopback, blocked)
		if len(allowed) == 0 {
			return nil, errBlocked
		}
		return allowed, nil
	}

	// A name with a dot is fully qualified, and is not looked up under the
	// search domains of this machine too: the partner means the host that the
	// rest of the world means. A name of one label is the operator's own.
	if strings.Contains(host, ".") && !strings.HasSuffix(host, ".") {
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
		return nil, errors.New("the name has no address")
	}
	return alternate(addrs), nil
}

// checkAnswer returns an error unless all addresses of a DNS answer are allowed.
// It replaces IPv4-mapped ones by the IPv4 addresses that they stand for.
//
// The resolver renders the IPv4 addresses of the hosts file as IPv4-mapped, like
// an AAAA record that is one. Only the first kind is in an answer for IPv4 alone,
// and is checked as the IPv4 address.
func (d *dialer) checkAnswer(ctx context.Context, host string, addrs []netip.Addr) error {
	var ipv4 []netip.Addr // the answer for IPv4 alone, once it was asked for
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

// alternate puts the addresses of both families in turn, in their order else,
// so that a network without a working IPv6 costs one head start.
func alternate(addrs []netip.Addr) []netip.Addr {
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

// connectAny connects to the address that answers first. Each is given a head
// start on the next, which ends early when it fails. Of several errors the
// first is returned. No connection or goroutine is left behind.
func (d *dialer) connectAny(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, error) {
	addrs = addrs[:min(len(addrs), maxDialled)]
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
				o.conn.Close() // a good one, but late
			}
		}
	}()
	next := time.NewTimer(headStart)
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
			next.Reset(headStart)
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

// connectTCP makes one connection, and judges the address once more at the
// last moment there is: when the operating system is about to be told of it.
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

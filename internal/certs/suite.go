package certs

import (
	"crypto/tls"
	"net"
	"slices"
)

// Listen returns a listener for TLS connections on l.
func (c *Manager) Listen(l net.Listener) net.Listener {
	return tls.NewListener(helloListener{l}, c.tlsConfig())
}

// helloListener accepts connections on which preferAES256 can choose.
type helloListener struct{ net.Listener }

// Accept implements [net.Listener].
func (l helloListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &helloConn{Conn: c}, nil
}

// helloConn is the connection below a TLS connection. crypto/tls does not write to it concurrently,
// nor before GetConfigForClient has returned.
type helloConn struct {
	net.Conn
	restore func() // called before the next Write; nil for nothing
}

// Write implements [net.Conn].
func (c *helloConn) Write(b []byte) (int, error) {
	if c.restore != nil {
		c.restore()
		c.restore = nil
	}
	return c.Conn.Write(b)
}

// preferAES256 makes crypto/tls choose AES-256-GCM for a client that offers it with TLS 1.3, whose
// suites cannot be configured. It is a GetConfigForClient that returns no configuration.
//
// crypto/tls picks from the slice in hello, so preferAES256 replaces the other suites there. The
// choice is made before the server's first message. If that is a HelloRetryRequest, the client
// repeats its suites and crypto/tls compares them with the slice, so restore puts them back before.
// None of this is documented: where it does not hold, crypto/tls uses its own preference. See
// docs/decisions/0034-aes-256-where-possible.md.
func preferAES256(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	c, ok := hello.Conn.(*helloConn)
	if !ok || !slices.Contains(hello.SupportedVersions, tls.VersionTLS13) ||
		!slices.Contains(hello.CipherSuites, tls.TLS_AES_256_GCM_SHA384) {
		return nil, nil
	}
	suites, offered := hello.CipherSuites, slices.Clone(hello.CipherSuites)
	for i, suite := range suites {
		if suite == tls.TLS_AES_128_GCM_SHA256 || suite == tls.TLS_CHACHA20_POLY1305_SHA256 {
			suites[i] = tls.TLS_AES_256_GCM_SHA384
		}
	}
	c.restore = func() { copy(suites, offered) }
	return nil, nil
}

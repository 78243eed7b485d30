package cli

import (
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/idna"

	"service/internal/certs"
	"service/internal/server"
)

// The addresses that --listen and --http-listen stand for when they are auto.
const (
	localListen  = "127.0.0.1:8443"
	domainListen = ":443"
	plainListen  = ":80" // with a domain
)

// maxDomains bounds how many names have certificates of their own.
const maxDomains = 100

// httpsSettings reads the flags of serve for its addresses, HTTPS and certificates.
func (f *configErrors) httpsSettings(c *serveFlags, s *server.Config) {
	for _, name := range c.Domain {
		if domain := f.domain("domain", name); domain != "" && !slices.Contains(s.Domains, domain) {
			s.Domains = append(s.Domains, domain)
		}
	}
	if len(s.Domains) > maxDomains {
		f.add("domain", "must be at most %d names, not %d", maxDomains, len(s.Domains))
	}
	if s.Listen = c.Listen; s.Listen == "auto" {
		s.Listen = localListen
		if len(c.Domain) > 0 {
			s.Listen = domainListen
		}
	}
	host := f.address("listen", s.Listen)
	f.issuer(c, s)
	f.httpListen(c, s)
	if !s.TLS {
		f.withoutTLS(c, s.Listen, host)
	}
}

// issuer reads the flags for the ACME issuer.
func (f *configErrors) issuer(c *serveFlags, s *server.Config) {
	const unused = "is for the certificates of --domain, and there is none"
	s.ACMEEmail, s.ACMECA = c.ACMEEmail, c.ACMECA
	if c.ACMEEmail != "" {
		if a, err := mail.ParseAddress(c.ACMEEmail); err != nil || a.Address != c.ACMEEmail {
			f.add("acme-email", "must be an address such as admin@example.com, not %q", c.ACMEEmail)
		}
		if len(c.Domain) == 0 {
			f.add("acme-email", unused)
		}
	}
	if u, err := url.Parse(c.ACMECA); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		f.add("acme-ca", "must be the https URL of an ACME directory, such as https://acme-v02.api.letsencrypt.org/directory")
	}
	if c.ACMECARoot != "" {
		var err error
		if s.ACMERoots, err = certs.ReadPool(c.ACMECARoot); err != nil {
			f.add("acme-ca-root", "%v", err)
		}
		if len(c.Domain) == 0 {
			f.add("acme-ca-root", unused)
		}
	}
	for _, domain := range s.Domains {
		if c.ACMECA == certs.LetsEncrypt && !certs.IsPublicName(domain) {
			f.add("domain", "%s is no name on the internet, for which a public issuer could vouch; --acme-ca names one of your own", domain)
		}
	}
}

// httpListen reads the address for plain HTTP.
func (f *configErrors) httpListen(c *serveFlags, s *server.Config) {
	switch c.HTTPListen {
	case "off":
	case "auto":
		if len(c.Domain) > 0 {
			s.HTTPListen = plainListen
		}
	default:
		s.HTTPListen = c.HTTPListen
		f.address("http-listen", c.HTTPListen)
		if _, port, err := net.SplitHostPort(c.HTTPListen); err == nil && port != "0" && c.HTTPListen == s.Listen {
			f.add("http-listen", "is the same address as --listen; HTTPS and plain HTTP need one each")
		}
	}
}

// withoutTLS checks the flags that go with --tls off, where host is that of the
// listen address.
func (f *configErrors) withoutTLS(c *serveFlags, listen, host string) {
	if len(c.Domain) > 0 {
		f.add("tls", "off cannot be with --domain, whose certificates would be for nobody; leave one of the two out")
	}
	if c.HTTPListen != "auto" && c.HTTPListen != "off" {
		f.add("http-listen", "leads to HTTPS, and there is none with --tls off")
	}
	if len(c.TrustedProxy) > 0 {
		return // the server refuses clients that come past the proxy
	}
	if host != "" && !onLoopback(host) {
		f.add("tls", "off would send tokens unencrypted, and so needs a loopback address to listen on, such as 127.0.0.1:8080, or --trusted-proxy, not %q", listen)
	}
	if host == "" && strings.HasPrefix(listen, ":") {
		f.add("tls", "off would send tokens unencrypted, and so needs a loopback address to listen on, such as 127.0.0.1%s, or --trusted-proxy, not %[1]q", listen)
	}
}

// domain reads a name of the service as it stands in a certificate: in lower
// case and in ASCII.
func (f *configErrors) domain(flag, s string) string {
	name, err := idna.Lookup.ToASCII(strings.TrimSuffix(s, "."))
	_, ip := netip.ParseAddr(s)
	if err != nil || name == "" || ip == nil || len(name) > 253 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" {
		f.add(flag, "must be a name such as hooks.example.com, without a scheme, a port or a path, not %q", s)
		return ""
	}
	if name == certs.LocalName || strings.HasSuffix(name, "."+certs.LocalName) {
		f.add(flag, "%s is this machine's name for itself, which the local CA vouches for; leave it out", name)
		return ""
	}
	return name
}

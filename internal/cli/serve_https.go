package cli

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/idna"

	"service/internal/certs"
	"service/internal/server"
	"service/webhook"
)

// Values of --listen and --http-listen if they are auto.
const (
	localListen  = "127.0.0.1:8443"
	domainListen = ":443"
	plainListen  = ":80" // with a domain
)

// maxDomains limits the names with an ACME certificate.
const maxDomains = 100

// httpsSettings parses the flags of serve for addresses, HTTPS and certificates.
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
	s.PublicURL = f.publicURL(c.PublicURL)
	if !s.TLS {
		f.withoutTLS(c, s.Listen, host)
	}
}

// issuer parses the flags for the ACME certificate authority.
func (f *configErrors) issuer(c *serveFlags, s *server.Config) {
	const unused = "needs --domain"
	s.ACMEEmail, s.ACMECA = c.ACMEEmail, c.ACMECA
	if c.ACMEEmail != "" {
		if webhook.CheckEmail("acme-email", strings.ToLower(c.ACMEEmail)) != nil {
			f.add("acme-email", "must be an email address such as admin@example.com, not %q", c.ACMEEmail)
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
			f.add("domain", "%s is not a public domain name, so Let's Encrypt issues no certificate for it; "+
				"set --acme-ca to your own ACME server", domain)
		}
	}
}

// publicURL parses the URL at which clients reach the service, and returns it without a trailing
// slash.
func (f *configErrors) publicURL(text string) string {
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Opaque != "",
		strings.Trim(u.Path, "/") != "" || strings.ContainsAny(text, "?#") || strings.ToLower(u.Host) != u.Host:
		f.add("public-url", "must be an https URL in lower case without a path, such as https://hooks.example.com")
		return ""
	}
	return "https://" + u.Host
}

// httpListen parses the address for plain HTTP.
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
			f.add("http-listen", "must differ from --listen: HTTPS and plain HTTP need separate addresses")
		}
	}
}

// withoutTLS checks the flags that conflict with --tls off. host is the host of the listen
// address.
func (f *configErrors) withoutTLS(c *serveFlags, listen, host string) {
	if len(c.Domain) > 0 {
		f.add("tls", "off must not be set with --domain, which is for HTTPS")
	}
	if c.HTTPListen != "auto" && c.HTTPListen != "off" {
		f.add("http-listen", "must not be set with --tls off: it redirects to HTTPS")
	}
	if len(c.TrustedProxy) > 0 {
		return // the server refuses direct clients
	}
	if host != "" && !onLoopback(host) {
		f.add("tls", "off would send tokens unencrypted: "+
			"it needs --listen with a loopback address, such as 127.0.0.1:8080, or --trusted-proxy, not %q", listen)
	}
	if host == "" && strings.HasPrefix(listen, ":") {
		f.add("tls", "off would send tokens unencrypted: "+
			"it needs --listen with a loopback address, such as 127.0.0.1%s, or --trusted-proxy, not %[1]q", listen)
	}
}

// domain returns a domain name as in certificates: lower case and ASCII.
func (f *configErrors) domain(flag, s string) string {
	name, err := idna.Lookup.ToASCII(strings.TrimSuffix(s, "."))
	_, ip := netip.ParseAddr(s)
	if err != nil || name == "" || ip == nil || len(name) > 253 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" {
		f.add(flag, "must be a name such as hooks.example.com, without a scheme, a port or a path, not %q", s)
		return ""
	}
	if name == certs.LocalName || strings.HasSuffix(name, "."+certs.LocalName) {
		f.add(flag, "%s is always available, with a certificate of the local CA; remove it", name)
		return ""
	}
	return name
}

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

// Values that auto stands for in --listen and --http-listen.
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
		what := "a public domain name"
		public := certs.IsPublicName(domain)
		if a, err := netip.ParseAddr(domain); err == nil {
			what, public = "a public address but "+addressKind(a), webhook.Destinations{}.Allows(a)
		}
		if c.ACMECA == certs.LetsEncrypt && !public {
			f.add("domain", "%s is not %s, so Let's Encrypt issues no certificate for it; "+
				"set --acme-ca to your own ACME server", domain, what)
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
		return // the server refuses clients that connect directly
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

// addressKind describes the purpose of an address that is not public.
func addressKind(a netip.Addr) string {
	if a.IsPrivate() {
		return "a private one"
	}
	return "one for special use"
}

// ipAddress returns an IP address in the form that certificates use. IPv6 may be in brackets, and
// an IPv4 address may be written as IPv6. It returns false if s is not an address.
func (f *configErrors) ipAddress(flag, s string) (string, bool) {
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		s = strings.TrimSuffix(inner, "]")
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return "", false
	}
	a = a.Unmap()
	switch {
	case a.IsLoopback():
		f.add(flag, "%s is always available, with a certificate of the local CA; remove it", a)
	case a.Zone() != "" || a.IsLinkLocalUnicast():
		f.add(flag, "%s is a link-local address, which has a meaning on one network only; no certificate can name it", a)
	case a.IsUnspecified() || a.IsMulticast():
		f.add(flag, "%s is not the address of one host; for all addresses of this host, set --listen", a)
	default:
		return a.String(), true
	}
	return "", true
}

// domain returns a domain name in the form that certificates use, lower case and ASCII, or an IP
// address, see ipAddress. It returns "" after an error.
func (f *configErrors) domain(flag, s string) string {
	if address, ok := f.ipAddress(flag, s); ok {
		return address
	}
	name, err := idna.Lookup.ToASCII(strings.TrimSuffix(s, "."))
	// A name that ends in a number is invalid; browsers read it as an address.
	last := name[strings.LastIndexByte(name, '.')+1:]
	if err != nil || strings.Trim(last, "0123456789") == "" || len(name) > 253 ||
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" {
		f.add(flag, "must be a name such as hooks.example.com or an IP address, without a scheme, a port or a path, not %q", s)
		return ""
	}
	if name == certs.LocalName || strings.HasSuffix(name, "."+certs.LocalName) {
		f.add(flag, "%s is always available, with a certificate of the local CA; remove it", name)
		return ""
	}
	return name
}

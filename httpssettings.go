package main

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

// httpsSettings reads the settings of serve that are about who is reached where
// and how.
func (f *faults) httpsSettings(c *serveFlags, s *server.Config) {
	for _, name := range c.Domain {
		if domain := f.domain("domain", name); domain != "" && !slices.Contains(s.Domains, domain) {
			s.Domains = append(s.Domains, domain)
		}
	}
	given := len(c.Domain) > 0
	if len(s.Domains) > maxDomains {
		f.add("domain", "must be at most %d names, not %d", maxDomains, len(s.Domains))
	}
	if s.Listen = c.Listen; s.Listen == "auto" {
		s.Listen = localListen
		if given {
			s.Listen = domainListen
		}
	}
	host := f.address("listen", s.Listen)

	s.ACMEEmail, s.ACMECA = c.ACMEEmail, c.ACMECA
	if c.ACMEEmail != "" {
		if a, err := mail.ParseAddress(c.ACMEEmail); err != nil || a.Address != c.ACMEEmail {
			f.add("acme-email", "must be an address such as admin@example.com, not %q", c.ACMEEmail)
		}
		if !given {
			f.add("acme-email", "is for the certificates of --domain, and there is none")
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
		if !given {
			f.add("acme-ca-root", "is for the certificates of --domain, and there is none")
		}
	}
	if c.ACMECA == certs.LetsEncrypt {
		for _, domain := range s.Domains {
			if !certs.IsPublicName(domain) {
				f.add("domain", "%s is no name on the internet, for which a public issuer could vouch; --acme-ca names one of your own", domain)
			}
		}
	}

	switch c.HTTPListen {
	case "off":
	case "auto":
		if given {
			s.HTTPListen = plainListen
		}
	default:
		s.HTTPListen = c.HTTPListen
		f.address("http-listen", c.HTTPListen)
		if _, port, err := net.SplitHostPort(c.HTTPListen); err == nil && port != "0" && c.HTTPListen == s.Listen {
			f.add("http-listen", "is the same address as --listen; HTTPS and plain HTTP need one each")
		}
	}

	if s.TLS {
		return
	}
	if given {
		f.add("tls", "off cannot be with --domain, whose certificates would be for nobody; leave one of the two out")
	}
	if c.HTTPListen != "auto" && c.HTTPListen != "off" {
		f.add("http-listen", "leads to HTTPS, and there is none with --tls off")
	}
	if len(c.TrustedProxy) > 0 {
		return // others are refused
	}
	if host != "" && !onLoopback(host) {
		f.add("tls", "off would send tokens unencrypted, and so needs a loopback address to listen on, such as 127.0.0.1:8080, or --trusted-proxy, not %q", s.Listen)
	}
	if host == "" && strings.HasPrefix(s.Listen, ":") {
		f.add("tls", "off would send tokens unencrypted, and so needs a loopback address to listen on, such as 127.0.0.1%s, or --trusted-proxy, not %[1]q", s.Listen)
	}
}

// domain reads a name of the service as it stands in a certificate: in lower
// case and in ASCII.
func (f *faults) domain(flag, s string) string {
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

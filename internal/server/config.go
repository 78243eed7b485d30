package server

import (
	"crypto/x509"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"service/dispatcher"
	"service/store"
	"service/web"
	"service/web/portal"
)

// Data configures the store, Delivery the dispatcher. The [Server] sets the fields that connect the
// two.
type (
	Data     = store.Config
	Delivery = dispatcher.Config
)

// Config is the configuration of a [Server]. The caller must validate it; the command serve defines
// the defaults.
type Config struct {
	Data
	Delivery
	Logger *slog.Logger

	// Lease is the duration of the lease in the bucket of the replica, at least [MinLease];
	// 0 is no lease.
	Lease time.Duration

	// Listen is the address of the API and the admin UI, as HOST:PORT.
	Listen string
	// TLS enables HTTPS, with certificates for Domains or, if there are none, with a
	// certificate of the local CA in Dir.
	TLS bool
	// Domains are the names and IP addresses with an ACME certificate: names in lower case, addresses
	// as [netip.Addr.String] writes them.
	Domains []string
	// ACMECA is the URL of the ACME directory. By using it the operator accepts its terms
	// of service.
	ACMECA string
	// ACMEEmail is the contact address of the ACME account; empty for none.
	ACMEEmail string
	// ACMERoots verify the ACME server; nil for the system's roots.
	ACMERoots *x509.CertPool
	// HTTPListen is the address for plain HTTP, for ACME challenges and redirects to HTTPS;
	// empty for none.
	HTTPListen string
	// TrustedProxies are trusted for X-Forwarded-For and X-Forwarded-Proto.
	TrustedProxies TrustedProxies
	// PublicURL is the URL at which clients reach the service through a proxy, without a trailing
	// slash; empty if they connect to Listen. Links begin with it.
	PublicURL string
	// RequestTimeout limits the work on a request, in addition to the time for reading and
	// writing it.
	RequestTimeout time.Duration
	// RateLimit is the maximum number of requests per program in 60 seconds; 0 is no limit.
	RateLimit int
	// PlatformRateLimit is the maximum number of requests per platform token in 60 seconds,
	// not counting requests that select a program; 0 is no limit.
	PlatformRateLimit int

	// MaxSubscriptions is the maximum number of subscriptions per program; 0 is no limit.
	MaxSubscriptions int

	// AlertURL receives alerts; empty for none. It may contain a secret.
	AlertURL string
	// Portal is the appearance of the partners' portal.
	Portal portal.Config
	// EgressNote says which addresses deliveries come from, in the guide for receivers; empty if
	// unknown.
	EgressNote string
	// OIDC is the OpenID Connect provider through which admins sign in; the zero value is
	// none.
	OIDC OIDC

	// Version is the version of the binary, Program its name, quoted for a shell. The admin UI
	// shows both, and the Settings.
	Version, Program string
	Settings         []Setting

	certificateCheck time.Duration // interval between checks of certificates; 0 for the default
	takeovers        int64         // times that this process took over from another primary; atomic
}

// Setting is a configured setting for the admin UI. Secrets are masked.
type Setting = web.Setting

// ShutdownTimeout returns the maximum duration of a shutdown: one grace period each for
// requests and attempts, the last sync of the replica, and 10 s for the rest.
func (cfg *Config) ShutdownTimeout() time.Duration {
	d := 2*cfg.Grace + 10*time.Second
	if cfg.Replica != nil {
		d += cfg.Replica.ShutdownSyncTimeout
	}
	return d
}

// isLocal reports whether only this machine can reach the service, so that its users are its
// operators.
func (cfg *Config) isLocal() bool {
	ip, err := netip.ParseAddr(cfg.host())
	onLoopback := err == nil && ip.IsLoopback() || cfg.host() == "localhost"
	return onLoopback && len(cfg.Domains) == 0 && len(cfg.TrustedProxies) == 0 && cfg.PublicURL == ""
}

// host returns the host of the listen address.
func (cfg *Config) host() string {
	host, _, _ := net.SplitHostPort(cfg.Listen)
	return host
}

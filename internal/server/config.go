package server

import (
	"crypto/x509"
	"log/slog"
	"net"
	"time"

	"service/store"
	"service/store/replica"
	"service/webhook"
)

// Config is the configuration of a [Server]. The caller validates it; the command serve has
// the defaults.
type Config struct {
	// Dir is the data directory. It is created if it does not exist.
	Dir string
	// SecretKeyFile has the key that encrypts secrets; empty for secret.key in Dir.
	SecretKeyFile string
	// Replica is the target of the replication; nil for none.
	Replica *replica.Config
	// AcknowledgeTimeout is how long a write waits for the replica before it fails with 503.
	// If it is 0, a write is acknowledged once it is on disk. It needs a Replica.
	AcknowledgeTimeout time.Duration
	// VerifyReplica is the interval between comparisons of the replica with the database;
	// 0 is never.
	VerifyReplica time.Duration
	// Lease is the duration of the lease in the bucket of the replica, at least [MinLease];
	// 0 is no lease.
	Lease time.Duration
	// MinFreeDisk is the free disk space in bytes below which events are rejected. 0 is no
	// limit, [store.AutoFreeDisk] a share of the disk.
	MinFreeDisk int64
	// Retention is how long events, deliveries and attempts are kept.
	Retention store.Retention

	// Listen is the address of the API and the admin UI, as HOST:PORT.
	Listen string
	// TLS enables HTTPS, with certificates for Domains or, if there are none, with a
	// certificate of the local CA in Dir.
	TLS bool
	// Domains are the names with an ACME certificate, in lower case.
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
	// PublicURL is where clients reach the service through a proxy, without a trailing slash;
	// empty if they connect to Listen. Links have it.
	PublicURL string
	// RequestTimeout limits the work on a request, in addition to the time for reading and
	// writing it.
	RequestTimeout time.Duration
	// RateLimit is the maximum number of requests per program in 60 seconds; 0 is no limit.
	RateLimit int
	// PlatformRateLimit is the maximum number of requests per platform token in 60 seconds,
	// not counting requests that select a program; 0 is no limit.
	PlatformRateLimit int

	// TokenPrefix begins new access tokens; empty for [webhook.TokenPrefix].
	TokenPrefix string

	// Destinations are the private networks that subscriptions may target.
	Destinations webhook.Destinations
	// AllowHTTP permits subscription URLs that begin with http://.
	AllowHTTP bool
	// MaxSubscriptions is the maximum number of subscriptions per program; 0 is no limit.
	MaxSubscriptions int

	// RetryPolicy is the schedule of retries. HealthPolicy decides when a subscription is
	// failing or disabled.
	RetryPolicy  webhook.RetryPolicy
	HealthPolicy webhook.HealthPolicy
	// AttemptTimeout limits an attempt, from dialing to the end of the response.
	AttemptTimeout time.Duration
	// MaxInFlight is the maximum number of deliveries in flight per subscription,
	// MaxConnections in total.
	MaxInFlight, MaxConnections int
	// BatchSize is the maximum number of events in a delivery. BatchWindow is the maximum
	// time to wait for more events before sending a batch.
	BatchSize   int
	BatchWindow time.Duration

	// AlertURL receives alerts; empty for none. It may contain a secret.
	AlertURL string
	// Portal is how the portal of partners looks.
	Portal Portal
	// SMTP is the mail server for alerts by email; the zero value is none.
	SMTP SMTP
	// OIDC is the OpenID Connect provider through which admins sign in; the zero value is
	// none.
	OIDC OIDC
	// Grace is the shutdown timeout for requests in flight, and then again for attempts in
	// flight.
	Grace time.Duration

	Logger *slog.Logger
	// Version is the version of the binary, Program its name, quoted for a shell. The admin
	// UI shows both, and the Settings.
	Version, Program string
	Settings         []Setting

	certificateCheck time.Duration // interval between checks of certificates; 0 for the default
	takeovers        int64         // times that this process took over from another primary; atomic
}

// Setting is a configured setting for the admin UI. Secrets are masked.
type Setting struct {
	Name, Value string
	Source      string // default, flag, the name of a variable, or a file and its line
}

// ShutdownTimeout returns the maximum duration of a shutdown: one grace period each for
// requests and attempts, the last sync of the replica, and 10 s for the rest.
func (cfg *Config) ShutdownTimeout() time.Duration {
	d := 2*cfg.Grace + 10*time.Second
	if cfg.Replica != nil {
		d += cfg.Replica.ShutdownSyncTimeout
	}
	return d
}

// host returns the host of the listen address.
func (cfg *Config) host() string {
	host, _, _ := net.SplitHostPort(cfg.Listen)
	return host
}

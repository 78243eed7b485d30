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

// Config is the configuration of a [Server]. Its values are checked by the caller;
// the defaults are those of the command serve.
type Config struct {
	// Dir is the data directory. It is created if it does not exist.
	Dir string
	// SecretKeyFile holds the key that encrypts secrets; "" is secret.key in Dir.
	SecretKeyFile string
	// Replica is where the database is copied to while the server runs, nil for
	// nowhere.
	Replica *replica.Config
	// AcknowledgeTimeout is how long a write waits to be in the replica before it is
	// answered 503; 0: it is acknowledged once it is on the disk. It needs a Replica.
	AcknowledgeTimeout time.Duration
	// VerifyReplica is the time between two comparisons of the replica's content with
	// the database; 0 is none.
	VerifyReplica time.Duration
	// Lease is how long the lease in the bucket of the replica is valid, at least
	// [MinLease]; 0 is none.
	Lease time.Duration
	// RestoreHold is how long deliveries are held after a restore.
	RestoreHold time.Duration
	// MinFreeDisk is the free space on the disk, in bytes, below which events are
	// refused. 0 is no limit, [store.AutoFreeDisk] a share of the disk.
	MinFreeDisk int64
	// Retention is how long events, deliveries and attempts are kept, and deliveries
	// that succeeded, if that is less.
	Retention store.Retention

	// Listen is the address of the API and the admin UI, as HOST:PORT.
	Listen string
	// TLS serves HTTPS: with certificates for Domains, or without any with one of
	// the local CA in Dir.
	TLS bool
	// Domains are the names that an ACME issuer certifies, in lower case.
	Domains []string
	// ACMECA is the URL of the issuer's ACME directory. By using it the operator
	// accepts its terms of service.
	ACMECA string
	// ACMEEmail is the contact address of the ACME account, "" for none.
	ACMEEmail string
	// ACMERoots verify the issuer's own server; nil for the system's.
	ACMERoots *x509.CertPool
	// HTTPListen is the address for plain HTTP, which answers challenges of the
	// issuer and redirects browsers to HTTPS; "" for none.
	HTTPListen string
	// TrustedProxies are the proxies whose X-Forwarded-For and X-Forwarded-Proto
	// are used.
	TrustedProxies TrustedProxies
	// RequestTimeout bounds the work on a request, in addition to the time for
	// reading and writing it.
	RequestTimeout time.Duration
	// RateLimit is the number of requests of a program in any 60 seconds; 0 is no
	// limit.
	RateLimit int

	// Destinations are the private networks that subscriptions may target.
	Destinations webhook.Destinations
	// AllowHTTP permits subscription URLs that begin with http://.
	AllowHTTP bool
	// MaxSubscriptions is the number of subscriptions of a program; 0 is no limit.
	MaxSubscriptions int

	// RetryPolicy is the schedule of retries, HealthPolicy when a subscription is
	// failing or disabled.
	RetryPolicy  webhook.RetryPolicy
	HealthPolicy webhook.HealthPolicy
	// AttemptTimeout bounds an attempt, from dialling to the end of the response.
	AttemptTimeout time.Duration
	// MaxInFlight is the number of deliveries in flight of a subscription,
	// MaxConnections that of all.
	MaxInFlight, MaxConnections int
	// BatchSize is the number of events in a delivery. BatchWindow is how long the
	// first event waits for more.
	BatchSize   int
	BatchWindow time.Duration

	// AlertURL is where alerts are sent, "" for nowhere. It may be a secret.
	AlertURL string
	// SMTP is the mail server for alerts by email; the zero value is none.
	SMTP SMTP
	// Grace is the shutdown timeout of requests in flight, and after them again of
	// attempts in flight.
	Grace time.Duration

	Logger *slog.Logger
	// Version is that of the binary, Program its name as it can be typed into a
	// shell. Both are shown in the admin UI, as are the Settings.
	Version, Program string
	Settings         []Setting

	certificateCheck time.Duration // how often certificates are checked; 0 for the default
}

// Setting is a setting as it was given, for the admin UI. A secret is masked.
type Setting struct {
	Name, Value string
	Source      string // default, flag, the name of a variable, or a file and its line
}

// shutdownTimeout bounds a shutdown: requests, then attempts, then the last sync of
// the replica, and 10 s for the rest.
func (cfg *Config) shutdownTimeout() time.Duration {
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

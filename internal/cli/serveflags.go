package cli

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"service/internal/server"
	"service/store/datadir"
	"service/store/replica"
	"service/webhook"
)

// serveFlags are the settings of serve, and the keys of a configuration file, with their group in the
// help.
type serveFlags struct {
	dataFlag           `group:"Data and keys"`
	keyFlag            `group:"Data and keys"`
	Listen             string   `group:"Addresses and HTTPS" default:"auto" placeholder:"ADDR" help:"Address of the API and the admin UI. auto is 127.0.0.1:8443, or :443 with --domain."`
	Domain             []string `group:"Addresses and HTTPS" placeholder:"NAME" help:"Public domain names or IP addresses of the service. It obtains and renews certificates for them through ACME. Passkeys and HSTS need a name."`
	ACMEEmail          string   `group:"Addresses and HTTPS" name:"acme-email" placeholder:"EMAIL" help:"Contact address for the certificate authority."`
	ACMECA             string   `group:"Addresses and HTTPS" name:"acme-ca" default:"https://acme-v02.api.letsencrypt.org/directory" placeholder:"URL" help:"ACME directory of the certificate authority. By using it you accept its terms of service."`
	ACMECARoot         string   `group:"Addresses and HTTPS" name:"acme-ca-root" placeholder:"FILE" help:"PEM file of certificates to trust for the ACME server, instead of the system's."`
	HTTPListen         string   `group:"Addresses and HTTPS" name:"http-listen" default:"auto" placeholder:"ADDR" help:"Address for plain HTTP: ACME challenges and redirects to HTTPS. auto is :80 with --domain, otherwise off."`
	TLS                string   `group:"Addresses and HTTPS" name:"tls" default:"auto" placeholder:"auto|off" help:"auto: HTTPS; without --domain, with a certificate of a local CA (ca.pem in the data directory). off: plain HTTP, only on a loopback address or behind --trusted-proxy."`
	TrustedProxy       []string `group:"Addresses and HTTPS" placeholder:"CIDR" help:"Proxies to trust for X-Forwarded-For and X-Forwarded-Proto, as addresses or networks."`
	PublicURL          string   `group:"Addresses and HTTPS" name:"public-url" placeholder:"URL" help:"URL at which clients reach the service through a proxy, such as https://hooks.example.com. Links to pages, sign-in through OpenID Connect and passkeys use it. Default: the domain or the listen address."`
	AllowDestination   []string `group:"Delivery" placeholder:"CIDR" help:"Private addresses or networks that subscriptions may target, such as 10.1.0.0/16. Default: none, only the public internet."`
	AllowHTTP          bool     `group:"Delivery" name:"allow-http" help:"Permit http:// URLs for subscriptions."`
	RetrySchedule      string   `group:"Delivery" default:"5s,5m,30m,2h" placeholder:"LIST" help:"Waits between the five attempts of a delivery."`
	RetryJitter        string   `group:"Delivery" default:"0.2" placeholder:"X" help:"Random variation of each wait, as a fraction from 0 to 1: 0.2 is ±20%."`
	AttemptTimeout     string   `group:"Delivery" default:"10s" placeholder:"D" help:"Time limit of one attempt, from dialing to the end of the response."`
	MaxInFlight        string   `group:"Delivery" default:"8" placeholder:"N" help:"Maximum deliveries in flight per subscription."`
	MaxConnections     string   `group:"Delivery" default:"512" placeholder:"N" help:"Maximum deliveries in flight in total."`
	BatchSize          string   `group:"Delivery" default:"100" placeholder:"N" help:"Maximum events in one delivery, 1 to 1000. A subscription's max_events can lower it."`
	BatchWindow        string   `group:"Delivery" default:"0s" placeholder:"D" help:"Maximum time to wait for more events before sending a batch."`
	EgressNote         string   `group:"Delivery" placeholder:"TEXT" help:"Which addresses deliveries come from, as a sentence for partners on the page /docs/receiving."`
	FailingAfter       string   `group:"Failing subscriptions" default:"10" placeholder:"N" help:"Consecutive attempts with a 5xx or no response, over at least a minute, after which a subscription is failing. Its events then wait, and single attempts (probes) are made until one succeeds. 0 is never."`
	RejectingAfter     string   `group:"Failing subscriptions" default:"5" placeholder:"N" help:"Consecutive responses other than 2xx and 5xx after which a subscription is failing. 0 is never."`
	DisableAfter       string   `group:"Failing subscriptions" default:"0" placeholder:"D" help:"Time after which a failing subscription is disabled: no more probes and deliveries until it is activated. 0 is never."`
	Retention          string   `group:"Data and keys" default:"30d" placeholder:"D" help:"Age at which events and completed deliveries are removed. Must be longer than a delivery can take with --retry-schedule."`
	RetentionDelivered string   `group:"Data and keys" placeholder:"D" help:"Shorter retention of successful deliveries. Default: --retention."`
	RetentionAudit     string   `group:"Data and keys" default:"365d" placeholder:"D" help:"Age at which entries of the audit log are removed. 0 is never."`
	MinFreeDisk        string   `group:"Data and keys" default:"auto" placeholder:"SIZE" help:"Free disk space below which events are rejected, such as 1GiB; 0 is no limit. auto is 5% of the disk, at least 16MiB and at most 256MiB."`
	AlertURL           string   `group:"Alerts" name:"alert-url" placeholder:"URL" help:"URL that receives alerts as webhooks, for example about a failing subscription. They are signed with alert.secret in the data directory."`
	AlertURLFile       string   `group:"Alerts" name:"alert-url-file" placeholder:"FILE" help:"File with the alert URL, instead of --alert-url."`
	SMTPHost           string   `group:"Alerts" name:"smtp-host" placeholder:"HOST" help:"Mail server for alerts by email, HOST or HOST:PORT (default port 587; 465 for implicit TLS). TLS is required unless it runs on this machine."`
	SMTPUser           string   `group:"Alerts" name:"smtp-user" placeholder:"USER" help:"User name for the mail server."`
	SMTPPasswordFile   string   `group:"Alerts" name:"smtp-password-file" placeholder:"FILE" help:"File with the password for the mail server."`
	SMTPFrom           string   `group:"Alerts" name:"smtp-from" placeholder:"EMAIL" help:"Sender address of alerts by email."`
	OIDCIssuer         string   `group:"Sign-in of admins" name:"oidc-issuer" placeholder:"URL" help:"OpenID Connect provider through which admins sign in. Its metadata is read when it is first needed."`
	OIDCClientID       string   `group:"Sign-in of admins" name:"oidc-client-id" placeholder:"ID" help:"Client ID of the service at the provider."`
	OIDCSecretFile     string   `group:"Sign-in of admins" name:"oidc-client-secret-file" placeholder:"FILE" help:"File with the client secret. Without one, the service is a public client and relies on PKCE."`
	OIDCRole           []string `group:"Sign-in of admins" name:"oidc-role" placeholder:"CLAIM=VALUE:ROLE" help:"Role (viewer, operator or owner) of those with a value in a claim, such as groups=service-admins:owner. The highest role applies. Write a comma in a value as \\,."`
	OIDCName           string   `group:"Sign-in of admins" name:"oidc-name" placeholder:"NAME" help:"Name of the provider on the sign-in page. Default: the host of --oidc-issuer."`
	OIDCScope          []string `group:"Sign-in of admins" name:"oidc-scope" placeholder:"SCOPE" help:"Scopes to request in addition to openid, email, profile, and groups if the provider lists it."`
	PortalName         string   `group:"Portal" placeholder:"NAME" help:"Your name in the portal, the pages that partners open from a link. Default: Webhooks."`
	PortalLogo         string   `group:"Portal" placeholder:"FILE" help:"PNG or JPEG file shown in the portal in place of the name, at most 256 KiB."`
	PortalColor        string   `group:"Portal" placeholder:"COLOR" help:"Color of links and buttons in the portal, such as #5140c9. It needs enough contrast for text."`
	RateLimit          string   `group:"Limits and shutdown" default:"1000" placeholder:"N" help:"Maximum API requests per program (tenant) in 60 seconds. 0 is no limit. A program can have its own."`
	PlatformRateLimit  string   `group:"Limits and shutdown" default:"0" placeholder:"N" help:"Maximum API requests per platform token in 60 seconds, not counting requests that select a program. 0 is no limit."`
	TokenPrefix        string   `group:"Limits and shutdown" default:"svc_" placeholder:"PREFIX" help:"First characters of new access tokens, such as svc_2_, by which a proxy in front of several installations can route. Tokens with another prefix stay valid."`
	RequestTimeout     string   `group:"Limits and shutdown" default:"30s" placeholder:"D" help:"Time limit of one API request, and of a pause within a stream of events."`
	MaxSubscriptions   string   `group:"Limits and shutdown" default:"100" placeholder:"N" help:"Maximum subscriptions per program. 0 is no limit."`
	Grace              string   `group:"Limits and shutdown" default:"10s" placeholder:"D" help:"Shutdown timeout for requests in flight, and then the same again for delivery attempts in flight."`
	Litestream         string   `group:"Replica and standby" placeholder:"FILE" help:"Replica configuration in Litestream's format, or off. Default: litestream.yml in ${config}, if it exists."`
	Acknowledge        string   `group:"Replica and standby" default:"local" placeholder:"local|replica" help:"When a write gets its 2xx: local, once it is on this host's disk; replica, once it is in the replica too."`
	AckTimeout         string   `group:"Replica and standby" name:"acknowledge-timeout" default:"5s" placeholder:"D" help:"With --acknowledge replica: maximum wait for the replica before a write fails with 503."`
	VerifyReplica      string   `group:"Replica and standby" default:"24h" placeholder:"D" help:"Interval at which the replica is compared with the database. 0 is never."`
	Lease              string   `group:"Replica and standby" default:"0" placeholder:"D" help:"Lease duration for automatic failover, such as 30s. Start every node with the same flags: the one that holds the lease in the replica's bucket serves, the others follow and take over when it ends. 0 is no lease."`
	LogFormat          string   `group:"Log" default:"text" placeholder:"text|json" help:"Format of the log on stderr."`
	LogLevel           string   `group:"Log" default:"info" placeholder:"debug|info|warn|error" help:"Minimum log level. With --demo the default is warn, and info has no effect."`
}

// settings parses the flags. Its error lists all invalid flags.
func (c *serveFlags) settings(logTo io.Writer) (*server.Config, error) {
	var f configErrors
	s := new(server.Config)
	s.Dir = c.Data
	s.SecretKeyFile = c.SecretKeyFile
	s.Version = version()
	s.TLS = f.choice("tls", c.TLS, "auto", "off") != "off"
	s.TrustedProxies = f.proxies("trusted-proxy", c.TrustedProxy)
	s.AllowHTTP = c.AllowHTTP
	s.RetryPolicy = f.retryPolicy(c.RetrySchedule, c.RetryJitter)
	s.AttemptTimeout = f.duration("attempt-timeout", c.AttemptTimeout, 10*time.Millisecond, 5*time.Minute)
	s.MaxInFlight = f.integer("max-in-flight", c.MaxInFlight, 1, webhook.MaxInFlightLimit)
	s.MaxConnections = f.integer("max-connections", c.MaxConnections, 1, 1<<16)
	s.BatchSize = f.integer("batch-size", c.BatchSize, 1, webhook.MaxEventsLimit)
	s.BatchWindow = f.duration("batch-window", c.BatchWindow, 0, time.Minute)
	if s.EgressNote = strings.TrimSpace(c.EgressNote); len(s.EgressNote) > 1000 || strings.ContainsFunc(s.EgressNote, unicode.IsControl) {
		f.add("egress-note", "must be one line of at most 1000 bytes")
	}
	s.RateLimit = f.integer("rate-limit", c.RateLimit, 0, 1_000_000)
	s.PlatformRateLimit = f.integer("platform-rate-limit", c.PlatformRateLimit, 0, 1_000_000)
	s.TokenPrefix = c.TokenPrefix
	s.RequestTimeout = f.duration("request-timeout", c.RequestTimeout, 10*time.Millisecond, 10*time.Minute)
	s.MaxSubscriptions = f.integer("max-subscriptions", c.MaxSubscriptions, 0, 1<<20)
	s.HealthPolicy = webhook.HealthPolicy{
		FailingAfter:   f.integer("failing-after", c.FailingAfter, 0, 1<<20),
		RejectingAfter: f.integer("rejecting-after", c.RejectingAfter, 0, 1<<20),
		DisableAfter:   f.duration("disable-after", c.DisableAfter, 0, 10*365*24*time.Hour),
	}
	s.Retention = f.retention(c.Retention, c.RetentionDelivered, c.RetentionAudit)
	s.MinFreeDisk = f.size("min-free-disk", c.MinFreeDisk)
	s.Grace = f.duration("grace", c.Grace, time.Millisecond, 10*time.Minute)
	s.Logger = f.logger(logTo, c.LogFormat, c.LogLevel)
	s.Replica = f.replica("litestream", c.Litestream)
	s.VerifyReplica = f.duration("verify-replica", c.VerifyReplica, 0, 365*24*time.Hour)
	s.Portal = f.portal(c)
	if wrong := webhook.CheckTokenPrefix(c.TokenPrefix); wrong != "" {
		f.add("token-prefix", "%s", wrong)
	}
	if s.Dir == "" {
		f.add("data", "must be a directory")
	} else if err := datadir.CheckKeyFile(s.Dir, c.SecretKeyFile); err != nil {
		f.add("secret-key-file", "%v", err)
	}
	s.AcknowledgeTimeout = f.acknowledge(c, s.Replica)
	s.Lease = f.lease("lease", c.Lease, s.Replica)
	f.httpsSettings(c, s)
	var err error
	if s.Destinations, err = webhook.ParseDestinations(c.AllowDestination); err != nil {
		for _, one := range c.AllowDestination {
			if _, err := webhook.ParseDestinations([]string{one}); err != nil {
				f.add("allow-destination", "%v", err)
			}
		}
	}
	s.AlertURL = f.alertURL(c.AlertURL, c.AlertURLFile, webhook.SubscriptionRules{AllowHTTP: s.AllowHTTP, Destinations: s.Destinations})
	s.SMTP = f.smtp(c)
	s.OIDC = f.oidc(c, s)
	if longest := s.RetryPolicy.Longest(s.AttemptTimeout); s.Retention.All > 0 && s.Retention.All <= longest {
		f.add("retention", "must be longer than the longest delivery (%s with this --retry-schedule and --attempt-timeout), not %q",
			longest.Round(time.Second), c.Retention)
	}
	return s, f.err()
}

// retention parses the retention of records.
func (f *configErrors) retention(all, delivered, audit string) webhook.Retention {
	const least, most = time.Second, 100 * 365 * 24 * time.Hour
	r := webhook.Retention{All: f.duration("retention", all, least, most)}
	if audit != "0" {
		r.Audit = f.duration("retention-audit", audit, least, most)
	}
	if delivered == "" {
		return r
	}
	r.Delivered = f.duration("retention-delivered", delivered, least, most)
	if r.All > 0 && r.Delivered > r.All {
		f.add("retention-delivered", "must be at most --retention, which is %s, not %q", all, delivered)
	}
	return r
}

// retryPolicy parses the four waits and their jitter.
func (f *configErrors) retryPolicy(schedule, jitter string) webhook.RetryPolicy {
	p := webhook.RetryPolicy{Jitter: f.share("retry-jitter", jitter)}
	waits := strings.Split(schedule, ",")
	if len(waits) != len(p.Waits) {
		f.add("retry-schedule", "must be %d waits separated by commas, such as 5s,5m,30m,2h, not %q", len(p.Waits), schedule)
		return p
	}
	for i, w := range waits {
		p.Waits[i] = f.duration("retry-schedule", strings.TrimSpace(w), time.Millisecond, 30*24*time.Hour)
	}
	return p
}

// logger returns the logger of the process.
func (f *configErrors) logger(w io.Writer, format, level string) *slog.Logger {
	var least slog.Level
	if err := least.UnmarshalText([]byte(f.choice("log-level", level, "debug", "info", "warn", "error"))); err != nil {
		least = slog.LevelInfo // choice has added the error
	}
	return newLogger(w, f.choice("log-format", format, "text", "json"), least)
}

// proxies parses the addresses and networks of trusted proxies.
func (f *configErrors) proxies(flag string, list []string) (p server.TrustedProxies) {
	for _, s := range list {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(s); err == nil && a.Zone() == "" {
				prefix = netip.PrefixFrom(a, a.BitLen())
			}
		}
		switch {
		case err != nil || !prefix.IsValid():
			f.add(flag, "must be addresses or networks such as 10.0.0.7 or 10.0.0.0/24, not %q", s)
		case prefix.Bits() == 0:
			f.add(flag, "%s includes every address, so any client could forge its own; use the proxy's address", s)
		case prefix.Addr().Is4In6():
			f.add(flag, "%s must be in IPv4 notation, such as 10.0.0.0/24", s)
		default:
			p = append(p, prefix.Masked())
		}
	}
	return p
}

// alertURL returns the URL for alerts. Its errors never contain the URL, which may include
// a secret.
func (f *configErrors) alertURL(value, file string, rules webhook.SubscriptionRules) string {
	u, err := secret("alert-url", value, file)
	if err != nil {
		if text, ok := strings.CutPrefix(err.Error(), "--alert-url-file: "); ok {
			f.add("alert-url-file", "%s", text)
		} else {
			*f = append(*f, configError{text: err.Error()})
		}
		return ""
	}
	if u == "" {
		return ""
	}
	for _, v := range rules.CheckAlertURL(u) {
		f.add("alert-url", "%s", v.Detail)
	}
	return u
}

// smtp parses the flags for the mail server. The zero value is none.
func (f *configErrors) smtp(c *serveFlags) (s server.SMTP) {
	if c.SMTPHost == "" {
		for _, flag := range [][2]string{{"smtp-user", c.SMTPUser}, {"smtp-password-file", c.SMTPPasswordFile}, {"smtp-from", c.SMTPFrom}} {
			if flag[1] != "" {
				f.add(flag[0], "needs --smtp-host")
			}
		}
		return s
	}
	s.Host, s.Port, s.User, s.From = c.SMTPHost, server.SMTPPort, c.SMTPUser, c.SMTPFrom
	if host, port, err := net.SplitHostPort(c.SMTPHost); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		if s.Host, s.Port = host, int(n); err != nil || n == 0 || host == "" {
			f.add("smtp-host", "must be a host such as smtp.example.com or smtp.example.com:587, not %q", c.SMTPHost)
		}
	}
	if webhook.CheckEmail("smtp-from", strings.ToLower(c.SMTPFrom)) != nil {
		f.add("smtp-from", "must be an email address such as service@example.com, not %q", c.SMTPFrom)
	}
	var err error
	if s.Password, err = secret("smtp-password", "", c.SMTPPasswordFile); err != nil {
		f.add("smtp-password-file", "%s", strings.TrimPrefix(err.Error(), "--smtp-password-file: "))
	}
	if (c.SMTPUser == "") != (c.SMTPPasswordFile == "") {
		f.add("smtp-user", "and --smtp-password-file must be set together or not at all")
	}
	return s
}

// lease parses the duration of the lease; 0 is none.
func (f *configErrors) lease(flag, value string, cfg *replica.Config) time.Duration {
	d := f.duration(flag, value, 0, 24*time.Hour)
	switch {
	case d == 0:
	case d < server.MinLease:
		f.add(flag, "must be at least %s, to leave time for renewals, not %q", formatDuration(server.MinLease), value)
	case cfg == nil || !cfg.IsS3():
		f.add(flag, "needs --litestream with a replica of type s3: the lease is in its bucket")
	}
	return d
}

// acknowledge returns how long a write waits for the replica; 0 is not at all.
func (f *configErrors) acknowledge(c *serveFlags, cfg *replica.Config) time.Duration {
	how := f.choice("acknowledge", c.Acknowledge, "local", "replica")
	timeout := f.duration("acknowledge-timeout", c.AckTimeout, 10*time.Millisecond, 20*time.Second)
	switch {
	case how != "replica":
		return 0
	case cfg == nil:
		f.add("acknowledge", "replica needs a replica: set --litestream, or use --acknowledge local")
	case cfg.UploadPause() >= timeout:
		f.add("acknowledge-timeout", "must be longer than the interval between uploads, the replica's sync-interval of %s",
			formatDuration(cfg.UploadPause()))
	}
	return timeout
}

// replica reads the configuration of the replica; nil is none.
func (f *configErrors) replica(flag, name string) *replica.Config {
	cfg, err := readReplica(name)
	if err != nil {
		f.add(flag, "%v", err)
	}
	return cfg
}

// readReplica reads the configuration of the replica from the file that --litestream names, or that
// [places.find] finds. It returns nil without a file, or if the file configures no database.
func readReplica(flag string) (*replica.Config, error) {
	path, _ := placesOf(ownName()).find(flag, replicaFile)
	if path == "" {
		return nil, nil
	}
	cfg, err := replica.ReadConfig(path, os.LookupEnv)
	if cfg != nil {
		clearCABundle()
	}
	return cfg, err
}

// clearCABundle removes AWS_CA_BUNDLE from the environment. If it is set, the AWS SDK fails
// because it cannot modify Litestream's HTTP transport.
func clearCABundle() { os.Unsetenv("AWS_CA_BUNDLE") }

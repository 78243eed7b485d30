package cli

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"service/internal/server"
	"service/store"
	"service/store/replica"
	"service/webhook"
)

// serveFlags are the settings of serve, which are also what a configuration file
// may hold.
type serveFlags struct {
	dataFlag
	keyFlag
	Listen             string   `default:"auto" placeholder:"ADDR" help:"The address of the API and the admin UI; auto is 127.0.0.1:8443, or :443 with --domain."`
	Domain             []string `placeholder:"NAME" help:"A name that the service is reached by from everywhere: it gets a certificate for it by itself, from an issuer that speaks ACME, and renews it; repeated or with commas."`
	ACMEEmail          string   `name:"acme-email" placeholder:"EMAIL" help:"Where the issuer of the certificates may write to."`
	ACMECA             string   `name:"acme-ca" default:"https://acme-v02.api.letsencrypt.org/directory" placeholder:"URL" help:"The issuer, by its ACME directory. Its terms of service are agreed to."`
	ACMECARoot         string   `name:"acme-ca-root" placeholder:"FILE" help:"Certificates, in PEM, that the issuer's own server is verified by, instead of the system's."`
	HTTPListen         string   `name:"http-listen" default:"auto" placeholder:"ADDR" help:"An address for plain HTTP, where challenges of the issuer are answered and browsers led to HTTPS; off is none, auto is :80 with --domain, else off."`
	TLS                string   `name:"tls" default:"auto" placeholder:"auto|off" help:"Without --domain auto serves HTTPS with a certificate of a local CA kept in the data directory (ca.pem, for curl --cacert); off is plain HTTP, on a loopback address alone, or for those of --trusted-proxy."`
	TrustedProxy       []string `placeholder:"CIDR" help:"Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, by address or network; repeated or with commas."`
	AllowDestination   []string `placeholder:"CIDR" help:"Private addresses that subscriptions may point at, by name; repeated or with commas."`
	AllowHTTP          bool     `name:"allow-http" help:"Subscription URLs may be http://."`
	RetrySchedule      string   `default:"5s,5m,30m,2h" placeholder:"LIST" help:"The four waits between five attempts."`
	RetryJitter        string   `default:"0.2" placeholder:"X" help:"Each wait is jittered by up to this share of it, 0 to 1."`
	AttemptTimeout     string   `default:"10s" placeholder:"D" help:"One attempt, from dialling to the end of the response."`
	MaxInFlight        string   `default:"8" placeholder:"N" help:"Deliveries in flight per subscription."`
	MaxConnections     string   `default:"512" placeholder:"N" help:"Deliveries in flight in all."`
	BatchSize          string   `default:"100" placeholder:"N" help:"The most events in one delivery."`
	BatchWindow        string   `default:"0s" placeholder:"D" help:"How long the first event waits for company."`
	FailingAfter       string   `default:"10" placeholder:"N" help:"Retryable attempts in a row, over at least a minute, after which a subscription is failing: its events wait, and it is probed now and then; 0 is never."`
	RejectingAfter     string   `default:"5" placeholder:"N" help:"Final responses other than 2xx in a row after which a subscription is failing; 0 is never."`
	DisableAfter       string   `default:"0" placeholder:"D" help:"A subscription that has been failing that long is switched off; 0 is never."`
	Retention          string   `default:"30d" placeholder:"D" help:"Events, deliveries and attempts older than this are removed, in small steps; it must be longer than a delivery may take by --retry-schedule."`
	RetentionDelivered string   `placeholder:"D" help:"Successful deliveries with their attempts and responses are removed after this, if that is before --retention; without it they are kept as long as everything else. Events stay for --retention."`
	MinFreeDisk        string   `default:"auto" placeholder:"SIZE" help:"While less of the disk is free no event is accepted, so that what was accepted can still be delivered: a size such as 1GiB, 0 for no limit, or auto, which is a twentieth of the disk, 256MiB at the most and 16MiB at the least."`
	AlertURL           string   `name:"alert-url" placeholder:"URL" help:"Where alerts are sent, such as that a subscription is failing: like a delivery, signed with the secret in alert.secret in the data directory."`
	AlertURLFile       string   `name:"alert-url-file" placeholder:"FILE" help:"A file that holds the URL."`
	SMTPHost           string   `name:"smtp-host" placeholder:"HOST" help:"The mail server that sends alerts by email, as HOST or HOST:PORT; port 587 by default, 465 for implicit TLS. TLS is required unless the server is on this machine."`
	SMTPUser           string   `name:"smtp-user" placeholder:"USER" help:"The user name for the mail server, if it asks for one."`
	SMTPPasswordFile   string   `name:"smtp-password-file" placeholder:"FILE" help:"A file that holds the password for the mail server."`
	SMTPFrom           string   `name:"smtp-from" placeholder:"EMAIL" help:"The sender of alerts by email."`
	RateLimit          string   `default:"1000" placeholder:"N" help:"Requests per program in any 60 seconds; 0 is no limit."`
	RequestTimeout     string   `default:"30s" placeholder:"D" help:"A request that takes longer is answered 504, and 408 when it is its body that does not arrive; a stream of events may take any time, but not be silent for longer."`
	MaxSubscriptions   string   `default:"100" placeholder:"N" help:"Subscriptions per program; 0 is no limit."`
	Grace              string   `default:"10s" placeholder:"D" help:"On SIGINT or SIGTERM: how long requests, and then attempts, in flight may take to end."`
	Litestream         string   `placeholder:"FILE" help:"Where the database is copied to while the service runs, in Litestream's own format; without it litestream.yml in the working directory, if there is one; off for none."`
	Acknowledge        string   `default:"local" placeholder:"local|replica" help:"When a write is acknowledged: local once it is on this host's disk, replica once the replica has it too."`
	AckTimeout         string   `name:"acknowledge-timeout" default:"5s" placeholder:"D" help:"With --acknowledge replica: how long a write waits for the replica, before it is answered 503."`
	VerifyReplica      string   `default:"24h" placeholder:"D" help:"How often the content of the replica is compared with the database; 0 is never."`
	RestoreHold        string   `default:"0" placeholder:"D" help:"After a restore deliveries are held for so long, or until service release: what was sent after the state that was restored is not known any more, and is sent again."`
	Lease              string   `default:"0" placeholder:"D" help:"With a standby: how long the lease in the bucket of the replica is good for, which the one that serves holds and renews, such as 30s. Before one that cannot be renewed ends, nothing is accepted or sent any more. 0 is none."`
	LogFormat          string   `default:"text" placeholder:"text|json" help:"How the log on stderr is written."`
	LogLevel           string   `default:"info" placeholder:"debug|info|warn|error" help:"The least that is logged; the demo logs warn when this is info."`
}

// settings reads the flags. The error tells all that is wrong with them.
func (c *serveFlags) settings(logTo io.Writer) (*server.Config, error) {
	var f configErrors
	s := &server.Config{
		Dir:              c.Data,
		SecretKeyFile:    c.SecretKeyFile,
		Version:          version(),
		TLS:              f.choice("tls", c.TLS, "auto", "off") != "off",
		TrustedProxies:   f.proxies("trusted-proxy", c.TrustedProxy),
		AllowHTTP:        c.AllowHTTP,
		RetryPolicy:      f.retryPolicy(c.RetrySchedule, c.RetryJitter),
		AttemptTimeout:   f.duration("attempt-timeout", c.AttemptTimeout, 10*time.Millisecond, 5*time.Minute),
		MaxInFlight:      f.integer("max-in-flight", c.MaxInFlight, 1, webhook.MaxInFlightLimit),
		MaxConnections:   f.integer("max-connections", c.MaxConnections, 1, 1<<16),
		BatchSize:        f.integer("batch-size", c.BatchSize, 1, webhook.MaxPublishEvents),
		BatchWindow:      f.duration("batch-window", c.BatchWindow, 0, time.Minute),
		RateLimit:        f.integer("rate-limit", c.RateLimit, 0, 1_000_000),
		RequestTimeout:   f.duration("request-timeout", c.RequestTimeout, 10*time.Millisecond, 10*time.Minute),
		MaxSubscriptions: f.integer("max-subscriptions", c.MaxSubscriptions, 0, 1<<20),
		HealthPolicy: webhook.HealthPolicy{
			FailingAfter:   f.integer("failing-after", c.FailingAfter, 0, 1<<20),
			RejectingAfter: f.integer("rejecting-after", c.RejectingAfter, 0, 1<<20),
			DisableAfter:   f.duration("disable-after", c.DisableAfter, 0, 10*365*24*time.Hour),
		},
		Retention:     f.retention(c.Retention, c.RetentionDelivered),
		MinFreeDisk:   f.size("min-free-disk", c.MinFreeDisk),
		Grace:         f.duration("grace", c.Grace, time.Millisecond, 10*time.Minute),
		Logger:        f.logger(logTo, c.LogFormat, c.LogLevel),
		Replica:       f.replica("litestream", c.Litestream),
		VerifyReplica: f.duration("verify-replica", c.VerifyReplica, 0, 365*24*time.Hour),
		RestoreHold:   f.duration("restore-hold", c.RestoreHold, 0, 30*24*time.Hour),
	}
	if s.Dir == "" {
		f.add("data", "must name a directory")
	} else if err := store.CheckKeyFile(s.Dir, c.SecretKeyFile); err != nil {
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
	if longest := s.RetryPolicy.Longest(s.AttemptTimeout); s.Retention.All > 0 && s.Retention.All <= longest {
		f.add("retention", "must be longer than a delivery may take, which is %s with this --retry-schedule and --attempt-timeout, not %q", longest.Round(time.Second), c.Retention)
	}
	return s, f.err()
}

// retention reads how long records are kept.
func (f *configErrors) retention(all, delivered string) store.Retention {
	const least, most = time.Second, 100 * 365 * 24 * time.Hour
	r := store.Retention{All: f.duration("retention", all, least, most)}
	if delivered == "" {
		return r
	}
	r.Delivered = f.duration("retention-delivered", delivered, least, most)
	if r.All > 0 && r.Delivered > r.All {
		f.add("retention-delivered", "must be at most --retention, which is %s, not %q", all, delivered)
	}
	return r
}

// RetryPolicy reads the four waits and their jitter.
func (f *configErrors) retryPolicy(schedule, jitter string) webhook.RetryPolicy {
	p := webhook.RetryPolicy{Jitter: f.share("retry-jitter", jitter)}
	waits := strings.Split(schedule, ",")
	if len(waits) != len(p.Waits) {
		f.add("retry-schedule", "must be %d waits with commas, such as 5s,5m,30m,2h, not %q", len(p.Waits), schedule)
		return p
	}
	for i, w := range waits {
		p.Waits[i] = f.duration("retry-schedule", strings.TrimSpace(w), time.Millisecond, 30*24*time.Hour)
	}
	return p
}

// logger returns the logger that a process writes its log with.
func (f *configErrors) logger(w io.Writer, format, level string) *slog.Logger {
	var least slog.Level
	if err := least.UnmarshalText([]byte(f.choice("log-level", level, "debug", "info", "warn", "error"))); err != nil {
		least = slog.LevelInfo // the fault is told
	}
	return newLogger(w, f.choice("log-format", format, "text", "json"), least)
}

// proxies reads the addresses and networks of trusted proxies.
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
			f.add(flag, "%s is every address there is, and whoever calls could say to be anyone", s)
		case prefix.Addr().Is4In6():
			f.add(flag, "%s is written as 10.0.0.0/24 is", s)
		default:
			p = append(p, prefix.Masked())
		}
	}
	return p
}

// AlertURL reads where alerts are to be sent. No error holds the URL: where it
// leads to may be a secret.
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
	if parsed, err := url.Parse(u); err == nil && parsed.User != nil {
		f.add("alert-url", "must not hold a user name or password; a secret can stand in its path or query")
		return u
	}
	for _, v := range rules.CheckURL(u) {
		f.add("alert-url", "%s", v.Detail)
	}
	return u
}

// smtp reads which mail server sends alerts by email; the zero value is none.
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
	if a, err := mail.ParseAddress(c.SMTPFrom); err != nil || a.Address != c.SMTPFrom {
		f.add("smtp-from", "must be an address such as service@example.com, not %q", c.SMTPFrom)
	}
	var err error
	if s.Password, err = secret("smtp-password", "", c.SMTPPasswordFile); err != nil {
		f.add("smtp-password-file", "%s", strings.TrimPrefix(err.Error(), "--smtp-password-file: "))
	}
	if (c.SMTPUser == "") != (c.SMTPPasswordFile == "") {
		f.add("smtp-user", "and --smtp-password-file are given together or not at all")
	}
	return s
}

// lease reads how long a lease is good for; 0 is none.
func (f *configErrors) lease(flag, value string, cfg *replica.Config) time.Duration {
	d := f.duration(flag, value, 0, 24*time.Hour)
	switch {
	case d == 0:
	case d < server.MinLease:
		f.add(flag, "must be at least %s, so that it can be renewed before it ends, not %q", formatDuration(server.MinLease), value)
	case cfg == nil || !cfg.IsS3():
		f.add(flag, "is kept in the bucket of the replica, and so needs --litestream with a replica of the type s3")
	}
	return d
}

// acknowledge reads how long a write waits for the replica; 0 is not at all.
func (f *configErrors) acknowledge(c *serveFlags, cfg *replica.Config) time.Duration {
	how := f.choice("acknowledge", c.Acknowledge, "local", "replica")
	timeout := f.duration("acknowledge-timeout", c.AckTimeout, 10*time.Millisecond, 20*time.Second)
	switch {
	case how != "replica":
		return 0
	case cfg == nil:
		f.add("acknowledge", "replica needs a replica: name its configuration with --litestream, or use --acknowledge local")
	case cfg.UploadPause() >= timeout:
		f.add("acknowledge-timeout", "must be longer than the sync-interval of the replica's configuration, which is %s: that is the pause between two uploads", formatDuration(cfg.UploadPause()))
	}
	return timeout
}

// replicaFile is the replica's configuration when no flag names one.
const replicaFile = "litestream.yml"

// noReplica as --litestream says that there is to be none.
const noReplica = "off"

// replica reads the configuration of the replica; nil for none.
func (f *configErrors) replica(flag, name string) *replica.Config {
	cfg, err := readReplica(name)
	if err != nil {
		f.add(flag, "%v", err)
	}
	return cfg
}

// readReplica returns the configuration of the replica in a file; nil when it
// names no database, when there is no file and none was named, or when none is
// wanted.
func readReplica(name string) (*replica.Config, error) {
	named := name != ""
	switch {
	case name == noReplica:
		return nil, nil
	case !named:
		name = replicaFile
	}
	cfg, err := replica.ReadConfig(name, os.LookupEnv)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil, nil
	}
	if cfg != nil {
		clearCABundle()
	}
	return cfg, err
}

// clearCABundle removes a variable from the environment with which the replica's
// client fails: it wants to change a transport that is not its own.
func clearCABundle() { os.Unsetenv("AWS_CA_BUNDLE") }

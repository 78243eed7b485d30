package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"service/internal/server"
	"service/internal/terminal"
	"service/store"
	"service/web"
	"service/webhook"
)

type serveCmd struct {
	serveFlags
	Demo bool `help:"The same on a throw-away data directory, with a program, a token, receivers, subscriptions and sample events of every type being published."`
}

// serveFlags are the settings of serve, which are also what a configuration file
// may hold.
type serveFlags struct {
	dataFlag
	keyFlag
	Listen           string   `default:"auto" placeholder:"ADDR" help:"The address of the API and the admin UI; auto is 127.0.0.1:8443, or :443 with --domain."`
	Domain           []string `placeholder:"NAME" help:"A name that the service is reached by from everywhere: it gets a certificate for it by itself, from an issuer that speaks ACME, and renews it; repeated or with commas."`
	ACMEEmail        string   `name:"acme-email" placeholder:"EMAIL" help:"Where the issuer of the certificates may write to."`
	ACMECA           string   `name:"acme-ca" default:"https://acme-v02.api.letsencrypt.org/directory" placeholder:"URL" help:"The issuer, by its ACME directory. Its terms of service are agreed to."`
	ACMECARoot       string   `name:"acme-ca-root" placeholder:"FILE" help:"Certificates, in PEM, that the issuer's own server is verified by, instead of the system's."`
	HTTPListen       string   `name:"http-listen" default:"auto" placeholder:"ADDR" help:"An address for plain HTTP, where challenges of the issuer are answered and browsers led to HTTPS; off is none, auto is :80 with --domain, else off."`
	TLS              string   `name:"tls" default:"auto" placeholder:"auto|off" help:"Without --domain auto serves HTTPS with a certificate of a local CA kept in the data directory (ca.pem, for curl --cacert); off is plain HTTP, on a loopback address alone, or for those of --trusted-proxy."`
	TrustedProxy     []string `placeholder:"CIDR" help:"Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, by address or network; repeated or with commas."`
	AllowDestination []string `placeholder:"CIDR" help:"Private addresses that subscriptions may point at, by name; repeated or with commas."`
	AllowHTTP        bool     `name:"allow-http" help:"Subscription URLs may be http://."`
	RetrySchedule    string   `default:"5s,5m,30m,2h" placeholder:"LIST" help:"The four waits between five attempts."`
	RetryJitter      string   `default:"0.2" placeholder:"X" help:"Each wait is jittered by up to this share of it, 0 to 1."`
	AttemptTimeout   string   `default:"10s" placeholder:"D" help:"One attempt, from dialling to the end of the response."`
	MaxInFlight      string   `default:"8" placeholder:"N" help:"Deliveries in flight per subscription."`
	MaxConnections   string   `default:"512" placeholder:"N" help:"Deliveries in flight in all."`
	BatchSize        string   `default:"100" placeholder:"N" help:"The most events in one delivery."`
	BatchWindow      string   `default:"0s" placeholder:"D" help:"How long the first event waits for company."`
	FailingAfter     string   `default:"10" placeholder:"N" help:"Retryable attempts in a row, over at least a minute, after which a subscription is failing: its events wait, and it is probed now and then; 0 is never."`
	DisableAfter     string   `default:"0" placeholder:"D" help:"A subscription that has been failing that long is switched off; 0 is never."`
	Retention        string   `default:"30d" placeholder:"D" help:"Events, deliveries and attempts older than this are removed, in small steps; it must be longer than a delivery may take by --retry-schedule."`
	MinFreeDisk      string   `default:"auto" placeholder:"SIZE" help:"While less of the disk is free no event is accepted, so that what was accepted can still be delivered: a size such as 1GiB, 0 for no limit, or auto, which is a twentieth of the disk, 256MiB at the most and 16MiB at the least."`
	AlertURL         string   `name:"alert-url" placeholder:"URL" help:"Where alerts are sent, such as that a subscription is failing: like a delivery, signed with the secret in alert.secret in the data directory."`
	AlertURLFile     string   `name:"alert-url-file" placeholder:"FILE" help:"A file that holds the URL."`
	RateLimit        string   `default:"1000" placeholder:"N" help:"Requests per program in any 60 seconds; 0 is no limit."`
	RequestTimeout   string   `default:"30s" placeholder:"D" help:"A request that takes longer is answered 504, and 408 when it is its body that does not arrive; a stream of events may take any time, but not be silent for longer."`
	MaxSubscriptions string   `default:"100" placeholder:"N" help:"Subscriptions per program; 0 is no limit."`
	Grace            string   `default:"10s" placeholder:"D" help:"On SIGINT or SIGTERM: how long requests, and then attempts, in flight may take to end."`
	Litestream       string   `placeholder:"FILE" help:"Where the database is copied to while the service runs, in Litestream's own format; without it litestream.yml in the working directory, if there is one; off for none."`
	RestoreHold      string   `default:"0" placeholder:"D" help:"After a restore deliveries are held for so long, or until service release: what was sent after the state that was restored is not known any more, and is sent again."`
	Lease            string   `default:"0" placeholder:"D" help:"With a standby: how long the lease in the bucket of the replica is good for, which the one that serves holds and renews, such as 30s. Before one that cannot be renewed ends, nothing is accepted or sent any more. 0 is none."`
	LogFormat        string   `default:"text" placeholder:"text|json" help:"How the log on stderr is written."`
	LogLevel         string   `default:"info" placeholder:"debug|info|warn|error" help:"The least that is logged; the demo logs warn when this is info."`
}

// settings reads the flags. The error tells all that is wrong with them.
func (c *serveFlags) settings(logTo io.Writer) (*server.Config, error) {
	var f faults
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
			FailingAfter: f.integer("failing-after", c.FailingAfter, 0, 1<<20),
			DisableAfter: f.duration("disable-after", c.DisableAfter, 0, 10*365*24*time.Hour),
		},
		Retention:   f.duration("retention", c.Retention, time.Second, 100*365*24*time.Hour),
		MinFreeDisk: f.size("min-free-disk", c.MinFreeDisk),
		Grace:       f.duration("grace", c.Grace, time.Millisecond, 10*time.Minute),
		Logger:      f.logger(logTo, c.LogFormat, c.LogLevel),
		Replica:     f.replica("litestream", c.Litestream),
		RestoreHold: f.duration("restore-hold", c.RestoreHold, 0, 30*24*time.Hour),
	}
	if s.Dir == "" {
		f.add("data", "must name a directory")
	} else if err := store.CheckKeyFile(s.Dir, c.SecretKeyFile); err != nil {
		f.add("secret-key-file", "%v", err)
	}
	s.Lease = f.lease("lease", c.Lease, s.AttemptTimeout, s.Replica)
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
	if longest := s.RetryPolicy.Longest(s.AttemptTimeout); s.Retention > 0 && s.Retention <= longest {
		f.add("retention", "must be longer than a delivery may take, which is %s with this --retry-schedule and --attempt-timeout, not %q", longest.Round(time.Second), c.Retention)
	}
	return s, f.err()
}

// RetryPolicy reads the four waits and their jitter.
func (f *faults) retryPolicy(schedule, jitter string) webhook.RetryPolicy {
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
func (f *faults) logger(w io.Writer, format, level string) *slog.Logger {
	var least slog.Level
	if err := least.UnmarshalText([]byte(f.choice("log-level", level, "debug", "info", "warn", "error"))); err != nil {
		least = slog.LevelInfo // the fault is told
	}
	return newLogger(w, f.choice("log-format", format, "text", "json"), least)
}

func (c *serveCmd) Run(ctx context.Context, std streams, conf *configuration, line *kong.Context) error {
	if c.Demo && conf.given["data"] {
		f := faults{{"data", "--demo has a throw-away data directory of its own; leave one of the two out"}}
		return f.err()
	}
	if c.Demo {
		c.keyFlag = keyFlag{} // throw-away data has a throw-away key
	}
	if c.Demo && c.LogLevel == "info" {
		c.LogLevel = "warn" // the demo tells what happens in lines of its own
	}
	s, err := c.settings(std.err)
	if err != nil {
		return err
	}
	begin(s, conf.shown(line))
	if c.Demo {
		return demo(ctx, s, c.AllowDestination, std, demoPace)
	}
	svc, err := server.Open(ctx, s)
	if err != nil {
		return c.keyFlag.explain(err)
	}
	return announceAndRun(ctx, svc, s, std)
}

// begin makes the process one that serves by these settings.
func begin(s *server.Config, shown []web.Setting) {
	s.Program, s.Settings = shellQuote(os.Args[0]), shown
	// net/http tells package log what a server sends without being asked: bytes
	// of somebody else's choice, of use to nobody but a debugger.
	slog.SetDefault(s.Logger)
	slog.SetLogLoggerLevel(slog.LevelDebug)
}

// announceAndRun tells where the service is, and runs it until ctx ends.
func announceAndRun(ctx context.Context, svc *server.Server, s *server.Config, std streams) error {
	link, err := svc.SetupLink(ctx)
	var refused *webhook.Error
	if err != nil && !errors.As(err, &refused) {
		svc.Close()
		return err
	}
	announce(std.out, svc, s, link)
	return svc.Run(ctx)
}

// announce tells whoever started the service where it is and what to do first.
// link makes the first admin; it is "" when there is one.
func announce(w io.Writer, svc *server.Server, s *server.Config, link string) {
	data := ""
	if s.Dir != "./data" {
		data = " --data " + shellQuote(s.Dir)
	}
	if h, held := svc.Store().Held(); held {
		fmt.Fprintf(w, "HELD      restored from %s as of %s: nothing is delivered until %s\n", terminal.Escape(h.From), webhook.FormatTime(h.State), webhook.FormatTime(h.Until))
		fmt.Fprintf(w, "          (%s; deliver now: %s release%s)\n", mayRepeat(&h.Repeats), s.Program, data)
	}
	if link == "" {
		fmt.Fprintf(w, "Admin UI  %s/\n", svc.URL())
	} else {
		fmt.Fprintf(w, "Admin UI  %s\n", link)
		fmt.Fprintf(w, "          (make the first admin there, within 30 minutes; another link: %s admin setup-link%s)\n", s.Program, data)
	}
	fmt.Fprintf(w, "API       %s\n", svc.URL())
	fmt.Fprintf(w, "A token   TOKEN=$(%s token create%s --program acme --user me --scope webhooks.read,webhooks.write,events.read,events.write)\n", s.Program, data)
	fmt.Fprintf(w, "Try it    %s/v2/webhooks/subscriptions\n", curl(svc))
}

// curl is the beginning of a command that calls the API with $TOKEN, up to the
// path.
func curl(svc *server.Server) string {
	ca := ""
	if svc.CAFile() != "" {
		ca = " --cacert " + shellQuote(svc.CAFile())
	}
	return "curl" + ca + ` -H "Authorization: Bearer $TOKEN" ` + svc.URL()
}

// shellQuote renders an argument for a POSIX shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:,@%", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

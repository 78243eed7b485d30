package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"service/api"
	"service/dispatcher"
	"service/internal/certs"
	"service/internal/control"
	"service/internal/terminal"
	"service/store"
	"service/store/replica"
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

// settings are the flags of serve, read and found right.
type settings struct {
	data             string
	key              keyFlag
	listen           string
	host             string // of listen
	tls              bool
	domains          []string // in lower case
	acmeEmail        string
	acmeCA           string
	acmeRoots        *x509.CertPool // nil for the system's
	httpListen       string         // "" for none
	trusted          proxies
	certificateCheck time.Duration // how often certificates are looked at; 0 for the usual
	allowed          []string      // what destinations was read from
	destinations     webhook.Destinations
	allowHTTP        bool
	retryPolicy      webhook.RetryPolicy
	attemptTimeout   time.Duration
	maxInFlight      int
	maxConnections   int
	batchSize        int
	batchWindow      time.Duration
	rateLimit        int
	requestTimeout   time.Duration
	maxSubscriptions int
	healthPolicy     webhook.HealthPolicy
	retention        time.Duration
	minFreeDisk      int64
	alertURL         string // may be a secret; "" for none
	grace            time.Duration
	replica          *replica.Config // nil for none
	restoreHold      time.Duration
	lease            time.Duration // 0 for none
	logger           *slog.Logger
	program          string        // this binary, as it can be typed into a shell
	shown            []web.Setting // the flags as they were given, for admins
}

// settings reads the flags. The error tells all that is wrong with them.
func (c *serveFlags) settings(logTo io.Writer) (*settings, error) {
	var f faults
	s := &settings{
		data:             c.Data,
		key:              c.keyFlag,
		tls:              f.choice("tls", c.TLS, "auto", "off") != "off",
		trusted:          f.proxies("trusted-proxy", c.TrustedProxy),
		allowed:          c.AllowDestination,
		allowHTTP:        c.AllowHTTP,
		retryPolicy:      f.retryPolicy(c.RetrySchedule, c.RetryJitter),
		attemptTimeout:   f.duration("attempt-timeout", c.AttemptTimeout, 10*time.Millisecond, 5*time.Minute),
		maxInFlight:      f.integer("max-in-flight", c.MaxInFlight, 1, webhook.MaxInFlightLimit),
		maxConnections:   f.integer("max-connections", c.MaxConnections, 1, 1<<16),
		batchSize:        f.integer("batch-size", c.BatchSize, 1, webhook.MaxPublishEvents),
		batchWindow:      f.duration("batch-window", c.BatchWindow, 0, time.Minute),
		rateLimit:        f.integer("rate-limit", c.RateLimit, 0, 1_000_000),
		requestTimeout:   f.duration("request-timeout", c.RequestTimeout, 10*time.Millisecond, 10*time.Minute),
		maxSubscriptions: f.integer("max-subscriptions", c.MaxSubscriptions, 0, 1<<20),
		healthPolicy: webhook.HealthPolicy{
			FailingAfter: f.integer("failing-after", c.FailingAfter, 0, 1<<20),
			DisableAfter: f.duration("disable-after", c.DisableAfter, 0, 10*365*24*time.Hour),
		},
		retention:   f.duration("retention", c.Retention, time.Second, 100*365*24*time.Hour),
		minFreeDisk: f.size("min-free-disk", c.MinFreeDisk),
		grace:       f.duration("grace", c.Grace, time.Millisecond, 10*time.Minute),
		logger:      f.logger(logTo, c.LogFormat, c.LogLevel),
		replica:     f.replica("litestream", c.Litestream),
		restoreHold: f.duration("restore-hold", c.RestoreHold, 0, 30*24*time.Hour),
	}
	if s.data == "" {
		f.add("data", "must name a directory")
	} else if err := store.CheckKeyFile(s.data, c.SecretKeyFile); err != nil {
		f.add("secret-key-file", "%v", err)
	}
	s.lease = f.lease("lease", c.Lease, s.attemptTimeout, s.replica)
	f.httpsSettings(c, s)
	var err error
	if s.destinations, err = webhook.ParseDestinations(c.AllowDestination); err != nil {
		for _, one := range c.AllowDestination {
			if _, err := webhook.ParseDestinations([]string{one}); err != nil {
				f.add("allow-destination", "%v", err)
			}
		}
	}
	s.alertURL = f.alertURL(c.AlertURL, c.AlertURLFile, webhook.SubscriptionRules{AllowHTTP: s.allowHTTP, Destinations: s.destinations})
	if longest := s.retryPolicy.Longest(s.attemptTimeout); s.retention > 0 && s.retention <= longest {
		f.add("retention", "must be longer than a delivery may take, which is %s with this --retry-schedule and --attempt-timeout, not %q", longest.Round(time.Second), c.Retention)
	}
	return s, f.err()
}

// retryPolicy reads the four waits and their jitter.
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
	s.begin(conf.shown(line))
	if c.Demo {
		return demo(ctx, s, std, demoPace)
	}
	svc, err := open(ctx, s, nil)
	if err != nil {
		return err
	}
	return svc.announceAndRun(ctx, std)
}

// begin makes the process one that serves by these settings.
func (s *settings) begin(shown []web.Setting) {
	s.program, s.shown = shellQuote(os.Args[0]), shown
	// net/http tells package log what a server sends without being asked: bytes
	// of somebody else's choice, of use to nobody but a debugger.
	slog.SetDefault(s.logger)
	slog.SetLogLoggerLevel(slog.LevelDebug)
}

// announceAndRun tells where the service is, and runs it until ctx ends.
func (svc *service) announceAndRun(ctx context.Context, std streams) error {
	link, err := svc.setupLink(ctx)
	var refused *webhook.Error
	if err != nil && !errors.As(err, &refused) {
		svc.close()
		return err
	}
	svc.announce(std.out, link)
	return svc.Run(ctx)
}

// service is everything wired together, with its doors open but nobody yet
// behind them.
type service struct {
	settings     *settings
	store        *store.Store
	lease        *replica.Lease // nil for none
	dispatcher   *dispatcher.Dispatcher
	web          *web.Web
	handler      http.Handler   // of the public door
	plainHandler http.Handler   // of the door for plain HTTP
	certificates *certs.Manager // nil without TLS
	public       net.Listener
	plain        net.Listener // of plain HTTP beside it; nil for none
	admin        net.Listener
	baseURL      string // without a final slash
	caFile       string // what clients must trust, "" without TLS
}

// open takes the data directory, the addresses, and the lease unless it is held
// already. What it returns must be run.
func open(ctx context.Context, s *settings, held *replica.Lease) (_ *service, err error) {
	svc := &service{settings: s}
	defer func() {
		if err != nil {
			svc.close()
		}
	}()
	if err := store.FinishRestore(s.data, s.logger); err != nil {
		return nil, err
	}
	catalog, err := loadCatalog(s.data)
	if err != nil {
		return nil, err
	}
	registry, err := newMetrics()
	if err != nil {
		return nil, err
	}
	if svc.store, err = store.Open(ctx, store.Config{Dir: s.data, SecretKeyFile: s.key.SecretKeyFile, Logger: s.logger, MinFreeDisk: s.minFreeDisk, SendAlerts: s.alertURL != "", Replica: s.replica, Metrics: registry}); err != nil {
		return nil, s.key.explain(err)
	}
	if err := svc.takeLease(ctx, held); err != nil {
		return nil, err
	}
	if err := svc.store.BeginHold(ctx, s.restoreHold); err != nil {
		return nil, err
	}
	if svc.public, err = new(net.ListenConfig).Listen(ctx, "tcp", s.listen); err != nil {
		return nil, explainListen("listen", err)
	}
	svc.public = newBoundedListener(svc.public, maxOpen, maxOpenEach, s.trusted, s.logger)
	svc.baseURL = "http://" + reachableAt(svc.public.Addr(), s.host)
	if s.httpListen != "" {
		if svc.plain, err = new(net.ListenConfig).Listen(ctx, "tcp", s.httpListen); err != nil {
			return nil, explainListen("http-listen", err)
		}
		svc.plain = newBoundedListener(svc.plain, maxOpen, maxOpenEach, nil, s.logger)
	}
	if s.tls {
		if err := svc.openCertificates(ctx); err != nil {
			return nil, err
		}
		registry.MustRegister(svc.certificates)
	}
	if svc.admin, err = control.Listen(ctx, s.data); err != nil {
		return nil, err
	}

	alerts, err := alertTarget(s)
	if err != nil {
		return nil, err
	}
	svc.dispatcher = dispatcher.New(dispatcher.Config{
		Store: svc.store, Logger: s.logger,
		RetryPolicy: s.retryPolicy, HealthPolicy: s.healthPolicy, AttemptTimeout: s.attemptTimeout,
		MaxInFlight: s.maxInFlight, MaxConnections: s.maxConnections,
		BatchSize: s.batchSize, BatchWindow: s.batchWindow,
		Destinations: s.destinations, Own: listeningOn(svc.public, svc.plain), AllowHTTP: s.allowHTTP, Alerts: alerts, Grace: s.grace,
		Metrics: registry,
	})
	rules := webhook.SubscriptionRules{AllowHTTP: s.allowHTTP, Destinations: s.destinations, Catalog: catalog, Own: listeningOn(svc.public, svc.plain)}
	svc.web = web.New(web.Config{
		Store: svc.store, Logger: s.logger, Version: version(), Started: time.Now(),
		// Behind a proxy that is trusted browsers speak HTTPS with that.
		Secure: s.tls || len(s.trusted) > 0, Program: s.program, BaseURL: svc.baseURL, CAFile: svc.caFile, Ready: svc.ready, Backlog: svc.dispatcher.Backlog, Settings: s.shown, Certificates: svc.shownCertificates,
		Checks: func(ctx context.Context) []store.Finding { return svc.examine(ctx, 0) },
		Rules:  rules, MaxSubscriptions: s.maxSubscriptions, BatchSize: s.batchSize,
	})
	partners := api.New(api.Config{
		Store: svc.store, Logger: s.logger, Catalog: catalog,
		Rules: rules,
		Ready: svc.delivering, MaxSubscriptions: s.maxSubscriptions, BatchSize: s.batchSize, BaseURL: svc.baseURL,
		RateLimit: s.rateLimit, RequestTimeout: s.requestTimeout,
		Metrics: registry,
	})
	svc.openDoors(partners)
	return svc, nil
}

// shownCertificates returns the certificates that clients are shown now, for the
// admin UI; none without TLS.
func (svc *service) shownCertificates() []web.Certificate {
	var all []web.Certificate
	for _, c := range svc.certificates.Certificates() {
		all = append(all, web.Certificate(c))
	}
	return all
}

// openCertificates makes the public door one of HTTPS.
func (svc *service) openCertificates(ctx context.Context) error {
	s := svc.settings
	ca, err := certs.OpenCA(s.data, time.Now())
	if err != nil {
		return err
	}
	cfg := certs.Config{
		Domains: s.domains, Hosts: certs.ServerNames(s.host), CA: ca,
		Email: s.acmeEmail, Issuer: s.acmeCA, Roots: s.acmeRoots,
		TLSAddr: svc.public.Addr(), CheckInterval: s.certificateCheck, Logger: s.logger,
	}
	if len(s.domains) > 0 {
		// What a stranger sees who asks for localhost tells nothing of this machine.
		cfg.Hosts, cfg.Storage = []string{certs.LocalName, "127.0.0.1", "::1"}, svc.store.Certificates()
		if svc.plain != nil {
			cfg.HTTPAddr = svc.plain.Addr()
		}
	}
	for _, host := range cfg.Hosts {
		if !ca.Allows(host) {
			s.logger.Warn("the local CA may not vouch for a name, which is left out of the certificate; to have another CA made, which clients then have to be given, remove ca.pem and ca.key", "name", host)
		}
	}
	cfg.Hosts = slices.DeleteFunc(cfg.Hosts, func(host string) bool { return !ca.Allows(host) })
	if svc.certificates, err = certs.New(ctx, cfg); err != nil {
		return err
	}
	svc.public = tls.NewListener(svc.public, svc.certificates.TLSConfig())
	_, port, _ := net.SplitHostPort(svc.public.Addr().String())
	if len(s.domains) > 0 {
		svc.baseURL = "https://" + joinHostPort(s.domains[0], port)
		return nil
	}
	svc.caFile = filepath.Join(s.data, certs.CAFile)
	svc.baseURL = strings.Replace(svc.baseURL, "http:", "https:", 1)
	return nil
}

// openDoors puts the rooms behind the doors.
func (svc *service) openDoors(partners *api.API) {
	s := svc.settings
	svc.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isPartners(r.URL.Path) {
			partners.ServeHTTP(w, r)
		} else {
			svc.web.ServeHTTP(w, r)
		}
	})
	base, _ := url.Parse(svc.baseURL)
	insecure := &plainDoor{certificates: svc.certificates, partners: partners, hosts: s.domains, port: cmp.Or(base.Port(), "443")}
	if len(s.domains) == 0 {
		insecure.hosts = append([]string{base.Hostname()}, certs.ServerNames(s.host)...)
	}
	svc.plainHandler = insecure
	if len(s.domains) > 0 {
		svc.handler = withHSTS(svc.handler, s.domains)
	}
	if !s.tls || len(s.trusted) > 0 {
		behind := &proxyDoor{trusted: s.trusted, handler: svc.handler, insecure: insecure}
		if !s.tls {
			// Where HTTPS is, the proxy knows, which has given the client's own host.
			behind.insecure = &plainDoor{partners: partners, port: "443"}
			behind.strangers = &plainDoor{partners: partners}
		}
		svc.handler = behind
	}
}

// explainListen says which flag an address was given by, and what it takes to
// listen there.
func explainListen(flag string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("--%s: %w: ports below 1024 are for root, or for who has the capability CAP_NET_BIND_SERVICE", flag, err)
	}
	return fmt.Errorf("--%s: %w", flag, err)
}

// delivering says whether deliveries are being made: nil, or why not, in words
// for anyone.
func (svc *service) delivering() error {
	if !svc.dispatcher.Ready() {
		return errors.New("deliveries are not being made")
	}
	return nil
}

// ready says whether the service accepts and delivers events: nil, or why not.
func (svc *service) ready(ctx context.Context) error {
	if err := svc.delivering(); err != nil {
		return err
	}
	return svc.store.Check(ctx)
}

// Run serves until ctx ends. Then it takes no more requests, lets those under
// way end within the grace period, after them the attempts in flight within
// another, brings the replica up to date, and closes the store.
func (svc *service) Run(ctx context.Context) error {
	logger := svc.settings.logger
	logger.Info("serving", "url", svc.baseURL, "data", svc.settings.data, "version", version())
	errorLog := slog.NewLogLogger(serverLog{logger.Handler()}, slog.LevelWarn)
	admin := &control.Server{Store: control.AuditedStore{Store: svc.store, Version: version()}, SetupLink: svc.setupLink, Examine: svc.examine, AdminsChanged: svc.web.AdminsChanged, Logger: logger}

	ctx, leaseLost := context.WithCancel(ctx)
	defer leaseLost()
	g, running := errgroup.WithContext(ctx)
	// The dispatcher outlives the doors: a request may wait for its ping.
	sending, doorsClosed := context.WithCancel(context.WithoutCancel(ctx))
	defer doorsClosed()
	public := publicServer(svc.handler, svc.settings.requestTimeout)
	public.ErrorLog = errorLog
	public.RegisterOnShutdown(svc.web.EndStreams)
	g.Go(func() error {
		defer doorsClosed()
		return serveHTTP(running, public, svc.public, svc.settings.grace)
	})
	if svc.plain != nil {
		plain := publicServer(svc.plainHandler, svc.settings.requestTimeout)
		plain.ErrorLog = errorLog
		g.Go(func() error { return serveHTTP(running, plain, svc.plain, svc.settings.grace) })
	}
	if svc.certificates != nil {
		g.Go(func() error { return svc.certificates.Run(running) })
	}
	g.Go(func() error {
		return serveHTTP(running, &http.Server{Handler: admin.Handler(), ErrorLog: errorLog}, svc.admin, time.Second)
	})
	g.Go(func() error {
		err := svc.dispatcher.Run(sending)
		if sending.Err() != nil {
			return nil // told to end before it had begun: it fails in no other way by then
		}
		return err
	})
	g.Go(func() error { return svc.store.Guard(running) })
	g.Go(func() error { return notify(running, svc.baseURL, svc.ready, svc.settings.ending(), logger) })
	g.Go(func() error { return svc.store.Retain(running, svc.settings.retention) })
	g.Go(func() error { return svc.store.EndHold(running) })
	g.Go(func() error {
		debug.FreeOSMemory() // a service with nothing to do keeps nothing of what its start took
		<-running.Done()
		logger.Info("ending: requests and attempts under way may take their time", "grace", svc.settings.grace)
		return nil
	})
	// The replica follows, and the lease is kept, until the last attempt is recorded.
	var copying errgroup.Group
	following, allWritten := context.WithCancel(context.WithoutCancel(ctx))
	defer allWritten()
	copying.Go(func() error { return svc.store.Replicate(following) })
	if svc.lease != nil {
		copying.Go(func() error {
			defer leaseLost()
			return svc.lease.KeepAlive(following)
		})
	}
	err := g.Wait()
	allWritten()
	err = errors.Join(err, copying.Wait(), svc.store.Close(), svc.releaseLease())
	if err == nil {
		logger.Info("ended")
	}
	return err
}

// ending is how long an orderly end may take: requests, then attempts, then the
// last changes for the replica, and what is left to be closed.
func (s *settings) ending() time.Duration {
	d := 2*s.grace + 10*time.Second
	if s.replica != nil {
		d += s.replica.ShutdownSyncTimeout
	}
	return d
}

// close gives up what open had taken when it failed.
func (svc *service) close() {
	if svc.admin != nil {
		svc.admin.Close()
	}
	if svc.certificates != nil {
		svc.certificates.Close()
	}
	for _, l := range []net.Listener{svc.public, svc.plain} {
		if l != nil {
			l.Close()
		}
	}
	if svc.store != nil {
		svc.store.Close()
	}
	svc.releaseLease()
}

// SetupLink returns a new one-time URL of the form that makes the first admin.
// The error is a *webhook.Error when there is one already.
func (svc *service) setupLink(ctx context.Context) (string, error) {
	any, err := svc.store.HasAdmins(ctx)
	if err != nil {
		return "", err
	}
	if any {
		return "", webhook.NewError(webhook.CodeConflict, "There is an admin already: sign in at "+svc.baseURL+"/. A forgotten password is set anew by service admin reset-password --email E; service admin list shows who there is.")
	}
	return svc.baseURL + svc.web.NewSetupLink(), nil
}

// announce tells whoever started the service where it is and what to do first.
// link makes the first admin; it is "" when there is one.
func (svc *service) announce(w io.Writer, link string) {
	data := ""
	if svc.settings.data != "./data" {
		data = " --data " + shellQuote(svc.settings.data)
	}
	if h, held := svc.store.Held(); held {
		fmt.Fprintf(w, "HELD      restored from %s as of %s: nothing is delivered until %s\n", terminal.Escape(h.From), webhook.FormatTime(h.State), webhook.FormatTime(h.Until))
		fmt.Fprintf(w, "          (%s; deliver now: %s release%s)\n", mayRepeat(&h.Repeats), svc.settings.program, data)
	}
	if link == "" {
		fmt.Fprintf(w, "Admin UI  %s/\n", svc.baseURL)
	} else {
		fmt.Fprintf(w, "Admin UI  %s\n", link)
		fmt.Fprintf(w, "          (make the first admin there, within 30 minutes; another link: %s admin setup-link%s)\n", svc.settings.program, data)
	}
	fmt.Fprintf(w, "API       %s\n", svc.baseURL)
	fmt.Fprintf(w, "A token   TOKEN=$(%s token create%s --program acme --user me --scope webhooks.read,webhooks.write,events.read,events.write)\n", svc.settings.program, data)
	fmt.Fprintf(w, "Try it    %s/v2/webhooks/subscriptions\n", svc.curl())
}

// curl is the beginning of a command that calls the API with $TOKEN, up to the
// path.
func (svc *service) curl() string {
	ca := ""
	if svc.caFile != "" {
		ca = " --cacert " + shellQuote(svc.caFile)
	}
	return "curl" + ca + ` -H "Authorization: Bearer $TOKEN" ` + svc.baseURL
}

// listeningOn are the addresses of listeners, of which some may be nil.
func listeningOn(listeners ...net.Listener) []netip.AddrPort {
	var on []netip.AddrPort
	for _, l := range listeners {
		if l == nil {
			continue
		}
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			on = append(on, a.AddrPort())
		}
	}
	return on
}

// reachableAt is the host and port that a listener is reached by from this
// machine; host is what it was asked to listen on.
func reachableAt(address net.Addr, host string) string {
	_, port, _ := net.SplitHostPort(address.String())
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
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

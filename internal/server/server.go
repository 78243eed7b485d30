// Package server wires the store, the dispatcher, the API and the admin UI together
// and runs them behind their listeners, from the configuration to the end of a
// shutdown. It reads no flags and no environment.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"service/api"
	"service/dispatcher"
	"service/internal/certs"
	"service/internal/control"
	"service/store"
	"service/store/replica"
	"service/web"
	"service/webhook"
)

// Server is the whole service: its listeners are open, and [Server.Run] serves them.
type Server struct {
	cfg          *Config
	store        *store.Store
	lease        *replica.Lease // nil for none
	dispatcher   *dispatcher.Dispatcher
	web          *web.Web
	handler      http.Handler   // of the API and the admin UI
	plainHandler http.Handler   // of plain HTTP
	certificates *certs.Manager // nil without TLS
	public       net.Listener
	plain        net.Listener // for plain HTTP, nil for none
	socket       net.Listener
	baseURL      string // without a final slash
	catalog      *webhook.Catalog
	caFile       string // what clients must trust, "" without TLS
}

// Open opens the data directory and the listeners, and acquires the lease if there
// is to be one. What it returns must be run, or closed.
//
// An error of the secret key wraps [store.ErrKey].
func Open(ctx context.Context, cfg *Config) (*Server, error) { return open(ctx, cfg, nil) }

// open is [Open] with a lease that is held already, unless that is nil.
func open(ctx context.Context, cfg *Config, held *replica.Lease) (_ *Server, err error) {
	s := &Server{cfg: cfg}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := store.FinishRestore(cfg.Dir, cfg.Logger); err != nil {
		return nil, err
	}
	catalog, err := LoadCatalog(cfg.Dir)
	if err != nil {
		return nil, err
	}
	registry, err := newRegistry(cfg.Version)
	if err != nil {
		return nil, err
	}
	if err := cfg.checkUnleased(ctx); err != nil {
		return nil, err
	}
	beforeRestore, restored := s.leaseForRestore(held)
	defer func() { err = errors.Join(err, restored()) }()
	if s.store, err = store.Open(ctx, store.Config{BeforeRestore: beforeRestore, Dir: cfg.Dir, SecretKeyFile: cfg.SecretKeyFile, Logger: cfg.Logger, MinFreeDisk: cfg.MinFreeDisk, Retention: cfg.Retention, SendAlerts: cfg.AlertURL != "", Replica: cfg.Replica, AcknowledgeTimeout: cfg.AcknowledgeTimeout, VerifyReplica: cfg.VerifyReplica, Metrics: registry, Dictionary: catalog.Dictionary()}); err != nil {
		return nil, err
	}
	if held != nil {
		s.lease = held // not before: Close would release it, and who has it tries again
	}
	if err := s.takeLease(ctx); err != nil {
		return nil, err
	}
	if err := s.store.BeginHold(ctx, cfg.RestoreHold); err != nil {
		return nil, err
	}
	if s.public, err = new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen); err != nil {
		return nil, explainListen("listen", err)
	}
	s.public = newBoundedListener(s.public, MaxClientConnections, maxNetworkConnections, cfg.TrustedProxies, cfg.Logger)
	s.baseURL = "http://" + reachableAt(s.public.Addr(), cfg.host())
	if cfg.HTTPListen != "" {
		if s.plain, err = new(net.ListenConfig).Listen(ctx, "tcp", cfg.HTTPListen); err != nil {
			return nil, explainListen("http-listen", err)
		}
		s.plain = newBoundedListener(s.plain, MaxClientConnections, maxNetworkConnections, nil, cfg.Logger)
	}
	if cfg.TLS {
		if err := s.openCertificates(ctx); err != nil {
			return nil, err
		}
		registry.MustRegister(s.certificates)
	}
	if s.socket, err = control.Listen(ctx, cfg.Dir); err != nil {
		return nil, err
	}

	s.catalog = catalog
	if err := s.wire(catalog, registry); err != nil {
		return nil, err
	}
	return s, nil
}

// wire creates the dispatcher and the handlers behind the listeners.
func (s *Server) wire(catalog *webhook.Catalog, registry *prometheus.Registry) error {
	cfg := s.cfg
	alerts, err := alertTarget(cfg)
	if err != nil {
		return err
	}
	own := listeningOn(s.public, s.plain)
	s.dispatcher = dispatcher.New(dispatcher.Config{
		Store: s.store, Logger: cfg.Logger,
		RetryPolicy: cfg.RetryPolicy, HealthPolicy: cfg.HealthPolicy, AttemptTimeout: cfg.AttemptTimeout,
		MaxInFlight: cfg.MaxInFlight, MaxConnections: cfg.MaxConnections,
		BatchSize: cfg.BatchSize, BatchWindow: cfg.BatchWindow,
		Destinations: cfg.Destinations, Own: own, AllowHTTP: cfg.AllowHTTP, Alerts: alerts, SMTP: cfg.SMTP, BaseURL: s.baseURL, Grace: cfg.Grace,
		Metrics: registry,
	})
	rules := webhook.SubscriptionRules{AllowHTTP: cfg.AllowHTTP, Destinations: cfg.Destinations, Catalog: catalog, Own: own}
	settings := make([]web.Setting, len(cfg.Settings))
	for i, setting := range cfg.Settings {
		settings[i] = web.Setting(setting)
	}
	s.web = web.New(web.Config{
		Store: s.store, Logger: cfg.Logger, Version: cfg.Version, Started: time.Now(),
		// Behind a proxy that is trusted browsers speak HTTPS with that.
		Secure: cfg.TLS || len(cfg.TrustedProxies) > 0, Program: cfg.Program, BaseURL: s.baseURL, CAFile: s.caFile, Ready: s.ready, Backlog: s.dispatcher.Backlog, AlertURL: cfg.AlertURL != "", Email: cfg.SMTP.IsSet(), Settings: settings, Certificates: s.certificateList,
		Checks: func(ctx context.Context) []store.Finding { return s.examine(ctx, 0) },
		Rules:  rules, MaxSubscriptions: cfg.MaxSubscriptions, BatchSize: cfg.BatchSize,
	})
	apiHandler := api.New(api.Config{
		Store: s.store, Logger: cfg.Logger, Catalog: catalog,
		Rules: rules,
		Ready: s.delivering, MaxSubscriptions: cfg.MaxSubscriptions, BatchSize: cfg.BatchSize, BaseURL: s.baseURL,
		RateLimit: cfg.RateLimit, RequestTimeout: cfg.RequestTimeout,
		Metrics: registry,
	})
	s.route(apiHandler)
	return nil
}

// openCertificates makes the public listener one of HTTPS.
func (s *Server) openCertificates(ctx context.Context) error {
	cfg := s.cfg
	ca, err := certs.OpenCA(cfg.Dir, time.Now())
	if err != nil {
		return err
	}
	cc := certs.Config{
		Domains: cfg.Domains, Hosts: certs.ServerNames(cfg.host()), CA: ca,
		Email: cfg.ACMEEmail, Issuer: cfg.ACMECA, Roots: cfg.ACMERoots,
		TLSAddr: s.public.Addr(), CheckInterval: cfg.certificateCheck, Logger: cfg.Logger,
	}
	if len(cfg.Domains) > 0 {
		// The certificate for localhost, which anyone can ask for, must not name this machine.
		cc.Hosts, cc.Storage = []string{certs.LocalName, "127.0.0.1", "::1"}, s.store.Certificates()
		if s.plain != nil {
			cc.HTTPAddr = s.plain.Addr()
		}
	}
	for _, host := range cc.Hosts {
		if !ca.Allows(host) {
			cfg.Logger.Warn("the local CA may not vouch for a name, which is left out of the certificate; to have another CA made, which clients then have to be given, remove ca.pem and ca.key", "name", host)
		}
	}
	cc.Hosts = slices.DeleteFunc(cc.Hosts, func(host string) bool { return !ca.Allows(host) })
	if s.certificates, err = certs.New(ctx, cc); err != nil {
		return err
	}
	s.public = tls.NewListener(s.public, s.certificates.TLSConfig())
	_, port, _ := net.SplitHostPort(s.public.Addr().String())
	if len(cfg.Domains) > 0 {
		s.baseURL = "https://" + joinHostPort(cfg.Domains[0], port)
		return nil
	}
	s.caFile = filepath.Join(cfg.Dir, certs.CAFile)
	s.baseURL = strings.Replace(s.baseURL, "http:", "https:", 1)
	return nil
}

// certificateList returns the certificates that are shown now, for the admin UI;
// none without TLS.
func (s *Server) certificateList() []web.Certificate {
	var all []web.Certificate
	for _, c := range s.certificates.Certificates() {
		all = append(all, web.Certificate(c))
	}
	return all
}

// route sets the handlers of the listeners.
func (s *Server) route(apiHandler *api.API) {
	cfg := s.cfg
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isAPIPath(r.URL.Path) || r.Method == http.MethodConnect { // CONNECT names a host and no path
			apiHandler.ServeHTTP(w, r)
		} else {
			s.web.ServeHTTP(w, r)
		}
	})
	base, _ := url.Parse(s.baseURL)
	insecure := &redirectHandler{certificates: s.certificates, api: apiHandler, hosts: cfg.Domains, port: cmp.Or(base.Port(), "443")}
	if len(cfg.Domains) == 0 {
		insecure.hosts = append([]string{base.Hostname()}, certs.ServerNames(cfg.host())...)
	}
	s.plainHandler = insecure
	if len(cfg.Domains) > 0 {
		s.handler = withHSTS(s.handler, cfg.Domains)
	}
	if !cfg.TLS || len(cfg.TrustedProxies) > 0 {
		behind := &proxyHandler{trusted: cfg.TrustedProxies, handler: s.handler, insecure: insecure}
		if !cfg.TLS {
			// The proxy serves HTTPS, at the host that the client asked for.
			behind.insecure = &redirectHandler{api: apiHandler, port: "443"}
			behind.direct = &redirectHandler{api: apiHandler}
		}
		s.handler = behind
	}
}

// explainListen adds to an error of listening the flag of the address, and what
// permission is missing.
func explainListen(flag string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("--%s: %w: ports below 1024 are for root, or for who has the capability CAP_NET_BIND_SERVICE", flag, err)
	}
	return fmt.Errorf("--%s: %w", flag, err)
}

// delivering returns nil if deliveries are being made, or why not. The error may be
// shown to anyone.
func (s *Server) delivering() error {
	if !s.dispatcher.Ready() {
		return errors.New("deliveries are not being made")
	}
	return nil
}

// ready returns nil if the service accepts and delivers events, or why not.
func (s *Server) ready(ctx context.Context) error {
	if err := s.delivering(); err != nil {
		return err
	}
	return s.store.Check(ctx)
}

// Run serves until ctx ends. Then it accepts no more requests, lets those in flight
// end within the grace period, after them the attempts in flight within another,
// syncs the replica, and closes the store. It returns the first error of a
// component, which ends the others. When another service holds the lease, it ends
// at once, without grace periods, and sends nothing more to the replica.
func (s *Server) Run(ctx context.Context) error {
	logger := s.cfg.Logger
	logger.Info("serving", "url", s.baseURL, "data", s.cfg.Dir, "version", s.cfg.Version)

	ctx, leaseLost := context.WithCancelCause(ctx)
	defer leaseLost(nil)
	g, running := errgroup.WithContext(ctx)
	s.goServe(ctx, running, g)
	g.Go(func() error { return s.store.Guard(running) })
	g.Go(func() error { return notify(running, s.baseURL, s.ready, s.cfg.shutdownTimeout(), logger) })
	g.Go(func() error { return s.store.Retain(running, s.cfg.Retention) })
	g.Go(func() error { return s.store.Housekeep(running) })
	g.Go(func() error { return s.store.BulkRuns().Run(running) })
	g.Go(func() error { return s.store.EndHold(running) })
	g.Go(func() error {
		debug.FreeOSMemory() // a service with nothing to do keeps nothing of what its start took
		<-running.Done()
		if errors.Is(context.Cause(ctx), errLeaseLost) {
			logger.Error("another service holds the lease; ending at once")
			return nil
		}
		logger.Info("ending: requests and attempts under way may take their time", "grace", s.cfg.Grace)
		return nil
	})
	// The replica follows until the last attempt is recorded, and the lease is kept
	// until the last change is in the replica.
	var copying, keeping errgroup.Group
	following, allWritten := context.WithCancel(context.WithoutCancel(ctx))
	defer allWritten()
	copying.Go(func() error { return s.store.Replicate(following) })
	kept, allCopied := context.WithCancel(context.WithoutCancel(ctx))
	defer allCopied()
	if s.lease != nil {
		keeping.Go(func() error {
			err := s.lease.KeepAlive(kept)
			if err != nil {
				leaseLost(errLeaseLost)
			}
			return err
		})
	}
	err := g.Wait()
	allWritten()
	err = errors.Join(err, copying.Wait(), s.store.Close())
	allCopied()
	err = errors.Join(err, keeping.Wait(), s.releaseLease())
	if err == nil {
		logger.Info("ended")
	}
	return err
}

// goServe starts the listeners and the dispatcher in g. They end with running;
// the dispatcher only after the public server, since a request may wait for its
// ping.
func (s *Server) goServe(ctx, running context.Context, g *errgroup.Group) {
	logger, grace := s.cfg.Logger, s.cfg.Grace
	errorLog := slog.NewLogLogger(serverLog{logger.Handler()}, slog.LevelWarn)
	sending, publicClosed := context.WithCancel(context.WithoutCancel(ctx))
	public := newHTTPServer(s.handler, s.cfg.RequestTimeout)
	public.ErrorLog = errorLog
	public.RegisterOnShutdown(s.web.EndStreams)
	g.Go(func() error {
		defer publicClosed()
		return Serve(running, public, s.public, grace)
	})
	if s.plain != nil {
		plain := newHTTPServer(s.plainHandler, s.cfg.RequestTimeout)
		plain.ErrorLog = errorLog
		g.Go(func() error { return Serve(running, plain, s.plain, grace) })
	}
	if s.certificates != nil {
		g.Go(func() error { return s.certificates.Run(running) })
	}
	commands := &control.Server{
		Store: control.AuditedStore{Store: s.store, Version: s.cfg.Version}, SetupLink: s.SetupLink,
		Examine: s.examine, AdminsChanged: s.web.AdminsChanged, Catalog: s.catalog, Retention: s.cfg.Retention.All, Logger: logger,
	}
	g.Go(func() error {
		return Serve(running, &http.Server{Handler: commands.Handler(), ErrorLog: errorLog}, s.socket, time.Second)
	})
	g.Go(func() error {
		err := s.dispatcher.Run(sending)
		if sending.Err() != nil {
			return nil // told to end before it had begun: it fails in no other way by then
		}
		return err
	})
}

// Close releases what Open has opened. It is for a server that is not run.
func (s *Server) Close() {
	if s.socket != nil {
		s.socket.Close()
	}
	if s.certificates != nil {
		s.certificates.Close()
	}
	for _, l := range []net.Listener{s.public, s.plain} {
		if l != nil {
			l.Close()
		}
	}
	if s.store != nil {
		s.store.Close()
	}
	s.releaseLease()
}

// URL returns the base URL of the API and the admin UI, without a final slash.
func (s *Server) URL() string { return s.baseURL }

// CAFile returns the file of the local CA that clients must trust, "" for none.
func (s *Server) CAFile() string { return s.caFile }

// Store returns the store.
func (s *Server) Store() *store.Store { return s.store }

// SignInLink returns a one-time URL that signs an admin in.
func (s *Server) SignInLink(adminID string) string {
	return s.baseURL + s.web.NewSignInLink(adminID)
}

// SetupLink returns a new one-time URL of the form that makes the first admin.
// The error is a *webhook.Error when there is one already.
func (s *Server) SetupLink(ctx context.Context) (string, error) {
	any, err := s.store.Admins().Exist(ctx)
	if err != nil {
		return "", err
	}
	if any {
		return "", webhook.NewError(webhook.CodeConflict, "There is an admin already: sign in at "+s.baseURL+"/. A forgotten password is set anew by service admin reset-password --email E; service admin list shows who there is.")
	}
	return s.baseURL + s.web.NewSetupLink(), nil
}

// listeningOn returns the addresses of listeners, of which some may be nil.
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

// reachableAt returns the host and port of a listener as this machine reaches it;
// host is that of the listen address.
func reachableAt(address net.Addr, host string) string {
	_, port, _ := net.SplitHostPort(address.String())
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// Package server wires the store, the dispatcher, the API and the admin UI together
// and runs them behind their listeners, from the configuration to the end of a
// shutdown. It reads no flags and no environment.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"service/api"
	"service/dispatcher"
	"service/internal/certs"
	"service/internal/control"
	"service/internal/move"
	"service/store"
	"service/store/datadir"
	"service/store/doctor"
	"service/store/replica"
	"service/web"
	"service/webhook"
)

// Server is the service with open listeners. [Server.Run] serves them.
type Server struct {
	listeners
	store        *store.Store
	lease        *replica.Lease // nil for none
	standbys     *standbyWatch  // nil without a lease
	dispatcher   *dispatcher.Dispatcher
	web          *web.Web
	moves        *move.Source
	arrivals     *move.Target
	handler      http.Handler // API and admin UI
	plainHandler http.Handler // plain HTTP
	api          *api.API
	owner        http.Handler // API on the admin socket
	socket       net.Listener
	baseURL      string        // of the listener for clients, without a trailing slash
	caFile       string        // the certificate that clients must trust; empty without TLS
	lost         chan struct{} // closed when another service has taken the lease
}

// Open opens the data directory and the listeners, without a lease. The caller must call Run or
// Close.
//
// Errors about the secret key wrap [store.ErrKey].
func Open(ctx context.Context, cfg *Config) (*Server, error) {
	if err := cfg.checkPorts(ctx); err != nil {
		return nil, err
	}
	return open(ctx, cfg, nil)
}

// open is Open with an acquired lease, which may be nil.
func open(ctx context.Context, cfg *Config, lease *replica.Lease) (_ *Server, err error) {
	s := &Server{listeners: listeners{cfg: cfg}, lost: make(chan struct{})}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := datadir.FinishRestore(cfg.Dir, cfg.Logger); err != nil {
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
	data := cfg.Data
	data.Logger, data.Metrics, data.Catalog, data.SendAlerts = cfg.Logger, registry, catalog, cfg.AlertURL != ""
	if s.store, err = store.Open(ctx, data); err != nil {
		return nil, err
	}
	if err := cfg.checkGone(ctx); err != nil {
		return nil, err
	}
	if lease != nil {
		// Not earlier: on an error, Close would release the lease, but the caller retries with it.
		s.lease, s.standbys = lease, newStandbyWatch(cfg.Replica, cfg.Logger)
	}
	registry.MustRegister(nodeCollector{cfg, s.figures})
	if err := s.takeLease(ctx); err != nil {
		return nil, err
	}
	if err := s.store.Holds().Begin(ctx); err != nil {
		return nil, err
	}
	if err := s.listeners.open(ctx, s.acme); err != nil {
		return nil, err
	}
	if cfg.TLS {
		registry.MustRegister(s.certificates)
		s.caFile = filepath.Join(cfg.Dir, certs.CAFile)
		if len(cfg.Domains) > 0 {
			_, port, _ := net.SplitHostPort(s.public.Addr().String())
			s.localURL, s.caFile = "https://"+joinHostPort(cfg.Domains[0], port), ""
		}
	}
	if cfg.Replica != nil {
		files, err := cfg.localFiles()
		if err == nil {
			err = s.store.SetLocalFiles(ctx, files)
		}
		if err != nil {
			return nil, err
		}
	}
	s.baseURL = cmp.Or(cfg.PublicURL, s.localURL)
	if s.socket, err = control.Listen(ctx, cfg.Dir); err != nil {
		return nil, err
	}

	if err := s.wire(catalog, registry); err != nil {
		return nil, err
	}
	return s, nil
}

// checkPorts reports an address that cannot be listened on, before the data directory is created.
// If the directory exists, opening it comes first: its lock names the process that uses the port.
func (cfg *Config) checkPorts(ctx context.Context) error {
	if _, err := os.Stat(cfg.Dir); err == nil {
		return nil
	}
	public, plain, err := cfg.listen(ctx)
	if err != nil {
		return err
	}
	err = public.Close()
	if plain != nil {
		err = errors.Join(err, plain.Close())
	}
	return err
}

// listen opens the listener for clients and, if configured, the listener for plain HTTP.
func (cfg *Config) listen(ctx context.Context) (public, plain net.Listener, err error) {
	if public, err = new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen); err != nil {
		return nil, nil, ExplainListen(ctx, "listen", cfg.Listen, err)
	}
	if cfg.HTTPListen != "" {
		if plain, err = new(net.ListenConfig).Listen(ctx, "tcp", cfg.HTTPListen); err != nil {
			public.Close()
			return nil, nil, ExplainListen(ctx, "http-listen", cfg.HTTPListen, err)
		}
		plain = newLimitedListener(plain, MaxClientConnections, maxNetworkConnections, nil, cfg.Logger)
	}
	return newLimitedListener(public, MaxClientConnections, maxNetworkConnections, cfg.TrustedProxies, cfg.Logger), plain, nil
}

// wire creates the dispatcher and the handlers behind the listeners.
func (s *Server) wire(catalog *webhook.Catalog, registry *prometheus.Registry) error {
	cfg := s.cfg
	alerts, err := alertTarget(cfg)
	if err != nil {
		return err
	}
	own := listeningOn(s.public, s.plain)
	delivery := cfg.Delivery
	delivery.Store, delivery.Logger, delivery.Metrics = s.store, cfg.Logger, registry
	delivery.Own, delivery.Alerts, delivery.BaseURL = own, alerts, s.baseURL
	s.dispatcher = dispatcher.New(delivery)
	rules := webhook.SubscriptionRules{
		AllowHTTP: cfg.AllowHTTP, Destinations: cfg.Destinations, Catalog: catalog, Own: own, ShowFlags: cfg.isLocal(),
	}
	receiving := webhook.Receiving{
		Timeout: cfg.AttemptTimeout, Retry: cfg.RetryPolicy, Health: cfg.HealthPolicy, BatchSize: cfg.BatchSize, Window: cfg.BatchWindow,
		Retention: cfg.Retention.All, RetentionDelivered: cfg.Retention.Delivered, MaxInFlight: cfg.MaxInFlight, Egress: cfg.EgressNote,
	}
	s.web = web.New(web.Config{
		Store: s.store, Logger: cfg.Logger, Version: cfg.Version, Started: time.Now(),
		// A trusted proxy serves HTTPS to the browsers.
		Secure:  cfg.TLS || len(cfg.TrustedProxies) > 0,
		Program: cfg.Program, BaseURL: s.baseURL, Domains: s.publicDomains(), CAFile: s.CAFile(), Settings: cfg.Settings,
		Certificates: s.certificateList,
		Ready:        s.ready, Backlog: s.dispatcher.Backlog, PausedUntil: s.dispatcher.PausedUntil,
		AlertURL: cfg.AlertURL != "", Email: cfg.SMTP.IsSet(),
		Checks: func(ctx context.Context) []doctor.Finding { return s.examine(ctx, 0) },
		OIDC:   s.openProvider(),
		Rules:  rules, MaxSubscriptions: cfg.MaxSubscriptions, RateLimit: cfg.RateLimit, BatchSize: cfg.BatchSize,
		DisableAfter: cfg.HealthPolicy.DisableAfter,
		Portal:       cfg.Portal, Receiving: receiving,
	})
	s.moves = &move.Source{Store: s.store, Catalog: catalog, Version: cfg.Version, Cut: s.dispatcher.Cut, Logger: cfg.Logger}
	s.arrivals = &move.Target{Store: s.store, Catalog: catalog, Retry: cfg.RetryPolicy, Version: cfg.Version, Logger: cfg.Logger}
	apiHandler := api.New(api.Config{
		Store: s.store, Logger: cfg.Logger, Catalog: catalog, Moves: s.arrivals,
		Rules: rules,
		Ready: s.delivering, MaxSubscriptions: cfg.MaxSubscriptions, BatchSize: cfg.BatchSize, BaseURL: s.baseURL,
		RateLimit: cfg.RateLimit, PlatformRateLimit: cfg.PlatformRateLimit, RequestTimeout: cfg.RequestTimeout,
		Metrics: registry, Receiving: receiving,
	})
	s.api, s.owner = apiHandler, apiHandler.Owner(api.OwnerConfig{
		Version: cfg.Version, SetupLink: s.SetupLink, AdminsChanged: s.web.AdminsChanged, Standbys: s.standbys.alive,
		Examine:   func(ctx context.Context) []doctor.Finding { return s.examine(ctx, examineTime) },
		Retention: cfg.Retention.All, Retry: &cfg.RetryPolicy, Moves: s.moves,
	})
	s.route(apiHandler)
	return nil
}

// acme configures the certificates of the domains.
func (s *Server) acme(cc *certs.Config) {
	cc.Email, cc.Roots, cc.Storage = s.cfg.ACMEEmail, s.cfg.ACMERoots, s.store.Certificates()
	// Any client can request the certificate for localhost, so it must not contain the names of this
	// host.
	cc.Hosts = []string{certs.LocalName, "127.0.0.1", "::1"}
	if s.plain != nil {
		cc.HTTPAddr = s.plain.Addr()
	}
}

// certificateList returns the current certificates for the admin UI; none without TLS.
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
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/"):
			s.leased(w, func(w http.ResponseWriter) { apiHandler.ServeHTTP(w, r) })
		case isAPIPath(r.URL.Path) || r.Method == http.MethodConnect: // CONNECT names a host and no path
			apiHandler.ServeHTTP(w, r)
		default:
			s.servePage(apiHandler, w, r)
		}
	})
	base, _ := url.Parse(s.localURL)
	insecure := &redirectHandler{certificates: s.certificates, api: apiHandler, hosts: cfg.Domains, port: cmp.Or(base.Port(), "443")}
	if len(cfg.Domains) == 0 {
		insecure.hosts = append([]string{base.Hostname()}, certs.ServerNames(cfg.host())...)
	}
	s.plainHandler = insecure
	if len(cfg.Domains) > 0 {
		// Browsers ignore HSTS for an address (RFC 6797, section 8.1.1).
		s.handler = withHSTS(s.handler, slices.DeleteFunc(slices.Clone(cfg.Domains), certs.IsAddress))
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

// servePage serves a page to browsers. Other clients, such as one whose base URL lacks /v2, get
// errors in the API's format.
func (s *Server) servePage(apiHandler *api.API, w http.ResponseWriter, r *http.Request) {
	switch page, exists := s.web.Find(r); {
	case page:
		s.web.ServeHTTP(w, r)
	case exists:
		apiHandler.Refuse(w, r, webhook.NewError(webhook.CodeUnauthenticated,
			"This is a page for admins, who sign in with a browser. Paths of the API begin with /v2/."))
	default:
		apiHandler.ServeHTTP(w, r)
	}
}

// delivering returns nil if the dispatcher is running. Its error is safe to show in public.
func (s *Server) delivering() error {
	if !s.dispatcher.Ready() {
		return errors.New("deliveries are not being sent; check the log")
	}
	return nil
}

// ready returns nil if the service accepts and delivers events, or the reason why not.
func (s *Server) ready(ctx context.Context) error {
	if err := s.delivering(); err != nil {
		return err
	}
	return s.store.Check(ctx)
}

// Run serves until ctx ends. Then it stops accepting requests, waits up to one grace period for
// requests in flight and another for attempts in flight, syncs the replica and closes the store.
// The first error of a component stops the others and is returned. If another service takes the
// lease, Run stops at once, without grace periods, sends nothing more to the replica, and returns
// an error that wraps errLeaseLost.
func (s *Server) Run(ctx context.Context) error {
	logger := s.cfg.Logger
	logger.Info("serving", "url", s.localURL, "data", s.cfg.Dir, "version", s.cfg.Version)

	ctx, leaseLost := context.WithCancelCause(ctx)
	defer leaseLost(nil)
	g, running := errgroup.WithContext(ctx)
	s.goServe(ctx, running, g)
	g.Go(func() error { return s.store.Guard(running) })
	g.Go(func() error { return s.api.Run(running) })
	g.Go(func() error { return notify(running, "Serving "+s.baseURL, s.ready, s.cfg.ShutdownTimeout(), logger) })
	g.Go(func() error { return s.store.Retain(running, s.cfg.Retention) })
	g.Go(func() error { return s.store.Housekeep(running) })
	g.Go(func() error { return s.store.BulkRuns().Run(running) })
	g.Go(func() error {
		debug.FreeOSMemory() // return the memory that startup needed
		<-running.Done()
		if errors.Is(context.Cause(ctx), errLeaseLost) {
			logger.Error("another service holds the lease; stopping immediately")
			return nil
		}
		logger.Info("shutting down; draining in-flight requests and attempts", "grace", s.cfg.Grace)
		return nil
	})
	// Replication continues until the last attempt is recorded, and the lease is renewed
	// until the last change is in the replica.
	var replication, renewal errgroup.Group
	replicating, stopReplicating := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReplicating()
	replication.Go(func() error { return s.store.Replica().Run(replicating) })
	renewing, stopRenewing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRenewing()
	if s.lease != nil {
		g.Go(func() error { return s.standbys.run(running) })
		renewal.Go(func() error {
			err := s.lease.KeepAlive(renewing)
			if err != nil {
				close(s.lost)
				leaseLost(errLeaseLost)
				err = fmt.Errorf("%w: %w", errLeaseLost, err)
			}
			return err
		})
	}
	err := g.Wait()
	stopReplicating()
	err = errors.Join(err, replication.Wait(), s.store.Close())
	stopRenewing()
	err = errors.Join(err, renewal.Wait(), s.releaseLease())
	if err == nil {
		logger.Info("stopped")
	}
	return err
}

// goServe starts the listeners and the dispatcher in g. They stop with running; the
// dispatcher stops after the public server because a request may wait for a ping.
func (s *Server) goServe(ctx, running context.Context, g *errgroup.Group) {
	logger, grace := s.cfg.Logger, s.cfg.Grace
	errorLog := slog.NewLogLogger(serverLog{logger.Handler()}, slog.LevelWarn)
	sending, publicClosed := context.WithCancel(context.WithoutCancel(ctx))
	public := newHTTPServer(s.handler, s.cfg.RequestTimeout)
	public.ErrorLog = errorLog
	public.RegisterOnShutdown(s.web.EndStreams)
	public.RegisterOnShutdown(s.api.EndWaits)
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
	g.Go(func() error {
		defer s.arrivals.Close()
		return s.moves.Run(running)
	})
	g.Go(func() error {
		return Serve(running, &http.Server{Handler: s.owner, ErrorLog: errorLog}, s.socket, time.Second)
	})
	g.Go(func() error {
		err := s.dispatcher.Run(sending)
		if sending.Err() != nil {
			return nil // the context ended before the start
		}
		return err
	})
}

// Close releases the resources of a server on which Run was not called.
func (s *Server) Close() {
	if s.socket != nil {
		s.socket.Close()
	}
	s.listeners.close()
	if s.store != nil {
		s.store.Close()
	}
	s.releaseLease()
}

// URL returns the base URL of the API and the admin UI, without a trailing slash.
func (s *Server) URL() string { return s.baseURL }

// LocalURL returns the base URL of the listener, without a trailing slash.
func (s *Server) LocalURL() string { return s.localURL }

// CAFile returns the local CA's certificate file, which clients at [Server.URL] must trust. It is
// empty if there is none.
func (s *Server) CAFile() string {
	if s.cfg.PublicURL != "" {
		return "" // the proxy has another certificate
	}
	return s.caFile
}

// publicDomains returns the names under which browsers reach the service, in lower case.
func (s *Server) publicDomains() []string {
	u, err := url.Parse(s.cfg.PublicURL)
	if err != nil || u.Hostname() == "" || slices.Contains(s.cfg.Domains, u.Hostname()) {
		return s.cfg.Domains
	}
	return append(slices.Clone(s.cfg.Domains), u.Hostname())
}

// Store returns the store.
func (s *Server) Store() *store.Store { return s.store }

// SignInLink returns a one-time URL that signs an admin in.
func (s *Server) SignInLink(adminID string) string {
	return s.baseURL + s.web.NewSignInLink(adminID)
}

// SetupLink returns a new one-time URL of the form that creates the first admin. If an admin
// exists, the error is a *webhook.Error.
func (s *Server) SetupLink(ctx context.Context) (string, error) {
	exists, err := s.store.Admins().Exist(ctx)
	if err != nil {
		return "", err
	}
	if exists {
		return "", webhook.NewError(webhook.CodeConflict, "An admin exists already: sign in at "+s.baseURL+"/. "+
			"To list the admins, use service admin list; to replace a forgotten password, service admin reset-password --email E.")
	}
	return s.baseURL + s.web.NewSetupLink(), nil
}

// listeningOn returns the addresses of the listeners; nil listeners are skipped.
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

// reachableAt returns the host and port at which this host reaches a listener. host is the host of
// the configured listen address.
func reachableAt(address net.Addr, host string) string {
	_, port, _ := net.SplitHostPort(address.String())
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

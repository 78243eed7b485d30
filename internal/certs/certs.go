// Package certs provides the TLS certificates of the server. It obtains and renews certificates for
// domain names and IP addresses through ACME, and signs a certificate with a local CA in the data
// directory.
//
// A server with certificates keeps serving while the ACME server is unreachable.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"service/store/certificate"
	"service/store/doctor"
	"service/webhook"
)

const (
	// defaultCheckInterval is the interval of the in-memory check whether a certificate is
	// due for renewal: when a third of its validity is left, or when the issuer says so.
	defaultCheckInterval = time.Minute
	// obtainRetryWait is the wait after certmagic has given up on a certificate, which it does
	// after a month of attempts.
	obtainRetryWait = time.Hour
	// expiredGrace is how long an expired certificate stays in the database.
	expiredGrace = 90 * 24 * time.Hour
	// accountTimeout limits the check whether an account is still valid.
	accountTimeout = 30 * time.Second
)

// Config is the configuration of a [Manager].
type Config struct {
	Domains []string // names and canonical IP addresses; if empty, there is only the local CA's certificate
	Hosts   []string // names and addresses for the local CA's certificate
	CA      *CA
	Storage *certificate.Storage // stores the certificates of Domains
	// Copy, if set, reads a file of another node's storage and is used instead of Storage: the
	// certificates of Domains are then looked up in the copy, and never obtained or renewed. A
	// domain without a valid certificate uses the local CA's.
	Copy          func(ctx context.Context, path string) ([]byte, error)
	Email         string         // of the ACME account; empty for none
	Issuer        string         // URL of the ACME directory
	Roots         *x509.CertPool // verify the ACME server; nil for the system's roots
	TLSAddr       net.Addr       // of the HTTPS listener, which answers TLS-ALPN-01
	HTTPAddr      net.Addr       // of the HTTP listener, which answers HTTP-01; nil for none
	CheckInterval time.Duration  // 0 for defaultCheckInterval
	Logger        *slog.Logger
}

// Manager manages the certificates of a server: an ACME certificate per domain, which certmagic
// obtains and renews, and a certificate of the local CA for clients on the same host, which is also
// used for a domain without a certificate. While the issuer is unreachable, the Manager keeps the
// current certificates.
//
// It is safe for concurrent use. The caller of New must call Run or Close.
type Manager struct {
	cfg        Config
	logger     *slog.Logger
	cache      *certmagic.Cache
	local      atomic.Pointer[tls.Certificate] // of the local CA; in memory only
	copied     *copied                         // nil unless the certificates are looked up in a copy
	acme       *certmagic.Config               // nil without domains, and with copied
	withoutARI *certmagic.Config               // like acme, but orders do not name the certificate that they replace
	addresses  *certmagic.Config               // like acme, with shortLived
	noARI      *certmagic.Config               // like withoutARI, with shortLived
	issuer     *certmagic.ACMEIssuer
	zap        *zap.Logger
	loaded     map[string]chan struct{} // by domain; closed once the certificate was looked up in the database

	mu          sync.Mutex
	failing     map[string]failure // domains whose last attempt failed
	withoutName map[string]bool    // domains that withoutARI renews next
}

// failure is a series of failed attempts to obtain a certificate.
type failure struct {
	since time.Time
	last  error
}

// New returns a Manager. It issues the local CA's certificate at once, so that an error of the CA
// is reported here.
func New(cfg Config) (*Manager, error) {
	c := &Manager{
		cfg: cfg, logger: cfg.Logger, loaded: make(map[string]chan struct{}),
		failing: make(map[string]failure), withoutName: make(map[string]bool),
	}
	if c.cfg.CheckInterval == 0 {
		c.cfg.CheckInterval = defaultCheckInterval
	}
	if err := c.issueLocal(time.Now()); err != nil {
		return nil, fmt.Errorf("the local CA: %w", err)
	}
	// onEvent logs failures of the issuer, so these two sources are quiet.
	c.zap = newZapLogger(cfg.Logger, "acme.acme_client", "could not get certificate from issuer")
	c.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   c.configFor,
		RenewCheckInterval: c.cfg.CheckInterval,
		Logger:             c.zap,
	})
	switch {
	case cfg.Copy != nil:
		c.copied = newCopied(&c.cfg)
	case len(cfg.Domains) > 0:
		c.configureACME()
	}
	return c, nil
}

// configureACME sets up certmagic for the domains' certificates.
func (c *Manager) configureACME() {
	cfg := &c.cfg
	settings := certmagic.Config{
		Storage: databaseStorage{cfg.Storage},
		OCSP:    certmagic.OCSPConfig{HTTPProxy: http.ProxyFromEnvironment},
		OnEvent: c.onEvent, ShouldEmitFunc: func(event string) bool { return event != "tls_get_certificate" },
		Logger: c.zap,
	}
	all := []**certmagic.Config{&c.acme, &c.withoutARI, &c.addresses, &c.noARI}
	for _, each := range all {
		*each = certmagic.New(c.cache, settings)
	}
	settings.DisableARI = true
	orderWithoutARI := certmagic.New(c.cache, settings)
	template := certmagic.ACMEIssuer{
		CA: cfg.Issuer, Email: cfg.Email, Agreed: true, TrustedRoots: cfg.Roots,
		// The server's own listeners answer challenges, from memory.
		DisableDistributedSolvers: true, DisableHTTPChallenge: cfg.HTTPAddr == nil,
		Logger: c.zap.Named("acme"),
	}
	// certmagic does not listen itself if these addresses are already in use.
	template.ListenHost, template.AltTLSALPNPort = bound(cfg.TLSAddr)
	if cfg.HTTPAddr != nil {
		_, template.AltHTTPPort = bound(cfg.HTTPAddr)
	}
	c.issuer = certmagic.NewACMEIssuer(c.acme, template)
	c.acme.Issuers = []certmagic.Issuer{c.issuer}
	// The config keeps ARI for the time of renewals; its orders do not use it.
	c.withoutARI.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(orderWithoutARI, template)}
	template.Profile = shortLived
	c.addresses.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(c.addresses, template)}
	c.noARI.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(orderWithoutARI, template)}
	for _, domain := range cfg.Domains {
		c.loaded[domain] = make(chan struct{})
	}
}

// bound returns the host and port of an address. The host is empty for all addresses.
func bound(a net.Addr) (host string, port int) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return "", 0
	}
	if !tcp.IP.IsUnspecified() {
		host = tcp.IP.String()
	}
	return host, tcp.Port
}

// configFor returns the configuration that manages a certificate.
func (c *Manager) configFor(cert certmagic.Certificate) (*certmagic.Config, error) {
	return c.orders(cert.Names...), nil
}

// orders returns the configuration that orders a certificate for names, which are all domain names
// or all IP addresses.
func (c *Manager) orders(names ...string) *certmagic.Config {
	c.mu.Lock()
	withoutARI := slices.ContainsFunc(names, func(name string) bool { return c.withoutName[name] })
	c.mu.Unlock()
	switch addresses := slices.ContainsFunc(names, IsAddress); {
	case addresses && withoutARI:
		return c.noARI
	case addresses:
		return c.addresses
	case withoutARI:
		return c.withoutARI
	}
	return c.acme
}

// recordRenewal makes every second attempt after a failed renewal place an order that does not name
// the certificate that it replaces. An issuer that has lost its records refuses orders that name an
// unknown certificate. certmagic omits the name from the third attempt on, but counts each renewal
// as a first attempt. The caller must hold mu.
func (c *Manager) recordRenewal(domain string, failed bool) {
	c.withoutName[domain] = failed && !c.withoutName[domain]
}

// Run obtains and renews the domains' certificates until ctx ends.
func (c *Manager) Run(ctx context.Context) error {
	defer c.Close()
	g, running := errgroup.WithContext(ctx)
	for domain := range c.loaded {
		g.Go(func() error { return c.manage(running, domain) })
	}
	g.Go(func() error {
		check, daily := time.NewTicker(c.cfg.CheckInterval), time.NewTicker(24*time.Hour)
		defer check.Stop()
		defer daily.Stop()
		for {
			var err error
			select {
			case <-running.Done():
				return nil
			case <-check.C:
				err = c.checkLocal(time.Now())
			case <-daily.C:
				err = c.clean(running)
			}
			if err != nil && running.Err() == nil {
				c.logger.Warn("certificate maintenance failed, will retry", "error", err)
			}
		}
	})
	return g.Wait()
}

// checkLocal reissues the local CA's certificate when a third of its validity is left, or if it is
// not yet valid because the clock was set back.
func (c *Manager) checkLocal(now time.Time) error {
	leaf := c.local.Load().Leaf
	if !now.Before(leaf.NotBefore) && leaf.NotAfter.Sub(now) > leaf.NotAfter.Sub(leaf.NotBefore)/3 {
		return nil
	}
	return c.issueLocal(now)
}

// issueLocal replaces the local CA's certificate.
func (c *Manager) issueLocal(now time.Time) error {
	certificate, err := c.cfg.CA.issue(c.cfg.Hosts, now)
	if err != nil {
		return err
	}
	c.local.Store(certificate)
	return nil
}

// clean removes expired certificates and OCSP staples from the database.
func (c *Manager) clean(ctx context.Context) error {
	if c.acme == nil {
		return nil
	}
	return certmagic.CleanStorage(ctx, c.acme.Storage, certmagic.CleanStorageOptions{
		Logger: c.zap, OCSPStaples: true, ExpiredCerts: true, ExpiredCertGracePeriod: expiredGrace,
	})
}

// Close stops certmagic's background work. An operation in progress ends soon after, because the
// storage is closed.
func (c *Manager) Close() {
	c.cache.Stop()
	if c.cfg.Storage != nil {
		c.cfg.Storage.Close()
	}
}

// manage loads a domain's certificate from the database, or obtains one. certmagic renews it
// from then on.
func (c *Manager) manage(ctx context.Context, domain string) error {
	c.removeMismatched(ctx, domain)
	_, err := c.acme.CacheManagedCertificate(ctx, domain)
	close(c.loaded[domain])
	if err == nil {
		// The certificate may have become due while the service was stopped.
		return c.cache.RenewManagedCertificates(ctx)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		c.logger.Error("failed to read a certificate; requesting a new one", "name", domain, "error", err)
	}
	for ctx.Err() == nil {
		// certmagic retries for a month.
		if err = c.orders(domain).ObtainCertAsync(ctx, domain); err == nil {
			_, err = c.acme.CacheManagedCertificate(ctx, domain)
		}
		if err == nil || ctx.Err() != nil {
			break
		}
		c.logger.Error("failed to obtain a certificate, will retry", "name", domain, "error", err, "retry_in", obtainRetryWait)
		pause := time.NewTimer(obtainRetryWait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
	return nil
}

// removeMismatched removes a domain's certificate that does not match its key, after a crash
// between writing the two. certmagic would not replace it.
func (c *Manager) removeMismatched(ctx context.Context, domain string) {
	issuer := c.issuer.IssuerKey()
	chain, err := c.acme.Storage.Load(ctx, certmagic.StorageKeys.SiteCert(issuer, domain))
	if err != nil {
		return
	}
	key, err := c.acme.Storage.Load(ctx, certmagic.StorageKeys.SitePrivateKey(issuer, domain))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if _, err := tls.X509KeyPair(chain, key); err == nil {
		return
	}
	c.logger.Warn("certificate does not match its key; requesting a new one", "name", domain)
	if err := c.acme.Storage.Delete(ctx, certmagic.StorageKeys.CertsSitePrefix(issuer, domain)); err != nil {
		c.logger.Error("failed to remove a certificate", "name", domain, "error", err)
	}
}

// onEvent logs an event of certmagic, then records it, so that every failure on a page is in the
// log.
func (c *Manager) onEvent(ctx context.Context, event string, data map[string]any) error {
	domain, _ := data["identifier"].(string)
	switch event {
	case "cert_obtained":
		c.logger.Info("obtained a certificate", "name", domain, "renewal", data["renewal"])
		c.mu.Lock()
		delete(c.failing, domain)
		c.recordRenewal(domain, false)
		c.mu.Unlock()
	case "cert_failed":
		err, _ := data["error"].(error)
		if err == nil || ctx.Err() != nil {
			return nil // shutting down
		}
		c.checkAccount(ctx, err)
		if leaf := c.leaf(domain); leaf != nil {
			c.logger.Error("failed to renew a certificate, will retry; using the current one until it expires",
				"name", domain, "error", err, "until", leaf.NotAfter.UTC())
		} else {
			c.logger.Error("failed to obtain a certificate, will retry", "name", domain, "error", err)
		}
		c.mu.Lock()
		f, ok := c.failing[domain]
		if !ok {
			f.since = time.Now()
		}
		f.last = err
		c.failing[domain] = f
		if renewal, _ := data["renewal"].(bool); renewal {
			c.recordRenewal(domain, true)
		}
		c.mu.Unlock()
	}
	return nil
}

// checkAccount removes the ACME account if it is no longer valid, so that the next attempt
// registers a new one. An ACME server refuses all requests of a deactivated account as
// unauthorized, but that error has other causes too.
func (c *Manager) checkAccount(ctx context.Context, err error) {
	var problem acme.Problem
	if !errors.As(err, &problem) || problem.Type != acme.ProblemTypeUnauthorized {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, accountTimeout)
	defer cancel()
	accounts := path.Join("acme", certmagic.StorageKeys.Safe(c.issuer.IssuerKey()), "users")
	files, err := c.acme.Storage.List(ctx, accounts, true)
	if err != nil {
		return // no account, or the storage failed
	}
	client := &acme.Client{Directory: c.cfg.Issuer, HTTPClient: &http.Client{
		Timeout: accountTimeout,
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: c.cfg.Roots}, DisableKeepAlives: true,
		},
	}}
	for _, file := range files {
		if path.Ext(file) != ".key" {
			continue
		}
		text, err := c.acme.Storage.Load(ctx, file)
		if err != nil {
			continue
		}
		key, err := certmagic.PEMDecodePrivateKey(text)
		if err != nil {
			continue
		}
		_, err = client.GetAccount(ctx, acme.Account{PrivateKey: key})
		if !errors.As(err, &problem) ||
			problem.Type != acme.ProblemTypeUnauthorized && problem.Type != acme.ProblemTypeAccountDoesNotExist {
			continue
		}
		c.logger.Warn("ACME server rejected the account; registering another at the next attempt",
			"issuer", c.cfg.Issuer, "error", err)
		if err := c.acme.Storage.Delete(ctx, path.Dir(file)); err != nil {
			c.logger.Error("failed to remove the ACME account", "error", err)
		}
	}
}

// errNoChallenge refuses a TLS-ALPN-01 handshake without a pending challenge.
var errNoChallenge = errors.New("no challenge is pending for this name")

// getCertificate returns the certificate for a client. If there are domains, a name other than a
// domain or LocalName is an error.
func (c *Manager) getCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.ToLower(hello.ServerName)
	if name == "" && (c.copied != nil || c.acme != nil) {
		if name = c.nameWithoutSNI(hello.Conn); name == LocalName {
			return c.local.Load(), nil
		}
	}
	if c.copied != nil {
		if certificate := c.copied.certificate(hello.Context(), name); certificate != nil {
			return certificate, nil
		}
	}
	local := c.local.Load()
	if c.acme == nil {
		return local, nil
	}
	if len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acmez.ACMETLS1Protocol {
		if _, ok := certmagic.GetACMEChallenge(name); !ok {
			return nil, errNoChallenge
		}
		return c.acme.GetCertificate(hello)
	}
	if local.Leaf.VerifyHostname(name) == nil { // of this machine; a domain is never one of its names
		return local, nil
	}
	loaded, isDomain := c.loaded[name]
	if isDomain {
		select {
		case <-loaded:
		case <-hello.Context().Done():
			return nil, hello.Context().Err()
		}
	}
	named := *hello
	named.ServerName = name
	cert, err := c.acme.GetCertificate(&named)
	if err != nil && isDomain {
		return local, nil // an admin who accepts the browser's warning can find the cause in the admin UI
	}
	return cert, err
}

// nameWithoutSNI returns the domain whose certificate a client without SNI gets. Clients send no
// SNI for an IP address, and behind NAT that is not the address of the connection. The result is
// the address in Domains that the client reached, else the first address of that family, else the
// first address, else the first domain. It is LocalName for a client that connects to a loopback
// address, except on a standby: its health checks come from a proxy that may be on this host.
func (c *Manager) nameWithoutSNI(conn net.Conn) string {
	var local netip.Addr
	if conn != nil {
		if tcp, ok := conn.LocalAddr().(*net.TCPAddr); ok {
			local = tcp.AddrPort().Addr().Unmap().WithZone("")
		}
	}
	best, rank := c.cfg.Domains[0], 0
	for _, domain := range c.cfg.Domains {
		a, err := netip.ParseAddr(domain)
		if err != nil {
			continue
		}
		switch {
		case a == local:
			return domain
		case a.BitLen() == local.BitLen() && rank < 2:
			best, rank = domain, 2
		case rank < 1:
			best, rank = domain, 1
		}
	}
	if local.IsLoopback() && c.copied == nil {
		return LocalName
	}
	return best
}

// tlsConfig returns the TLS configuration of the server.
func (c *Manager) tlsConfig() *tls.Config {
	protocols := []string{"h2", "http/1.1"}
	if c.acme != nil {
		protocols = append(protocols, acmez.ACMETLS1Protocol)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// For TLS 1.2, only suites with forward secrecy, authenticated encryption and 256-bit
		// keys. Those of TLS 1.3 cannot be configured, see preferAES256.
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		NextProtos:         protocols,
		GetCertificate:     c.getCertificate,
		GetConfigForClient: preferAES256,
		// A stolen ticket key would decrypt a week of resumed connections. A full handshake
		// only takes 0.1 ms.
		SessionTicketsDisabled: true,
	}
}

// AnswerChallenge answers an HTTP-01 challenge. It returns false if the request is not a challenge.
func (c *Manager) AnswerChallenge(w http.ResponseWriter, r *http.Request) bool {
	if c.acme == nil || !certmagic.LooksLikeHTTPChallenge(r) {
		return false
	}
	challenge, ok := certmagic.GetACMEChallenge(r.Host)
	return ok && certmagic.SolveHTTPChallenge(c.zap, w, r, challenge.Challenge)
}

// leaf returns the current certificate of a domain, nil for none.
func (c *Manager) leaf(name string) *x509.Certificate {
	for _, cert := range c.cache.AllMatchingCertificates(name) {
		if cert.Leaf != nil {
			return cert.Leaf
		}
	}
	return nil
}

// Certificates describes the current certificates: those of the domains, in the order of the
// configuration, then the local CA's certificate, then the CA itself. It returns nil for a nil
// Manager, as in a server without TLS.
func (c *Manager) Certificates() []Certificate {
	if c == nil {
		return nil
	}
	var all []Certificate
	for _, domain := range c.cfg.Domains {
		cert := Certificate{Names: []string{domain}}
		if leaf := c.leaf(domain); leaf != nil {
			cert = describe(leaf)
		}
		c.mu.Lock()
		if f, ok := c.failing[domain]; ok {
			cert.Failing, cert.Fault = f.since, f.last.Error()
		}
		c.mu.Unlock()
		all = append(all, cert)
	}
	ca := c.cfg.CA.certificate
	return append(all, describe(c.local.Load().Leaf), Certificate{
		Names: []string{ca.Subject.CommonName}, Issuer: "itself (give " + CAFile + " to clients)", Begins: ca.NotBefore, Ends: ca.NotAfter,
	})
}

func describe(leaf *x509.Certificate) Certificate {
	names := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	return Certificate{Names: names, Issuer: leaf.Issuer.CommonName, Begins: leaf.NotBefore, Ends: leaf.NotAfter}
}

// Certificate describes a certificate that the server has or is missing.
type Certificate struct {
	Names  []string
	Issuer string
	Begins time.Time // zero if there is no certificate
	Ends   time.Time // zero if there is no certificate

	Failing time.Time // start of the failures to obtain or renew it; zero for none
	Fault   string    // the last failure, with Failing
}

// Problem describes the problem with the certificate for the operator, or returns "".
func (c *Certificate) Problem(now time.Time) string {
	name := strings.Join(c.Names, ", ")
	why := ""
	if c.Fault != "" {
		why = ": " + c.Fault
	}
	switch left := c.Ends.Sub(now); {
	case c.Ends.IsZero() && c.Fault == "":
		return "no certificate for " + name + " yet"
	case c.Ends.IsZero():
		return "no certificate for " + name + why
	case left <= 0:
		return fmt.Sprintf("the certificate of %s expired on %s%s", name, c.Ends.UTC().Format(time.DateTime), why)
	case c.Fault != "":
		return fmt.Sprintf("failed to renew the certificate of %s, which expires on %s%s", name, c.Ends.UTC().Format(time.DateTime), why)
	}
	return ""
}

// renewSoon is the maximum time before expiry by which a certificate should have been renewed. For
// a certificate that is valid for less than four weeks, that time is a quarter of its lifetime.
// certmagic renews when a third is left.
const renewSoon = 7 * 24 * time.Hour

// expiresSoon reports whether the certificate should have been renewed by now.
func (c *Certificate) expiresSoon(now time.Time) bool {
	soon := renewSoon
	if !c.Begins.IsZero() {
		soon = min(soon, c.Ends.Sub(c.Begins)/4)
	}
	return c.Ends.Sub(now) < soon
}

// Findings returns a finding for each certificate.
func Findings(all []Certificate, now time.Time) []doctor.Finding {
	findings := make([]doctor.Finding, 0, len(all))
	for _, c := range all {
		f := doctor.Finding{Check: "certificates", Level: doctor.LevelOK}
		soon := c.expiresSoon(now)
		names, problem := strings.Join(c.Names, ", "), c.Problem(now)
		switch {
		case problem != "" && soon:
			f.Level, f.Detail = doctor.LevelFail, problem
			f.Advice = "Check the log for the error. The name or address must lead to this host, and port 443 or 80 must be reachable " +
				"from the internet."
		case problem != "":
			f.Level, f.Detail = doctor.LevelWarn, problem
			f.Advice = "Check the log for the error."
		case soon:
			f.Level, f.Detail = doctor.LevelWarn, fmt.Sprintf("%s: expires on %s", names, webhook.FormatTime(c.Ends))
			f.Advice = "Check the log for why it is not renewed."
		default:
			f.Detail = fmt.Sprintf("%s: valid until %s", names, webhook.FormatTime(c.Ends))
		}
		findings = append(findings, f)
	}
	return findings
}

var (
	expiryDesc = prometheus.NewDesc("webhooks_certificate_expiry_timestamp_seconds",
		"Expiry of the certificate for a name, in Unix time; 0 if there is none.", []string{"name"}, nil)
	lifetimeDesc = prometheus.NewDesc("webhooks_certificate_lifetime_seconds",
		"Time from the start of the certificate's validity to its expiry; 0 if there is none.", []string{"name"}, nil)
	failingDesc = prometheus.NewDesc("webhooks_certificate_failing",
		"1 if the last attempt to obtain or renew the certificate for a name failed, else 0.", []string{"name"}, nil)
)

// Describe implements [prometheus.Collector].
func (c *Manager) Describe(ch chan<- *prometheus.Desc) {
	ch <- expiryDesc
	ch <- lifetimeDesc
	ch <- failingDesc
}

// Collect implements [prometheus.Collector].
func (c *Manager) Collect(ch chan<- prometheus.Metric) {
	send := func(name string, c *Certificate) {
		expiry, failing := 0.0, 0.0
		if !c.Ends.IsZero() {
			expiry = float64(c.Ends.Unix())
		}
		if c.Fault != "" {
			failing = 1
		}
		ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, expiry, name)
		ch <- prometheus.MustNewConstMetric(lifetimeDesc, prometheus.GaugeValue, c.Ends.Sub(c.Begins).Seconds(), name)
		ch <- prometheus.MustNewConstMetric(failingDesc, prometheus.GaugeValue, failing, name)
	}
	for i, cert := range c.Certificates() {
		switch {
		case i < len(c.cfg.Domains):
			send(c.cfg.Domains[i], &cert)
		case slices.Contains(cert.Names, LocalName):
			send(LocalName, &cert)
		default:
			send(CAFile, &cert)
		}
	}
}

// LetsEncrypt is the URL of Let's Encrypt's ACME directory.
const LetsEncrypt = certmagic.LetsEncryptProductionCA

// shortLived is the ACME profile for IP addresses: Let's Encrypt issues their certificates for six
// days only.
const shortLived = "shortlived"

// IsAddress reports whether a domain is an IP address. Addresses use the profile shortLived, and
// neither passkeys nor HSTS.
func IsAddress(domain string) bool {
	_, err := netip.ParseAddr(domain)
	return err == nil
}

// IsPublicName reports whether a public certificate authority can issue a certificate for a
// domain name.
func IsPublicName(name string) bool {
	return certmagic.SubjectQualifiesForPublicCert(name) && strings.Contains(name, ".")
}

// Package certs provides the TLS certificates that the server shows: those of its
// domains, which it obtains from an ACME issuer and renews, and that of a local
// CA, which is kept in the data directory.
//
// A server with certificates keeps serving while the issuer cannot be reached.
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
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"service/store"
	"service/webhook"
)

const (
	// defaultCheckInterval is how often it is looked whether a certificate is due
	// for renewal, which is when a third of its life is left, or when its issuer
	// says so. It costs a look into memory.
	defaultCheckInterval = time.Minute
	// obtainRetryWait is how long it takes until a certificate that could not
	// be had in a month of attempts is asked for again.
	obtainRetryWait = time.Hour
	// expiredGrace is how long an expired certificate stays in the database.
	expiredGrace = 90 * 24 * time.Hour
	// accountTimeout bounds the question whether an account is still good.
	accountTimeout = 30 * time.Second
)

// Config is the configuration of a [Manager].
type Config struct {
	Domains       []string // without any, the local CA's certificate is the only one
	Hosts         []string // what the server is reached by on its own machine and network
	CA            *CA
	Storage       *store.Certificates // keeps the certificates of Domains
	Email         string              // of the ACME account, "" for none
	Issuer        string              // URL of the ACME directory
	Roots         *x509.CertPool      // verify the issuer's server; nil for the system's
	TLSAddr       net.Addr            // of the listener for HTTPS, which answers TLS-ALPN-01
	HTTPAddr      net.Addr            // of the listener that answers HTTP-01, nil for none
	CheckInterval time.Duration       // 0 for defaultCheckInterval
	Logger        *slog.Logger
}

// Manager holds the certificates of a server: one of the issuer for each domain,
// and one of the local CA for clients on the machine itself, which is also shown
// for a domain that has none yet. certmagic obtains and renews them; while the
// issuer cannot be reached the Manager keeps those it has.
//
// It is safe for concurrent use. What New returns must be run, or closed.
type Manager struct {
	cfg    Config
	logger *slog.Logger
	cache  *certmagic.Cache
	local  *certmagic.Config
	acme   *certmagic.Config // nil without domains
	plain  *certmagic.Config // the same, whose orders do not say which certificate they replace
	issuer *certmagic.ACMEIssuer
	zap    *zap.Logger
	loaded map[string]chan struct{} // by domain: closed once the database was searched for one

	mu      sync.Mutex
	failing map[string]failure // domains whose last attempt has failed
	unnamed map[string]bool    // domains whose certificate plain renews next
}

// failure is what came of attempts to get a certificate since the last that
// succeeded.
type failure struct {
	since time.Time
	last  error
}

// New returns a Manager that has issued the local CA's certificate, so that a CA
// that cannot sign fails at the start.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	c := &Manager{cfg: cfg, logger: cfg.Logger, failing: make(map[string]failure), unnamed: make(map[string]bool), loaded: make(map[string]chan struct{})}
	if c.cfg.CheckInterval == 0 {
		c.cfg.CheckInterval = defaultCheckInterval
	}
	// onEvent logs what an issuer has refused, with what it means.
	c.zap = newZapLogger(cfg.Logger, "acme.acme_client", "could not get certificate from issuer")
	c.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   c.configFor,
		RenewCheckInterval: c.cfg.CheckInterval,
		Logger:             c.zap,
	})
	if len(cfg.Domains) > 0 {
		c.configureACME()
	}
	c.local = certmagic.New(c.cache, certmagic.Config{
		Storage: newMemoryStorage(), DisableStorageCheck: true,
		Issuers:           []certmagic.Issuer{localIssuer{cfg.CA, cfg.Hosts}},
		DefaultServerName: LocalName, FallbackServerName: LocalName,
		OCSP: certmagic.OCSPConfig{DisableStapling: true}, DisableARI: true,
		Logger: c.zap,
	})
	if err := c.local.ManageSync(ctx, []string{LocalName}); err != nil {
		c.Close()
		return nil, fmt.Errorf("the local CA: %w", err)
	}
	return c, nil
}

// configureACME sets up certmagic for the domains' certificates.
func (c *Manager) configureACME() {
	cfg := &c.cfg
	settings := certmagic.Config{
		Storage:           databaseStorage{cfg.Storage},
		DefaultServerName: cfg.Domains[0],
		// A responder that does not answer must not hold up anything for good.
		OCSP:    certmagic.OCSPConfig{HTTPProxy: http.ProxyFromEnvironment},
		OnEvent: c.onEvent, ShouldEmitFunc: func(event string) bool { return event != "tls_get_certificate" },
		Logger: c.zap,
	}
	c.acme, c.plain = certmagic.New(c.cache, settings), certmagic.New(c.cache, settings)
	settings.DisableARI = true
	withoutARI := certmagic.New(c.cache, settings)
	template := certmagic.ACMEIssuer{
		CA: cfg.Issuer, Email: cfg.Email, Agreed: true, TrustedRoots: cfg.Roots,
		// The server's handlers answer challenges, from memory.
		DisableDistributedSolvers: true, DisableHTTPChallenge: cfg.HTTPAddr == nil,
		Logger: c.zap.Named("acme"),
	}
	// certmagic would listen itself, unless it finds a listener there.
	template.ListenHost, template.AltTLSALPNPort = bound(cfg.TLSAddr)
	if cfg.HTTPAddr != nil {
		_, template.AltHTTPPort = bound(cfg.HTTPAddr)
	}
	c.issuer = certmagic.NewACMEIssuer(c.acme, template)
	c.acme.Issuers = []certmagic.Issuer{c.issuer}
	// The time of a renewal is still the issuer's advice: only the order is another.
	c.plain.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(withoutARI, template)}
	for _, domain := range cfg.Domains {
		c.loaded[domain] = make(chan struct{})
	}
}

// bound is the host of an address, "" for all, and its port.
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
func (c *Manager) configFor(one certmagic.Certificate) (*certmagic.Config, error) {
	if c.acme == nil || slices.Contains(one.Names, LocalName) {
		return c.local, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.ContainsFunc(one.Names, func(name string) bool { return c.unnamed[name] }) {
		return c.plain, nil
	}
	return c.acme, nil
}

// noteRenewal has the attempt after a failed renewal make an order that does not
// say which certificate it replaces: an issuer that was set up again, or has lost
// its records, does not know that certificate, and refuses every order that names
// it. certmagic leaves it out at the third of several attempts, but each of its
// renewals is a first. The attempt after that names it again. The caller holds mu.
func (c *Manager) noteRenewal(domain string, failed bool) {
	c.unnamed[domain] = failed && !c.unnamed[domain]
}

// Run obtains and renews the domains' certificates until ctx ends.
func (c *Manager) Run(ctx context.Context) error {
	defer c.Close()
	g, running := errgroup.WithContext(ctx)
	for _, domain := range c.cfg.Domains {
		g.Go(func() error { return c.manage(running, domain) })
	}
	g.Go(func() error {
		look, day := time.NewTicker(c.cfg.CheckInterval), time.NewTicker(24*time.Hour)
		defer look.Stop()
		defer day.Stop()
		for {
			var err error
			select {
			case <-running.Done():
				return nil
			case <-look.C:
				err = c.checkLocal(running, time.Now())
			case <-day.C:
				err = c.clean(running)
			}
			if err != nil && running.Err() == nil {
				c.logger.Warn("certificates cannot be looked after, which is tried again", "error", err)
			}
		}
	})
	return g.Wait()
}

// checkLocal issues the local CA's certificate again if its validity has not begun
// yet, since the clock was set back. certmagic renews one that ends.
func (c *Manager) checkLocal(ctx context.Context, now time.Time) error {
	for _, old := range c.cache.AllMatchingCertificates(LocalName) {
		if !now.Before(old.Leaf.NotBefore) {
			continue
		}
		if err := c.local.RenewCertSync(ctx, LocalName, true); err != nil {
			return err
		}
		if _, err := c.local.CacheManagedCertificate(ctx, LocalName); err != nil {
			return err
		}
		c.cache.Remove([]string{old.Hash()})
	}
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

// Close stops certmagic's background work. An operation in progress ends a little
// later, and finds the storage closed.
func (c *Manager) Close() {
	c.cache.Stop()
	if c.cfg.Storage != nil {
		c.cfg.Storage.Close()
	}
}

// manage loads a domain's certificate from the database, or obtains one. From then
// on certmagic renews it.
func (c *Manager) manage(ctx context.Context, domain string) error {
	c.removeMismatched(ctx, domain)
	_, err := c.acme.CacheManagedCertificate(ctx, domain)
	close(c.loaded[domain])
	if err == nil {
		// It may be due, or past, since the service did not run.
		return c.cache.RenewManagedCertificates(ctx)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		c.logger.Error("a certificate cannot be read, and is asked for anew", "name", domain, "error", err)
	}
	for ctx.Err() == nil {
		// It tries again and again, for a month.
		if err = c.acme.ObtainCertAsync(ctx, domain); err == nil {
			_, err = c.acme.CacheManagedCertificate(ctx, domain)
		}
		if err == nil || ctx.Err() != nil {
			break
		}
		c.logger.Error("a certificate could not be obtained", "name", domain, "error", err, "again_in", obtainRetryWait)
		pause := time.NewTimer(obtainRetryWait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
	return nil
}

// removeMismatched removes a domain's certificate that does not belong to its key,
// since the process ended between writing the two: certmagic would not replace it.
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
	c.logger.Warn("a certificate and its key do not belong together; a new one is asked for", "name", domain)
	if err := c.acme.Storage.Delete(ctx, certmagic.StorageKeys.CertsSitePrefix(issuer, domain)); err != nil {
		c.logger.Error("a certificate cannot be removed", "name", domain, "error", err)
	}
}

// onEvent records and logs an event of certmagic.
func (c *Manager) onEvent(ctx context.Context, event string, data map[string]any) error {
	domain, _ := data["identifier"].(string)
	switch event {
	case "cert_obtained":
		c.mu.Lock()
		delete(c.failing, domain)
		c.noteRenewal(domain, false)
		c.mu.Unlock()
		c.logger.Info("a certificate was obtained", "name", domain, "renewal", data["renewal"])
	case "cert_failed":
		err, _ := data["error"].(error)
		if err == nil || ctx.Err() != nil {
			return nil // the service ends
		}
		c.checkAccount(ctx, err)
		c.mu.Lock()
		f, ok := c.failing[domain]
		if !ok {
			f.since = time.Now()
		}
		f.last = err
		c.failing[domain] = f
		if renewal, _ := data["renewal"].(bool); renewal {
			c.noteRenewal(domain, true)
		}
		c.mu.Unlock()
		if leaf := c.leaf(domain); leaf != nil {
			c.logger.Error("a certificate could not be renewed; the present one is used, and it is tried again", "name", domain, "error", err, "until", leaf.NotAfter.UTC())
		} else {
			c.logger.Error("a certificate could not be obtained; there is none, and it is tried again", "name", domain, "error", err)
		}
	}
	return nil
}

// checkAccount removes the ACME account if it is no longer valid, so that the next
// attempt registers another. An issuer that has ended an account
// refuses everything it asks for, and a refusal may have other reasons.
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
		return // there is none, or nothing can be read
	}
	client := &acme.Client{Directory: c.cfg.Issuer, HTTPClient: &http.Client{
		Timeout:   accountTimeout,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: c.cfg.Roots}, DisableKeepAlives: true},
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
		if !errors.As(err, &problem) || problem.Type != acme.ProblemTypeUnauthorized && problem.Type != acme.ProblemTypeAccountDoesNotExist {
			continue
		}
		c.logger.Warn("the issuer of certificates has ended the account; the next attempt makes another", "issuer", c.cfg.Issuer, "error", err)
		if err := c.acme.Storage.Delete(ctx, path.Dir(file)); err != nil {
			c.logger.Error("the account cannot be forgotten", "error", err)
		}
	}
}

// errNoChallenge refuses a TLS-ALPN-01 client that is not the issuer.
var errNoChallenge = errors.New("no certificate of this name is being asked for")

// getCertificate returns the certificate for a client. With domains, a name that is
// not one of them has none.
func (c *Manager) getCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.acme == nil {
		return c.local.GetCertificate(hello)
	}
	name := strings.ToLower(hello.ServerName)
	if len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acmez.ACMETLS1Protocol {
		if _, ok := certmagic.GetACMEChallenge(name); !ok {
			return nil, errNoChallenge
		}
		return c.acme.GetCertificate(hello)
	}
	if name == "" {
		name = c.cfg.Domains[0]
	}
	looked, ours := c.loaded[name]
	if ours {
		select {
		case <-looked:
		case <-hello.Context().Done():
			return nil, hello.Context().Err()
		}
	}
	one, err := c.acme.GetCertificate(hello)
	if err != nil && ours {
		// An admin who accepts what the browser warns of finds out why.
		if local := c.cache.AllMatchingCertificates(LocalName); len(local) > 0 {
			return &local[0].Certificate, nil
		}
	}
	return one, err
}

// TLSConfig returns the TLS configuration of the server.
func (c *Manager) TLSConfig() *tls.Config {
	if c.acme == nil {
		return tlsConfig(c.getCertificate)
	}
	return tlsConfig(c.getCertificate, acmez.ACMETLS1Protocol)
}

// AnswerChallenge answers an issuer's HTTP-01 challenge, and returns false if the
// request is something else.
func (c *Manager) AnswerChallenge(w http.ResponseWriter, r *http.Request) bool {
	if c.acme == nil || !certmagic.LooksLikeHTTPChallenge(r) {
		return false
	}
	challenge, ok := certmagic.GetACMEChallenge(r.Host)
	return ok && certmagic.SolveHTTPChallenge(c.zap, w, r, challenge.Challenge)
}

// leaf returns the certificate that is shown for a name, nil for none.
func (c *Manager) leaf(name string) *x509.Certificate {
	for _, one := range c.cache.AllMatchingCertificates(name) {
		if one.Leaf != nil {
			return one.Leaf
		}
	}
	return nil
}

// Certificates describes the certificates that are shown now: those of the domains,
// in the order of the configuration, then the local CA's. It is nil for a nil
// Manager, a server without TLS.
func (c *Manager) Certificates() []Certificate {
	if c == nil {
		return nil
	}
	var all []Certificate
	for _, domain := range c.cfg.Domains {
		one := Certificate{Names: []string{domain}}
		if leaf := c.leaf(domain); leaf != nil {
			one = describe(leaf)
		}
		c.mu.Lock()
		if f, ok := c.failing[domain]; ok {
			one.Failing, one.Fault = f.since, f.last.Error()
		}
		c.mu.Unlock()
		all = append(all, one)
	}
	if leaf := c.leaf(LocalName); leaf != nil {
		all = append(all, describe(leaf))
	}
	ca := c.cfg.CA.certificate
	return append(all, Certificate{Names: []string{ca.Subject.CommonName}, Issuer: "itself; clients are given " + CAFile, Ends: ca.NotAfter})
}

func describe(leaf *x509.Certificate) Certificate {
	names := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	return Certificate{Names: names, Issuer: leaf.Issuer.CommonName, Ends: leaf.NotAfter}
}

// Certificate describes a certificate that the server shows, or should show.
type Certificate struct {
	Names  []string
	Issuer string
	Ends   time.Time // zero while there is none

	Failing time.Time // since when it cannot be obtained or renewed; zero if it can
	Fault   string    // why not, with Failing
}

// Problem returns what is wrong with the certificate, for the operator, or "".
func (c *Certificate) Problem(now time.Time) string {
	name := strings.Join(c.Names, ", ")
	why := ""
	if c.Fault != "" {
		why = ": " + c.Fault
	}
	switch left := c.Ends.Sub(now); {
	case c.Ends.IsZero() && c.Fault == "":
		return "there is no certificate for " + name + " yet"
	case c.Ends.IsZero():
		return "there is no certificate for " + name + ", and none can be had" + why
	case left <= 0:
		return fmt.Sprintf("the certificate of %s has ended on %s%s", name, c.Ends.UTC().Format(time.DateTime), why)
	case c.Fault != "":
		return fmt.Sprintf("the certificate of %s cannot be renewed, and ends on %s%s", name, c.Ends.UTC().Format(time.DateTime), why)
	}
	return ""
}

// renewSoon is how long before its end a certificate should have been renewed:
// those of the local CA are 10 days before, those of an ACME CA 30.
const renewSoon = 7 * 24 * time.Hour

// Findings returns a finding for each of the certificates.
func Findings(all []Certificate, now time.Time) []store.Finding {
	findings := make([]store.Finding, 0, len(all))
	for _, c := range all {
		f := store.Finding{Check: "certificates", Level: store.LevelOK}
		soon := c.Ends.Sub(now) < renewSoon
		names, problem := strings.Join(c.Names, ", "), c.Problem(now)
		switch {
		case problem != "" && soon:
			f.Level, f.Detail = store.LevelFail, problem
			f.Advice = "See the log for what the issuer says; the name must lead to this machine, and the issuer must reach ports 443 or 80."
		case problem != "":
			f.Level, f.Detail = store.LevelWarn, problem
			f.Advice = "See the log for what the issuer says."
		case soon:
			f.Level, f.Detail = store.LevelWarn, fmt.Sprintf("that of %s ends on %s", names, webhook.FormatTime(c.Ends))
			f.Advice = "See the log for why it is not renewed."
		default:
			f.Detail = fmt.Sprintf("that of %s is good until %s", names, webhook.FormatTime(c.Ends))
		}
		findings = append(findings, f)
	}
	return findings
}

var (
	expiryDesc  = prometheus.NewDesc("service_certificate_expiry_timestamp_seconds", "When the certificate for a name ends, in Unix time; 0 while there is none.", []string{"name"}, nil)
	failingDesc = prometheus.NewDesc("service_certificate_failing", "Whether the last attempt to get or renew the certificate for a name has failed.", []string{"name"}, nil)
)

// Describe implements [prometheus.Collector].
func (c *Manager) Describe(ch chan<- *prometheus.Desc) {
	ch <- expiryDesc
	ch <- failingDesc
}

// Collect implements [prometheus.Collector].
func (c *Manager) Collect(ch chan<- prometheus.Metric) {
	send := func(name string, ends time.Time, failing bool) {
		at, bad := 0.0, 0.0
		if !ends.IsZero() {
			at = float64(ends.Unix())
		}
		if failing {
			bad = 1
		}
		ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, at, name)
		ch <- prometheus.MustNewConstMetric(failingDesc, prometheus.GaugeValue, bad, name)
	}
	for i, one := range c.Certificates() {
		switch {
		case i < len(c.cfg.Domains):
			send(c.cfg.Domains[i], one.Ends, one.Fault != "")
		case slices.Contains(one.Names, LocalName):
			send(LocalName, one.Ends, false)
		default:
			send(CAFile, one.Ends, false)
		}
	}
}

// LetsEncrypt is the URL of Let's Encrypt's ACME directory.
const LetsEncrypt = certmagic.LetsEncryptProductionCA

// IsPublicName reports whether a public issuer can vouch for a domain name.
func IsPublicName(name string) bool {
	return certmagic.SubjectQualifiesForPublicCert(name) && strings.Contains(name, ".")
}

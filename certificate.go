package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
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
	"service/web"
)

const (
	// certificateCheck is how often it is looked whether a certificate is due
	// for renewal, which is when a third of its life is left, or when its issuer
	// says so. It costs a look into memory.
	certificateCheck = time.Minute
	// certificateAgain is how long it takes until a certificate that could not
	// be had in a month of attempts is asked for again.
	certificateAgain = time.Hour
	// certificateKept is how long an expired certificate stays in the database.
	certificateKept = 90 * 24 * time.Hour
	// accountTime bounds the question whether an account is still good.
	accountTime = 30 * time.Second
)

// certificateConfig is what certificates are made of.
type certificateConfig struct {
	domains []string // without them there is the local CA's certificate alone
	hosts   []string // what the server is reached by on its own machine and network
	ca      *localCA
	files   *store.Certificates // where those of domains are kept
	email   string              // of the account at the issuer, "" for none
	issuer  string              // URL of the ACME directory
	roots   *x509.CertPool      // that the issuer's server is verified by, nil for the system's
	tls     net.Addr            // of the public door, where TLS-ALPN-01 is answered
	http    net.Addr            // where HTTP-01 is answered, nil for nowhere
	check   time.Duration       // 0 for certificateCheck
	logger  *slog.Logger
}

// certificates has a certificate for everybody who calls: one of the issuer for
// each domain, and one of the local CA for those on the machine itself, which
// also stands in for a domain that has none yet. certmagic asks for them and
// renews them in time; while the issuer cannot be had the service goes on with
// what it has.
//
// Its methods may be called from any goroutine. What newCertificates returns
// must be run, or closed.
type certificates struct {
	cfg    certificateConfig
	logger *slog.Logger
	cache  *certmagic.Cache
	local  *certmagic.Config
	acme   *certmagic.Config // nil without domains
	issuer *certmagic.ACMEIssuer
	zap    *zap.Logger
	looked map[string]chan struct{} // by domain: closed when it was looked whether there is one already

	mu      sync.Mutex
	failing map[string]failure // domains whose last attempt has failed
}

// failure is what came of attempts to get a certificate since the last that
// succeeded.
type failure struct {
	since time.Time
	last  error
}

// newCertificates returns certificates with that of the local CA made, so that
// a CA that cannot sign is known at the start.
func newCertificates(ctx context.Context, cfg certificateConfig) (*certificates, error) {
	c := &certificates{cfg: cfg, logger: cfg.logger, failing: make(map[string]failure), looked: make(map[string]chan struct{})}
	if c.cfg.check == 0 {
		c.cfg.check = certificateCheck
	}
	// What an issuer has refused is told by heard, with what it means.
	c.zap = newZapLogger(cfg.logger, "acme.acme_client", "could not get certificate from issuer")
	c.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   c.configFor,
		RenewCheckInterval: c.cfg.check,
		Logger:             c.zap,
	})
	if len(cfg.domains) > 0 {
		c.configureACME()
	}
	c.local = certmagic.New(c.cache, certmagic.Config{
		Storage: newHeldCertificates(), DisableStorageCheck: true,
		Issuers:           []certmagic.Issuer{localIssuer{cfg.ca, cfg.hosts}},
		DefaultServerName: localName, FallbackServerName: localName,
		OCSP: certmagic.OCSPConfig{DisableStapling: true}, DisableARI: true,
		Logger: c.zap,
	})
	if err := c.local.ManageSync(ctx, []string{localName}); err != nil {
		c.close()
		return nil, fmt.Errorf("the local CA: %w", err)
	}
	return c, nil
}

// configureACME sets up what asks for the domains' certificates.
func (c *certificates) configureACME() {
	cfg := &c.cfg
	c.acme = certmagic.New(c.cache, certmagic.Config{
		Storage:           storedCertificates{cfg.files},
		DefaultServerName: cfg.domains[0],
		// A responder that does not answer must not hold up anything for good.
		OCSP:    certmagic.OCSPConfig{HTTPProxy: http.ProxyFromEnvironment},
		OnEvent: c.heard, ShouldEmitFunc: func(event string) bool { return event != "tls_get_certificate" },
		Logger: c.zap,
	})
	template := certmagic.ACMEIssuer{
		CA: cfg.issuer, Email: cfg.email, Agreed: true, TrustedRoots: cfg.roots,
		// Challenges are answered by the doors, from memory.
		DisableDistributedSolvers: true, DisableHTTPChallenge: cfg.http == nil,
		Logger: c.zap.Named("acme"),
	}
	// certmagic looks there whether the doors are open, and would open them.
	template.ListenHost, template.AltTLSALPNPort = bound(cfg.tls)
	if cfg.http != nil {
		_, template.AltHTTPPort = bound(cfg.http)
	}
	c.issuer = certmagic.NewACMEIssuer(c.acme, template)
	c.acme.Issuers = []certmagic.Issuer{c.issuer}
	for _, domain := range cfg.domains {
		c.looked[domain] = make(chan struct{})
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

// configFor says who looks after a certificate.
func (c *certificates) configFor(one certmagic.Certificate) (*certmagic.Config, error) {
	if c.acme == nil || slices.Contains(one.Names, localName) {
		return c.local, nil
	}
	return c.acme, nil
}

// Run gets the domains' certificates and keeps them new until ctx ends.
func (c *certificates) Run(ctx context.Context) error {
	defer c.close()
	g, running := errgroup.WithContext(ctx)
	for _, domain := range c.cfg.domains {
		g.Go(func() error { return c.manage(running, domain) })
	}
	g.Go(func() error {
		look, day := time.NewTicker(c.cfg.check), time.NewTicker(24*time.Hour)
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

// checkLocal makes the local CA's certificate anew if it has not begun yet: the
// clock was set back. One that ends is certmagic's to renew.
func (c *certificates) checkLocal(ctx context.Context, now time.Time) error {
	for _, old := range c.cache.AllMatchingCertificates(localName) {
		if !now.Before(old.Leaf.NotBefore) {
			continue
		}
		if err := c.local.RenewCertSync(ctx, localName, true); err != nil {
			return err
		}
		if _, err := c.local.CacheManagedCertificate(ctx, localName); err != nil {
			return err
		}
		c.cache.Remove([]string{old.Hash()})
	}
	return nil
}

// clean removes from the database what is of no more use.
func (c *certificates) clean(ctx context.Context) error {
	if c.acme == nil {
		return nil
	}
	return certmagic.CleanStorage(ctx, c.acme.Storage, certmagic.CleanStorageOptions{
		Logger: c.zap, OCSPStaples: true, ExpiredCerts: true, ExpiredCertGracePeriod: certificateKept,
	})
}

// close ends what certmagic does in the background. Its work under way ends by
// itself a little later, and finds the storage closed.
func (c *certificates) close() {
	c.cache.Stop()
	if c.cfg.files != nil {
		c.cfg.files.Close()
	}
}

// manage has a domain's certificate taken from the database, or asked for until
// there is one. From then on certmagic renews it.
func (c *certificates) manage(ctx context.Context, domain string) error {
	c.mend(ctx, domain)
	_, err := c.acme.CacheManagedCertificate(ctx, domain)
	close(c.looked[domain])
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
		c.logger.Error("a certificate could not be obtained", "name", domain, "error", err, "again_in", certificateAgain)
		pause := time.NewTimer(certificateAgain)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
	return nil
}

// mend removes a domain's certificate whose key is another's: the process ended
// between writing the one and the other. It would be in the way of a new one.
func (c *certificates) mend(ctx context.Context, domain string) {
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

// heard is told by certmagic what it does.
func (c *certificates) heard(ctx context.Context, event string, data map[string]any) error {
	domain, _ := data["identifier"].(string)
	switch event {
	case "cert_obtained":
		c.mu.Lock()
		delete(c.failing, domain)
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
		c.mu.Unlock()
		if leaf := c.leaf(domain); leaf != nil {
			c.logger.Error("a certificate could not be renewed; the present one is used, and it is tried again", "name", domain, "error", err, "until", leaf.NotAfter.UTC())
		} else {
			c.logger.Error("a certificate could not be obtained; there is none, and it is tried again", "name", domain, "error", err)
		}
	}
	return nil
}

// checkAccount forgets the account at the issuer if that is no longer good, so
// that the next attempt makes another. An issuer that has ended an account
// refuses everything it asks for, and a refusal may have other reasons.
func (c *certificates) checkAccount(ctx context.Context, err error) {
	var problem acme.Problem
	if !errors.As(err, &problem) || problem.Type != acme.ProblemTypeUnauthorized {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, accountTime)
	defer cancel()
	accounts := path.Join("acme", certmagic.StorageKeys.Safe(c.issuer.IssuerKey()), "users")
	files, err := c.acme.Storage.List(ctx, accounts, true)
	if err != nil {
		return // there is none, or nothing can be read
	}
	client := &acme.Client{Directory: c.cfg.issuer, HTTPClient: &http.Client{
		Timeout:   accountTime,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: c.cfg.roots}, DisableKeepAlives: true},
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
		c.logger.Warn("the issuer of certificates has ended the account; the next attempt makes another", "issuer", c.cfg.issuer, "error", err)
		if err := c.acme.Storage.Delete(ctx, path.Dir(file)); err != nil {
			c.logger.Error("the account cannot be forgotten", "error", err)
		}
	}
}

// errNoChallenge is why somebody who is no issuer gets no certificate.
var errNoChallenge = errors.New("no certificate of this name is being asked for")

// get returns the certificate for a client. A name that is not the service's
// has none, if there are domains.
func (c *certificates) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
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
		name = c.cfg.domains[0]
	}
	looked, ours := c.looked[name]
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
		if local := c.cache.AllMatchingCertificates(localName); len(local) > 0 {
			return &local[0].Certificate, nil
		}
	}
	return one, err
}

// tlsConfig are the TLS settings of the public door.
func (c *certificates) tlsConfig() *tls.Config {
	if c.acme == nil {
		return tlsConfig(c.get)
	}
	return tlsConfig(c.get, acmez.ACMETLS1Protocol)
}

// answerChallenge answers a request of an issuer that wants to see whether a
// domain is ours, and returns false when it is something else.
func (c *certificates) answerChallenge(w http.ResponseWriter, r *http.Request) bool {
	if c.acme == nil || !certmagic.LooksLikeHTTPChallenge(r) {
		return false
	}
	challenge, ok := certmagic.GetACMEChallenge(r.Host)
	return ok && certmagic.SolveHTTPChallenge(c.zap, w, r, challenge.Challenge)
}

// leaf is the certificate that is shown for a name, nil when there is none.
func (c *certificates) leaf(name string) *x509.Certificate {
	for _, one := range c.cache.AllMatchingCertificates(name) {
		if one.Leaf != nil {
			return one.Leaf
		}
	}
	return nil
}

// list are the certificates that are shown now, for admins: those of the
// domains, in the order in which they were named, then the local CA's.
func (c *certificates) list() []web.Certificate {
	if c == nil {
		return nil // without TLS there are none
	}
	var all []web.Certificate
	for _, domain := range c.cfg.domains {
		one := web.Certificate{Names: []string{domain}}
		if leaf := c.leaf(domain); leaf != nil {
			one = describeCertificate(leaf)
		}
		c.mu.Lock()
		if f, ok := c.failing[domain]; ok {
			one.Failing, one.Fault = f.since, f.last.Error()
		}
		c.mu.Unlock()
		all = append(all, one)
	}
	if leaf := c.leaf(localName); leaf != nil {
		all = append(all, describeCertificate(leaf))
	}
	ca := c.cfg.ca.certificate
	return append(all, web.Certificate{Names: []string{ca.Subject.CommonName}, Issuer: "itself; clients are given " + caCertificateFile, Ends: ca.NotAfter})
}

func describeCertificate(leaf *x509.Certificate) web.Certificate {
	names := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	return web.Certificate{Names: names, Issuer: leaf.Issuer.CommonName, Ends: leaf.NotAfter}
}

// certificateFault says what is wrong with a certificate, in words for whoever
// runs the service; "" for nothing.
func certificateFault(one *web.Certificate, now time.Time) string {
	name := strings.Join(one.Names, ", ")
	why := ""
	if one.Fault != "" {
		why = ": " + one.Fault
	}
	switch left := one.Ends.Sub(now); {
	case one.Ends.IsZero() && one.Fault == "":
		return "there is no certificate for " + name + " yet"
	case one.Ends.IsZero():
		return "there is no certificate for " + name + ", and none can be had" + why
	case left <= 0:
		return fmt.Sprintf("the certificate of %s has ended on %s%s", name, one.Ends.UTC().Format(time.DateTime), why)
	case one.Fault != "":
		return fmt.Sprintf("the certificate of %s cannot be renewed, and ends on %s%s", name, one.Ends.UTC().Format(time.DateTime), why)
	}
	return ""
}

// readCertificateFiles returns the certificates that are kept in the database,
// one for each issuer and domain, for who looks at it while no server runs.
func readCertificateFiles(ctx context.Context, files *store.Certificates) ([]web.Certificate, error) {
	paths, err := files.List(ctx, "certificates", true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []web.Certificate
	for _, p := range paths {
		if path.Ext(p) != ".crt" {
			continue
		}
		text, err := files.Load(ctx, p)
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(text)
		if block == nil {
			return nil, fmt.Errorf("%s in the database is no certificate", p)
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s in the database: %w", p, err)
		}
		all = append(all, describeCertificate(leaf))
	}
	return all, nil
}

var (
	certificateEndsDesc    = prometheus.NewDesc("service_certificate_expiry_timestamp_seconds", "When the certificate for a name ends, in Unix time; 0 while there is none.", []string{"name"}, nil)
	certificateFailingDesc = prometheus.NewDesc("service_certificate_failing", "Whether the last attempt to get or renew the certificate for a name has failed.", []string{"name"}, nil)
)

// Describe implements [prometheus.Collector].
func (c *certificates) Describe(ch chan<- *prometheus.Desc) {
	ch <- certificateEndsDesc
	ch <- certificateFailingDesc
}

// Collect implements [prometheus.Collector].
func (c *certificates) Collect(ch chan<- prometheus.Metric) {
	send := func(name string, ends time.Time, failing bool) {
		at, bad := 0.0, 0.0
		if !ends.IsZero() {
			at = float64(ends.Unix())
		}
		if failing {
			bad = 1
		}
		ch <- prometheus.MustNewConstMetric(certificateEndsDesc, prometheus.GaugeValue, at, name)
		ch <- prometheus.MustNewConstMetric(certificateFailingDesc, prometheus.GaugeValue, bad, name)
	}
	for i, one := range c.list() {
		switch {
		case i < len(c.cfg.domains):
			send(c.cfg.domains[i], one.Ends, one.Fault != "")
		case slices.Contains(one.Names, localName):
			send(localName, one.Ends, false)
		default:
			send(caCertificateFile, one.Ends, false)
		}
	}
}

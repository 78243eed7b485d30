package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"encoding/xml"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/mholt/acmez/v3/acme"
	"github.com/miekg/dns"
	"golang.org/x/crypto/ocsp"

	"service/internal/certs"
	"service/store"
	"service/store/certificate"
	"service/test/harness"
)

// issuer is an ACME server in this process: pebble. It resolves every name to 127.0.0.1.
type issuer struct {
	t        *testing.T
	url      string         // of the directory
	ownRoots *x509.CertPool // verify its server
	roots    *x509.CertPool // verify the certificates that it issues
	db       *db.MemoryStore
	ca       *ca.CAImpl
	resolver string
	serving  atomic.Pointer[http.Handler] // nil while it is down

	plainOnly bool // makes TLS-ALPN-01 fail
}

// newIssuer starts an issuer whose certificates are valid for life; 0 is months.
func newIssuer(t *testing.T, life time.Duration, ocspURL string) *issuer {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	p := &issuer{t: t, db: db.NewMemoryStore(), roots: x509.NewCertPool()}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	keys := "ecdsa"
	if ocspURL != "" {
		keys = "rsa" // pebble only exposes this key, which signs OCSP responses
	}
	profile := ca.Profile{ValidityPeriod: uint64(life / time.Second)}
	p.ca = ca.New(quiet, p.db, ocspURL, keys, 0, 1, map[string]ca.Profile{"default": profile, "shortlived": profile})
	p.roots.AddCert(p.ca.GetRootCert(0).Cert)

	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := p.serving.Load()
		if h == nil {
			panic(http.ErrAbortHandler)
		}
		(*h).ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = quiet
	t.Cleanup(server.Close)
	p.url = server.URL + wfe.DirectoryPath
	p.ownRoots = x509.NewCertPool()
	p.ownRoots.AddCert(server.Certificate())

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.resolver = l.Addr().String()
	names := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			header := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}
			a.Answer = []dns.RR{&dns.A{Hdr: header, A: net.IPv4(127, 0, 0, 1)}}
		}
		w.WriteMsg(a)
	})}
	done := make(chan struct{})
	go func() { defer close(done); names.ActivateAndServe() }()
	t.Cleanup(func() { l.Close(); <-done })
	return p
}

// validate starts the issuer, which validates challenges at the given ports.
func (p *issuer) validate(plain, public int) {
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	front := wfe.New(quiet, p.db, va.New(quiet, plain, public, false, p.resolver, p.db), p.ca, []string{"issuer.test"}, false, false, 0, 0)
	h := http.Handler(front.Handler())
	// Remove ARI from the directory: for short-lived certificates, pebble suggests any time.
	// Without it, certmagic renews when a third of the lifetime is left.
	plainDirectory := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != wfe.DirectoryPath {
			h.ServeHTTP(w, r)
			return
		}
		recorded := httptest.NewRecorder()
		h.ServeHTTP(recorded, r)
		var directory map[string]any
		if err := json.Unmarshal(recorded.Body.Bytes(), &directory); err != nil {
			p.t.Error(err)
		}
		delete(directory, "renewalInfo")
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(directory)
	})
	handler := http.Handler(plainDirectory)
	p.serving.Store(&handler)
}

// stop makes the issuer abort every connection.
func (p *issuer) stop() { p.serving.Store(nil) }

// domainService is a service with domains, running in this process.
type domainService struct {
	*Server
	t    *testing.T
	log  *lockedBuffer
	stop func()
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serveDomains runs a service with the domains until the test ends. change modifies its
// configuration and may be nil.
func serveDomains(t *testing.T, p *issuer, data string, domains []string, change func(*Config)) *domainService {
	t.Helper()
	d := &domainService{t: t, log: new(lockedBuffer)}
	s := testConfig(t)
	s.Dir, s.HTTPListen, s.Domains = data, "127.0.0.1:0", domains
	s.ACMEEmail, s.ACMECA, s.ACMERoots = "admin@hooks.test", p.url, p.ownRoots
	s.Grace = 10 * time.Second
	s.Logger = slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if change != nil {
		change(s)
	}
	s.certificateCheck = 50 * time.Millisecond
	var err error
	if d.Server, err = Open(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if p.serving.Load() != nil {
		public := d.public.Addr().(*net.TCPAddr).Port
		plain := 0
		if d.plain != nil {
			plain = d.plain.Addr().(*net.TCPAddr).Port
		}
		if p.plainOnly {
			public = 9
		}
		p.validate(plain, public)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	d.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the service failed: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", d.logWithoutDebug())
		}
	})
	t.Cleanup(d.stop)
	return d
}

// logWithoutDebug returns the service's log without debug messages.
func (d *domainService) logWithoutDebug() string {
	lines := slices.Collect(strings.Lines(d.log.String()))
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "level=DEBUG") }), "")
}

// handshake performs a TLS handshake with the service, see the function handshake.
func (d *domainService) handshake(name string, protocols ...string) (tls.ConnectionState, error) {
	return handshake(d.public, name, protocols...)
}

// handshake performs a TLS handshake without verification and returns the state of the
// connection. name may be empty.
func handshake(l net.Listener, name string, protocols ...string) (tls.ConnectionState, error) {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: harness.Timeout()}, "tcp", l.Addr().String(),
		&tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: protocols})
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	return conn.ConnectionState(), nil
}

// await waits until ok accepts the certificate of a domain, and returns it.
func (d *domainService) await(what string, ok func(certs.Certificate) bool) certs.Certificate {
	d.t.Helper()
	var found certs.Certificate
	harness.WaitFor(d.t, what, func() bool {
		all := d.certificates.Certificates()[:len(d.cfg.Domains)]
		i := slices.IndexFunc(all, ok)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

// client returns a client that connects to the service for any name, and trusts roots.
func (d *domainService) client(roots *x509.CertPool) *http.Client {
	transport := &http.Transport{
		ForceAttemptHTTP2: true, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			to := d.public.Addr()
			if strings.HasSuffix(address, ":80") {
				to = d.plain.Addr()
			}
			return new(net.Dialer).DialContext(ctx, network, to.String())
		},
	}
	d.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport: transport, Timeout: harness.Timeout(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func hasCertificate(c certs.Certificate) bool { return !c.Ends.IsZero() }

// TestFirstCertificate obtains the first certificate through each challenge type, and checks
// what the service serves with it.
func TestFirstCertificate(t *testing.T) {
	var p *issuer
	responder := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		request, err := ocsp.ParseRequest(body)
		if err != nil {
			t.Error(err)
			return
		}
		signer := p.ca.GetIntermediateCert(0).Cert
		response, err := ocsp.CreateResponse(signer, signer, ocsp.Response{
			Status: ocsp.Good, SerialNumber: request.SerialNumber,
			ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(24 * time.Hour),
		}, p.ca.GetIntermediateKey(0))
		if err != nil {
			t.Error(err)
		}
		w.Write(response)
	}))
	defer responder.Close()
	p = newIssuer(t, 0, responder.URL)
	p.validate(0, 0)
	t.Run("TLS-ALPN-01", func(t *testing.T) {
		d := serveDomains(t, p, t.TempDir(), []string{"hooks.test"}, func(s *Config) { s.HTTPListen = "" })
		d.await("a certificate", hasCertificate)
		if !strings.Contains(d.log.String(), "challenge=tls-alpn-01") {
			t.Error("the certificate was not obtained with TLS-ALPN-01")
		}
		if _, err := d.handshake("hooks.test", "acme-tls/1"); err == nil {
			t.Error("a TLS-ALPN-01 handshake without a pending challenge succeeded")
		}
	})
	t.Run("HTTP-01", func(t *testing.T) {
		p.t = t
		p.plainOnly = true
		d := serveDomains(t, p, t.TempDir(), []string{"hooks.test", "second.test"}, nil)
		d.await("a certificate", hasCertificate)
		if !strings.Contains(d.log.String(), "challenge=http-01") {
			t.Error("the certificate was not obtained with HTTP-01")
		}
		checkDomains(t, p, d)
		t.Run("sslscan", func(t *testing.T) { scanTLS(t, d) })
	})
}

// scanTLS runs sslscan and checks protocols, ciphers and known weaknesses.
func scanTLS(t *testing.T, d *domainService) {
	t.Helper()
	path := harness.Tool(t, "sslscan", "sslscan")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--xml=-", "--sni-name=hooks.test", d.public.Addr().String()).Output()
	if err != nil {
		t.Fatal(err)
	}
	var found struct {
		Test struct {
			Protocols []struct {
				Type    string `xml:"type,attr"`
				Version string `xml:"version,attr"`
				Enabled bool   `xml:"enabled,attr"`
			} `xml:"protocol"`
			Renegotiation struct {
				Supported bool `xml:"supported,attr"`
			} `xml:"renegotiation"`
			Compression struct {
				Supported bool `xml:"supported,attr"`
			} `xml:"compression"`
			Heartbleed []struct {
				Vulnerable bool `xml:"vulnerable,attr"`
			} `xml:"heartbleed"`
			Ciphers []struct {
				Version  string `xml:"sslversion,attr"`
				Name     string `xml:"cipher,attr"`
				Strength string `xml:"strength,attr"`
			} `xml:"cipher"`
		} `xml:"ssltest"`
	}
	if err := xml.Unmarshal(out, &found); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var enabled []string
	for _, p := range found.Test.Protocols {
		if p.Enabled {
			enabled = append(enabled, p.Type+p.Version)
		}
	}
	if got := strings.Join(enabled, " "); got != "tls1.2 tls1.3" {
		t.Errorf("got the protocols %s, want TLS 1.2 and 1.3", got)
	}
	if len(found.Test.Ciphers) != 5 {
		t.Errorf("got %d ciphers, want 2 of TLS 1.2 and 3 of TLS 1.3", len(found.Test.Ciphers))
	}
	for _, c := range found.Test.Ciphers {
		// sslscan rates ciphers of TLS 1.3 as acceptable at best.
		if c.Strength != "strong" && !(c.Version == "TLSv1.3" && c.Strength == "acceptable") {
			t.Errorf("got the strength %s of %s (%s), want strong", c.Strength, c.Name, c.Version)
		}
	}
	if found.Test.Renegotiation.Supported || found.Test.Compression.Supported {
		t.Error("the service supports renegotiation or compression")
	}
	for _, h := range found.Test.Heartbleed {
		if h.Vulnerable {
			t.Error("the service is vulnerable to Heartbleed")
		}
	}
}

// checkDomains checks the responses of a service with certificates for hooks.test and
// second.test.
func checkDomains(t *testing.T, p *issuer, d *domainService) {
	t.Helper()
	d.await("both certificates", func(certs.Certificate) bool {
		all := d.certificates.Certificates()
		return hasCertificate(all[0]) && hasCertificate(all[1])
	})
	c := d.client(p.roots)
	for _, url := range []string{"https://hooks.test/v2/event_types", "https://second.test/sign-in"} {
		resp, _ := get(t, c, url)
		if resp.ProtoMajor != 2 || resp.Header.Get("Strict-Transport-Security") != "max-age=31536000" {
			t.Errorf("%s: got %s with HSTS %q, want HTTP/2 and a year", url, resp.Proto, resp.Header.Get("Strict-Transport-Security"))
		}
		if staple, err := ocsp.ParseResponse(resp.TLS.OCSPResponse, nil); err != nil || staple.Status != ocsp.Good {
			t.Errorf("%s: got the OCSP staple %v, %v; want good", url, staple, err)
		}
	}
	if d.baseURL != "https://hooks.test:"+d.plainHandler.(*redirectHandler).port || d.caFile != "" {
		t.Errorf("got the URL %s and the CA file %q, want https://hooks.test and none", d.baseURL, d.caFile)
	}
	checkLocalCertificate(t, d)
	checkRedirects(t, d, c)
	checkRefusals(t, c)
	for _, secret := range []string{"planted-token", "planted-password", "PRIVATE KEY"} {
		if strings.Contains(d.log.String(), secret) {
			t.Errorf("the log contains %s", secret)
		}
	}
	if strings.Contains(d.log.String(), "level=WARN") || strings.Contains(d.log.String(), "level=ERROR") {
		t.Errorf("the log contains warnings, want none:\n%s", d.logWithoutDebug())
	}
}

// checkLocalCertificate checks the responses to clients on the same host.
func checkLocalCertificate(t *testing.T, d *domainService) {
	t.Helper()
	local, err := certs.ReadPool(filepath.Join(d.cfg.Dir, certs.CAFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"https://localhost/healthz", "https://127.0.0.1/healthz"} {
		resp, _ := get(t, d.client(local), url)
		// HSTS would apply to all ports of localhost.
		if hsts := resp.Header["Strict-Transport-Security"]; resp.StatusCode != http.StatusOK || len(hsts) > 0 {
			t.Errorf("%s: got status %d, HSTS %q; want 200 and none", url, resp.StatusCode, hsts)
		}
	}
	_, metrics := get(t, d.client(local), "https://localhost/metrics")
	for _, line := range []string{
		`webhooks_certificate_failing{name="hooks.test"} 0`,
		`webhooks_certificate_expiry_timestamp_seconds{name="second.test"} `,
		`webhooks_certificate_expiry_timestamp_seconds{name="ca.pem"} `,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
	if _, err := d.handshake("other.test"); err == nil {
		t.Error("the service has a certificate for a name that is not one of its domains")
	}
}

// checkRedirects checks the redirects from plain HTTP to HTTPS.
func checkRedirects(t *testing.T, d *domainService, c *http.Client) {
	t.Helper()
	port := d.plainHandler.(*redirectHandler).port
	for url, want := range map[string]string{
		"http://second.test/subscriptions?page=2": "https://second.test:" + port + "/subscriptions?page=2",
		"http://Hooks.test//evil.test/%2e%2e":     "https://Hooks.test:" + port + "//evil.test/%2e%2e",
		"http://evil.test/":                       "https://hooks.test:" + port + "/",
		"http://hooks.test/docs":                  "https://hooks.test:" + port + "/docs",
	} {
		if resp, _ := get(t, c, url); resp.StatusCode != http.StatusPermanentRedirect || resp.Header.Get("Location") != want {
			t.Errorf("%s: got %d to %q, want 308 to %q", url, resp.StatusCode, resp.Header.Get("Location"), want)
		}
	}
	if resp, _ := get(t, c, "http://hooks.test/.well-known/acme-challenge/guess"); resp.StatusCode != http.StatusPermanentRedirect {
		t.Errorf("an unknown challenge: got %d, want 308", resp.StatusCode)
	}
}

// checkRefusals checks that tokens and passwords over plain HTTP are refused.
func checkRefusals(t *testing.T, c *http.Client) {
	t.Helper()
	for _, url := range []string{
		"http://hooks.test/v2/event_types", "http://hooks.test/v2", "http://hooks.test/metrics", "http://hooks.test/anything",
	} {
		resp, body := get(t, c, url, "Authorization", "Bearer planted-token")
		var envelope struct{ Error struct{ Code int } }
		err := json.Unmarshal([]byte(body), &envelope)
		if err != nil || resp.StatusCode != http.StatusForbidden || envelope.Error.Code != 403 || resp.Header.Get("Location") != "" {
			t.Errorf("%s: got %d %s, want 403 in the envelope", url, resp.StatusCode, body)
		}
	}
	if resp, _ := get(t, c, "http://hooks.test/v2/event_types"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("without a token: got %d, want 403", resp.StatusCode)
	}
	resp, err := c.Post("http://hooks.test/sign-in", "application/x-www-form-urlencoded", strings.NewReader("password=planted-password"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a password over plain HTTP: got %d, want 403", resp.StatusCode)
	}
}

// get sends a GET request. headers are alternating names and values.
func get(t *testing.T, c *http.Client, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// storedLeaves returns the certificates in the database.
func storedLeaves(t *testing.T, files *certificate.Storage) []*x509.Certificate {
	t.Helper()
	paths, err := files.List(t.Context(), "certificates", true)
	if err != nil {
		t.Fatal(err)
	}
	var all []*x509.Certificate
	for _, p := range paths {
		if path.Ext(p) != ".crt" {
			continue
		}
		text, err := files.Load(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		if block == nil {
			t.Fatalf("%s in the database is not a certificate", p)
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, leaf)
	}
	return all
}

// copyFiles copies files from one folder to another.
func copyFiles(t *testing.T, to, from string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(to, name), harness.Read(t, filepath.Join(from, name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIssuerDown starts services while the issuer is unreachable: without a certificate, and
// with restored data.
func TestIssuerDown(t *testing.T) {
	p := newIssuer(t, 0, "")
	data := t.TempDir()
	d := serveDomains(t, p, data, []string{"hooks.test"}, nil)
	got := d.await("a reported failure", func(c certs.Certificate) bool { return c.Fault != "" })
	if hasCertificate(got) || !strings.Contains(got.Problem(time.Now()), "no certificate for hooks.test: ") {
		t.Errorf("got %+v: %s", got, got.Problem(time.Now()))
	}
	if !strings.Contains(d.log.String(), `level=ERROR msg="failed to obtain a certificate, will retry" name=hooks.test`) {
		t.Error("the log lacks the failure")
	}
	// Until then the service has the local CA's certificate, so that an admin can open the
	// system page.
	if state, err := d.handshake("hooks.test"); err != nil || state.PeerCertificates[0].DNSNames[0] != certs.LocalName {
		t.Errorf("without a certificate for the domain: got %v, want the local CA's", err)
	}
	metrics := scrapeService(d)
	if !strings.Contains(metrics, `webhooks_certificate_failing{name="hooks.test"} 1`) ||
		!strings.Contains(metrics, `webhooks_certificate_expiry_timestamp_seconds{name="hooks.test"} 0`) {
		t.Error("the metrics lack the failure")
	}
	d.stop()

	p.validate(0, 0)
	d = serveDomains(t, p, data, []string{"hooks.test"}, nil)
	d.await("a certificate", hasCertificate)
	state, err := d.handshake("hooks.test")
	if err != nil {
		t.Fatal(err)
	}
	first := state.PeerCertificates[0]
	d.stop()

	// A restored copy contains only the database and the key.
	copied := t.TempDir()
	copyFiles(t, copied, data, "service.db", "secret.key")
	p.stop()
	d = serveDomains(t, p, copied, []string{"hooks.test"}, nil)
	if state, err = d.handshake("hooks.test"); err != nil || !state.PeerCertificates[0].Equal(first) {
		t.Errorf("the restored service has another certificate: %v", err)
	}
	if stored := storedLeaves(t, d.store.Certificates()); len(stored) != 1 || !stored[0].Equal(first) {
		t.Errorf("got %d certificates in the database, want only the first", len(stored))
	}
	d.stop()

	// Simulate a crash between writing the key and the certificate of a renewal.
	st, err := store.Open(t.Context(), store.Config{Dir: copied})
	if err != nil {
		t.Fatal(err)
	}
	files := st.Certificates()
	keys, err := files.List(t.Context(), "certificates", true)
	if err != nil {
		t.Fatal(err)
	}
	key, err := certmagic.DefaultKeyGenerator.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := certmagic.PEMEncodePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(keys, func(s string) bool { return strings.HasSuffix(s, ".key") })
	if err := errors.Join(files.Store(t.Context(), keys[i], text), st.Close()); err != nil {
		t.Fatal(err)
	}
	p.validate(0, 0)
	d = serveDomains(t, p, copied, []string{"hooks.test"}, nil)
	d.await("a certificate again", hasCertificate)
	if state, err = d.handshake("hooks.test"); err != nil || state.PeerCertificates[0].Equal(first) {
		t.Errorf("the certificate with another key was used: %v", err)
	}
}

func scrapeService(d *domainService) string {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "https://localhost/metrics", nil)
	r.RemoteAddr = "127.0.0.1:40000"
	d.handler.ServeHTTP(w, r)
	return w.Body.String()
}

// TestRenewal checks the renewal of short-lived certificates, including a failed renewal.
func TestRenewal(t *testing.T) {
	harness.Long(t)
	p := newIssuer(t, time.Minute, "")
	p.validate(0, 0)
	d := serveDomains(t, p, t.TempDir(), []string{"hooks.test"}, nil)
	d.await("a certificate", hasCertificate)
	c := d.client(p.roots)
	show := func() *x509.Certificate {
		t.Helper()
		resp, err := c.Get("https://hooks.test/healthz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.TLS.PeerCertificates[0]
	}
	first := show()
	second := first
	harness.WaitFor(t, "another certificate", func() bool {
		second = show() // the client would fail on an expired one
		return !second.Equal(first)
	})
	if left := time.Until(first.NotAfter); left > 21*time.Second {
		t.Errorf("renewed with %v left of a minute, want a third", left)
	}
	p.stop()
	got := d.await("a reported failure", func(c certs.Certificate) bool { return c.Fault != "" })
	if third := show(); !third.Equal(second) || !got.Ends.Equal(second.NotAfter) {
		t.Error("the service does not keep the current certificate")
	}
	if problem := got.Problem(time.Now()); !strings.HasPrefix(problem, "failed to renew the certificate of hooks.test, which expires on ") {
		t.Errorf("got %q", problem)
	}
	if !strings.Contains(d.log.String(), "failed to renew a certificate, will retry; using the current one until it expires") {
		t.Error("the log lacks the failure")
	}
	if metrics := scrapeService(d); !strings.Contains(metrics, `webhooks_certificate_failing{name="hooks.test"} 1`) {
		t.Error("the metrics lack the failure")
	}
}

// TestAddressCertificate obtains a certificate for an IP address in addition to one for a name,
// serves it to clients without SNI, and renews it.
func TestAddressCertificate(t *testing.T) {
	const address = "127.0.0.2"
	p := newIssuer(t, 30*time.Second, "")
	p.validate(0, 0)
	d := serveDomains(t, p, t.TempDir(), []string{"hooks.test", address}, func(s *Config) {
		s.Listen, s.HTTPListen = address+":0", ""
	})
	// Pebble looks for hooks.test at 127.0.0.1, so it has no certificate.
	d.await("a certificate for the address", func(c certs.Certificate) bool {
		return hasCertificate(c) && slices.Equal(c.Names, []string{address})
	})
	if !strings.Contains(d.log.String(), "challenge=tls-alpn-01") {
		t.Error("the certificate was not obtained with TLS-ALPN-01")
	}
	c := d.client(p.roots)
	for host, want := range map[string]string{address: "", "hooks.test": hstsPolicy} {
		w := httptest.NewRecorder()
		d.handler.ServeHTTP(w, httptest.NewRequest("GET", "https://"+host+"/healthz", nil))
		if hsts := w.Header().Get("Strict-Transport-Security"); hsts != want {
			t.Errorf("%s: got HSTS %q, want %q", host, hsts, want)
		}
	}
	show := func() *x509.Certificate {
		t.Helper()
		resp, _ := get(t, c, "https://"+address+"/healthz")
		return resp.TLS.PeerCertificates[0]
	}
	t.Run("renewal", func(t *testing.T) {
		harness.Long(t)
		first := show()
		harness.WaitFor(t, "another certificate", func() bool { return !show().Equal(first) })
		if left := time.Until(first.NotAfter); left > 11*time.Second {
			t.Errorf("renewed with %v left of 30 s, want a third", left)
		}
	})
}

// storedAccount returns the ACME account in the database.
func storedAccount(t *testing.T, d *domainService) acme.Account {
	t.Helper()
	files := d.store.Certificates()
	all, err := files.List(t.Context(), "acme", true)
	if err != nil {
		t.Fatal(err)
	}
	var a acme.Account
	for _, name := range all {
		text, err := files.Load(t.Context(), name)
		switch {
		case err != nil:
		case strings.HasSuffix(name, ".key"):
			key, err := certmagic.PEMDecodePrivateKey(text)
			if err != nil {
				t.Fatal(err)
			}
			a.PrivateKey = key
		case strings.HasSuffix(name, ".json"):
			if err := json.Unmarshal(text, &a); err != nil {
				t.Fatal(err)
			}
		}
	}
	if a.Location == "" || a.PrivateKey == nil {
		t.Fatalf("no account in %v", all)
	}
	return a
}

// deactivate deactivates an account at the issuer.
func deactivate(t *testing.T, p *issuer, account acme.Account) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.ownRoots}}
	defer transport.CloseIdleConnections()
	client := &acme.Client{Directory: p.url, HTTPClient: &http.Client{Transport: transport}}
	if _, err := client.GetAccount(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	account.Status = "deactivated"
	if _, err := client.UpdateAccount(t.Context(), account); err != nil {
		t.Fatal(err)
	}
}

// TestAccountDeactivated checks that the service reports a deactivated account and registers
// another.
func TestAccountDeactivated(t *testing.T) {
	p := newIssuer(t, 0, "")
	p.validate(0, 0)
	data := t.TempDir()
	d := serveDomains(t, p, data, []string{"hooks.test"}, nil)
	d.await("a certificate", hasCertificate)
	deactivated := storedAccount(t, d)
	deactivate(t, p, deactivated)
	d.stop()

	d = serveDomains(t, p, data, []string{"hooks.test", "second.test"}, nil)
	got := d.await("a reported failure", func(c certs.Certificate) bool { return c.Fault != "" })
	if got.Names[0] != "second.test" || !strings.Contains(got.Fault, "deactivated") {
		t.Errorf("got %+v", got)
	}
	if state, err := d.handshake("hooks.test"); err != nil || state.PeerCertificates[0].DNSNames[0] != "hooks.test" {
		t.Errorf("the existing certificate: %v", err)
	}
	d.stop() // the next attempt would be in a minute
	if !strings.Contains(d.log.String(), "ACME server rejected the account; registering another at the next attempt") {
		t.Error("the log lacks the deactivated account")
	}
	d = serveDomains(t, p, data, []string{"hooks.test", "second.test"}, nil)
	d.await("a certificate from another account", func(c certs.Certificate) bool { return c.Names[0] == "second.test" && hasCertificate(c) })
	if storedAccount(t, d).Location == deactivated.Location {
		t.Error("the service still has the deactivated account")
	}
}

package certs

import (
	"crypto/x509"
	"encoding/hex"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"

	"service/store"
	"service/test/harness"
)

// acmeManager returns a manager of certificates from an issuer, with a store and a CA of its own.
func acmeManager(t *testing.T, cfg Config) *Manager {
	t.Helper()
	st, err := store.Open(t.Context(), store.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	cfg.CA, cfg.Hosts = openCA(t, t.TempDir(), time.Now()), []string{LocalName}
	cfg.Storage, cfg.Logger = st.Certificates(), slog.New(slog.DiscardHandler)
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// TestIssuerLosesRecords renews a certificate at an issuer that does not know the certificate
// that the order replaces. The second attempt does not name it, and succeeds.
func TestIssuerLosesRecords(t *testing.T) {
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_VA_ALWAYS_VALID", "1")
	var serving atomic.Pointer[http.Handler]
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*serving.Load()).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	setUp := func() *db.MemoryStore {
		quiet := log.New(io.Discard, "", 0)
		records := db.NewMemoryStore()
		authority := ca.New(quiet, records, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: 3600}})
		front := wfe.New(quiet, records, va.New(quiet, 0, 0, false, "", records), authority, []string{"issuer.test"}, false, false, 0, 0)
		h := front.Handler()
		serving.Store(&h)
		return records
	}
	records := setUp()

	l, err := net.Listen("tcp", "127.0.0.1:0") // for challenges
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	const domain = "hooks.test"
	m := acmeManager(t, Config{
		Domains: []string{domain}, TLSAddr: l.Addr(), Issuer: server.URL + wfe.DirectoryPath, Roots: roots, Email: "admin@" + domain,
	})
	if err := m.acme.ObtainCertSync(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
	// pebble records the serial number only after it has delivered the certificate.
	obtained, err := m.acme.CacheManagedCertificate(t.Context(), domain)
	if err != nil {
		t.Fatal(err)
	}
	harness.WaitFor(t, "the issuer to know the certificate", func() bool {
		_, err := records.GetOrderByIssuedSerial(hex.EncodeToString(obtained.Leaf.SerialNumber.Bytes()))
		return err == nil
	})
	renew := func() error {
		t.Helper()
		cfg, err := m.configFor(certmagic.Certificate{Names: []string{domain}})
		if err != nil {
			t.Fatal(err)
		}
		return cfg.RenewCertSync(t.Context(), domain, true)
	}
	if err := renew(); err != nil {
		t.Fatalf("an issuer that knows the certificate: %v", err)
	}
	setUp()
	if err := renew(); err == nil {
		t.Fatal("the issuer accepted an order that names an unknown certificate, so this tests nothing")
	}
	if err := renew(); err != nil {
		t.Errorf("the attempt after the refusal: %v", err)
	}
	if cfg, err := m.configFor(certmagic.Certificate{Names: []string{domain}}); err != nil || cfg != m.acme {
		t.Errorf("after a renewal, the next order does not name the certificate: %v", err)
	}
}

// TestProfiles checks that orders for IP addresses alone have the short-lived profile.
func TestProfiles(t *testing.T) {
	m := acmeManager(t, Config{Domains: []string{"hooks.test", "9.9.9.9"}, TLSAddr: &net.TCPAddr{}, Issuer: "https://issuer.test/dir"})
	for names, profile := range map[string]string{"hooks.test": "", "9.9.9.9": shortLived, "2620:fe::9": shortLived} {
		for range 2 { // with ARI, then without
			for _, issuer := range m.orders(names).Issuers {
				if got := issuer.(*certmagic.ACMEIssuer).Profile; got != profile {
					t.Errorf("%s: got the profile %q, want %q", names, got, profile)
				}
			}
			m.recordRenewal(names, true)
		}
	}
}

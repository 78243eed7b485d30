package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store/doctor"
)

// openCA opens the CA of a directory.
func openCA(t *testing.T, dir string, now time.Time) *CA {
	t.Helper()
	ca, err := OpenCA(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestCAPersists(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	first := openCA(t, dir, now)
	for name, want := range map[string]fs.FileMode{CAFile: 0o644, CAKeyFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
	second := openCA(t, dir, now.Add(9*365*24*time.Hour))
	if !first.certificate.Equal(second.certificate) || !first.key.Equal(second.key) {
		t.Error("the second start has another CA")
	}
	if life := first.certificate.NotAfter.Sub(now).Round(24 * time.Hour); life != caLife {
		t.Errorf("got a validity of %v, want %v", life, caLife)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("got the files %v (%v), want only the CA's two", entries, err)
	}
}

func TestUnusableCAIsNotReplaced(t *testing.T) {
	now := time.Now()
	other := t.TempDir()
	openCA(t, other, now)
	read := func(dir, name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return b
	}
	write := func(dir, name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name   string
		damage func(dir string)
		now    time.Time
		want   string
	}{
		{"an empty certificate", func(dir string) { write(dir, CAFile, nil) }, now, "ca.pem is damaged: no PEM certificate found"},
		{"half a certificate", func(dir string) { write(dir, CAFile, read(dir, CAFile)[:200]) }, now, "ca.pem is damaged"},
		{"a certificate with a flipped byte", func(dir string) {
			b := read(dir, CAFile)
			copy(b[100:], "AAAAAAAA")
			write(dir, CAFile, b)
		}, now, "ca.pem"},
		{"another certificate", func(dir string) { write(dir, CAFile, read(other, CAFile)) }, now, "do not match"},
		{"a damaged key", func(dir string) {
			write(dir, CAKeyFile, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
		}, now, "ca.key is damaged: invalid private key"},
		{"no key", func(dir string) { os.Remove(filepath.Join(dir, CAKeyFile)) }, now, "ca.pem has no key"},
		{"an expired CA", func(string) {}, now.Add(caLife + time.Hour), "expired on"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			openCA(t, dir, now)
			test.damage(dir)
			cert, key := read(dir, CAFile), read(dir, CAKeyFile)
			if _, err := OpenCA(dir, test.now); !failsWith(err, test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
			if !bytes.Equal(cert, read(dir, CAFile)) || !bytes.Equal(key, read(dir, CAKeyFile)) {
				t.Error("the files were changed")
			}
		})
	}
}

func TestCACompletedAfterACrash(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	first := openCA(t, dir, now)
	if err := os.Remove(filepath.Join(dir, CAFile)); err != nil {
		t.Fatal(err)
	}
	second := openCA(t, dir, now)
	if !second.key.Equal(first.key) {
		t.Error("the key was replaced")
	}
	// Clients with the old ca.pem still trust the new CA, which has the same name and key.
	leaf, err := second.signFor(second.key.Public(), []string{"localhost"}, now)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(first.certificate)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "localhost"}); err != nil {
		t.Error(err)
	}
}

func TestLeafIsRenewedInTime(t *testing.T) {
	ca := openCA(t, t.TempDir(), time.Now())
	synctest.Test(t, func(t *testing.T) {
		ca := &CA{ca.certificate, ca.key}
		// The bubble's clock begins in 2000, so the CA must be valid then.
		var err error
		if ca.certificate, err = bubbleCA(t, ca); err != nil {
			t.Fatal(err)
		}
		source, err := New(Config{CA: ca, Hosts: ServerNames("192.0.2.7"), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		ctx, stop := context.WithCancel(t.Context())
		go func() { done <- source.Run(ctx) }()
		defer func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		if renewed := renewalsInAYear(t, source, ca); renewed < 18 || renewed > 20 { // each is used for about 20 days
			t.Errorf("got %d certificates in a year, want about 19", renewed)
		}
	})
}

// renewalsInAYear checks the server's certificate twice per day for a year: it must always be
// valid, and be renewed in time. It returns the number of certificates.
func renewalsInAYear(t *testing.T, source *Manager, ca *CA) (renewed int) {
	t.Helper()
	get := source.tlsConfig().GetCertificate
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	var last *tls.Certificate
	for end := time.Now().Add(365 * 24 * time.Hour); time.Now().Before(end); time.Sleep(12 * time.Hour) {
		c, err := get(&tls.ClientHelloInfo{ServerName: "whatever.example"})
		if err != nil {
			t.Fatal(err)
		}
		if last == nil || !c.Leaf.Equal(last.Leaf) {
			last = c
			renewed++
		}
		for _, name := range []string{"localhost", "127.0.0.1", "::1", "192.0.2.7"} {
			if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: time.Now()}); err != nil {
				t.Fatalf("at %v: %v", time.Now(), err)
			}
		}
		if left := time.Until(c.Leaf.NotAfter); left < leafLife/3 {
			t.Fatalf("at %v: got %v left, want at least %v", time.Now(), left, leafLife/3)
		}
	}
	return renewed
}

// bubbleCA returns a certificate for the CA's key that is valid from now on.
func bubbleCA(t *testing.T, ca *CA) (*x509.Certificate, error) {
	t.Helper()
	signed, err := signCA(filepath.Join(t.TempDir(), CAFile), ca.key, time.Now())
	if err != nil {
		return nil, err
	}
	return signed.certificate, nil
}

// TestClockSetBack checks that a certificate that is not yet valid is reissued.
func TestClockSetBack(t *testing.T) {
	c, _ := testManager(t)
	first := c.local.Load()
	if err := c.checkLocal(time.Now()); err != nil || c.local.Load() != first {
		t.Errorf("with the right time: got another certificate, or %v", err)
	}
	before := time.Now().Add(-2 * time.Hour)
	if err := c.checkLocal(before); err != nil || before.Before(c.local.Load().Leaf.NotBefore) {
		t.Errorf("after the clock was set back: got a certificate that is not valid yet, or %v", err)
	}
}

// TestNameConstraints checks that clients do not accept the local CA for names of other hosts.
func TestNameConstraints(t *testing.T) {
	ca := openCA(t, t.TempDir(), time.Now())
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	for host, want := range map[string]bool{
		"localhost": true, "app.localhost": true, machineNames()[len(machineNames())-1]: true,
		"127.0.0.1": true, "::1": true, "192.0.2.7": true,
		"example.com": false, "notlocalhost": false, "localhost.example.com": false,
	} {
		leaf, err := ca.signFor(ca.key.Public(), []string{host}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		_, err = leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host})
		if got := err == nil; got != want || ca.Allows(host) != want {
			t.Errorf("%s: got accepted by clients %t (%v), Allows %t; want %t", host, got, err, ca.Allows(host), want)
		}
	}
}

func TestClientsTrustTheLocalCA(t *testing.T) {
	source, caFile := testManager(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(source.Listen(l))
	}()
	t.Cleanup(func() { server.Close(); <-done })

	pool, err := ReadPool(caFile)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		config *tls.Config
		http2  bool
		want   string // the protocol, or the error
		ok     bool
	}{
		{"HTTP/2", &tls.Config{RootCAs: pool}, true, "HTTP/2.0", true},
		{"HTTP/1.1", &tls.Config{RootCAs: pool}, false, "HTTP/1.1", true},
		{"another CA", &tls.Config{RootCAs: x509.NewCertPool()}, false, "certificate signed by unknown authority", false},
		{"AES-256 of TLS 1.2", tls12(pool, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384), true, "HTTP/2.0", true},
		{"ChaCha20 of TLS 1.2", tls12(pool, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256), true, "HTTP/2.0", true},
		{"AES-128 of TLS 1.2", tls12(pool, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256), false, "handshake failure", false},
		{"TLS 1.1", &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false, "protocol version", false},
	}
	for _, test := range tests {
		transport := &http.Transport{TLSClientConfig: test.config, ForceAttemptHTTP2: test.http2}
		resp, err := (&http.Client{Transport: transport}).Get("https://" + l.Addr().String())
		switch {
		case !test.ok && !failsWith(err, test.want):
			t.Errorf("%s: got %v, want an error with %q", test.name, err, test.want)
		case test.ok && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.ok:
			b, _ := io.ReadAll(resp.Body)
			if string(b) != test.want {
				t.Errorf("%s: got %s, want %s", test.name, b, test.want)
			}
		}
		if err == nil {
			resp.Body.Close()
		}
		transport.CloseIdleConnections()
	}
}

// tls12 returns a client configuration with a single cipher suite of TLS 1.2.
func tls12(roots *x509.CertPool, suite uint16) *tls.Config {
	return &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}}
}

// failsWith reports whether err contains text.
func failsWith(err error, text string) bool {
	return err != nil && strings.Contains(err.Error(), text)
}

// TestCertificateFinding checks that certificates are reported before they expire: those of months for
// weeks, those of six days once they are due for renewal, with two days left, and those whose renewal
// has failed even before that.
func TestCertificateFinding(t *testing.T) {
	now := time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for _, test := range []struct {
		left  time.Duration // 0 for no certificate if its renewal has failed
		life  time.Duration // 0 for months
		fails bool
		want  doctor.Level
	}{
		{left: 30 * day, want: doctor.LevelOK}, {left: renewSoon, want: doctor.LevelOK}, {left: renewSoon - time.Second, want: doctor.LevelWarn},
		{left: time.Second, want: doctor.LevelWarn}, {left: 0, want: doctor.LevelFail}, {left: -time.Hour, want: doctor.LevelFail},

		{left: 48 * time.Hour, life: 6 * day, want: doctor.LevelOK}, {left: 36 * time.Hour, life: 6 * day, want: doctor.LevelOK},
		{left: 35 * time.Hour, life: 6 * day, want: doctor.LevelWarn}, {left: -time.Hour, life: 6 * day, want: doctor.LevelFail},

		{left: 20 * day, fails: true, want: doctor.LevelWarn}, {left: renewSoon - time.Second, fails: true, want: doctor.LevelFail},
		{left: -time.Hour, fails: true, want: doctor.LevelFail}, {left: 0, fails: true, want: doctor.LevelFail},
	} {
		cert := Certificate{Names: []string{"service.example"}, Ends: now.Add(test.left)}
		if test.life > 0 {
			cert.Begins = cert.Ends.Add(-test.life)
		}
		if test.fails {
			cert.Failing, cert.Fault = now.Add(-time.Hour), "rate limited"
			if test.left == 0 {
				cert.Ends = time.Time{}
			}
		}
		found := Findings([]Certificate{cert}, now)
		if len(found) != 1 || found[0].Level != test.want || !strings.Contains(found[0].Detail, "service.example") ||
			!strings.Contains(found[0].Detail, cert.Fault) {
			t.Errorf("%+v: got %v, want %s", test, found, test.want)
		}
	}
}

// localConn is a connection to an address of this host.
type localConn struct {
	net.Conn
	addr net.TCPAddr
}

func (c localConn) LocalAddr() net.Addr { return &c.addr }

func TestNameWithoutSNI(t *testing.T) {
	const name, ipv4, other4, ipv6 = "hooks.example.com", "9.9.9.9", "9.9.9.10", "2620:fe::9"
	for _, test := range []struct {
		local   string
		domains []string
		want    string
	}{
		{"10.0.0.5", []string{name}, name},
		{"10.0.0.5", []string{name, ipv4}, ipv4}, // behind NAT
		{"10.0.0.5", []string{name, ipv6, ipv4, other4}, ipv4},
		{"10.0.0.5", []string{name, ipv6}, ipv6},
		{"9.9.9.10", []string{name, ipv4, other4}, other4},
		{"::ffff:9.9.9.10", []string{name, ipv4, other4}, other4},
		{"2620:fe::9", []string{ipv4, ipv6}, ipv6},
		{"2620:fe::99", []string{ipv4, ipv6}, ipv6},
		{"127.0.0.1", []string{name, ipv4}, LocalName},
		{"::1", []string{name}, LocalName},
		{"standby", []string{name}, name},
	} {
		c := &Manager{cfg: Config{Domains: test.domains}}
		if test.local == "standby" {
			c.copied, test.local = new(copied), "127.0.0.1"
		}
		if got := c.nameWithoutSNI(localConn{addr: net.TCPAddr{IP: net.ParseIP(test.local)}}); got != test.want {
			t.Errorf("%s with %q: got %s, want %s", test.local, test.domains, got, test.want)
		}
	}
}

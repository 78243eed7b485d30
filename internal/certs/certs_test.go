package certs

import (
	"bytes"
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

	"service/store"
)

func TestCAIsMadeOnceAndKept(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	first, err := OpenCA(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{CAFile: 0o644, CAKeyFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
	second, err := OpenCA(dir, now.Add(9*365*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if !first.certificate.Equal(second.certificate) || !first.key.Equal(second.key) {
		t.Error("the second start has another CA than the first")
	}
	if life := first.certificate.NotAfter.Sub(now).Round(24 * time.Hour); life != caLife {
		t.Errorf("the CA lives %v, want %v", life, caLife)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("got the files %v (%v), want the CA's two alone", entries, err)
	}
}

func TestCAThatCannotBeUsedIsLeftAlone(t *testing.T) {
	now := time.Now()
	other := t.TempDir()
	if _, err := OpenCA(other, now); err != nil {
		t.Fatal(err)
	}
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
		{"an empty certificate", func(dir string) { write(dir, CAFile, nil) }, now, "ca.pem is damaged: it holds no PEM certificate"},
		{"half a certificate", func(dir string) { write(dir, CAFile, read(dir, CAFile)[:200]) }, now, "ca.pem is damaged"},
		{"a certificate with a flipped byte", func(dir string) {
			b := read(dir, CAFile)
			copy(b[100:], "AAAAAAAA")
			write(dir, CAFile, b)
		}, now, "ca.pem"},
		{"another's certificate", func(dir string) { write(dir, CAFile, read(other, CAFile)) }, now, "do not belong together"},
		{"a damaged key", func(dir string) {
			write(dir, CAKeyFile, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
		}, now, "ca.key is damaged: its private key cannot be read"},
		{"no key", func(dir string) { os.Remove(filepath.Join(dir, CAKeyFile)) }, now, "its key"},
		{"an expired CA", func(string) {}, now.Add(caLife + time.Hour), "expired on"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := OpenCA(dir, now); err != nil {
				t.Fatal(err)
			}
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
	first, err := OpenCA(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, CAFile)); err != nil {
		t.Fatal(err)
	}
	second, err := OpenCA(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	if !second.key.Equal(first.key) {
		t.Error("the key was replaced")
	}
	// Who still has the old ca.pem can go on: same name, same key.
	leaf, err := second.sign([]string{"localhost"}, now)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(first.certificate)
	if _, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "localhost"}); err != nil {
		t.Error(err)
	}
}

func TestLeafIsRenewedInTime(t *testing.T) {
	ca, err := OpenCA(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ca := &CA{ca.certificate, ca.key}
		// The bubble's clock begins in 2000: a CA of that time.
		var err error
		if ca.certificate, err = bubbleCA(t, ca); err != nil {
			t.Fatal(err)
		}
		source, err := New(t.Context(), Config{CA: ca, Hosts: ServerNames("192.0.2.7"), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer source.Close()
		if renewed := renewalsInAYear(t, source, ca); renewed < 18 || renewed > 20 { // each serves about 20 days
			t.Errorf("%d certificates in a year, want about 19", renewed)
		}
	})
}

// renewalsInAYear looks at the server's certificate twice a day, and returns how many
// there were. Each must be valid, and be renewed in time.
func renewalsInAYear(t *testing.T, source *Manager, ca *CA) (renewed int) {
	t.Helper()
	get := source.TLSConfig().GetCertificate
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
		if left := time.Until(c.Leaf.NotAfter); left < leafRenew {
			t.Fatalf("at %v the certificate has only %v left", time.Now(), left)
		}
	}
	return renewed
}

// bubbleCA returns a certificate for the CA's key that begins now.
func bubbleCA(t *testing.T, ca *CA) (*x509.Certificate, error) {
	t.Helper()
	made, err := signCA(filepath.Join(t.TempDir(), CAFile), ca.key, time.Now())
	if err != nil {
		return nil, err
	}
	return made.certificate, nil
}

// A certificate that begins in the future, since the clock was set back, is
// made anew.
func TestLeafAfterTheClockWasSetBack(t *testing.T) {
	ca, err := OpenCA(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(t.Context(), Config{CA: ca, Hosts: ServerNames(""), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first := c.leaf(LocalName)
	if err := c.checkLocal(t.Context(), time.Now()); err != nil || !c.leaf(LocalName).Equal(first) {
		t.Errorf("another certificate, or %v, while the clock is right", err)
	}
	if err := c.checkLocal(t.Context(), time.Now().Add(-2*time.Hour)); err != nil || c.leaf(LocalName).Equal(first) {
		t.Errorf("the same certificate, or %v, after the clock was set back", err)
	}
	if n := len(c.cache.AllMatchingCertificates(LocalName)); n != 1 {
		t.Errorf("%d certificates, want the new one alone", n)
	}
}

// Whoever trusts a machine's CA does not trust it with the names of others.
func TestLocalCAIsForThisMachineAlone(t *testing.T) {
	ca, err := OpenCA(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	for host, want := range map[string]bool{
		"localhost": true, "app.localhost": true, "127.0.0.1": true, "::1": true, "192.0.2.7": true, machineNames()[len(machineNames())-1]: true,
		"example.com": false, "notlocalhost": false, "localhost.example.com": false,
	} {
		leaf, err := ca.sign([]string{host}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		_, err = leaf.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host})
		if got := err == nil; got != want || ca.Allows(host) != want {
			t.Errorf("%s: clients accept it: %t (%v), the CA allows it: %t; want %t", host, got, err, ca.Allows(host), want)
		}
	}
}

func TestClientsTrustTheLocalCA(t *testing.T) {
	dir := t.TempDir()
	ca, err := OpenCA(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	source, err := New(t.Context(), Config{CA: ca, Hosts: ServerNames("127.0.0.1"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
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
		server.Serve(tls.NewListener(l, source.TLSConfig()))
	}()
	t.Cleanup(func() { server.Close(); <-done })

	pool, err := ReadPool(filepath.Join(dir, CAFile))
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
		{"AES-256 of TLS 1.2", &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}}, true, "HTTP/2.0", true},
		{"ChaCha20 of TLS 1.2", &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}}, true, "HTTP/2.0", true},
		{"AES-128 of TLS 1.2", &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}}, false, "handshake failure", false},
		{"an old TLS", &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false, "protocol version", false},
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

// failsWith reports whether err contains the words.
func failsWith(err error, words string) bool {
	return err != nil && strings.Contains(err.Error(), words)
}

func TestCertificateFinding(t *testing.T) {
	now := time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)
	for left, want := range map[time.Duration]store.Level{
		30 * 24 * time.Hour: store.LevelOK, renewSoon: store.LevelOK, renewSoon - time.Second: store.LevelWarn,
		time.Second: store.LevelWarn, 0: store.LevelFail, -time.Hour: store.LevelFail,
	} {
		found := Findings([]Certificate{{Names: []string{"service.example"}, Ends: now.Add(left)}}, now)
		if len(found) != 1 || found[0].Level != want || !strings.Contains(found[0].Detail, "service.example") {
			t.Errorf("%v before its end: got %v, want %s", left, found, want)
		}
	}
}

// A certificate that cannot be renewed is told while there is time.
func TestCertificateFaultFinding(t *testing.T) {
	now := time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		left time.Duration // 0: there is none
		want store.Level
	}{{20 * 24 * time.Hour, store.LevelWarn}, {renewSoon - time.Second, store.LevelFail}, {-time.Hour, store.LevelFail}, {0, store.LevelFail}} {
		one := Certificate{Names: []string{"service.example"}, Failing: now.Add(-time.Hour), Fault: "rate limited"}
		if test.left != 0 {
			one.Ends = now.Add(test.left)
		}
		found := Findings([]Certificate{one}, now)
		if len(found) != 1 || found[0].Level != test.want || !strings.Contains(found[0].Detail, "service.example") || !strings.Contains(found[0].Detail, "rate limited") {
			t.Errorf("%v before its end: got %v, want %s", test.left, found, test.want)
		}
	}
}

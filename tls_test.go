package main

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
	"testing"
	"testing/synctest"
	"time"
)

func TestCAIsMadeOnceAndKept(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	first, err := openCA(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{caCertificateFile: 0o644, caKeyFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
	second, err := openCA(dir, now.Add(9*365*24*time.Hour))
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
	if _, err := openCA(other, now); err != nil {
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
		{"an empty certificate", func(dir string) { write(dir, caCertificateFile, nil) }, now, "ca.pem is damaged: it holds no PEM certificate"},
		{"half a certificate", func(dir string) { write(dir, caCertificateFile, read(dir, caCertificateFile)[:200]) }, now, "ca.pem is damaged"},
		{"a certificate with a flipped byte", func(dir string) {
			b := read(dir, caCertificateFile)
			copy(b[100:], "AAAAAAAA")
			write(dir, caCertificateFile, b)
		}, now, "ca.pem"},
		{"another's certificate", func(dir string) { write(dir, caCertificateFile, read(other, caCertificateFile)) }, now, "do not belong together"},
		{"a damaged key", func(dir string) {
			write(dir, caKeyFile, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
		}, now, "ca.key is damaged: its private key cannot be read"},
		{"no key", func(dir string) { os.Remove(filepath.Join(dir, caKeyFile)) }, now, "its key"},
		{"an expired CA", func(string) {}, now.Add(caLife + time.Hour), "expired on"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := openCA(dir, now); err != nil {
				t.Fatal(err)
			}
			test.damage(dir)
			cert, key := read(dir, caCertificateFile), read(dir, caKeyFile)
			if _, err := openCA(dir, test.now); !matches(err, test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
			if !bytes.Equal(cert, read(dir, caCertificateFile)) || !bytes.Equal(key, read(dir, caKeyFile)) {
				t.Error("the files were changed")
			}
		})
	}
}

func TestCACompletedAfterACrash(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	first, err := openCA(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, caCertificateFile)); err != nil {
		t.Fatal(err)
	}
	second, err := openCA(dir, now)
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
	ca, err := openCA(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ca := &localCA{ca.certificate, ca.key}
		// The bubble's clock begins in 2000: a CA of that time.
		var err error
		if ca.certificate, err = bubbleCA(t, ca); err != nil {
			t.Fatal(err)
		}
		source, err := newCertificates(t.Context(), certificateConfig{ca: ca, hosts: serverNames("192.0.2.7"), logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer source.close()
		get := source.tlsConfig().GetCertificate
		pool := x509.NewCertPool()
		pool.AddCert(ca.certificate)
		var last *tls.Certificate
		renewed := 0
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
		if renewed < 18 || renewed > 20 { // each serves about 20 days
			t.Errorf("%d certificates in a year, want about 19", renewed)
		}
	})
}

// bubbleCA returns a certificate for the CA's key that begins now.
func bubbleCA(t *testing.T, ca *localCA) (*x509.Certificate, error) {
	t.Helper()
	made, err := signCA(filepath.Join(t.TempDir(), caCertificateFile), ca.key, time.Now())
	if err != nil {
		return nil, err
	}
	return made.certificate, nil
}

// A certificate that begins in the future, since the clock was set back, is
// made anew.
func TestLeafAfterTheClockWasSetBack(t *testing.T) {
	ca, err := openCA(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCertificates(t.Context(), certificateConfig{ca: ca, hosts: serverNames(""), logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	first := c.leaf(localName)
	if err := c.checkLocal(t.Context(), time.Now()); err != nil || !c.leaf(localName).Equal(first) {
		t.Errorf("another certificate, or %v, while the clock is right", err)
	}
	if err := c.checkLocal(t.Context(), time.Now().Add(-2*time.Hour)); err != nil || c.leaf(localName).Equal(first) {
		t.Errorf("the same certificate, or %v, after the clock was set back", err)
	}
	if n := len(c.cache.AllMatchingCertificates(localName)); n != 1 {
		t.Errorf("%d certificates, want the new one alone", n)
	}
}

// Whoever trusts a machine's CA does not trust it with the names of others.
func TestLocalCAIsForThisMachineAlone(t *testing.T) {
	ca, err := openCA(t.TempDir(), time.Now())
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
		if got := err == nil; got != want || ca.allows(host) != want {
			t.Errorf("%s: clients accept it: %t (%v), the CA allows it: %t; want %t", host, got, err, ca.allows(host), want)
		}
	}
}

func TestClientsTrustTheLocalCA(t *testing.T) {
	dir := t.TempDir()
	ca, err := openCA(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	source, err := newCertificates(t.Context(), certificateConfig{ca: ca, hosts: serverNames("127.0.0.1"), logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer source.close()
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
		server.Serve(tls.NewListener(l, source.tlsConfig()))
	}()
	t.Cleanup(func() { server.Close(); <-done })

	pool, err := readCertificates(filepath.Join(dir, caCertificateFile))
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
		{"an old TLS", &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false, "protocol version", false},
	}
	for _, test := range tests {
		transport := &http.Transport{TLSClientConfig: test.config, ForceAttemptHTTP2: test.http2}
		resp, err := (&http.Client{Transport: transport}).Get("https://" + l.Addr().String())
		switch {
		case !test.ok && !matches(err, test.want):
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

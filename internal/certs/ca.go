package certs

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"

	"service/internal/durable"
)

// The names of the local CA's files in the data directory, and the lives of
// what it is and signs.
const (
	CAFile    = "ca.pem" // 0644, for curl --cacert
	CAKeyFile = "ca.key" // 0600

	caLife    = 10 * 365 * 24 * time.Hour
	leafLife  = 30 * 24 * time.Hour
	leafRenew = 10 * 24 * time.Hour // renewed when less than this is left: a third of its life
	clockSkew = time.Hour           // how far behind a client's clock may be
)

// CA is the certificate authority that is kept in the data directory, so
// that serve speaks HTTPS before it has a public name. Who trusts ca.pem trusts
// this data directory's servers, and nobody else holds the key.
type CA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// OpenCA returns the CA of the data directory dir, and makes it when there is
// none. A CA that is there but cannot be used is an error and is left alone:
// clients trust it by its file, so replacing it silently would lock them out.
// The caller holds the lock of the data directory.
func OpenCA(dir string, now time.Time) (*CA, error) {
	certPath, keyPath := filepath.Join(dir, CAFile), filepath.Join(dir, CAKeyFile)
	certPEM, certErr := os.ReadFile(certPath)
	keyPEM, keyErr := os.ReadFile(keyPath)
	switch {
	case certErr != nil && !errors.Is(certErr, fs.ErrNotExist):
		return nil, fmt.Errorf("read the local CA: %w", certErr)
	case keyErr != nil && !errors.Is(keyErr, fs.ErrNotExist):
		return nil, fmt.Errorf("read the local CA's key: %w", keyErr)
	case certErr == nil && keyErr != nil:
		return nil, fmt.Errorf("%s is there but its key %s is missing; put the key back, or remove %[1]s to have a new CA made, which clients then have to be given", certPath, keyPath)
	case certErr != nil && keyErr != nil:
		return createCA(certPath, keyPath, now)
	}

	key, err := parseCAKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; put back a copy, or remove it and %s to have a new CA made, which clients then have to be given", keyPath, err, certPath)
	}
	if certErr != nil {
		// The process ended between the key and the certificate, or ca.pem was
		// removed: no client can have trusted what was never written.
		return signCA(certPath, key, now)
	}
	certificate, err := ParseCA(certPEM)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s is damaged: %w; put back a copy, or remove it and %s to have a new CA made, which clients then have to be given", certPath, err, keyPath)
	case !key.PublicKey.Equal(certificate.PublicKey):
		return nil, fmt.Errorf("%s and %s do not belong together; put back copies of one pair, or remove both to have a new CA made", certPath, keyPath)
	case now.After(certificate.NotAfter):
		return nil, fmt.Errorf("the local CA in %s expired on %s; remove it and %s to have a new one made, which clients then have to be given", certPath, certificate.NotAfter.UTC().Format(time.DateOnly), keyPath)
	}
	return &CA{certificate, key}, nil
}

// ParseCA parses the certificate of a CA in PEM, as in [CAFile].
func ParseCA(b []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("it holds no PEM certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	if !c.IsCA {
		return nil, errors.New("its certificate is not that of a CA")
	}
	return c, nil
}

func parseCAKey(b []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("it holds no PEM private key")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("its private key cannot be read") // the cause could quote the key
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("its private key is not an ECDSA key")
	}
	return key, nil
}

// createCA writes the key first: a certificate without its key would be refused
// at the next start, a key without its certificate is completed.
func createCA(certPath, keyPath string, now time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the local CA's key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make the local CA's key: %w", err)
	}
	if err := durable.WriteFile(keyPath, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return nil, fmt.Errorf("write the local CA's key: %w", err)
	}
	return signCA(certPath, key, now)
}

func signCA(certPath string, key *ecdsa.PrivateKey, now time.Time) (*CA, error) {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("make the local CA: %w", err)
	}
	sum := sha256.Sum256(public)
	template := &x509.Certificate{
		SerialNumber: serialNumber(),
		// One key has one name, and two CAs in one trust store have two.
		Subject:               pkix.Name{CommonName: "service local CA " + hex.EncodeToString(sum[:4])},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		// Who trusts it does so for this machine: with the key alone nobody can
		// be somebody else on the internet.
		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         machineNames(),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the local CA: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the local CA: %w", err)
	}
	if err := durable.WriteFile(certPath, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return nil, fmt.Errorf("write the local CA: %w", err)
	}
	return &CA{certificate, key}, nil
}

// sign makes a certificate with a key of its own.
func (ca *CA) sign(hosts []string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the server's key: %w", err)
	}
	leaf, err := ca.signFor(key.Public(), hosts, now)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw, ca.certificate.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// signFor returns a new certificate for a server with the given names and
// addresses, valid for leafLife or as long as the CA itself. Clients accept it
// if the CA may vouch for all of them, see allows.
func (ca *CA) signFor(public crypto.PublicKey, hosts []string, now time.Time) (*x509.Certificate, error) {
	notAfter := now.Add(leafLife)
	if ca.certificate.NotAfter.Before(notAfter) {
		notAfter = ca.certificate.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber: serialNumber(),
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, public, ca.key)
	if err != nil {
		return nil, fmt.Errorf("make the server's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the server's certificate: %w", err)
	}
	return leaf, nil
}

// Allows reports whether the CA may sign for a name or an address. One that was made
// before it was bound to names may sign for all.
func (ca *CA) Allows(host string) bool {
	if net.ParseIP(host) != nil || len(ca.certificate.PermittedDNSDomains) == 0 {
		return true
	}
	return slices.ContainsFunc(ca.certificate.PermittedDNSDomains, func(domain string) bool {
		return strings.EqualFold(host, domain) || strings.HasSuffix(strings.ToLower(host), "."+strings.ToLower(domain))
	})
}

// LocalName is the name that the server is always reached by on its own
// machine, and the one that its certificate of the local CA is managed by.
const LocalName = "localhost"

// localIssuer makes certmagic look after the server's certificate of the local
// CA: it asks for one for LocalName, and is given one for all of hosts.
type localIssuer struct {
	ca    *CA
	hosts []string
}

// IssuerKey implements [certmagic.Issuer].
func (localIssuer) IssuerKey() string { return "local" }

// Issue implements [certmagic.Issuer].
func (i localIssuer) Issue(_ context.Context, request *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	// certmagic renews a certificate by its first name, so that is LocalName.
	leaf, err := i.ca.signFor(request.PublicKey, append([]string{LocalName}, without(i.hosts, LocalName)...), time.Now())
	if err != nil {
		return nil, err
	}
	var chain []byte
	for _, der := range [][]byte{leaf.Raw, i.ca.certificate.Raw} {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return &certmagic.IssuedCertificate{Certificate: chain}, nil
}

func without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == one })
}

// tlsConfig returns the TLS configuration of the server.
func tlsConfig(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Of TLS 1.2 only suites with forward secrecy, authenticated encryption and
		// keys of 256 bits. crypto/tls chooses those of TLS 1.3; see
		// docs/decisions/0034-cipher-suites.md.
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		NextProtos:     append([]string{"h2", "http/1.1"}, protocols...),
		GetCertificate: certificate,
		// A ticket's key would open what was said in all connections that it was
		// for, for a week; a whole handshake takes a tenth of a millisecond.
		SessionTicketsDisabled: true,
	}
}

// ServerNames returns the names and addresses by which clients reach a server that
// listens on host, as far as this machine knows, sorted.
func ServerNames(host string) []string {
	names := append(machineNames(), "127.0.0.1", "::1")
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		names = append(names, host)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// machineNames are the names of this machine: localhost, and what it calls
// itself.
func machineNames() []string {
	names := []string{LocalName}
	isASCII := func(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) }
	if name, err := os.Hostname(); err == nil && name != "" && name != LocalName && isASCII(name) { // a certificate holds no other name
		names = append(names, name)
	}
	return names
}

func serialNumber() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f // positive, so that it stays within the 20 bytes of RFC 5280
	return new(big.Int).SetBytes(b[:])
}

// ReadPool returns the certificates of a PEM file as a pool. The error names the
// file.
func ReadPool(path string) (*x509.CertPool, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !bytes.Contains(b, []byte("-----BEGIN CERTIFICATE-----")) || !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s holds no PEM certificate", path)
	}
	return pool, nil
}

package certs

import (
	"bytes"
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

	"service/internal/durable"
)

// Files of the local CA in the data directory, and validity periods.
const (
	CAFile    = "ca.pem" // 0644, for curl --cacert
	CAKeyFile = "ca.key" // 0600

	caLife    = 10 * 365 * 24 * time.Hour
	leafLife  = 30 * 24 * time.Hour
	clockSkew = time.Hour // tolerated skew of client clocks
)

// CA is the certificate authority in the data directory. It lets the service use HTTPS
// without a public name. A client that trusts ca.pem trusts only the servers of this data
// directory.
type CA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// OpenCA returns the CA of the data directory dir, and creates it if there is none. A CA that
// cannot be used is an error and stays unchanged: replacing it would lock out the clients that
// trust it. The caller must hold the lock of the data directory.
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
		return nil, fmt.Errorf("%s has no key %s; restore the key, or remove %[1]s to create a new CA and give that to the clients",
			certPath, keyPath)
	case certErr != nil && keyErr != nil:
		return createCA(certPath, keyPath, now)
	}

	key, err := parseCAKey(keyPEM)
	if err != nil {
		return nil, damagedCA(keyPath, certPath, err)
	}
	if certErr != nil {
		// The process crashed between writing the key and the certificate, or ca.pem was
		// removed. A new certificate with the same name and key is equivalent.
		return signCA(certPath, key, now)
	}
	certificate, err := ParseCA(certPEM)
	switch {
	case err != nil:
		return nil, damagedCA(certPath, keyPath, err)
	case !key.PublicKey.Equal(certificate.PublicKey):
		return nil, fmt.Errorf("%s and %s do not match; restore both from one copy, or remove both to create a new CA", certPath, keyPath)
	case now.After(certificate.NotAfter):
		return nil, fmt.Errorf("the local CA in %s expired on %s; remove it and %s to create a new CA, and give that to the clients",
			certPath, certificate.NotAfter.UTC().Format(time.DateOnly), keyPath)
	}
	return &CA{certificate, key}, nil
}

// damagedCA returns the error for a damaged file of the CA. other is the CA's other file.
func damagedCA(path, other string, err error) error {
	return fmt.Errorf("%s is damaged: %w; restore it from a copy, or remove it and %s to create a new CA and give that to the clients",
		path, err, other)
}

// ParseCA parses the certificate of a CA in PEM, as in [CAFile].
func ParseCA(b []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM certificate found")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	if !c.IsCA {
		return nil, errors.New("not a CA certificate")
	}
	return c, nil
}

func parseCAKey(b []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("no PEM private key found")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("invalid private key") // err could contain the key
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("not an ECDSA key")
	}
	return key, nil
}

// createCA writes the key before the certificate. After a crash in between, the next start
// creates the certificate; a certificate without its key would be an error.
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
		// The name depends on the key, so that two CAs in one trust store have different names.
		Subject:               pkix.Name{CommonName: "service local CA " + hex.EncodeToString(sum[:4])},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		// Name constraints: a stolen key cannot impersonate other hosts on the internet.
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

// signFor returns a new certificate for a server with the given names and addresses, valid for
// leafLife or until the CA expires. Clients accept it if Allows reports true for every host.
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

// Allows reports whether the CA may sign for a name or an address. CAs without name
// constraints, from older versions, may sign for all.
func (ca *CA) Allows(host string) bool {
	if net.ParseIP(host) != nil || len(ca.certificate.PermittedDNSDomains) == 0 {
		return true
	}
	return slices.ContainsFunc(ca.certificate.PermittedDNSDomains, func(domain string) bool {
		return strings.EqualFold(host, domain) || strings.HasSuffix(strings.ToLower(host), "."+strings.ToLower(domain))
	})
}

// LocalName reaches the server from the server's own host.
const LocalName = "localhost"

// issue returns a new certificate with its key and chain for LocalName and the given names and
// addresses.
func (ca *CA) issue(hosts []string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the server's key: %w", err)
	}
	others := slices.DeleteFunc(slices.Clone(hosts), func(host string) bool { return host == LocalName })
	leaf, err := ca.signFor(key.Public(), append([]string{LocalName}, others...), now)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw, ca.certificate.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// ServerNames returns the known names and addresses of a server that listens on host, sorted.
func ServerNames(host string) []string {
	names := append(machineNames(), "127.0.0.1", "::1")
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		names = append(names, host)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// machineNames returns localhost and the host name.
func machineNames() []string {
	names := []string{LocalName}
	isASCII := func(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) }
	// Certificates only allow ASCII names.
	if name, err := os.Hostname(); err == nil && name != "" && name != LocalName && isASCII(name) {
		names = append(names, name)
	}
	return names
}

func serialNumber() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f // must be positive (RFC 5280)
	return new(big.Int).SetBytes(b[:])
}

// ReadPool returns a pool of the certificates in a PEM file. Its errors contain the path.
func ReadPool(path string) (*x509.CertPool, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !bytes.Contains(b, []byte("-----BEGIN CERTIFICATE-----")) || !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("no PEM certificate found in %s", path)
	}
	return pool, nil
}

package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
)

// Pauses between two reads of a certificate from a copy: after finding it, and after not finding
// it.
const (
	copiedKnown = time.Minute
	copiedRetry = time.Second
)

// copied looks up the domains' certificates in the copy of another node's storage. The other node
// obtains and renews them. It is safe for concurrent use.
type copied struct {
	read    func(ctx context.Context, path string) ([]byte, error)
	issuer  string // the issuer's part of paths
	domains []string

	mu   sync.Mutex
	last map[string]copiedCertificate // by domain
}

// copiedCertificate is the last read of a certificate.
type copiedCertificate struct {
	certificate *tls.Certificate // nil without a valid certificate
	next        time.Time        // of the next read
}

func newCopied(cfg *Config) *copied {
	issuer := certmagic.ACMEIssuer{CA: cfg.Issuer}
	return &copied{
		read: cfg.Copy, issuer: issuer.IssuerKey(), domains: cfg.Domains, last: make(map[string]copiedCertificate),
	}
}

// certificate returns the certificate for a name, nil if the copy contains no valid one.
func (c *copied) certificate(ctx context.Context, name string) *tls.Certificate {
	if !slices.Contains(c.domains, name) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, found := time.Now(), c.last[name]
	if now.Before(found.next) {
		return found.certificate
	}
	certificate, err := c.load(ctx, name, now)
	switch {
	case err == nil:
		c.last[name] = copiedCertificate{certificate, now.Add(copiedKnown)}
	case ctx.Err() == nil:
		c.last[name] = copiedCertificate{nil, now.Add(copiedRetry)}
	}
	return certificate
}

func (c *copied) load(ctx context.Context, domain string, now time.Time) (*tls.Certificate, error) {
	chain, err := c.read(ctx, certmagic.StorageKeys.SiteCert(c.issuer, domain))
	if err != nil {
		return nil, err
	}
	key, err := c.read(ctx, certmagic.StorageKeys.SitePrivateKey(c.issuer, domain))
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, err
	}
	if leaf := certificate.Leaf; now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return nil, fmt.Errorf("the certificate of %s is valid from %s to %s", domain, leaf.NotBefore, leaf.NotAfter)
	}
	return &certificate, nil
}

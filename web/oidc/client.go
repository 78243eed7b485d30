package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// The bounds of requests to the provider.
const (
	requestTimeout  = 5 * time.Second  // of one request
	exchangeTimeout = 10 * time.Second // of all requests of one sign-in
	maxResponse     = 1 << 20          // bytes of a body
	maxHeader       = 64 << 10         // bytes of a response's header
	maxProviderConn = 8                // at a time
)

// newClient returns the client for the provider. It follows no redirects: none is needed,
// and a redirect could carry a secret elsewhere. It uses the proxy of the environment, as
// the replica does.
func newClient() *http.Client {
	return &http.Client{
		Timeout: requestTimeout,
		Transport: boundedTransport{&http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxConnsPerHost: maxProviderConn, MaxResponseHeaderBytes: maxHeader,
			TLSHandshakeTimeout: requestTimeout, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true,
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// boundedTransport bounds the bodies of responses.
type boundedTransport struct{ next *http.Transport }

func (t boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	a, err := t.next.RoundTrip(r)
	if err == nil {
		a.Body = &boundedBody{body: a.Body, left: maxResponse}
	}
	return a, err
}

// boundedBody fails if the body is larger than allowed: a part of it must not be taken for the
// whole.
type boundedBody struct {
	body io.ReadCloser
	left int64
}

var errTooLarge = fmt.Errorf("the response has more than %d bytes", maxResponse)

func (b *boundedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.body.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

func (b *boundedBody) Close() error { return b.body.Close() }

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// keySet distinguishes keys that could not be read from a wrong signature; the verifier's error
// does not.
type keySet struct {
	remote *oidc.RemoteKeySet
	failed bool // the keys could not be read
}

func (k *keySet) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := k.remote.VerifySignature(ctx, jwt)
	k.failed = err != nil && strings.HasPrefix(err.Error(), "fetching keys")
	return payload, err
}

// checkKeys reads the keys of the provider, and returns an error if there are none.
func (p *Provider) checkKeys(ctx context.Context, address string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return unavailable(err)
	}
	a, err := p.client.Do(r)
	if err != nil {
		return unavailable(err)
	}
	defer a.Body.Close()
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	body, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("jwks_uri responded %d", a.StatusCode)
	}
	if err == nil {
		err = json.Unmarshal(body, &set)
	}
	if err == nil && len(set.Keys) == 0 {
		err = errors.New("jwks_uri has no keys")
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

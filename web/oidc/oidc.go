// Package oidc signs admins in through one OpenID Connect provider: authorization code flow with
// PKCE, nonce and state. It reads no records and stores nothing. The caller keeps the [Flow] in the
// browser, and decides what a [webhook.Identity] may do.
//
// The provider is the operator's choice, like the bucket of the replica: it may be at a
// private address, and the rules for the destinations of subscriptions do not apply.
// Nothing that a partner sends selects an address that this package connects to.
package oidc

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"service/webhook"
)

// Config configures a [Provider].
type Config struct {
	Name         string // on the pages; "" for the host of the issuer
	Issuer       string // must equal the issuer in the provider's metadata and tokens
	ClientID     string
	ClientSecret string   // "" for a public client
	RedirectURL  string   // registered at the provider
	Scopes       []string // in addition to openid, email, profile, and groups if supported
	Rules        []RoleRule
}

// CallbackPath is the path to which the provider sends browsers back.
const CallbackPath = "/sign-in/oidc/callback"

// IsSet reports whether a provider is configured.
func (c *Config) IsSet() bool { return c.Issuer != "" }

// Label returns the name of the provider on the pages.
func (c *Config) Label() string {
	if c.Name != "" {
		return c.Name
	}
	if u, err := url.Parse(c.Issuer); err == nil && u.Host != "" {
		return u.Host
	}
	return "OpenID Connect"
}

// CheckIssuer returns what is wrong with the URL of an issuer, "" for nothing.
func CheckIssuer(issuer string) string {
	const want = "must be the https URL of the provider, such as https://login.example.com, without query and fragment " +
		"(http is allowed on a loopback address)"
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(issuer, "#") || !isProtected(u) {
		return want
	}
	return ""
}

// isProtected reports whether data sent to u cannot be read or changed on the way.
func isProtected(u *url.URL) bool {
	return u.Scheme == "https" && u.Host != "" || u.Scheme == "http" && isLoopback(u.Hostname())
}

// Provider is the client of an OpenID Connect provider. Its methods may be called from any
// goroutine. It reads the metadata of the provider when it is first needed, so that the
// service starts while the provider is down.
type Provider struct {
	cfg    Config
	client *http.Client

	mu      sync.Mutex
	current *metadata     // the last suitable metadata, nil if there was none
	failed  error         // of the last read, nil if it succeeded
	readAt  time.Time     // when the last read ended
	reading chan struct{} // closed when the read in flight ends, nil for none
}

// New returns the client of a provider. It connects to nothing.
func New(cfg Config) *Provider { return &Provider{cfg: cfg, client: newClient()} }

// Label returns the name of the provider on the pages.
func (p *Provider) Label() string { return p.cfg.Label() }

// Issuer returns the URL of the provider.
func (p *Provider) Issuer() string { return p.cfg.Issuer }

// The bounds of metadata.
const (
	metadataLife  = time.Hour       // time after which metadata is read again
	metadataRetry = 3 * time.Second // between reads that fail
)

// ErrUnavailable means that the provider does not respond or that its metadata is unsuitable.
// Nothing was decided about the visitor.
var ErrUnavailable = errors.New("the OpenID Connect provider is not available")

// metadata is the provider's description of itself.
type metadata struct {
	provider *oidc.Provider
	oauth    oauth2.Config
	keys     string   // address of the keys
	algs     []string // that sign ID tokens
	sendsIss bool     // responses name the issuer (RFC 9207)
}

// metadata returns the metadata of the provider, at most metadataLife old, or older if the provider
// does not respond. The error is ErrUnavailable.
func (p *Provider) metadata(ctx context.Context) (*metadata, error) {
	p.mu.Lock()
	age := time.Since(p.readAt)
	switch {
	case p.current != nil && (age < metadataLife && p.failed == nil || age < metadataRetry):
		defer p.mu.Unlock()
		return p.current, nil
	case p.failed != nil && age < metadataRetry:
		defer p.mu.Unlock()
		return nil, p.failed
	}
	done := p.reading
	if done == nil {
		done = make(chan struct{})
		p.reading = done
		// Not with ctx: others wait for the same read. The client bounds its time.
		go p.read(done)
	}
	p.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return nil, p.failed
	}
	return p.current, nil
}

func (p *Provider) read(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), exchangeTimeout)
	defer cancel()
	m, err := p.discover(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.current = m
	}
	p.failed, p.readAt, p.reading = err, time.Now(), nil
	close(done)
}

// discover reads the metadata. The error is ErrUnavailable.
func (p *Provider) discover(ctx context.Context) (*metadata, error) {
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.cfg.Issuer)
	if err != nil {
		return nil, unavailable(err)
	}
	var claims struct {
		JWKSURL   string   `json:"jwks_uri"`
		Algs      []string `json:"id_token_signing_alg_values_supported"`
		Scopes    []string `json:"scopes_supported"`
		Responses []string `json:"response_types_supported"`
		PKCE      []string `json:"code_challenge_methods_supported"`
		AuthStyle []string `json:"token_endpoint_auth_methods_supported"`
		SendsIss  bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := found.Claims(&claims); err != nil {
		return nil, unavailable(err)
	}
	m := &metadata{provider: found, keys: claims.JWKSURL, algs: asymmetric(claims.Algs), sendsIss: claims.SendsIss}
	m.oauth = oauth2.Config{ClientID: p.cfg.ClientID, ClientSecret: p.cfg.ClientSecret, RedirectURL: p.cfg.RedirectURL,
		Endpoint: found.Endpoint(), Scopes: p.scopes(claims.Scopes)}
	// Detecting the style would send a code twice, and a code is valid once.
	m.oauth.Endpoint.AuthStyle = oauth2.AuthStyleInHeader
	if p.cfg.ClientSecret == "" || len(claims.AuthStyle) > 0 && !slices.Contains(claims.AuthStyle, "client_secret_basic") {
		m.oauth.Endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	for name, address := range map[string]string{"authorization_endpoint": m.oauth.Endpoint.AuthURL,
		"token_endpoint": m.oauth.Endpoint.TokenURL, "jwks_uri": m.keys, "userinfo_endpoint": found.UserInfoEndpoint()} {
		u, err := url.Parse(address)
		if name == "userinfo_endpoint" && address == "" {
			continue // optional
		}
		if err != nil || !isProtected(u) {
			return nil, unavailable(fmt.Errorf("%s in the provider's metadata must be an https URL", name))
		}
	}
	switch {
	case len(m.algs) == 0:
		return nil, unavailable(errors.New("the provider signs ID tokens with no supported algorithm; supported are " +
			strings.Join(signatureAlgorithms, ", ")))
	case len(claims.Responses) > 0 && !slices.Contains(claims.Responses, "code"):
		return nil, unavailable(errors.New("the provider does not support the response type code"))
	case len(claims.PKCE) > 0 && !slices.Contains(claims.PKCE, "S256"):
		return nil, unavailable(errors.New("the provider does not support PKCE with S256"))
	}
	return m, nil
}

// signatureAlgorithms are the accepted algorithms of ID tokens. Neither none nor an HMAC is
// accepted: with an HMAC, a public key could be used as the secret.
var signatureAlgorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384,
	oidc.PS512, oidc.EdDSA}

// asymmetric returns the algorithms of the list that are allowed; RS256 for an empty list.
func asymmetric(all []string) (allowed []string) {
	if len(all) == 0 {
		return []string{oidc.RS256}
	}
	for _, a := range all {
		if slices.Contains(signatureAlgorithms, a) {
			allowed = append(allowed, a)
		}
	}
	return allowed
}

// scopes returns the scopes to request. Providers reject unknown scopes, so groups is requested
// only from providers that list it.
func (p *Provider) scopes(supported []string) []string {
	all := []string{oidc.ScopeOpenID, "email", "profile"}
	if slices.Contains(supported, "groups") {
		all = append(all, "groups")
	}
	for _, s := range p.cfg.Scopes {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// Check reads the metadata and the keys of the provider, and returns an error if they are
// unsuitable.
func (p *Provider) Check(ctx context.Context) error {
	m, err := p.discover(ctx)
	if err != nil {
		return err
	}
	return p.checkKeys(ctx, m.keys)
}

// Flow is one sign-in in one browser, from [Provider.Begin] to [Provider.Finish]. Only the service
// and the browser may know it, and it must not change.
type Flow struct {
	State    string `json:"s"`
	Nonce    string `json:"n"`
	Verifier string `json:"v"` // of PKCE
}

// Begin returns a new flow, and the address at the provider that the browser opens next.
// The error is ErrUnavailable.
func (p *Provider) Begin(ctx context.Context) (Flow, string, error) {
	m, err := p.metadata(ctx)
	if err != nil {
		return Flow{}, "", err
	}
	f := Flow{State: randomText(), Nonce: randomText(), Verifier: oauth2.GenerateVerifier()}
	return f, m.oauth.AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), nil
}

func randomText() string {
	var b [32]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// RefusedError means that the provider did not sign the visitor in.
type RefusedError struct {
	Code string // such as access_denied; "" if it is malformed
}

func (e *RefusedError) Error() string {
	return "the OpenID Connect provider refused the sign-in: " + e.Code
}

// InvalidError means that a response does not belong to the flow, or that a token is invalid. Its
// text is for the log.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return "invalid OpenID Connect response: " + e.text }

func invalid(format string, args ...any) error {
	return &InvalidError{shorten(fmt.Sprintf(format, args...))}
}

// unavailable returns an ErrUnavailable with its cause. Errors of the libraries may repeat text
// from the provider.
func unavailable(cause error) error {
	return fmt.Errorf("%w: %s", ErrUnavailable, shorten(cause.Error()))
}

// maxErrorText bounds the text that errors repeat from a provider's response, in bytes.
const maxErrorText = 300

func shorten(s string) string {
	if len(s) > maxErrorText {
		s = s[:maxErrorText] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// Finish ends a flow with the query of the redirect from the provider, and returns the visitor's
// identity. The error is a *RefusedError, an *InvalidError, ErrUnavailable or that of ctx. Finish
// redeems the code at the provider at most once; the caller must not finish a flow twice.
func (p *Provider) Finish(ctx context.Context, f Flow, query url.Values) (webhook.Identity, error) {
	if f.State == "" || subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(f.State)) != 1 {
		return webhook.Identity{}, invalid("the state is of another flow")
	}
	for name, values := range query {
		if len(values) > 1 {
			return webhook.Identity{}, invalid("the parameter %q is repeated", name)
		}
	}
	// Do not take another provider's response for one from this provider (mix-up).
	if query.Has("iss") && query.Get("iss") != p.cfg.Issuer {
		return webhook.Identity{}, invalid("the response is of the issuer %q", query.Get("iss"))
	}
	if query.Has("error") {
		return webhook.Identity{}, &RefusedError{Code: errorCode(query.Get("error"))}
	}
	m, err := p.metadata(ctx)
	if err != nil {
		return webhook.Identity{}, err
	}
	if m.sendsIss && !query.Has("iss") {
		return webhook.Identity{}, invalid("the response does not name its issuer, although the provider always does")
	}
	code := query.Get("code")
	if code == "" || len(code) > maxCode {
		return webhook.Identity{}, invalid("the response has no valid code")
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.client), exchangeTimeout)
	defer cancel()
	token, err := m.oauth.Exchange(ctx, code, oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return webhook.Identity{}, exchangeError(err)
	}
	return p.identify(ctx, m, f, token)
}

const maxCode = 8 << 10 // bytes

// errorCode returns an error code of OAuth, "" if it is malformed.
func errorCode(s string) string {
	if len(s) > 64 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return ""
	}
	return s
}

// exchangeError returns the error of a token request, without text from the provider.
func exchangeError(err error) error {
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && refused.Response != nil && refused.Response.StatusCode >= http.StatusInternalServerError:
		return unavailable(fmt.Errorf("the token endpoint responded %d", refused.Response.StatusCode))
	case errors.As(err, &refused):
		return invalid("the token endpoint rejected the code: %s", errorCode(refused.ErrorCode))
	}
	return unavailable(err)
}

// clockSkew is how far the clocks of the provider and of this host may differ.
const clockSkew = time.Minute

// identify verifies the ID token.
func (p *Provider) identify(ctx context.Context, m *metadata, f Flow, token *oauth2.Token) (webhook.Identity, error) {
	raw, _ := token.Extra("id_token").(string)
	if raw == "" {
		return webhook.Identity{}, invalid("the token endpoint sent no ID token")
	}
	now := time.Now()
	// The keys are read for each sign-in, so that a withdrawn key is not accepted and a new key is.
	keys := &keySet{remote: oidc.NewRemoteKeySet(ctx, m.keys)}
	verifier := oidc.NewVerifier(p.cfg.Issuer, keys, &oidc.Config{ClientID: p.cfg.ClientID, SupportedSigningAlgs: m.algs,
		Now: func() time.Time { return now.Add(-clockSkew) }})
	verified, err := verifier.Verify(ctx, raw)
	switch {
	case keys.failed:
		return webhook.Identity{}, unavailable(err)
	case err != nil:
		return webhook.Identity{}, invalid("%v", err)
	}
	var c claims
	if err := verified.Claims(&c); err != nil {
		return webhook.Identity{}, invalid("the claims cannot be read: %v", err)
	}
	switch {
	case subtle.ConstantTimeCompare([]byte(verified.Nonce), []byte(f.Nonce)) != 1:
		return webhook.Identity{}, invalid("the nonce is of another flow")
	case verified.IssuedAt.After(now.Add(clockSkew)):
		return webhook.Identity{}, invalid("the ID token was issued at %s, which is in the future; check the clocks", verified.IssuedAt.UTC())
	case verified.Subject == "" || len(verified.Subject) > webhook.MaxIdentitySubject:
		return webhook.Identity{}, invalid("the subject must have 1 to %d bytes", webhook.MaxIdentitySubject)
	case !c.isFor(p.cfg.ClientID, verified.Audience):
		return webhook.Identity{}, invalid("the ID token was issued for another client (azp)")
	}
	if verified.AccessTokenHash != "" {
		if err := verified.VerifyAccessToken(token.AccessToken); err != nil {
			return webhook.Identity{}, invalid("%v", err)
		}
	}
	if err := p.complete(ctx, m, token, verified.Subject, c); err != nil {
		return webhook.Identity{}, err
	}
	return webhook.Identity{Issuer: p.cfg.Issuer, Subject: verified.Subject, Email: webhook.NormalizeEmail(c.text("email")),
		EmailVerified: isTrue(c["email_verified"]), EmailRefuted: c["email_verified"] != nil && !isTrue(c["email_verified"]),
		Role: p.role(c)}, nil
}

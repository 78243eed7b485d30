package server

import (
	"context"

	"service/web/oidc"
)

// OIDC is an OpenID Connect provider. Its RedirectURL is not configured: it is [OIDCCallback] at
// the URL of the service.
type OIDC = oidc.Config

// OIDCCallback is the path of the redirect URL.
const OIDCCallback = oidc.CallbackPath

// ParseRoleRule parses a value of --oidc-role.
var ParseRoleRule = oidc.ParseRoleRule

// CheckOIDCIssuer returns what is wrong with the URL of a provider, or "".
func CheckOIDCIssuer(issuer string) string { return oidc.CheckIssuer(issuer) }

// CheckOIDC connects to a provider, and returns an error if the provider is unsuitable.
func CheckOIDC(ctx context.Context, cfg OIDC) error { return oidc.New(cfg).Check(ctx) }

// openProvider returns the provider for the admin UI, nil for none.
func (s *Server) openProvider() *oidc.Provider {
	cfg := s.cfg.OIDC
	if !cfg.IsSet() {
		return nil
	}
	cfg.RedirectURL = s.baseURL + OIDCCallback
	return oidc.New(cfg)
}

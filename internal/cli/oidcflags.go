package cli

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"service/internal/server"
	"service/store/doctor"
)

// maxProviderName is the maximum length of --oidc-name, in characters.
const maxProviderName = 60

// oidc parses the flags for sign-in through OpenID Connect. The zero value is none.
func (f *configErrors) oidc(c *serveFlags, s *server.Config) (o server.OIDC) {
	if c.OIDCIssuer == "" {
		for _, flag := range [][2]string{{"oidc-client-id", c.OIDCClientID}, {"oidc-client-secret-file", c.OIDCSecretFile},
			{"oidc-role", strings.Join(c.OIDCRole, "")}, {"oidc-name", c.OIDCName}, {"oidc-scope", strings.Join(c.OIDCScope, "")}} {
			if flag[1] != "" {
				f.add(flag[0], "needs --oidc-issuer")
			}
		}
		return o
	}
	o = server.OIDC{Name: c.OIDCName, Issuer: c.OIDCIssuer, ClientID: c.OIDCClientID, Scopes: c.OIDCScope}
	if wrong := server.CheckOIDCIssuer(c.OIDCIssuer); wrong != "" {
		f.add("oidc-issuer", "%s", wrong)
	}
	if c.OIDCClientID == "" {
		f.add("oidc-client-id", "is required with --oidc-issuer")
	}
	if utf8.RuneCountInString(c.OIDCName) > maxProviderName || strings.ContainsFunc(c.OIDCName, isControl) {
		f.add("oidc-name", "must be one line of at most %d characters", maxProviderName)
	}
	var err error
	if o.ClientSecret, err = secret("oidc-client-secret", "", c.OIDCSecretFile); err != nil {
		f.add("oidc-client-secret-file", "%s", strings.TrimPrefix(err.Error(), "--oidc-client-secret-file: "))
	}
	for _, text := range c.OIDCRole {
		rule, err := server.ParseRoleRule(text)
		if err != nil {
			f.add("oidc-role", "%v", err)
		}
		o.Rules = append(o.Rules, rule)
	}
	if len(c.OIDCRole) == 0 {
		f.add("oidc-role", "is required with --oidc-issuer, such as groups=service-admins:owner: "+
			"without one, no account of the provider has a role")
	}
	for _, scope := range c.OIDCScope {
		if scope == "" || strings.ContainsFunc(scope, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' }) {
			f.add("oidc-scope", "must be scopes such as groups, not %q", scope)
		}
	}
	if !s.TLS && len(c.TrustedProxy) > 0 && c.PublicURL == "" {
		f.add("public-url", "is required with --oidc-issuer, --tls off and --trusted-proxy: the provider sends browsers there")
	}
	return o
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }

// providerWait is how long the doctor waits for the OpenID Connect provider.
const providerWait = 5 * time.Second

// provider checks that the OpenID Connect provider responds, that its metadata is suitable, and
// that users cannot set the claims that decide roles.
func (d *diagnosis) provider(ctx context.Context, s *server.Config) {
	if !s.OIDC.IsSet() {
		return
	}
	for _, r := range s.OIDC.Rules {
		if risk := r.Risk(); risk != "" {
			d.add(doctor.LevelWarn, "OpenID Connect roles", "Use a claim that only the provider's administrators set, such as groups.",
				"--oidc-role %s=%s:%s: %s", r.Claim, r.Value, r.Role, risk)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, providerWait)
	defer cancel()
	if err := server.CheckOIDC(ctx, s.OIDC); err != nil {
		d.add(doctor.LevelFail, "OpenID Connect",
			"Check --oidc-issuer, and that this host reaches it. Until then owners sign in with their password.", "%v", err)
		return
	}
	d.ok("OpenID Connect", "%s responds, and its metadata fits", s.OIDC.Issuer)
}

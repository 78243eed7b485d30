package oidc

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"service/webhook"
)

// RoleRule gives a role to visitors with a value in a claim.
type RoleRule struct {
	Claim string // a name, or names joined by dots for a nested claim
	Value string
	Role  webhook.Role
}

// ParseRoleRule parses a rule such as groups=service-admins:owner. The value may contain =
// and colons.
func ParseRoleRule(s string) (RoleRule, error) {
	claim, rest, found := strings.Cut(s, "=")
	colon := strings.LastIndexByte(rest, ':')
	if !found || claim == "" || colon < 1 {
		return RoleRule{}, fmt.Errorf("must be CLAIM=VALUE:ROLE, such as groups=service-admins:owner, not %q", s)
	}
	r := RoleRule{Claim: claim, Value: rest[:colon], Role: webhook.Role(rest[colon+1:])}
	if v := webhook.CheckRole("role", r.Role); v != nil {
		return RoleRule{}, fmt.Errorf("must end with a role, viewer, operator or owner, not %q", s)
	}
	return r, nil
}

// verifiable are claims with an address that visitors enter themselves. The provider states in a
// separate claim, such as email_verified, that it has checked the address.
var verifiable = []string{"email", "phone_number"}

const verifiedSuffix = "_verified"

// selfAsserted are the other standard claims that many providers let visitors change.
var selfAsserted = []string{"name", "given_name", "family_name", "middle_name", "nickname", "preferred_username", "profile", "picture",
	"website", "gender", "birthdate", "zoneinfo", "locale", "address"}

// base returns the name of the claim without the names of enclosing claims and without a namespace.
func (r *RoleRule) base() string { return r.Claim[strings.LastIndexAny(r.Claim, "./:")+1:] }

// verification returns the claim that must be true for the rule to match, "" for none.
func (r *RoleRule) verification() string {
	if slices.Contains(verifiable, r.base()) {
		return r.Claim + verifiedSuffix
	}
	return ""
}

// Risk returns what makes the rule's claim unfit to decide a role, "" for nothing.
func (r *RoleRule) Risk() string {
	switch {
	case r.verification() != "":
		return fmt.Sprintf("%s matches only with %s true, and is only as reliable as the provider's check of addresses",
			r.Claim, r.verification())
	case slices.Contains(selfAsserted, r.base()):
		return r.Claim + " can be changed by the users themselves at many providers"
	}
	return ""
}

// role returns the highest role that a rule gives, "" for none.
func (p *Provider) role(c claims) (highest webhook.Role) {
	for _, r := range p.cfg.Rules {
		if c.match(r) && (highest == "" || r.Role.Allows(highest)) {
			highest = r.Role
		}
	}
	return highest
}

// claims are the provider's statements about the visitor.
type claims map[string]any

// find returns a claim by its name, or by names joined by dots.
func (c claims) find(name string) (any, bool) {
	if v, ok := c[name]; ok {
		return v, true
	}
	head, rest, nested := strings.Cut(name, ".")
	if !nested {
		return nil, false
	}
	inner, ok := c[head].(map[string]any)
	if !ok {
		return nil, false
	}
	return claims(inner).find(rest)
}

// match reports whether a rule applies. An address must be a string that the provider has verified:
// otherwise a visitor could enter another person's address.
func (c claims) match(r RoleRule) bool {
	verification := r.verification()
	if verification == "" {
		return c.has(r.Claim, r.Value)
	}
	address, _ := c.find(r.Claim)
	verified, _ := c.find(verification)
	return address == any(r.Value) && isTrue(verified)
}

// has reports whether a claim equals a value, is a list that contains it, or is an object with a
// property of that name.
func (c claims) has(name, value string) bool {
	found, _ := c.find(name)
	switch v := found.(type) {
	case string:
		return v == value
	case bool:
		return fmt.Sprint(v) == value
	case []any:
		for _, one := range v {
			if s, ok := one.(string); ok && s == value {
				return true
			}
		}
	case map[string]any:
		_, ok := v[value]
		return ok
	}
	return false
}

// text returns a claim that is a string, otherwise "".
func (c claims) text(name string) string {
	s, _ := c[name].(string)
	return s
}

// isTrue reports whether the value of a claim is true. Some providers send it as a string.
func isTrue(v any) bool { return v == any(true) || v == any("true") }

// isFor reports whether the token was issued for the client, which must not be only one audience
// among others.
func (c claims) isFor(clientID string, audience []string) bool {
	if party, ok := c["azp"]; ok {
		return party == clientID
	}
	return len(audience) == 1
}

// complete adds claims that the ID token lacks and the UserInfo endpoint returns.
func (p *Provider) complete(ctx context.Context, m *metadata, token *oauth2.Token, subject string, c claims) error {
	missing := c.text("email") == "" || c["email_verified"] == nil
	for _, r := range p.cfg.Rules {
		for _, name := range []string{r.Claim, r.verification()} {
			if _, ok := c.find(name); name != "" && !ok {
				missing = true
			}
		}
	}
	if !missing || m.provider.UserInfoEndpoint() == "" {
		return nil
	}
	info, err := m.provider.UserInfo(oidc.ClientContext(ctx, p.client), oauth2.StaticTokenSource(token))
	if err != nil {
		return unavailable(err)
	}
	var more claims
	if err := info.Claims(&more); err != nil {
		return invalid("the claims of UserInfo cannot be read: %v", err)
	}
	if info.Subject != subject {
		return invalid("UserInfo is of another subject than the ID token")
	}
	c.merge(more)
	return nil
}

// merge adds the claims of UserInfo that c, the claims of the ID token, lacks. A verification
// applies only to the address in the same source: merge never combines an address from one source
// with the verification from the other.
func (c claims) merge(more claims) {
	if c.text("email") == "" {
		delete(c, "email")
	}
	for name := range c {
		if base, ok := strings.CutSuffix(name, verifiedSuffix); ok && c[base] == nil {
			delete(c, name)
		}
	}
	for name, v := range more {
		if _, known := c[name]; known {
			continue
		}
		if base, ok := strings.CutSuffix(name, verifiedSuffix); ok && c[base] != nil &&
			(c.text(base) == "" || c.text(base) != more.text(base)) {
			continue
		}
		c[name] = v
	}
}

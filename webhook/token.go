package webhook

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"
)

// Scope is a permission of a token.
type Scope string

const (
	ScopeWebhooksRead  Scope = "webhooks.read"
	ScopeWebhooksWrite Scope = "webhooks.write"
	ScopeEventsRead    Scope = "events.read"
	ScopeEventsWrite   Scope = "events.write"
	ScopeMetricsRead   Scope = "metrics.read"
	ScopePlatform      Scope = "platform" // of platform tokens; excludes every other scope
)

var scopes = [...]Scope{ScopeWebhooksRead, ScopeWebhooksWrite, ScopeEventsRead, ScopeEventsWrite, ScopeMetricsRead}

// Scopes returns every scope.
func Scopes() []Scope { return scopes[:] }

// Token is a stored bearer access token. The secret is shown once, at creation, and
// only its SHA-256 is stored.
type Token struct {
	ID        string    `json:"id"`
	Hint      string    `json:"hint"` // first characters of the secret, to recognize it
	ProgramID string    `json:"program_id"`
	UserID    string    `json:"user_id"`
	Name      string    `json:"name"`
	Scopes    []Scope   `json:"scopes"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at,omitzero"` // zero for never
	RevokedAt time.Time `json:"revoked_at,omitzero"` // zero if not revoked
	UsedAt    time.Time `json:"used_at,omitzero"`    // last use; zero for never
}

// NewToken is a request for a token.
type NewToken struct {
	ProgramID string    `json:"program_id"`
	UserID    string    `json:"user_id"`
	Name      string    `json:"name"`
	Scopes    []Scope   `json:"scopes"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// Check returns what is wrong with the request, or nil.
func (n NewToken) Check(now time.Time) *Error {
	v := CheckIdentifier("program", n.ProgramID)
	v = append(v, CheckIdentifier("user", n.UserID)...)
	if len(n.Name) > 200 {
		v = append(v, Validation{InvalidTooLong, "must be at most 200 bytes", "name"})
	}
	if len(n.Scopes) == 0 {
		v = append(v, Validation{InvalidRequired, "is required: one or more of " + JoinScopes(Scopes(), ", "), "scope"})
	}
	for i, s := range n.Scopes {
		if !slices.Contains(scopes[:], s) {
			v = append(v, Validation{InvalidValue, fmt.Sprintf("%q is not one of %s", s, JoinScopes(Scopes(), ", ")), "scope"})
		} else if slices.Contains(n.Scopes[:i], s) {
			v = append(v, Validation{InvalidDuplicate, fmt.Sprintf("%q is given twice", s), "scope"})
		}
	}
	if !n.ExpiresAt.IsZero() && !n.ExpiresAt.After(now) {
		v = append(v, Validation{InvalidValue, "must be in the future", "expires"})
	}
	return Invalid(v...)
}

// Allows reports whether the token has the scope.
func (t *Token) Allows(s Scope) bool { return slices.Contains(t.Scopes, s) }

// Valid reports whether the token is neither expired nor revoked.
func (t *Token) Valid(now time.Time) bool {
	return t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || now.Before(t.ExpiresAt))
}

// A token's secret is the prefix, 40 characters of base 62 (238 bits), and a
// checksum of 6 characters. Scanners for leaked secrets can recognize it, and a
// mistyped secret is detected without reading the store.
const (
	tokenPrefix = "svc_"
	tokenBody   = 40
	tokenSum    = 6
	alphabet    = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// NewTokenSecret returns a new random secret.
func NewTokenSecret() string {
	body := make([]byte, 0, tokenBody)
	var b [64]byte
	for len(body) < tokenBody {
		rand.Read(b[:])
		for _, c := range b {
			// 248 is the largest multiple of 62 in a byte, which makes all
			// characters equally likely.
			if c < 248 && len(body) < tokenBody {
				body = append(body, alphabet[c%62])
			}
		}
	}
	return tokenPrefix + string(body) + tokenChecksum(string(body))
}

func tokenChecksum(body string) string {
	n := crc32.ChecksumIEEE([]byte(body))
	var sum [tokenSum]byte
	for i := len(sum) - 1; i >= 0; i-- {
		sum[i] = alphabet[n%62]
		n /= 62
	}
	return string(sum[:])
}

// HashTokenSecret returns the hash that the store has for a secret, and whether the
// secret is well formed.
func HashTokenSecret(secret string) (hash [sha256.Size]byte, ok bool) {
	rest, ok := strings.CutPrefix(secret, tokenPrefix)
	if !ok || len(rest) != tokenBody+tokenSum || tokenChecksum(rest[:tokenBody]) != rest[tokenBody:] {
		return hash, false
	}
	return sha256.Sum256([]byte(secret)), true
}

// TokenHint returns the part of a secret that may be shown later.
func TokenHint(secret string) string { return secret[:min(len(secret), len(tokenPrefix)+6)] }

// JoinScopes returns the scopes separated by sep.
func JoinScopes(scopes []Scope, sep string) string {
	words := make([]string, len(scopes))
	for i, s := range scopes {
		words[i] = string(s)
	}
	return strings.Join(words, sep)
}

package webhook

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Scope is a permission of a token.
type Scope string

const (
	ScopeWebhooksRead  Scope = "webhooks.read"
	ScopeWebhooksWrite Scope = "webhooks.write"
	ScopeEventsRead    Scope = "events.read"
	ScopeEventsWrite   Scope = "events.write"
	ScopeMetricsRead   Scope = "metrics.read" // of a program; of the installation if it is the only scope of a token without a program
	ScopePlatform      Scope = "platform"     // of platform tokens; excludes every other scope
)

var scopes = [...]Scope{ScopeWebhooksRead, ScopeWebhooksWrite, ScopeEventsRead, ScopeEventsWrite, ScopeMetricsRead}

// Scopes returns the scopes that a token of a program can have: all but [ScopePlatform].
func Scopes() []Scope { return scopes[:] }

// Token is a stored bearer access token. The secret is shown once, at creation, and
// only its SHA-256 is stored.
type Token struct {
	ID        string    `json:"id"`
	Hint      string    `json:"hint"`       // first characters of the secret, to recognize it
	ProgramID string    `json:"program_id"` // "" for an installation token, whose only scope is platform or metrics.read
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
	ProgramID string    `json:"program_id"` // "" for a token of the installation, see [Token]
	UserID    string    `json:"user_id"`
	Name      string    `json:"name"`
	Scopes    []Scope   `json:"scopes"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// Platform reports whether a platform token is requested.
func (n *NewToken) Platform() bool { return slices.Contains(n.Scopes, ScopePlatform) }

// Check returns what is wrong with the request, or nil.
func (n NewToken) Check(now time.Time) *Error {
	var v []Validation
	switch {
	case n.Platform():
		if n.ProgramID != "" {
			v = append(v, Validation{InvalidValue, "must be left out: a platform token belongs to no program", "program"})
		}
	case n.ProgramID == "" && slices.Equal(n.Scopes, []Scope{ScopeMetricsRead}):
	default:
		v = CheckIdentifier("program", n.ProgramID)
	}
	return Invalid(append(v, n.check(now, [3]string{"user", "scope", "expires"})...)...)
}

// check returns what is wrong with the request, apart from its program. names are the
// parameters for its user, scopes and expiry.
func (n *NewToken) check(now time.Time, names [3]string) (v []Validation) {
	user, scope, expires := names[0], names[1], names[2]
	v = append(v, CheckIdentifier(user, n.UserID)...)
	if len(n.Name) > MaxTokenName {
		v = append(v, Validation{InvalidTooLong, fmt.Sprintf("must be at most %d bytes", MaxTokenName), "name"})
	}
	allowed := JoinScopes(Scopes(), ", ")
	if n.ProgramID == "" {
		allowed += ", or platform alone"
	}
	if len(n.Scopes) == 0 {
		v = append(v, Validation{InvalidRequired, "is required: one or more of " + allowed, scope})
	}
	for i, s := range n.Scopes {
		switch {
		case s == ScopePlatform && len(n.Scopes) > 1:
			v = append(v, Validation{InvalidValue, "platform must be the only scope: it includes the others", scope})
		case s != ScopePlatform && !slices.Contains(scopes[:], s):
			v = append(v, Validation{InvalidValue, fmt.Sprintf("%q is not one of %s", s, allowed), scope})
		case slices.Contains(n.Scopes[:i], s):
			v = append(v, Validation{InvalidDuplicate, fmt.Sprintf("%q is given twice", s), scope})
		}
	}
	if !n.ExpiresAt.IsZero() && !n.ExpiresAt.After(now) {
		v = append(v, Validation{InvalidValue, "must be in the future", expires})
	}
	return v
}

// MaxTokenName is the maximum length of a token's name, in bytes.
const MaxTokenName = 200

// Platform reports whether this is a platform token, which may act in any program.
func (t *Token) Platform() bool { return slices.Contains(t.Scopes, ScopePlatform) }

// Allows reports whether the token has the scope. A platform token has every scope.
func (t *Token) Allows(s Scope) bool { return t.Platform() || slices.Contains(t.Scopes, s) }

// ParseToken parses the body of a request for a token of a program. A token of the
// installation cannot be requested.
func ParseToken(raw []byte, programID string, now time.Time) (NewToken, *Error) {
	n := NewToken{ProgramID: programID}
	b, err := parseBody(raw, "")
	if err != nil {
		return n, err
	}
	for name, value := range b.fields() {
		switch name {
		case "user_id":
			b.set(&n.UserID, name, value)
		case "name":
			b.set(&n.Name, name, value)
		case "scopes":
			n.Scopes = b.scopes(value)
		case "expires_at":
			n.ExpiresAt = b.expiry(value, "never")
		default:
			b.unknown(name, "a new token", "user_id, scopes, name, expires_at")
		}
	}
	v := append(b.faults, CheckIdentifier("program_id", programID)...)
	return n, invalid(merge(v, n.check(now, [3]string{"user_id", "scopes", "expires_at"})))
}

// scopes parses the scopes of a token of a program.
func (b *body) scopes(list int32) (all []Scope) {
	if b.nodes[list].kind != jsontext.KindBeginArray {
		b.fail(InvalidType, "scopes", `must be an array of scopes such as "events.write"`)
	}
	for i, value := range b.elements(list) {
		if i > len(scopes) {
			b.fail(InvalidTooMany, "scopes", fmt.Sprintf("must have at most %d elements", len(scopes)))
			break
		}
		switch s := b.string(element("scopes", i), value); {
		case s == nil:
		case Scope(*s) == ScopePlatform:
			b.fail(InvalidValue, "scopes", "platform is not a scope of a program's token; create it with service token create")
		default:
			all = append(all, Scope(*s))
		}
	}
	return all
}

// Valid reports whether the token is neither expired nor revoked.
func (t *Token) Valid(now time.Time) bool {
	return t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || now.Before(t.ExpiresAt))
}

// A token's secret is the prefix, 40 characters of base 62 (238 bits), and a
// checksum of 6 characters. The prefix is [TokenPrefix], which an installation may
// extend by a label, such as svc_2_, so that a proxy can route by it. Scanners for leaked
// secrets can recognize a secret, and a mistyped one is detected without reading the store.
const (
	tokenBody = 40
	tokenSum  = 6
	alphabet  = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// TokenPrefix begins every token, and is the default prefix of new ones.
const TokenPrefix = "svc_"

// maxTokenLabel is the maximum length of the label in a prefix, in bytes.
const maxTokenLabel = 16

// CheckTokenPrefix returns what is wrong with a prefix of new tokens, or "". It must be
// [TokenPrefix], or that and a label of lower-case letters and digits, and an underscore.
func CheckTokenPrefix(prefix string) string {
	if label, ok := strings.CutPrefix(prefix, TokenPrefix); ok && isTokenLabel(label) {
		return ""
	}
	return fmt.Sprintf("must be %s, or %[1]s and 1 to %d lower-case letters and digits and an underscore, such as %[1]s2_, not %[3]q",
		TokenPrefix, maxTokenLabel, prefix)
}

// isTokenLabel reports whether s is a label with its underscore, or empty.
func isTokenLabel(s string) bool {
	label, ok := strings.CutSuffix(s, "_")
	if !ok {
		return s == ""
	}
	outside := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }
	return label != "" && len(label) <= maxTokenLabel && !strings.ContainsFunc(label, outside)
}

// NewTokenSecret returns a new random secret. prefix must pass [CheckTokenPrefix].
func NewTokenSecret(prefix string) string {
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
	return prefix + string(body) + tokenChecksum(strings.TrimPrefix(prefix, TokenPrefix)+string(body))
}

// tokenChecksum returns the checksum of the text between [TokenPrefix] and the checksum: the
// label, if any, and the body.
func tokenChecksum(middle string) string {
	n := crc32.ChecksumIEEE([]byte(middle))
	var sum [tokenSum]byte
	for i := len(sum) - 1; i >= 0; i-- {
		sum[i] = alphabet[n%62]
		n /= 62
	}
	return string(sum[:])
}

// HashTokenSecret returns the hash that the store keeps of a secret, and whether the
// secret is well formed, with any prefix: that of the installation may have changed, and
// tokens of other installations come with imported programs.
func HashTokenSecret(secret string) (hash [sha256.Size]byte, ok bool) {
	rest, ok := strings.CutPrefix(secret, TokenPrefix)
	label := len(rest) - tokenBody - tokenSum
	if !ok || label < 0 || !isTokenLabel(rest[:label]) || tokenChecksum(rest[:label+tokenBody]) != rest[label+tokenBody:] {
		return hash, false
	}
	return sha256.Sum256([]byte(secret)), true
}

// TokenHint returns the part of a secret that may be shown later: its prefix and six
// characters.
func TokenHint(secret string) string {
	prefix := len(TokenPrefix)
	if label := strings.LastIndexByte(secret, '_') + 1; label > prefix && isTokenLabel(secret[prefix:label]) {
		prefix = label
	}
	return secret[:min(len(secret), prefix+6)]
}

// JoinScopes returns the scopes separated by sep.
func JoinScopes(scopes []Scope, sep string) string { return strings.Join(namesOf(scopes), sep) }

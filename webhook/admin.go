package webhook

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
)

// Admin is a person who signs in to the web UI. The [PasswordHash] is not part of
// it.
type Admin struct {
	ID         string    `json:"id"`
	Email      string    `json:"email"`
	Role       Role      `json:"role"`
	CreatedAt  time.Time `json:"created_at"`
	SignedInAt time.Time `json:"signed_in_at,omitzero"` // zero for never
	Sessions   int       `json:"sessions"`              // number of open sessions

	HasPassword bool   `json:"has_password"`
	HasPasskey  bool   `json:"has_passkey"`
	OIDCIssuer  string `json:"oidc_issuer,omitempty"`  // of the OpenID Connect identity; "" for none
	OIDCSubject string `json:"oidc_subject,omitempty"` // of the identity, unique at the issuer
}

// MaxAdmins is the maximum number of admins.
const MaxAdmins = 1000

// maxEmail is the longest address that mail servers must accept, in bytes (RFC
// 5321).
const maxEmail = 254

// NormalizeEmail returns the form in which addresses are stored and looked up:
// trimmed and in lower case.
func NormalizeEmail(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// CheckEmail returns what is wrong with a normalized address. For admins it is only
// a name to sign in with; no mail is sent there.
func CheckEmail(parameter, s string) []Validation {
	if s == "" {
		return []Validation{{InvalidRequired, "is required", parameter}}
	}
	if len(s) > maxEmail {
		return []Validation{{InvalidTooLong, fmt.Sprintf("must be at most %d bytes", maxEmail), parameter}}
	}
	name, host, found := strings.Cut(s, "@")
	odd := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`@,;:"<>()[]\`, r) }
	if !found || name == "" || host == "" || strings.ContainsFunc(name, odd) || strings.ContainsFunc(host, odd) ||
		strings.HasPrefix(host, ".") || strings.HasSuffix(host, ".") || s != NormalizeEmail(s) || encodesControl(s) {
		return []Validation{{InvalidFormat, "must be an email address such as ana@example.com", parameter}}
	}
	return nil
}

// encodesControl reports whether s contains a percent-encoded control character, such as the
// %0d%0a of a line break: a mail server or receiver that decodes it would see a header of its
// own.
func encodesControl(s string) bool {
	for i := range len(s) - 2 {
		if s[i] != '%' {
			continue
		}
		if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil && (c < ' ' || c == 0x7f) {
			return true
		}
	}
	return false
}

// Limits of a password: minimum characters and maximum bytes. Length is the only
// rule, since other rules make passwords easier to guess.
const (
	MinPassword = 12
	MaxPassword = 1024
)

// CheckPassword returns what is wrong with a new password. It never repeats the
// password.
func CheckPassword(parameter, s string) []Validation {
	switch {
	case s == "":
		return []Validation{{InvalidRequired, fmt.Sprintf("is required: at least %d characters", MinPassword), parameter}}
	case !utf8.ValidString(s):
		return []Validation{{InvalidFormat, "must be UTF-8", parameter}}
	case strings.ContainsAny(s, "\x00\r\n"):
		return []Validation{{InvalidFormat, "must be one line", parameter}}
	case utf8.RuneCountInString(s) < MinPassword:
		return []Validation{{InvalidValue, fmt.Sprintf("must have at least %d characters", MinPassword), parameter}}
	case len(s) > MaxPassword:
		return []Validation{{InvalidTooLong, fmt.Sprintf("must be at most %d bytes", MaxPassword), parameter}}
	}
	return nil
}

// PasswordHash is a password hashed with argon2id in the PHC format, such as
// $argon2id$v=19$m=19456,t=2,p=1$<salt>$<key>.
type PasswordHash string

// The parameters of new hashes: OWASP's first recommendation. Hashing takes
// passwordMemory KiB and tens of milliseconds of one core, so callers must limit
// how many run in parallel.
const (
	passwordMemory  = 19 << 10 // KiB
	passwordTime    = 2
	passwordThreads = 1
	passwordSalt    = 16 // bytes
	passwordKey     = 32 // bytes
)

// The largest parameters accepted in a hash made by another version.
const (
	maxPasswordMemory  = 256 << 10 // KiB
	maxPasswordTime    = 16
	maxPasswordThreads = 16
)

// passwordParameters is the parsed form of a PasswordHash.
type passwordParameters struct {
	memory, time uint32
	threads      uint8
	salt, key    []byte
}

// HashPassword returns the hash of a password with a new salt.
func HashPassword(password string) PasswordHash {
	p := newPassword()
	p.key = argon2.IDKey([]byte(password), p.salt, p.time, p.memory, p.threads, passwordKey)
	return p.hash()
}

// NoPassword returns a hash that no password matches. Checking it takes as long as
// checking a real one.
func NoPassword() PasswordHash { return newPassword().hash() }

// newPassword returns the parameters of a new hash, with a random salt and key.
func newPassword() *passwordParameters {
	p := &passwordParameters{memory: passwordMemory, time: passwordTime, threads: passwordThreads,
		salt: make([]byte, passwordSalt), key: make([]byte, passwordKey)}
	rand.Read(p.salt)
	rand.Read(p.key)
	return p
}

func (p *passwordParameters) hash() PasswordHash {
	b64 := base64.RawStdEncoding
	return PasswordHash(fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s",
		argon2.Version, p.memory, p.time, p.threads, b64.EncodeToString(p.salt), b64.EncodeToString(p.key)))
}

var errPasswordHash = errors.New("not a password hash: it must be argon2id, version 19, in the PHC format and within bounds")

// parse parses a hash in the form that hash returns.
func (h PasswordHash) parse() (p passwordParameters, err error) {
	parts := strings.Split(string(h), "$")
	if len(parts) != 6 {
		return p, errPasswordHash
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &p.memory, &p.time, &p.threads); err != nil {
		return p, errPasswordHash
	}
	var saltErr, keyErr error
	p.salt, saltErr = base64.RawStdEncoding.Strict().DecodeString(parts[4])
	p.key, keyErr = base64.RawStdEncoding.Strict().DecodeString(parts[5])
	switch {
	case saltErr != nil || keyErr != nil || h != p.hash(),
		p.memory < 8 || p.memory > maxPasswordMemory || p.time < 1 || p.time > maxPasswordTime || p.threads < 1 || p.threads > maxPasswordThreads,
		len(p.salt) < 8 || len(p.salt) > 64 || len(p.key) < 16 || len(p.key) > 64:
		return p, errPasswordHash
	}
	return p, nil
}

// Check returns an error unless the hash is valid.
func (h PasswordHash) Check() error {
	_, err := h.parse()
	return err
}

// Matches reports whether the password matches the hash. stale means that the hash
// was made with other parameters and should be renewed.
func (h PasswordHash) Matches(password string) (ok, stale bool, err error) {
	p, err := h.parse()
	if err != nil {
		return false, false, err
	}
	key := argon2.IDKey([]byte(password), p.salt, p.time, p.memory, p.threads, uint32(len(p.key)))
	stale = p.memory != passwordMemory || p.time != passwordTime || p.threads != passwordThreads || len(p.salt) != passwordSalt ||
		len(p.key) != passwordKey
	return subtle.ConstantTimeCompare(key, p.key) == 1, stale, nil
}

// Limits of a session. It ends SessionLife after it began, or after SessionIdle
// without a request.
const (
	SessionLife = 12 * time.Hour
	SessionIdle = 2 * time.Hour
	MaxSessions = 50 // per admin; one more ends the oldest
)

// Session is a browser that an admin has signed in with. The browser keeps the secret; the
// service stores its SHA-256.
type Session struct {
	ID        string
	AdminID   string
	Email     string // the admin's
	Role      Role   // the admin's, as it is now
	Address   string // where it was started from
	Agent     string // User-Agent of the browser; outside text
	CreatedAt time.Time
	SeenAt    time.Time // to the minute
	ExpiresAt time.Time // at the latest
}

// Valid reports whether the session is still valid.
func (s *Session) Valid(now time.Time) bool {
	return now.Before(s.ExpiresAt) && now.Before(s.SeenAt.Add(SessionIdle))
}

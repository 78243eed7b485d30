package webhook

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Passkey is a WebAuthn credential with which an admin signs in. The private key stays in
// the authenticator; everything here is public.
type Passkey struct {
	ID      string
	AdminID string
	Name    string // outside text
	RPID    string // the domain that it works at

	Credential []byte // ID, chosen by the authenticator
	PublicKey  []byte // COSE
	SignCount  uint32 // at the last use; 0 when the authenticator does not count
	Synced     bool   // the authenticator may copy it to other devices (backup eligible)

	CreatedAt time.Time
	UsedAt    time.Time // zero for never
}

// Limits of passkeys.
const (
	MaxPasskeys          = 20   // per admin
	MaxPasskeyName       = 100  // bytes
	MaxPasskeyCredential = 1023 // bytes, by WebAuthn
	MaxPasskeyKey        = 4096 // bytes
)

// CheckPasskeyName returns what is wrong with the name of a passkey.
func CheckPasskeyName(parameter, s string) []Validation {
	switch {
	case strings.TrimSpace(s) == "":
		return []Validation{{InvalidRequired, "is required", parameter}}
	case len(s) > MaxPasskeyName:
		return []Validation{{InvalidTooLong, fmt.Sprintf("must be at most %d bytes", MaxPasskeyName), parameter}}
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return []Validation{{InvalidFormat, "must be one line of UTF-8", parameter}}
	}
	return nil
}

// CountsUp reports whether a sign count that an authenticator sent can follow the last one.
// A count that does not grow can mean that the passkey was copied. Synced passkeys do not
// count: they always send 0.
func (p *Passkey) CountsUp(count uint32) bool {
	return count > p.SignCount || count == 0 && p.SignCount == 0
}

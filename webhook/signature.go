package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"
)

// SigningSecret is the key of a subscription's signatures. The service generates 32
// bytes.
type SigningSecret []byte

// NewSigningSecret returns a new random secret.
func NewSigningSecret() SigningSecret {
	s := make(SigningSecret, 32)
	rand.Read(s)
	return s
}

// ParseSigningSecret parses a secret in the form of Reveal. The error does not
// contain it.
func ParseSigningSecret(s string) (SigningSecret, error) {
	text, ok := strings.CutPrefix(s, "whsec_")
	secret, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(secret) < 24 || len(secret) > 64 {
		return nil, errors.New("must be whsec_ followed by the base64 of 24 to 64 bytes")
	}
	return secret, nil
}

// Reveal returns the secret in the form of Standard Webhooks libraries. Call it
// only where a secret is shown on purpose.
func (s SigningSecret) Reveal() string { return "whsec_" + base64.StdEncoding.EncodeToString(s) }

// String keeps the secret out of logs and errors.
func (s SigningSecret) String() string { return "[redacted]" }

// MarshalText keeps the secret out of slog and encoding/json, which ignore String
// for byte slices.
func (s SigningSecret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Sign returns the webhook-signature header of an attempt as defined by Standard
// Webhooks: the HMAC-SHA256 of the ID, the Unix time in seconds and the body.
func (s SigningSecret) Sign(id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, s)
	head := make([]byte, 0, 64)
	head = append(head, id...)
	head = append(head, '.')
	head = strconv.AppendInt(head, at.Unix(), 10)
	head = append(head, '.')
	mac.Write(head)
	mac.Write(body)
	sum := mac.Sum(head[:0])
	sig := make([]byte, 3, 3+base64.StdEncoding.EncodedLen(len(sum)))
	copy(sig, "v1,")
	return string(base64.StdEncoding.AppendEncode(sig, sum))
}

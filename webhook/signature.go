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

// SigningSecret is the key of one subscription's signatures: 32 bytes when it
// is one of ours.
type SigningSecret []byte

// NewSigningSecret returns a new random secret.
func NewSigningSecret() SigningSecret {
	s := make(SigningSecret, 32)
	rand.Read(s)
	return s
}

// ParseSigningSecret reads a secret as Reveal renders it. The error does not
// hold it.
func ParseSigningSecret(s string) (SigningSecret, error) {
	text, ok := strings.CutPrefix(s, "whsec_")
	secret, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(secret) < 24 || len(secret) > 64 {
		return nil, errors.New("must be whsec_ followed by the base64 of 24 to 64 bytes")
	}
	return secret, nil
}

// Reveal renders the secret as Standard Webhooks libraries take it. It is
// called where a secret is shown on purpose, and nowhere else.
func (s SigningSecret) Reveal() string { return "whsec_" + base64.StdEncoding.EncodeToString(s) }

// String keeps the secret out of logs and errors.
func (s SigningSecret) String() string { return "[redacted]" }

// MarshalText keeps it out of what is made by slog and encoding/json, which
// would not ask String about bytes.
func (s SigningSecret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Sign returns the webhook-signature header of an attempt as Standard Webhooks
// defines it: the HMAC-SHA256 of id, time in Unix seconds and body.
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

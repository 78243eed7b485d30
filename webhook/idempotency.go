package webhook

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
)

// The limits of idempotency keys.
const (
	IdempotencyHeader   = "Idempotency-Key"
	MaxIdempotencyKey   = 255 // bytes
	IdempotencyKeptFor  = 24 * time.Hour
	MaxIdempotencyKeys  = 10_000   // kept of one token at a time
	MaxIdempotencyBytes = 64 << 20 // of the answers that are kept of one token, about
)

// IdempotencyKey is what a client names a request by that must take effect
// once, however often it is sent.
type IdempotencyKey struct {
	TokenID string // whose key it is
	Key     string
	Request [sha256.Size]byte // of what the request asks for
}

// CheckIdempotencyKey returns what is wrong with the values of the header that
// carries a key, or nil.
func CheckIdempotencyKey(values []string) *Error {
	fail := func(code, detail string) *Error { return Invalid(Validation{code, detail, IdempotencyHeader}) }
	switch {
	case len(values) != 1:
		return fail(InvalidDuplicate, "must be there once")
	case len(values[0]) > MaxIdempotencyKey:
		return fail(InvalidTooLong, fmt.Sprintf("must be at most %d characters", MaxIdempotencyKey))
	case values[0] == "" || strings.ContainsFunc(values[0], func(r rune) bool { return r <= ' ' || r > '~' }):
		return fail(InvalidFormat, fmt.Sprintf("must be 1 to %d visible ASCII characters", MaxIdempotencyKey))
	}
	return nil
}

package webhook

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
)

// Limits of idempotency keys.
const (
	IdempotencyHeader   = "Idempotency-Key"
	MaxIdempotencyKey   = 255 // bytes
	IdempotencyKeptFor  = 24 * time.Hour
	MaxIdempotencyKeys  = 10_000   // stored per token of a program
	MaxIdempotencyBytes = 64 << 20 // of responses stored per token of a program, approximately

	// A platform token may create the records of all programs, and belongs to the operator.
	MaxPlatformIdempotencyKeys  = 1_000_000
	MaxPlatformIdempotencyBytes = 1 << 30
)

// IdempotencyKey identifies a request that takes effect once, however often the
// client sends it.
type IdempotencyKey struct {
	TokenID   string // owner of the key
	ProgramID string // that a platform token acts in, "" if the token belongs to a program
	Key       string
	Request   [sha256.Size]byte // hash of the request
}

// Limits returns how many keys a token may have, and how many bytes of responses stored under them.
func (k *IdempotencyKey) Limits() (keys, bytes int) {
	if k.ProgramID != "" {
		return MaxPlatformIdempotencyKeys, MaxPlatformIdempotencyBytes
	}
	return MaxIdempotencyKeys, MaxIdempotencyBytes
}

// CheckIdempotencyKey returns what is wrong with the values of the Idempotency-Key
// header, or nil.
func CheckIdempotencyKey(values []string) *Error {
	fail := func(code, detail string) *Error { return Invalid(Validation{code, detail, IdempotencyHeader}) }
	switch {
	case len(values) != 1:
		return fail(InvalidDuplicate, "must be sent once")
	case len(values[0]) > MaxIdempotencyKey:
		return fail(InvalidTooLong, fmt.Sprintf("must be at most %d characters", MaxIdempotencyKey))
	case values[0] == "" || strings.ContainsFunc(values[0], func(r rune) bool { return r <= ' ' || r > '~' }):
		return fail(InvalidFormat, fmt.Sprintf("must be 1 to %d visible ASCII characters", MaxIdempotencyKey))
	}
	return nil
}

package webhook

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Program is a tenant, and the scope of every request. Nothing in one program is
// visible to another.
type Program struct {
	ID        string // the platform's identifier, 1 to 64 of A-Z a-z 0-9 . _ -
	CreatedAt time.Time
}

var identifier = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckIdentifier returns what is wrong with a program or user id chosen by the
// operator, or nil. Both appear in headers and URLs, which limits their alphabet.
func CheckIdentifier(parameter, id string) []Validation {
	switch {
	case id == "":
		return []Validation{{InvalidRequired, "is required", parameter}}
	case !identifier.MatchString(id):
		return []Validation{{InvalidFormat, "must be 1 to 64 letters, digits, dots, underscores or hyphens, beginning with a letter or digit",
			parameter}}
	}
	return nil
}

// NewID returns a new id for a record: a UUIDv7, so ids of one process sort by
// time. It panics only if the operating system provides no randomness.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// IsID reports whether s has the form of an id from [NewID].
func IsID(s string) bool {
	id, ok := parseUUID([]byte(s))
	return ok && id.String() == s
}

// DerivedID returns a UUID derived from parts: the same for the same parts.
func DerivedID(parts ...string) string {
	var b []byte
	for _, p := range parts {
		b = fmt.Appendf(b, "%d:%s,", len(p), p)
	}
	return uuid.NewHash(sha256.New(), uuid.Nil, b, 8).String()
}

// timeLayout is ISO 8601 in UTC with milliseconds (spec, section 2.5).
const timeLayout = "2006-01-02T15:04:05.000Z"

// FormatTime formats a time as in all records: UTC, milliseconds, Z.
func FormatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

// Count formats a number with its noun in the singular or plural.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "ry"); ok {
		noun = stem + "rie" // deliveries
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

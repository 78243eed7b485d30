package record

import (
	"encoding/base64"
	"fmt"

	"github.com/google/uuid"
)

// idEncoding encodes delivery IDs in 22 characters instead of 36, with the same order, since
// every row and an index contain one.
var idEncoding = base64.NewEncoding("-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz").WithPadding(base64.NoPadding)

// ShortID returns the short form of an ID. It returns anything other than a UUID unchanged.
func ShortID(id string) string {
	u, err := uuid.Parse(id)
	if err != nil || u.String() != id {
		return id
	}
	return idEncoding.EncodeToString(u[:])
}

// longID returns the long form of a stored ID.
func longID(stored string) string {
	var u uuid.UUID
	if len(stored) != idEncoding.EncodedLen(len(u)) {
		return stored
	}
	if _, err := idEncoding.Decode(u[:], []byte(stored)); err != nil {
		return stored
	}
	return u.String()
}

// shortIDs returns the short forms of IDs, nil for none.
func shortIDs(ids []string) (short []string) {
	for _, id := range ids {
		short = append(short, ShortID(id))
	}
	return short
}

// idRange returns the short forms of the lowest and highest ID with a prefix, or an empty range
// if no ID can have it.
func idRange(prefix string) (first, last string) {
	const lowest, highest = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
	n := min(len(prefix), len(lowest))
	first, last = ShortID(prefix+lowest[n:]), ShortID(prefix+highest[n:])
	if len(first) == len(lowest) || len(last) == len(highest) {
		return "", ""
	}
	return first, last
}

// DeliveryID scans the ID of a delivery; NULL is "".
type DeliveryID string

// Scan implements the interface of database/sql.
func (id *DeliveryID) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*id = ""
	case string:
		*id = DeliveryID(longID(v))
	case []byte:
		*id = DeliveryID(longID(string(v)))
	default:
		return fmt.Errorf("store: cannot scan a delivery id from %T", v)
	}
	return nil
}

package store

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
)

// The id of a delivery is stored in 22 characters in place of 36, whose order is the
// same: it is in each row and in an index. Deliveries of before schema 13 have it as it
// is shown.
var idEncoding = base64.NewEncoding("-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz").WithPadding(base64.NoPadding)

// shortID returns the short form of an id; what is no UUID has none, and is returned.
func shortID(id string) string {
	u, err := uuid.Parse(id)
	if err != nil || u.String() != id {
		return id
	}
	return idEncoding.EncodeToString(u[:])
}

// longID returns the id of a stored one.
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

// storedIDs returns both forms of ids, nil for none.
func storedIDs(ids []string) (both []string) {
	for _, id := range ids {
		both = append(both, shortID(id), id)
	}
	return both
}

// idRange returns the short forms of the first and the last id that begins with a
// prefix; if there is none, what no id lies between.
func idRange(prefix string) (first, last string) {
	const lowest, highest = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
	n := min(len(prefix), len(lowest))
	first, last = shortID(prefix+lowest[n:]), shortID(prefix+highest[n:])
	if len(first) == len(lowest) || len(last) == len(highest) {
		return "", ""
	}
	return first, last
}

// deliveryID scans the id of a delivery.
type deliveryID string

func (id *deliveryID) Scan(v any) error {
	switch v := v.(type) {
	case string:
		*id = deliveryID(longID(v))
	case []byte:
		*id = deliveryID(longID(string(v)))
	default:
		return fmt.Errorf("store: %T is no id of a delivery", v)
	}
	return nil
}

// idPlace returns an id as the place of a cursor, and idAt the id of a place.
func idPlace(id string) []int64 {
	u, _ := uuid.Parse(id) // what is no UUID is before all others
	return []int64{int64(binary.BigEndian.Uint64(u[:8])), int64(binary.BigEndian.Uint64(u[8:]))}
}

func idAt(place []int64) string {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[:8], uint64(place[0]))
	binary.BigEndian.PutUint64(u[8:], uint64(place[1]))
	return u.String()
}

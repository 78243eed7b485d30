package store

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/binary"

	"service/webhook"
)

// Page asks for a page by its number.
type Page struct {
	Number int // from 1
	Size   int // from 1
}

// Feed asks for a page of a feed, newest first. Rows that arrive later never
// shift a page.
type Feed struct {
	Cursor string // "" is the newest page; otherwise the next of an earlier answer
	Size   int    // from 1
}

// cursor renders a place in a feed. It is opaque, and void in any other list
// than the one it was made for: another program's, say.
func (s *Store) cursor(list string, place int64) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(place))
	b = append(b, s.seal.mac(list, string(b))...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// place reads a cursor; "" is the place before the newest row.
func (s *Store) place(list, cursor string) (int64, error) {
	if cursor == "" {
		return 1<<63 - 1, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) != 20 || !hmac.Equal(b[8:], s.seal.mac(list, string(b[:8]))) {
		return 0, webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidFormat, Parameter: "page[cursor]",
			Detail: "must be the next value of an earlier answer of this list",
		})
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

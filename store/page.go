package store

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"service/webhook"
)

// cursorScope is what a cursor is bound to: the kind of list, its program, the
// record whose list it is ("" for the program's own), and the selection.
type cursorScope struct{ list, programID, parent, selection string }

// cursor renders a place in a feed. It is opaque, and void in any other list
// than the one it was made for: another program's, say, or the same with
// another filter.
func (s *core) cursor(scope cursorScope, place []int64) string {
	b := make([]byte, 0, 8*len(place)+macBytes)
	for _, n := range place {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return base64.RawURLEncoding.EncodeToString(append(b, s.cursorMAC(scope, b)...))
}

// place reads a cursor into place, whose length is the list's.
func (s *core) place(scope cursorScope, cursor string, place []int64) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if n := 8 * len(place); err != nil || strings.ContainsAny(cursor, "\r\n") || len(b) != n+macBytes || !hmac.Equal(b[n:], s.cursorMAC(scope, b[:n])) {
		return webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidFormat, Parameter: "page[cursor]",
			Detail: "must be the next value of an earlier answer of this list, with the same sort and filters",
		})
	}
	for i := range place {
		place[i] = int64(binary.BigEndian.Uint64(b[8*i:]))
	}
	return nil
}

func (s *core) cursorMAC(scope cursorScope, place []byte) []byte {
	return s.mac(scope.list, scope.programID, scope.parent, scope.selection, string(place))
}

// macBytes is the size of what mac returns.
const macBytes = 12

// mac authenticates a page cursor for the list that it belongs to, or a device.
func (s *core) mac(parts ...string) []byte {
	m := hmac.New(sha256.New, s.macKey)
	for _, p := range parts {
		m.Write([]byte(p))
		m.Write([]byte{0})
	}
	return m.Sum(nil)[:macBytes]
}

package store

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"service/webhook"
)

// cursorScope is what a cursor is bound to: the kind of list, its program, the parent record
// ("" for a list of the program), and the selection.
type cursorScope struct{ list, programID, parent, selection string }

// cursor encodes a position in a feed. The result is opaque and valid only in the list that it
// was made for, with the same program, order and filters.
func (s *core) cursor(scope cursorScope, position []int64) string {
	b := make([]byte, 0, 8*len(position)+macBytes)
	for _, n := range position {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return base64.RawURLEncoding.EncodeToString(append(b, s.cursorMAC(scope, b)...))
}

// parseCursor decodes a cursor into position, whose length is that of the list's positions.
func (s *core) parseCursor(scope cursorScope, cursor string, position []int64) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if n := 8 * len(position); err != nil || strings.ContainsAny(cursor, "\r\n") || len(b) != n+macBytes ||
		!hmac.Equal(b[n:], s.cursorMAC(scope, b[:n])) {
		return webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidFormat, Parameter: "page[cursor]",
			Detail: "must be meta.pagination.next of an earlier response of this list, with the same sort and filters",
		})
	}
	for i := range position {
		position[i] = int64(binary.BigEndian.Uint64(b[8*i:]))
	}
	return nil
}

func (s *core) cursorMAC(scope cursorScope, position []byte) []byte {
	return s.mac(scope.list, scope.programID, scope.parent, scope.selection, string(position))
}

// macBytes is the length of the result of mac.
const macBytes = 12

// mac returns an authentication code, for a page cursor or for the cookie of a known device.
func (s *core) mac(parts ...string) []byte {
	m := hmac.New(sha256.New, s.macKey)
	for _, p := range parts {
		m.Write([]byte(p))
		m.Write([]byte{0})
	}
	return m.Sum(nil)[:macBytes]
}

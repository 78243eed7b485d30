package list

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"service/webhook"
)

// Key authenticates cursors, and the cookies of known devices. It is random and unaffected by key
// rotations.
type Key []byte

// Scope binds a cursor to the kind of list, its program, the parent record ("" for a list of
// the program), and the selection.
type Scope struct{ List, ProgramID, Parent, Selection string }

// Cursor encodes a position in a feed. The result is opaque, and valid only in the same list,
// with the same program, order and filters.
func (k Key) Cursor(scope Scope, position []int64) string {
	b := make([]byte, 0, 8*len(position)+macBytes)
	for _, n := range position {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return base64.RawURLEncoding.EncodeToString(append(b, k.cursorMAC(scope, b)...))
}

// ParseCursor decodes a cursor into position, whose length is that of the list's positions.
func (k Key) ParseCursor(scope Scope, cursor string, position []int64) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if n := 8 * len(position); err != nil || strings.ContainsAny(cursor, "\r\n") || len(b) != n+macBytes ||
		!hmac.Equal(b[n:], k.cursorMAC(scope, b[:n])) {
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

func (k Key) cursorMAC(scope Scope, position []byte) []byte {
	return k.MAC(scope.List, scope.ProgramID, scope.Parent, scope.Selection, string(position))
}

// macBytes is the length of the result of mac.
const macBytes = 12

// MAC returns an authentication code, for a page cursor or for the cookie of a known device.
func (k Key) MAC(parts ...string) []byte {
	m := hmac.New(sha256.New, k)
	for _, p := range parts {
		m.Write([]byte(p))
		m.Write([]byte{0})
	}
	return m.Sum(nil)[:macBytes]
}

// IDCursor encodes an ID, which is a UUID, as the position in a list.
func (k Key) IDCursor(scope Scope, id string) string {
	high, low := numbersOf(id)
	return k.Cursor(scope, []int64{high, low})
}

// ParseIDCursor decodes a cursor of IDCursor.
func (k Key) ParseIDCursor(scope Scope, cursor string) (id string, err error) {
	position := make([]int64, 2)
	err = k.ParseCursor(scope, cursor, position)
	return idOf(position[0], position[1]), err
}

// AdjacentID returns the ID directly before another one in the order of IDs, or directly after it.
func AdjacentID(id string, before bool) string {
	high, low := numbersOf(id)
	h, l := uint64(high), uint64(low)
	if before {
		if l == 0 {
			h--
		}
		l--
	} else if l++; l == 0 {
		h++
	}
	return idOf(int64(h), int64(l))
}

// numbersOf and idOf convert a UUID to two numbers and back.
func numbersOf(id string) (high, low int64) {
	b, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	if err != nil || len(b) != 16 {
		return 0, 0
	}
	return int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))
}

func idOf(high, low int64) string {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(high)), uint64(low))
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

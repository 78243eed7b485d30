// Package record reads the rows of the database as records of the domain, for lists, pages and
// searches.
package record

import (
	"strings"

	"service/store/sqlite"
	"service/webhook"
)

// TokenColumns are the columns of a token.
const TokenColumns = "id, hint, coalesce(program_id, ''), user_id, name, scopes, created_at, expires_at, revoked_at, used_at"

// ScanToken reads a row of TokenColumns.
func ScanToken(scan func(...any) error) (t webhook.Token, err error) {
	var scopes string
	err = scan(&t.ID, &t.Hint, &t.ProgramID, &t.UserID, &t.Name, &scopes, (*sqlite.Time)(&t.CreatedAt), (*sqlite.Time)(&t.ExpiresAt),
		(*sqlite.Time)(&t.RevokedAt), (*sqlite.Time)(&t.UsedAt))
	for s := range strings.FieldsSeq(scopes) {
		t.Scopes = append(t.Scopes, webhook.Scope(s))
	}
	return t, err
}

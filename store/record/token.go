// Package record reads the rows of the database as records of the domain, for lists, pages and
// searches.
package record

import (
	"database/sql"
	"strings"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// TokenColumns are the columns of a token.
const TokenColumns = "id, hint, coalesce(program_id, ''), user_id, name, scopes, created_at, expires_at, revoked_at, used_at"

// ScanToken reads a row of TokenColumns.
func ScanToken(scan func(...any) error) (t webhook.Token, err error) {
	var scopes string
	var created int64
	var expires, revoked, used sql.NullInt64
	err = scan(&t.ID, &t.Hint, &t.ProgramID, &t.UserID, &t.Name, &scopes, &created, &expires, &revoked, &used)
	for s := range strings.FieldsSeq(scopes) {
		t.Scopes = append(t.Scopes, webhook.Scope(s))
	}
	t.CreatedAt, t.ExpiresAt, t.RevokedAt, t.UsedAt = time.UnixMilli(created).UTC(), sqlite.FromMillis(expires), sqlite.FromMillis(revoked),
		sqlite.FromMillis(used)
	return t, err
}

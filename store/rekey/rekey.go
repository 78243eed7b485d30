// Package rekey re-encrypts the secrets of a database after its key was replaced. It knows every
// encrypted column.
package rekey

import (
	"context"
	"database/sql"
	"log/slog"
	"slices"
	"strings"

	"service/store/keyring"
	"service/store/sqlite"
	"service/webhook"
)

// CursorKey is the setting with the key that authenticates page cursors. It is random, so that cursors
// survive a key rotation. Like [keyring.CheckPlace] it is encrypted, with its name as associated data.
const CursorKey = "cursor_key"

// Rotation counts the secrets that a rotation re-encrypted.
type Rotation struct {
	File                 string // the key file
	AuthorizationHeaders int
	Headers              int      // subscriptions with static headers
	SigningSecrets       int      // including replaced ones that still sign
	Answers              int      // stored idempotent responses
	CertificateFiles     int      // certificates, their keys, ACME accounts
	AlertChannels        int      // URLs and signing secrets of alert channels
	Standbys             []string // hosts of the standbys that run, and need the new key before they can take over
	OldKeyKept           bool     // the file is not writable; all its lines but the first can be removed
	WALKept              bool     // a read used the WAL, so that it still contains what the old key encrypted
}

// Secrets returns the number of re-encrypted secrets.
func (r *Rotation) Secrets() int {
	return r.AuthorizationHeaders + r.Headers + r.SigningSecrets + r.Answers + r.CertificateFiles + r.AlertChannels
}

// Batch is how many secrets one write re-encrypts, so that other writes wait less than
// a millisecond.
const Batch = 32

// Column is a column of encrypted secrets.
type Column struct {
	count func(*Rotation) *int
	// next selects the next ?3 rows after the row (?1, ?2) in the order of an index: the
	// row as a text and a number, the associated data of the secret, and the secret or NULL.
	next string
	// update stores ?3 in the row (?1, ?2).
	update string
}

// byKey returns a column of a table that has a text as its key. place is the beginning of the associated
// data, which ends with the key; filter is a condition of the rows that have secrets.
func byKey(count func(*Rotation) *int, table, key, column, place, filter string) Column {
	return Column{
		count,
		"SELECT " + key + ", 0, '" + place + "' || " + key + ", " + column + " FROM " + table + " WHERE " + key + " > ?1 AND ?2 = 0 AND " +
			filter + " ORDER BY " + key + " LIMIT ?3",
		"UPDATE " + table + " SET " + column + " = ?3 WHERE " + key + " = ?1 AND ?2 = 0 AND " + filter,
	}
}

// Columns lists all encrypted columns: a column missing here would be lost with the
// first rotation. The order matters: replaced signing secrets are copies of current ones, which
// must be re-encrypted first.
func Columns() []Column {
	secrets := func(r *Rotation) *int { return &r.SigningSecrets }
	return []Column{
		byKey(func(r *Rotation) *int { return &r.AuthorizationHeaders }, "subscriptions", "id", "authorization_header",
			"authorization_header of ", "TRUE"),
		byKey(func(r *Rotation) *int { return &r.Headers }, "subscriptions", "id", "headers", "headers of ", "TRUE"),
		byKey(secrets, "subscriptions", "id", "signing_secret", "signing_secret of ", "TRUE"),
		{
			secrets,
			"SELECT subscription_id, expires_at, 'signing_secret of ' || subscription_id, secret FROM old_signing_secrets " +
				"WHERE (subscription_id, expires_at) > (?1, ?2) ORDER BY subscription_id, expires_at LIMIT ?3",
			"UPDATE old_signing_secrets SET secret = ?3 WHERE subscription_id = ?1 AND expires_at = ?2",
		},
		{
			func(r *Rotation) *int { return &r.Answers },
			"SELECT '', rowid, 'answer of ' || token_id || ' ' || key, body FROM idempotency_keys WHERE rowid > ?2 AND ?1 = '' " +
				"ORDER BY rowid LIMIT ?3",
			"UPDATE idempotency_keys SET body = ?3 WHERE rowid = ?2 AND ?1 = ''",
		},
		byKey(func(r *Rotation) *int { return &r.CertificateFiles }, "certificate_files", "path", "value", "certificate file ", "TRUE"),
		byKey(func(r *Rotation) *int { return &r.AlertChannels }, "alert_channels", "id", "target", "alert channel ", "TRUE"),
		byKey(nil, "program_moves", "program_id", "token", "move token of ", "direction = 'out'"),
		// Last, so that the check fits the old key as long as that is needed.
		byKey(nil, "settings", "name", "value", "", "name IN ('"+CursorKey+"', '"+keyring.CheckPlace+"')"),
	}
}

// Tables returns the tables of Columns, whose old values are overwritten in the
// file. Nearly every commit writes to settings, whose encrypted values have a constant length, so
// that a new one takes the place of the old one.
func Tables() []string {
	var all []string
	for _, c := range Columns() {
		if table := strings.Fields(c.update)[1]; table != "settings" && !slices.Contains(all, table) {
			all = append(all, table)
		}
	}
	return all
}

// Run re-encrypts with the current key everything that an older key encrypted, and counts
// it in r. When it returns nil, the older keys are not needed any more.
func Run(ctx context.Context, w *sqlite.Writer, keys *keyring.Keyring, logger *slog.Logger, r *Rotation) error {
	unreadable := 0
	for _, c := range Columns() {
		for at, more := (row{}), true; more; {
			if err := ctx.Err(); err != nil {
				return err
			}
			done, failed := 0, 0
			reencrypt := func(place string, value []byte) ([]byte, error) {
				secret, key, err := keys.DecryptWith(value, place)
				switch {
				case err != nil:
					failed++
					logger.Error("failed to decrypt a secret with any key; leaving it unchanged", "secret", place)
					return nil, nil
				case key == 0:
					return nil, nil
				}
				done++
				return keys.Encrypt(secret, place), nil
			}
			// A write in progress commits what it encrypted before this one runs. Do runs the function once, so
			// it counts once.
			err := w.Do(func(t *sqlite.Tx) (err error) {
				at, more, err = c.some(t.Each, t.Exec, at, reencrypt)
				return err
			})
			if err != nil {
				return err
			}
			if unreadable += failed; c.count != nil {
				*c.count(r) += done
			}
		}
	}
	if unreadable > 0 {
		return keyring.Errorf("%s cannot be decrypted with any key in %s (the log lists them), so the older keys stay there: "+
			"add the missing key on a line below them, or replace those secrets", webhook.Count(unreadable, "secret"), keys.File().Path)
	}
	return nil
}

// Each replaces all secrets of a column in a private database.
func (c *Column) Each(ctx context.Context, db *sql.DB, replace func(place string, value []byte) ([]byte, error)) (err error) {
	_, each := sqlite.ReadsOf(ctx, db)
	exec := func(query string, args ...any) error {
		_, err := db.ExecContext(ctx, query, args...)
		return err
	}
	for at, more := (row{}), true; more && err == nil; {
		at, more, err = c.some(each, exec, at, replace)
	}
	return err
}

// row is a row of a column; the zero value is before the first.
type row struct {
	text   string
	number int64
	place  string
	value  []byte
}

// some replaces the secrets in the next rows of a column after one, and returns the last of these rows,
// and whether there may be more. A secret for which replace returns nil stays.
func (c *Column) some(each sqlite.EachRow, exec func(query string, args ...any) error, after row,
	replace func(place string, value []byte) ([]byte, error)) (last row, more bool, err error) {
	var rows []row
	err = each(c.next, []any{after.text, after.number, Batch}, func(scan func(...any) error) error {
		var r row
		err := scan(&r.text, &r.number, &r.place, &r.value)
		rows = append(rows, r)
		return err
	})
	for _, last = range rows {
		if err != nil || len(last.value) == 0 { // none, or removed with the subscription
			continue
		}
		var value []byte
		if value, err = replace(last.place, last.value); err == nil && value != nil {
			err = exec(c.update, last.text, last.number, value)
		}
	}
	return last, len(rows) == Batch, err
}

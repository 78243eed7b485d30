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

// Columns lists all encrypted columns: a column missing here would be lost with the
// first rotation. The order matters: replaced signing secrets are copies of current ones, which
// must be re-encrypted first.
func Columns() []Column {
	return []Column{
		{
			func(r *Rotation) *int { return &r.AuthorizationHeaders },
			"SELECT id, 0, 'authorization_header of ' || id, authorization_header FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET authorization_header = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *Rotation) *int { return &r.Headers },
			"SELECT id, 0, 'headers of ' || id, headers FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET headers = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *Rotation) *int { return &r.SigningSecrets },
			"SELECT id, 0, 'signing_secret of ' || id, signing_secret FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET signing_secret = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *Rotation) *int { return &r.SigningSecrets },
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
		{
			func(r *Rotation) *int { return &r.CertificateFiles },
			"SELECT path, 0, 'certificate file ' || path, value FROM certificate_files WHERE path > ?1 AND ?2 = 0 ORDER BY path LIMIT ?3",
			"UPDATE certificate_files SET value = ?3 WHERE path = ?1 AND ?2 = 0",
		},
		{
			func(r *Rotation) *int { return &r.AlertChannels },
			"SELECT id, 0, 'alert channel ' || id, target FROM alert_channels WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE alert_channels SET target = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			nil,
			"SELECT program_id, 0, 'move token of ' || program_id, token FROM program_moves WHERE program_id > ?1 AND ?2 = 0 " +
				"AND direction = 'out' ORDER BY program_id LIMIT ?3",
			"UPDATE program_moves SET token = ?3 WHERE program_id = ?1 AND ?2 = 0 AND direction = 'out'",
		},
		{
			// Last, so that the check fits the old key as long as that is needed.
			nil,
			"SELECT name, 0, name, value FROM settings WHERE name > ?1 AND ?2 = 0 " +
				"AND name IN ('" + CursorKey + "', '" + keyring.CheckPlace + "') ORDER BY name LIMIT ?3",
			"UPDATE settings SET value = ?3 WHERE name = ?1 AND ?2 = 0",
		},
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
		var text string
		var number int64
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				return err
			}
			// A write in progress commits what it encrypted before this one runs.
			err := w.Do(func(t *sqlite.Tx) (err error) {
				var done, failed int
				text, number, done, failed, more, err = some(t, keys, logger, &c, text, number)
				t.AfterCommit(func() {
					if c.count != nil {
						*c.count(r) += done
					}
					unreadable += failed
				})
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	if unreadable > 0 {
		return keyring.Errorf("%s cannot be decrypted with any key in %s (the log lists them), so the older keys stay there: "+
			"add the missing key on a line below them, or replace those secrets", webhook.Count(unreadable, "secret"), keys.File().Path)
	}
	return nil
}

// some processes the next rows of a column after (text, number). It returns the last
// row, how many it re-encrypted, how many no key decrypts, and whether there may be more.
func some(t *sqlite.Tx, keys *keyring.Keyring, logger *slog.Logger, c *Column, text string,
	number int64) (lastText string, last int64, done, failed int, more bool, err error) {
	type row struct {
		text       string
		ReadNumber int64
		value      []byte
	}
	var outdated []row
	seen := 0
	lastText, last = text, number
	err = t.Each(c.next, []any{text, number, Batch}, func(scan func(...any) error) error {
		var r row
		var place string
		if err := scan(&r.text, &r.ReadNumber, &place, &r.value); err != nil {
			return err
		}
		seen++
		lastText, last = r.text, r.ReadNumber
		if len(r.value) == 0 {
			return nil // none, or removed with the subscription
		}
		secret, key, err := keys.DecryptWith(r.value, place)
		switch {
		case err != nil:
			failed++
			logger.Error("failed to decrypt a secret with any key; leaving it unchanged", "secret", place)
		case key != 0:
			r.value = keys.Encrypt(secret, place)
			outdated = append(outdated, r)
		}
		return nil
	})
	if err != nil {
		return text, number, 0, 0, false, err
	}
	for _, r := range outdated {
		if err := t.Exec(c.update, r.text, r.ReadNumber, r.value); err != nil {
			return text, number, 0, 0, false, err
		}
	}
	return lastText, last, len(outdated), failed, seen == Batch, nil
}

// Each replaces all secrets of a column in a private database.
func (c *Column) Each(ctx context.Context, db *sql.DB, replace func(place string, value []byte) ([]byte, error)) error {
	type row struct {
		text       string
		ReadNumber int64
		place      string
		value      []byte
	}
	_, each := sqlite.ReadsOf(ctx, db)
	for last := (row{}); ; {
		var some []row
		err := each(c.next, []any{last.text, last.ReadNumber, Batch}, func(scan func(...any) error) error {
			var r row
			err := scan(&r.text, &r.ReadNumber, &r.place, &r.value)
			r.value = slices.Clone(r.value)
			some = append(some, r)
			return err
		})
		for i := range some {
			last = some[i]
			if err != nil || len(last.value) == 0 {
				continue
			}
			if last.value, err = replace(last.place, last.value); err == nil {
				_, err = db.ExecContext(ctx, c.update, last.text, last.ReadNumber, last.value)
			}
		}
		if err != nil || len(some) < Batch {
			return err
		}
	}
}

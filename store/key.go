package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"slices"
	"strings"

	"service/store/keyring"
	"service/webhook"
)

// cursorKey is the setting with the key that authenticates page cursors. It is random, so that cursors
// survive a key rotation. Like [keyring.CheckPlace] it is encrypted, with its name as associated data.
const cursorKey = "cursor_key"

// openKeyring reads the keys, or creates one for a database that has none yet. It refuses a
// database whose key is missing or wrong, since its secrets would be lost silently. It finishes
// an interrupted rotation. The error wraps [ErrKey].
func (s *core) openKeyring(cfg *Config) error {
	file, err := keyring.Locate(cfg.Dir, cfg.SecretKeyFile)
	if err != nil {
		return err
	}
	if err := file.RemoveTemp(); err != nil {
		return err
	}
	settings := make(map[string][]byte)
	err = s.writer.do(func(t *tx) error {
		for _, name := range []string{keyring.CheckPlace, cursorKey} {
			var value []byte
			err := t.Scan("SELECT value FROM settings WHERE name = ?", []any{name}, &value)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			settings[name] = value
		}
		return nil
	})
	if err != nil {
		return err
	}
	keys, err := keyring.Open(file, settings[keyring.CheckPlace] != nil)
	if err != nil {
		return err
	}
	if file.Exposed() {
		s.logger.Warn("secret key is readable by every user of this machine", "file", file.Path)
	}
	if check := settings[keyring.CheckPlace]; check != nil && !keys.Fits(check) {
		return keyring.Errorf("%s does not contain the key that encrypts the secrets in this database: restore the key file of this data "+
			"directory",
			file.Path)
	}
	if encrypted := settings[cursorKey]; encrypted != nil {
		if s.lists.Key, err = keys.Decrypt(encrypted, cursorKey); err != nil {
			return err
		}
	} else {
		s.lists.Key = make([]byte, 32)
		rand.Read(s.lists.Key)
	}
	if settings[keyring.CheckPlace] == nil || settings[cursorKey] == nil {
		err := s.writer.do(func(t *tx) error {
			return errors.Join(
				t.Exec("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", keyring.CheckPlace, keys.NewCheck()),
				t.Exec("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", cursorKey, keys.Encrypt(s.lists.Key, cursorKey)))
		})
		if err != nil {
			return err
		}
	}
	s.keys = keys
	s.finishRotation()
	return nil
}

// KeyRotation counts the secrets that a rotation re-encrypted.
type KeyRotation struct {
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
func (r *KeyRotation) Secrets() int {
	return r.AuthorizationHeaders + r.Headers + r.SigningSecrets + r.Answers + r.CertificateFiles + r.AlertChannels
}

// RotateKey replaces the key that encrypts the secrets, while the service runs, see
// [keyring.Keyring.Rotate]. Of what the old key encrypted, nothing remains in the database and,
// unless WALKept is set, in its WAL. The next call, or the next start, continues an interrupted
// rotation. The error wraps [ErrKey] if the file is the cause.
func (s *Store) RotateKey(ctx context.Context) (r KeyRotation, err error) {
	kept, err := s.keys.Rotate(ctx, func(ctx context.Context) error {
		r = KeyRotation{} // do not count what an interrupted rotation left
		return s.reencrypt(ctx, &r)
	})
	r.File, r.OldKeyKept = s.keys.File().Path, kept
	if err == nil {
		r.WALKept = !s.truncateWAL()
	}
	return r, err
}

// finishRotation continues an interrupted rotation, if there is one. A failure loses nothing,
// since the file has all the keys.
func (s *core) finishRotation() {
	if !s.keys.Interrupted() {
		return
	}
	r := KeyRotation{File: s.keys.File().Path}
	if err := s.reencrypt(context.Background(), &r); err != nil {
		s.logger.Warn("failed to finish the key rotation; all keys stay in use", "file", r.File, "error", err)
		return
	}
	if err := s.keys.DropOld(); err != nil {
		s.logger.Warn("key rotation finished, but the old keys remain in the file; remove all lines but the first", "file", r.File,
			"reencrypted", r.Secrets(), "error", err)
		return
	}
	if s.replication == nil {
		s.truncateWAL()
	}
	s.logger.Info("key rotation finished", "file", r.File, "reencrypted", r.Secrets())
}

// reencryptBatch is how many secrets one write re-encrypts, so that other writes wait less than
// a millisecond.
const reencryptBatch = 32

// encryptedColumn is a column of encrypted secrets.
type encryptedColumn struct {
	count func(*KeyRotation) *int
	// next selects the next ?3 rows after the row (?1, ?2) in the order of an index: the
	// row as a text and a number, the associated data of the secret, and the secret or NULL.
	next string
	// update stores ?3 in the row (?1, ?2).
	update string
}

// encryptedColumns lists all encrypted columns: a column missing here would be lost with the
// first rotation. The order matters: replaced signing secrets are copies of current ones, which
// must be re-encrypted first.
func encryptedColumns() []encryptedColumn {
	return []encryptedColumn{
		{
			func(r *KeyRotation) *int { return &r.AuthorizationHeaders },
			"SELECT id, 0, 'authorization_header of ' || id, authorization_header FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET authorization_header = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *KeyRotation) *int { return &r.Headers },
			"SELECT id, 0, 'headers of ' || id, headers FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET headers = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *KeyRotation) *int { return &r.SigningSecrets },
			"SELECT id, 0, 'signing_secret of ' || id, signing_secret FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET signing_secret = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *KeyRotation) *int { return &r.SigningSecrets },
			"SELECT subscription_id, expires_at, 'signing_secret of ' || subscription_id, secret FROM old_signing_secrets " +
				"WHERE (subscription_id, expires_at) > (?1, ?2) ORDER BY subscription_id, expires_at LIMIT ?3",
			"UPDATE old_signing_secrets SET secret = ?3 WHERE subscription_id = ?1 AND expires_at = ?2",
		},
		{
			func(r *KeyRotation) *int { return &r.Answers },
			"SELECT '', rowid, 'answer of ' || token_id || ' ' || key, body FROM idempotency_keys WHERE rowid > ?2 AND ?1 = '' " +
				"ORDER BY rowid LIMIT ?3",
			"UPDATE idempotency_keys SET body = ?3 WHERE rowid = ?2 AND ?1 = ''",
		},
		{
			func(r *KeyRotation) *int { return &r.CertificateFiles },
			"SELECT path, 0, 'certificate file ' || path, value FROM certificate_files WHERE path > ?1 AND ?2 = 0 ORDER BY path LIMIT ?3",
			"UPDATE certificate_files SET value = ?3 WHERE path = ?1 AND ?2 = 0",
		},
		{
			func(r *KeyRotation) *int { return &r.AlertChannels },
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
				"AND name IN ('" + cursorKey + "', '" + keyring.CheckPlace + "') ORDER BY name LIMIT ?3",
			"UPDATE settings SET value = ?3 WHERE name = ?1 AND ?2 = 0",
		},
	}
}

// encryptedTables returns the tables of encryptedColumns, whose old values are overwritten in the
// file. Nearly every commit writes to settings, whose encrypted values have a constant length, so
// that a new one takes the place of the old one.
func encryptedTables() []string {
	var all []string
	for _, c := range encryptedColumns() {
		if table := strings.Fields(c.update)[1]; table != "settings" && !slices.Contains(all, table) {
			all = append(all, table)
		}
	}
	return all
}

// reencrypt re-encrypts with the current key everything that an older key encrypted, and counts
// it in r. When it returns nil, the older keys are not needed any more.
func (s *core) reencrypt(ctx context.Context, r *KeyRotation) error {
	unreadable := 0
	for _, c := range encryptedColumns() {
		var text string
		var number int64
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				return err
			}
			// A write in progress commits what it encrypted before this one runs.
			err := s.writer.do(func(t *tx) (err error) {
				var done, failed int
				text, number, done, failed, more, err = s.reencryptSome(t, &c, text, number)
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
			"add the missing key on a line below them, or replace those secrets", webhook.Count(unreadable, "secret"), s.keys.File().Path)
	}
	return nil
}

// reencryptSome processes the next rows of a column after (text, number). It returns the last
// row, how many it re-encrypted, how many no key decrypts, and whether there may be more.
func (s *core) reencryptSome(t *tx, c *encryptedColumn, text string,
	number int64) (lastText string, last int64, done, failed int, more bool, err error) {
	type row struct {
		text       string
		ReadNumber int64
		value      []byte
	}
	var outdated []row
	seen := 0
	lastText, last = text, number
	err = t.Each(c.next, []any{text, number, reencryptBatch}, func(scan func(...any) error) error {
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
		secret, key, err := s.keys.DecryptWith(r.value, place)
		switch {
		case err != nil:
			failed++
			s.logger.Error("failed to decrypt a secret with any key; leaving it unchanged", "secret", place)
		case key != 0:
			r.value = s.keys.Encrypt(secret, place)
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
	return lastText, last, len(outdated), failed, seen == reencryptBatch, nil
}

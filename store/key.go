package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"os"
	"path/filepath"

	"service/store/keyring"
	"service/webhook"
)

// The settings that are encrypted, each for a place of its own name.
const (
	keyCheck  = keyring.CheckPlace // proves that the key fits
	cursorKey = "cursor_key"       // authenticates page cursors; random, so that a cursor outlives the key that encrypts this
)

// openKeyring reads the keys, or makes one for a database that has none yet. A
// database whose key is missing or wrong is refused: its secrets would be lost
// without notice. The error wraps [ErrKey]. A rotation that a crash has
// interrupted is finished.
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
		for _, name := range []string{keyCheck, cursorKey} {
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
	keys, err := keyring.Open(file, settings[keyCheck] != nil)
	if err != nil {
		return err
	}
	if file.Exposed() {
		s.logger.Warn("the secret key can be read by every user of this machine", "file", file.Path)
	}
	if check := settings[keyCheck]; check != nil && !keys.Fits(check) {
		return keyring.Errorf("%s does not hold the key that the secrets in this database are encrypted with: it is not the key of this data directory; put the right one back", file.Path)
	}
	if encrypted := settings[cursorKey]; encrypted != nil {
		if s.macKey, err = keys.Decrypt(encrypted, cursorKey); err != nil {
			return err
		}
	} else {
		s.macKey = make([]byte, 32)
		rand.Read(s.macKey)
	}
	if settings[keyCheck] == nil || settings[cursorKey] == nil {
		err := s.writer.do(func(t *tx) error {
			return errors.Join(
				t.Exec("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", keyCheck, keys.NewCheck()),
				t.Exec("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", cursorKey, keys.Encrypt(s.macKey, cursorKey)))
		})
		if err != nil {
			return err
		}
	}
	s.keys = keys
	s.finishRotation()
	return nil
}

// CheckKeyFile says what is wrong with the file of a key that the operator has
// named for a data directory, be that there yet or not; "" names none. It touches
// nothing, and does not know whether the key fits the database. The error wraps
// [ErrKey].
func CheckKeyFile(dir, name string) error {
	_, err := os.Stat(filepath.Join(dir, databaseFile))
	return keyring.CheckFile(dir, name, err == nil)
}

// ReadKeys returns the content of a file of keys as [Inspect] takes it: the one
// that is named, or with "" the one in a data directory. The error wraps [ErrKey],
// and fs.ErrNotExist when there is none.
func ReadKeys(dir, name string) ([]byte, error) {
	file := &keyring.File{Path: filepath.Join(dir, keyring.FileName)}
	if name != "" {
		file = &keyring.File{Path: name, Named: true}
	}
	keys, err := file.Read()
	if err != nil {
		return nil, err
	}
	return keyring.Format(keys), nil
}

// KeyRotation is what became of the secrets when their key was replaced.
type KeyRotation struct {
	File                 string // where the key is
	AuthorizationHeaders int    // re-encrypted, as are the others
	SigningSecrets       int    // those that were replaced and still sign among them
	Answers              int    // kept for requests that are sent again
	CertificateFiles     int    // certificates, their keys, accounts at their issuer
	AlertChannels        int    // URLs and signing secrets of alert channels
	OldKeyKept           bool   // in the file, which cannot be written: its lines but the first are of no more use
}

// Secrets is how many secrets were re-encrypted.
func (r *KeyRotation) Secrets() int {
	return r.AuthorizationHeaders + r.SigningSecrets + r.Answers + r.CertificateFiles + r.AlertChannels
}

// RotateKey replaces the key that the secrets are encrypted with, while all else
// goes on, see [keyring.Keyring.Rotate]: the next call, or the next start, goes on
// with a rotation that was interrupted. The error wraps [ErrKey] when the file is
// the cause.
func (s *Store) RotateKey(ctx context.Context) (r KeyRotation, err error) {
	kept, err := s.keys.Rotate(ctx, func(ctx context.Context) error {
		r = KeyRotation{} // what a rotation before this one has left is not counted
		return s.reencrypt(ctx, &r)
	})
	r.File, r.OldKeyKept = s.keys.File().Path, kept
	return r, err
}

// finishRotation goes on with a rotation that was interrupted, if there is one.
// If it cannot, nothing is lost: all the keys are there.
func (s *core) finishRotation() {
	if !s.keys.Interrupted() {
		return
	}
	r := KeyRotation{File: s.keys.File().Path}
	if err := s.reencrypt(context.Background(), &r); err != nil {
		s.logger.Warn("the rotation of the secret key cannot be finished; both keys are in use", "file", r.File, "error", err)
		return
	}
	if err := s.keys.DropOld(); err != nil {
		s.logger.Warn("nothing is encrypted with the older keys any more: remove all lines but the first", "file", r.File, "reencrypted", r.Secrets(), "error", err)
		return
	}
	s.logger.Info("the rotation of the secret key is finished", "file", r.File, "reencrypted", r.Secrets())
}

// reencryptBatch is how many secrets are re-encrypted in one write. The other
// writes wait for less than a millisecond then.
const reencryptBatch = 32

// encryptedColumn is a column of encrypted secrets.
type encryptedColumn struct {
	count func(*KeyRotation) *int
	// next selects what comes after a row, (?1, ?2), in the order of an index,
	// the first ?3 rows whatever is in them: the row, as a text and a number;
	// the place that the secret is encrypted for; the secret, if there is one.
	next string
	// update stores ?3 in the row (?1, ?2).
	update string
}

// encryptedColumns is everything that is encrypted: a column that is not here would
// be lost with the first rotation. Their order matters: replaced signing
// secrets are copies of present ones, which must be re-encrypted before.
func encryptedColumns() []encryptedColumn {
	return []encryptedColumn{
		{
			func(r *KeyRotation) *int { return &r.AuthorizationHeaders },
			"SELECT id, 0, 'authorization_header of ' || id, authorization_header FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET authorization_header = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *KeyRotation) *int { return &r.SigningSecrets },
			"SELECT id, 0, 'signing_secret of ' || id, signing_secret FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET signing_secret = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *KeyRotation) *int { return &r.SigningSecrets },
			"SELECT subscription_id, expires_at, 'signing_secret of ' || subscription_id, secret FROM old_signing_secrets WHERE (subscription_id, expires_at) > (?1, ?2) ORDER BY subscription_id, expires_at LIMIT ?3",
			"UPDATE old_signing_secrets SET secret = ?3 WHERE subscription_id = ?1 AND expires_at = ?2",
		},
		{
			func(r *KeyRotation) *int { return &r.Answers },
			"SELECT '', rowid, 'answer of ' || token_id || ' ' || key, body FROM idempotency_keys WHERE rowid > ?2 AND ?1 = '' ORDER BY rowid LIMIT ?3",
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
			// Last, so that as long as the old key is needed the check says so.
			nil,
			"SELECT name, 0, name, value FROM settings WHERE name > ?1 AND ?2 = 0 AND name IN ('" + cursorKey + "', '" + keyCheck + "') ORDER BY name LIMIT ?3",
			"UPDATE settings SET value = ?3 WHERE name = ?1 AND ?2 = 0",
		},
	}
}

// reencrypt encrypts everything with the present key that an older one has
// encrypted, and counts it into r. When it returns nil the older ones are of no more
// use.
func (s *core) reencrypt(ctx context.Context, r *KeyRotation) error {
	unreadable := 0
	for _, c := range encryptedColumns() {
		var text string
		var number int64
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				return err
			}
			// What a write in progress has encrypted is committed before this one.
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
		return keyring.Errorf("%s cannot be decrypted with any key in %s, as the log tells one by one, so the older keys stay there: add the missing one on a line below them, or give those subscriptions new secrets", webhook.Count(unreadable, "secret"), s.keys.File().Path)
	}
	return nil
}

// reencryptSome deals with the next rows of a column after (text, number), and
// returns the last of them, how many it re-encrypted, how many no key decrypts,
// and whether there may be more.
func (s *core) reencryptSome(t *tx, c *encryptedColumn, text string, number int64) (lastText string, last int64, done, failed int, more bool, err error) {
	type row struct {
		text   string
		number int64
		value  []byte
	}
	var outdated []row
	seen := 0
	lastText, last = text, number
	err = t.Each(c.next, []any{text, number, reencryptBatch}, func(scan func(...any) error) error {
		var r row
		var place string
		if err := scan(&r.text, &r.number, &place, &r.value); err != nil {
			return err
		}
		seen++
		lastText, last = r.text, r.number
		if len(r.value) == 0 {
			return nil // there is none, or it went with the subscription
		}
		secret, key, err := s.keys.DecryptWith(r.value, place)
		switch {
		case err != nil:
			failed++
			s.logger.Error("a secret cannot be decrypted with any key, and is left as it is", "secret", place)
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
		if err := t.Exec(c.update, r.text, r.number, r.value); err != nil {
			return text, number, 0, 0, false, err
		}
	}
	return lastText, last, len(outdated), failed, seen == reencryptBatch, nil
}

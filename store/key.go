package store

import (
	"context"
	"crypto/rand"
	"errors"

	"service/store/keyring"
	"service/store/rekey"
	"service/store/schema"
)

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
	err = s.writer.do(func(t *tx) (err error) {
		for _, name := range []string{keyring.CheckPlace, rekey.CursorKey} {
			if settings[name], err = schema.Get(t.Scan, name); err != nil {
				return err
			}
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
	if encrypted := settings[rekey.CursorKey]; encrypted != nil {
		if s.lists.Key, err = keys.Decrypt(encrypted, rekey.CursorKey); err != nil {
			return err
		}
	} else {
		s.lists.Key = make([]byte, 32)
		rand.Read(s.lists.Key)
	}
	if settings[keyring.CheckPlace] == nil || settings[rekey.CursorKey] == nil {
		err := s.writer.do(func(t *tx) error {
			return errors.Join(
				t.Exec("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", keyring.CheckPlace, keys.NewCheck()),
				t.Exec("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", rekey.CursorKey,
					keys.Encrypt(s.lists.Key, rekey.CursorKey)))
		})
		if err != nil {
			return err
		}
	}
	s.keys = keys
	s.finishRotation()
	return nil
}

// RotateKey replaces the key that encrypts the secrets, while the service runs, see
// [keyring.Keyring.Rotate]. Of what the old key encrypted, nothing remains in the database and,
// unless WALKept is set, in its WAL. The next call, or the next start, continues an interrupted
// rotation. The error wraps [ErrKey] if the file is the cause.
func (s *Store) RotateKey(ctx context.Context) (r rekey.Rotation, err error) {
	kept, err := s.keys.Rotate(ctx, func(ctx context.Context) error {
		r = rekey.Rotation{} // do not count what an interrupted rotation left
		return rekey.Run(ctx, s.writer.Writer, s.keys, s.logger, &r)
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
	r := rekey.Rotation{File: s.keys.File().Path}
	if err := rekey.Run(context.Background(), s.writer.Writer, s.keys, s.logger, &r); err != nil {
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

package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"service/internal/durable"
)

// sealer keeps secrets unreadable in the database and its copies. Its keys lie
// in a file of their own, so that a copy of the database alone betrays nothing.
//
// There are several keys while one is being replaced, see [Store.RotateKey].
// Keys that were replaced stay in memory, for whoever has read a secret just
// before it was sealed anew.
type sealer struct {
	file   *keyring
	keys   atomic.Pointer[[]*sealKey] // the first seals, all of them open; never empty
	cursor []byte                     // the key of page cursors' authentication; no rotation changes it

	rotating sync.Mutex // held by whoever replaces a key
}

// sealKey is one key of the file, and what is made of it.
type sealKey struct {
	key  secretKey
	aead cipher.AEAD
}

// The rows of settings that are the sealer's own. Each is sealed for a place
// of its own name.
const (
	keyCheck  = "key_check"  // proves that the key fits
	cursorKey = "cursor_key" // of page cursors, random: a cursor outlives the key that seals this
)

const keyCheckText = "the key fits"

// openSealer reads the keys, or makes one for a database that has none yet. A
// database whose key is missing or wrong is refused: its secrets would be lost
// in silence. The error wraps [ErrKey]. A rotation that a crash has interrupted
// is finished.
func (s *Store) openSealer(cfg *Config) error {
	sl := &sealer{}
	var err error
	if sl.file, err = newKeyring(cfg.Dir, cfg.SecretKeyFile); err != nil {
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
	keys, err := sl.file.read()
	switch {
	case errors.Is(err, fs.ErrNotExist) && (settings[keyCheck] != nil || sl.file.named):
		return sl.file.missing(settings[keyCheck] != nil)
	case errors.Is(err, fs.ErrNotExist):
		keys = []secretKey{newSecretKey()}
		if err := durable.WriteFile(sl.file.path, formatKeys(keys), 0o600); err != nil {
			return keyError("%s cannot be written: %w", sl.file.path, err)
		}
	case err != nil:
		return err
	}
	if sl.file.exposed() {
		s.logger.Warn("the secret key can be read by every user of this machine", "file", sl.file.path)
	}
	if err := sl.use(keys); err != nil {
		return err
	}
	if sealed := settings[keyCheck]; sealed != nil {
		if got, err := sl.open(sealed, keyCheck); err != nil || string(got) != keyCheckText {
			return keyError("%s does not hold the key that the secrets in this database are sealed with: it is not the key of this data directory; put the right one back", sl.file.path)
		}
	}
	if sealed := settings[cursorKey]; sealed != nil {
		if sl.cursor, err = sl.open(sealed, cursorKey); err != nil {
			return err
		}
	} else {
		sl.cursor = make([]byte, 32)
		rand.Read(sl.cursor)
	}
	if settings[keyCheck] == nil || settings[cursorKey] == nil {
		err := s.writer.do(func(t *tx) error {
			return errors.Join(
				t.Exec("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", keyCheck, sl.seal([]byte(keyCheckText), keyCheck)),
				t.Exec("INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", cursorKey, sl.seal(sl.cursor, cursorKey)))
		})
		if err != nil {
			return err
		}
	}
	s.seal = sl
	s.finishRotation()
	return nil
}

// use makes these the keys, beside those in use before.
func (s *sealer) use(keys []secretKey) error {
	if before := s.keys.Load(); before != nil {
		keys = slices.Clone(keys)
		for _, k := range *before {
			if !slices.Contains(keys, k.key) {
				keys = append(keys, k.key)
			}
		}
		keys = keys[:min(len(keys), maxKeys)]
	}
	all := make([]*sealKey, len(keys))
	for i, key := range keys {
		derived, err := hkdf.Key(sha256.New, key[:], nil, "seal", 32)
		if err != nil {
			return err
		}
		block, err := aes.NewCipher(derived)
		if err != nil {
			return err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return err
		}
		all[i] = &sealKey{key, aead}
	}
	s.keys.Store(&all)
	return nil
}

// current is the key that seals.
func (s *sealer) current() secretKey { return (*s.keys.Load())[0].key }

// seal encrypts a secret for one place, such as a column of one record: it
// cannot be opened in another. It is called inside a write alone: a rotation
// waits for the writes under way, and nothing else, before it looks for what
// is sealed with an old key. What it returns is stored in one of
// [sealedColumns].
func (s *sealer) seal(secret []byte, place string) []byte {
	return (*s.keys.Load())[0].aead.Seal(nil, nil, secret, []byte(place))
}

func (s *sealer) open(sealed []byte, place string) ([]byte, error) {
	secret, _, err := s.openWith(sealed, place)
	return secret, err
}

// errSealed says that no key opens a secret.
var errSealed = errors.New("a sealed secret cannot be opened")

// openWith also returns which of the keys opened it, counted from 0.
func (s *sealer) openWith(sealed []byte, place string) ([]byte, int, error) {
	for i, k := range *s.keys.Load() {
		if secret, err := k.aead.Open(nil, nil, sealed, []byte(place)); err == nil {
			return secret, i, nil
		}
	}
	return nil, 0, fmt.Errorf("store: %w: %s", errSealed, place)
}

// macBytes is the size of what mac returns.
const macBytes = 12

// mac authenticates a page cursor for the list it belongs to.
func (s *sealer) mac(parts ...string) []byte {
	m := hmac.New(sha256.New, s.cursor)
	for _, p := range parts {
		m.Write([]byte(p))
		m.Write([]byte{0})
	}
	return m.Sum(nil)[:macBytes]
}

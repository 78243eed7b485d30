package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sealer keeps secrets unreadable in the database and its copies. Its key lies
// beside the database in a file of its own, so that a copy of one alone
// betrays nothing.
type sealer struct {
	aead   cipher.AEAD
	cursor []byte // the key of page cursors' authentication
}

// openSealer reads the key, or makes one for a database that has none yet. A
// database whose key is missing or wrong is refused: its secrets would be lost
// in silence.
func (s *Store) openSealer(path string) (*sealer, error) {
	var check []byte
	err := s.writer.do(func(t *tx) error {
		err := t.scan("SELECT value FROM settings WHERE name = 'key_check'", nil, &check)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && check != nil:
		return nil, fmt.Errorf("%s is missing: it is the key of the secrets in this database; put it back", path)
	case errors.Is(err, fs.ErrNotExist):
		key := make([]byte, 32)
		rand.Read(key)
		text = []byte(hex.EncodeToString(key) + "\n")
		if err := writeDurably(path, text); err != nil {
			return nil, fmt.Errorf("write %s: %w", path, err)
		}
	case err != nil:
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("%s does not hold a key: it must be 64 hexadecimal digits", path)
	}
	sl, err := newSealer(key)
	if err != nil {
		return nil, err
	}
	const canary = "the key fits"
	if check == nil {
		return sl, s.writer.do(func(t *tx) error {
			return t.exec("INSERT INTO settings (name, value) VALUES ('key_check', ?)", sl.seal([]byte(canary), "key_check"))
		})
	}
	if got, err := sl.open(check, "key_check"); err != nil || string(got) != canary {
		return nil, fmt.Errorf("%s is not the key that the secrets in this database are sealed with; put the right one back", path)
	}
	return sl, nil
}

func newSealer(key []byte) (*sealer, error) {
	seal, err := hkdf.Key(sha256.New, key, nil, "seal", 32)
	if err != nil {
		return nil, err
	}
	cursor, err := hkdf.Key(sha256.New, key, nil, "cursor", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(seal)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &sealer{aead: aead, cursor: cursor}, err
}

// seal encrypts a secret for one place, such as a column of one record: it
// cannot be opened in another.
func (s *sealer) seal(secret []byte, place string) []byte {
	return s.aead.Seal(nil, nil, secret, []byte(place))
}

func (s *sealer) open(sealed []byte, place string) ([]byte, error) {
	secret, err := s.aead.Open(nil, nil, sealed, []byte(place))
	if err != nil {
		return nil, fmt.Errorf("store: the sealed %s cannot be opened", place)
	}
	return secret, nil
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

// writeDurably makes a file of mode 0600 that is whole or not there.
func writeDurably(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

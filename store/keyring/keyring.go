// Package keyring encrypts secrets at rest with AES-256-GCM. The keys are in a file
// outside the database, so a copy of the database alone reveals no secret.
//
// A key can be rotated while the service runs, see [Keyring.Rotate]. At any moment,
// and so after any crash, the key file contains the keys for everything that is
// encrypted. The caller decides what to encrypt and stores the result.
package keyring

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"service/internal/durable"
)

// Keyring encrypts and decrypts secrets. It is safe for concurrent use.
//
// During a rotation it contains several keys. Old keys stay in memory afterwards, because a
// reader may still hold a secret that was encrypted with one.
type Keyring struct {
	file *File
	keys atomic.Pointer[[]*ringKey] // the first encrypts, all decrypt; never empty

	rotating sync.Mutex // held while the key file changes
}

// ringKey is a key and the cipher derived from it.
type ringKey struct {
	key  Key
	aead cipher.AEAD
}

// New returns a keyring with the keys that were read from file.
func New(file *File, keys []Key) (*Keyring, error) {
	k := &Keyring{file: file}
	return k, k.use(keys)
}

// Open reads the key file, or creates it with a new key if it does not exist. It does
// not create the file if needed is set, which says that secrets are already encrypted,
// or if the operator has configured its path. The error wraps [ErrKey].
func Open(file *File, needed bool) (*Keyring, error) {
	keys, err := file.Read()
	switch {
	case errors.Is(err, fs.ErrNotExist) && (needed || file.Named):
		return nil, file.Missing(needed)
	case errors.Is(err, fs.ErrNotExist):
		keys = []Key{NewKey()}
		if err := durable.WriteFile(file.Path, Format(keys), 0o600); err != nil {
			return nil, Errorf("create %s: %w", file.Path, err)
		}
	case err != nil:
		return nil, err
	}
	return New(file, keys)
}

// File returns the key file.
func (k *Keyring) File() *File { return k.file }

// CheckPlace is the place for which [Keyring.NewCheck] encrypts.
const CheckPlace = "key_check"

const checkText = "the key fits"

// NewCheck returns an encrypted value that is stored in the database. [Keyring.Fits] uses it
// to check whether the key file belongs to the database. The value must be re-encrypted like
// a secret.
func (k *Keyring) NewCheck() []byte { return k.Encrypt([]byte(checkText), CheckPlace) }

// Fits reports whether one of the keys decrypts a value of NewCheck.
func (k *Keyring) Fits(check []byte) bool {
	text, err := k.Decrypt(check, CheckPlace)
	return err == nil && string(text) == checkText
}

// use sets the keys, and keeps those in use before for decryption.
func (k *Keyring) use(keys []Key) error {
	if before := k.keys.Load(); before != nil {
		keys = slices.Clone(keys)
		for _, old := range *before {
			if !slices.Contains(keys, old.key) {
				keys = append(keys, old.key)
			}
		}
		keys = keys[:min(len(keys), MaxKeys)]
	}
	all := make([]*ringKey, len(keys))
	for i, key := range keys {
		derived, err := hkdf.Key(sha256.New, key[:], nil, "seal", 32) // never change "seal": existing secrets depend on it
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
		all[i] = &ringKey{key, aead}
	}
	k.keys.Store(&all)
	return nil
}

// current returns the key that encrypts.
func (k *Keyring) current() Key { return (*k.keys.Load())[0].key }

// Encrypt encrypts a secret for one place, such as a column of one record. The place
// is authenticated: the secret cannot be decrypted for another place.
//
// Encrypt must be called inside a write of the store. A rotation waits for writes in
// progress before it looks for secrets that an old key encrypted, so it would miss a
// secret that is encrypted before its write begins.
func (k *Keyring) Encrypt(secret []byte, place string) []byte {
	return (*k.keys.Load())[0].aead.Seal(nil, nil, secret, []byte(place))
}

// Decrypt decrypts a secret that was encrypted for the same place.
func (k *Keyring) Decrypt(encrypted []byte, place string) ([]byte, error) {
	secret, _, err := k.DecryptWith(encrypted, place)
	return secret, err
}

// ErrDecrypt means that none of the keys decrypts a secret.
var ErrDecrypt = errors.New("an encrypted secret cannot be decrypted")

// DecryptWith is like Decrypt, and returns the index of the key that decrypted the secret as
// well. 0 is the key that encrypts.
func (k *Keyring) DecryptWith(encrypted []byte, place string) ([]byte, int, error) {
	for i, key := range *k.keys.Load() {
		if secret, err := key.aead.Open(nil, nil, encrypted, []byte(place)); err == nil {
			return secret, i, nil
		}
	}
	return nil, 0, fmt.Errorf("store: %w: %s", ErrDecrypt, place)
}

// Rotate replaces the key that encrypts. The new key is random, unless the operator
// has put a new one above the current one in the file.
//
// Rotate writes the new key above the old one, calls reencrypt, and removes the old
// key. reencrypt must re-encrypt everything that is not encrypted with the first key.
// If ctx ends or a step fails, both keys stay in the file, and the next call
// continues, or [Keyring.DropOld] after a restart. reencrypt is called twice if an
// interrupted rotation must be completed first.
//
// oldKept reports that the unused old key is still in the file because the file cannot be
// written. The error wraps [ErrKey] if the file is the cause.
func (k *Keyring) Rotate(ctx context.Context, reencrypt func(context.Context) error) (oldKept bool, err error) {
	k.rotating.Lock()
	defer k.rotating.Unlock()
	keys, err := k.file.Read()
	if err != nil {
		return false, err
	}
	current := k.current()
	given := keys[0] != current // by the operator
	if given && !slices.Contains(keys, current) {
		return false, Errorf("%s does not hold the key in use: add it below the new one", k.file.Path)
	}
	if !given {
		if len(keys) > 1 { // complete the interrupted rotation
			if err := k.use(keys); err != nil {
				return false, err
			}
			if err := reencrypt(ctx); err != nil {
				return false, err
			}
			keys = keys[:1]
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		keys = []Key{NewKey(), keys[0]}
		if err := k.file.write(keys); err != nil {
			return false, Errorf("%s cannot be written, so the key was not changed (%w): to rotate the key, add a new one "+
				"(64 random hexadecimal digits) on a line above the current one, and run this command again or restart the service",
				k.file.Path, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := k.use(keys); err != nil {
		return false, err
	}
	if err := reencrypt(ctx); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := k.file.write(keys[:1]); err != nil {
		if !given {
			return false, Errorf("%s cannot be written: all secrets are encrypted with the new key, "+
				"but the old key is still on the second line; the next start removes it: %w", k.file.Path, err)
		}
		oldKept = true
	}
	return oldKept, nil
}

// Interrupted reports whether old keys remain from an interrupted rotation. They can
// be dropped once everything is re-encrypted.
func (k *Keyring) Interrupted() bool { return len(*k.keys.Load()) > 1 }

// DropOld removes the old keys from the file. It is called after a restart, once
// everything is re-encrypted.
func (k *Keyring) DropOld() error { return k.file.write([]Key{k.current()}) }

// Content returns the content of the key file and blocks rotations until release is
// called. The caller must call release once, unless there is an error.
func (k *Keyring) Content() (content []byte, release func(), err error) {
	k.rotating.Lock()
	keys, err := k.file.Read()
	if err != nil {
		k.rotating.Unlock()
		return nil, nil, err
	}
	return Format(keys), k.rotating.Unlock, nil
}

// Package keyring encrypts secrets at rest. Its keys lie in a file apart from the
// database, so that a copy of the database alone reveals no secret.
//
// A key can be replaced while everything goes on, see [Keyring.Rotate]: at every
// moment, and so after every crash, the file holds the keys of all that is
// encrypted. What is encrypted, and where, is the caller's.
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

// Keyring is the keys in use. Its methods may be called from any goroutine.
//
// There are several keys while one is being replaced. Keys that were replaced
// stay in memory, for readers of a secret that was re-encrypted since.
type Keyring struct {
	file *File
	keys atomic.Pointer[[]*ringKey] // the first encrypts, all of them decrypt; never empty

	rotating sync.Mutex // held while the file changes
}

// ringKey is one key, and the cipher that is derived from it.
type ringKey struct {
	key  Key
	aead cipher.AEAD
}

// New returns a keyring of keys that were read from file.
func New(file *File, keys []Key) (*Keyring, error) {
	k := &Keyring{file: file}
	return k, k.use(keys)
}

// Open reads the keys of a file, or makes one when there is no file. Needed says
// that there are secrets that the keys have encrypted: then a missing file is
// refused, as is one that the operator has named. The error wraps [ErrKey].
func Open(file *File, needed bool) (*Keyring, error) {
	keys, err := file.Read()
	switch {
	case errors.Is(err, fs.ErrNotExist) && (needed || file.Named):
		return nil, file.Missing(needed)
	case errors.Is(err, fs.ErrNotExist):
		keys = []Key{NewKey()}
		if err := durable.WriteFile(file.Path, Format(keys), 0o600); err != nil {
			return nil, Errorf("%s cannot be written: %w", file.Path, err)
		}
	case err != nil:
		return nil, err
	}
	return New(file, keys)
}

// File returns the file of the keys.
func (k *Keyring) File() *File { return k.file }

// CheckPlace is the place that a check is encrypted for.
const CheckPlace = "key_check"

const checkText = "the key fits"

// NewCheck returns what proves later that keys fit, see Fits. It must be
// re-encrypted like a secret.
func (k *Keyring) NewCheck() []byte { return k.Encrypt([]byte(checkText), CheckPlace) }

// Fits says whether one of the keys has encrypted a check.
func (k *Keyring) Fits(check []byte) bool {
	text, err := k.Decrypt(check, CheckPlace)
	return err == nil && string(text) == checkText
}

// use makes these the keys, beside those in use before.
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
		derived, err := hkdf.Key(sha256.New, key[:], nil, "seal", 32) // never change this: it is part of the format
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

// current is the key that encrypts.
func (k *Keyring) current() Key { return (*k.keys.Load())[0].key }

// Encrypt encrypts a secret for one place, such as a column of one record: it
// cannot be decrypted for another.
//
// It must be called inside a write of the store, and its result stored where the
// caller's re-encryption finds it: that waits for the writes in progress, and for
// nothing else, before it looks for what an old key has encrypted.
func (k *Keyring) Encrypt(secret []byte, place string) []byte {
	return (*k.keys.Load())[0].aead.Seal(nil, nil, secret, []byte(place))
}

// Decrypt returns a secret that was encrypted for a place.
func (k *Keyring) Decrypt(encrypted []byte, place string) ([]byte, error) {
	secret, _, err := k.DecryptWith(encrypted, place)
	return secret, err
}

// ErrDecrypt says that no key decrypts a secret.
var ErrDecrypt = errors.New("an encrypted secret cannot be decrypted")

// DecryptWith is Decrypt; it also returns which of the keys decrypted the secret,
// 0 for the one that encrypts.
func (k *Keyring) DecryptWith(encrypted []byte, place string) ([]byte, int, error) {
	for i, key := range *k.keys.Load() {
		if secret, err := key.aead.Open(nil, nil, encrypted, []byte(place)); err == nil {
			return secret, i, nil
		}
	}
	return nil, 0, fmt.Errorf("store: %w: %s", ErrDecrypt, place)
}

// Rotate replaces the key that encrypts. The new key is random; or, when the
// operator has put one above the present one in the file, that one.
//
// First the new key is put above the old one, then reencrypt is called, which
// must encrypt everything again that another key than the first decrypts, and at
// the end the old key is dropped. When ctx ends in between, or something fails,
// both keys stay, and the next call, or [Keyring.DropOld] after a restart, goes
// on. Reencrypt may be called twice: a rotation that was interrupted is finished
// first.
//
// It returns true when the old key is still in the file, which cannot be written,
// and of no more use. The error wraps [ErrKey] when the file is the cause.
func (k *Keyring) Rotate(ctx context.Context, reencrypt func(context.Context) error) (oldKept bool, err error) {
	k.rotating.Lock()
	defer k.rotating.Unlock()
	keys, err := k.file.Read()
	if err != nil {
		return false, err
	}
	present := k.current()
	given := keys[0] != present
	if given && !slices.Contains(keys, present) {
		return false, Errorf("%s does not hold the key in use any more: put it back, below the new one", k.file.Path)
	}
	if !given {
		if len(keys) > 1 { // an earlier one did not come to its end
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
			return false, Errorf("%s cannot be written, and the secrets are encrypted as before (%w); to replace the key put a new one, 64 random hexadecimal digits, into it on a line above the present one, and call this again or restart the service", k.file.Path, err)
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
			return false, Errorf("%s cannot be written: all secrets are encrypted with the new key, and the old one is still on its second line; the next start removes it: %w", k.file.Path, err)
		}
		oldKept = true
	}
	return oldKept, nil
}

// Interrupted says whether there are older keys, of a rotation that was
// interrupted. They can be dropped when everything is re-encrypted.
func (k *Keyring) Interrupted() bool { return len(*k.keys.Load()) > 1 }

// DropOld removes the older keys from the file. It is called after a restart,
// when everything is re-encrypted.
func (k *Keyring) DropOld() error { return k.file.write([]Key{k.current()}) }

// Content returns what the file of the keys holds, which no rotation changes
// until release is called. The caller must call it once, unless there is an error.
func (k *Keyring) Content() (content []byte, release func(), err error) {
	k.rotating.Lock()
	keys, err := k.file.Read()
	if err != nil {
		k.rotating.Unlock()
		return nil, nil, err
	}
	return Format(keys), k.rotating.Unlock, nil
}

package keyring

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestEncrypt(t *testing.T) {
	k, err := Open(&File{Path: filepath.Join(t.TempDir(), FileName)}, false)
	if err != nil {
		t.Fatal(err)
	}
	encrypted := k.Encrypt([]byte("secret"), "here")
	if got, err := k.Decrypt(encrypted, "here"); err != nil || string(got) != "secret" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := k.Decrypt(encrypted, "there"); !errors.Is(err, ErrDecrypt) {
		t.Errorf("for another place: got %q, %v", got, err)
	}
	other, err := New(nil, []Key{NewKey()})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := other.Decrypt(encrypted, "here"); !errors.Is(err, ErrDecrypt) {
		t.Errorf("with another key: got %q, %v", got, err)
	}
	if check := k.NewCheck(); !k.Fits(check) || other.Fits(check) {
		t.Errorf("its own key fits: %t, another does: %t", k.Fits(check), other.Fits(check))
	}
}

// A key that is needed, or that the operator has named, is not made.
func TestOpenMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	for _, c := range []struct{ needed, named, want bool }{{true, false, false}, {false, true, false}, {false, false, true}} {
		_, err := Open(&File{Path: path, Named: c.named}, c.needed)
		if (err == nil) != c.want || err != nil && !errors.Is(err, ErrKey) {
			t.Errorf("needed %t, named %t: got %v", c.needed, c.named, err)
		}
	}
}

// The file holds both keys while the secrets are re-encrypted, and afterwards the
// new one alone; a rotation that fails in between is continued.
func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	k, err := Open(&File{Path: path}, false)
	if err != nil {
		t.Fatal(err)
	}
	inFile := func() int {
		t.Helper()
		b, err := os.ReadFile(path)
		keys, ok := Parse(b)
		if err != nil || !ok {
			t.Fatalf("%q, %v", b, err)
		}
		return len(keys)
	}
	secret, failure := k.Encrypt([]byte("secret"), "here"), errors.New("failure")
	if _, err := k.Rotate(t.Context(), func(context.Context) error { return failure }); !errors.Is(err, failure) || inFile() != 2 {
		t.Errorf("a rotation that fails: got %v, and %d keys", err, inFile())
	}
	calls := 0
	reencrypt := func(context.Context) error {
		calls++
		plain, which, err := k.DecryptWith(secret, "here")
		if err != nil || which == 0 || inFile() != 2 {
			t.Errorf("call %d: decrypted with key %d of %d, %v", calls, which, inFile(), err)
		}
		secret = k.Encrypt(plain, "here")
		return err
	}
	if kept, err := k.Rotate(t.Context(), reencrypt); err != nil || kept || calls != 2 || inFile() != 1 {
		t.Errorf("got %t, %v after %d calls, and %d keys", kept, err, calls, inFile())
	}
	again, err := Open(&File{Path: path}, true)
	if err != nil || again.Interrupted() {
		t.Fatalf("interrupted: %t, %v", again.Interrupted(), err)
	}
	if got, err := again.Decrypt(secret, "here"); err != nil || string(got) != "secret" {
		t.Errorf("after a restart: got %q, %v", got, err)
	}
}

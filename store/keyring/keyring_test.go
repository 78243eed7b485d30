package keyring

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEncrypt(t *testing.T) {
	k, err := Open(&File{Path: filepath.Join(t.TempDir(), FileName)}, false)
	must(t, err)
	encrypted := k.Encrypt([]byte("secret"), "here")
	if got, err := k.Decrypt(encrypted, "here"); err != nil || string(got) != "secret" {
		t.Errorf("got %q, %v, want secret", got, err)
	}
	if got, err := k.Decrypt(encrypted, "there"); !errors.Is(err, ErrDecrypt) {
		t.Errorf("another place: got %q, %v, want %v", got, err, ErrDecrypt)
	}
	other, err := New(nil, []Key{NewKey()})
	must(t, err)
	if got, err := other.Decrypt(encrypted, "here"); !errors.Is(err, ErrDecrypt) {
		t.Errorf("another key: got %q, %v, want %v", got, err, ErrDecrypt)
	}
	if check := k.NewCheck(); !k.Fits(check) || other.Fits(check) {
		t.Errorf("Fits: got %t for the own key and %t for another, want true and false", k.Fits(check), other.Fits(check))
	}
}

// Open does not create a key that is needed or whose path the operator configured.
func TestOpenMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	for _, c := range []struct{ needed, named, want bool }{{true, false, false}, {false, true, false}, {false, false, true}} {
		_, err := Open(&File{Path: path, Named: c.named}, c.needed)
		if (err == nil) != c.want || err != nil && !errors.Is(err, ErrKey) {
			t.Errorf("needed %t, named %t: got %v, want a new key: %t", c.needed, c.named, err, c.want)
		}
	}
}

// The file contains both keys while secrets are re-encrypted, and afterwards only the
// new one. The next rotation continues a failed one.
func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	k, err := Open(&File{Path: path}, false)
	must(t, err)
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
		t.Errorf("reencrypt fails: got %v and %d keys, want %v and 2", err, inFile(), failure)
	}
	calls := 0
	reencrypt := func(context.Context) error {
		calls++
		plain, which, err := k.DecryptWith(secret, "here")
		if err != nil || which == 0 || inFile() != 2 {
			t.Errorf("call %d: got key %d of %d, %v, want an old key of 2", calls, which, inFile(), err)
		}
		secret = k.Encrypt(plain, "here")
		return err
	}
	if kept, err := k.Rotate(t.Context(), reencrypt); err != nil || kept || calls != 2 || inFile() != 1 {
		t.Errorf("got %t, %v after %d calls, and %d keys, want false, 2 calls and 1 key", kept, err, calls, inFile())
	}
	again, err := Open(&File{Path: path}, true)
	must(t, err)
	if again.Interrupted() {
		t.Error("reopened: got an interrupted rotation, want none")
	}
	if got, err := again.Decrypt(secret, "here"); err != nil || string(got) != "secret" {
		t.Errorf("reopened: got %q, %v, want secret", got, err)
	}
}

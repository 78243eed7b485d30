package keyring

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"service/internal/durable"
	"service/test/harness"
)

// A key file of another user may be readable for others: systemd and Kubernetes mount
// secrets in this way.
func TestKeyFileOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.Unavailable(t, "owner", "only root can make a key file of another user")
	}
	path := filepath.Join(t.TempDir(), "key")
	key := NewKey()
	for mode, ok := range map[os.FileMode]bool{0o400: true, 0o440: true, 0o444: true, 0o464: false, 0o446: false} {
		must(t, errors.Join(os.WriteFile(path, Format([]Key{key}), 0o600), os.Chmod(path, mode), os.Chown(path, 65534, 65534)))
		f := &File{Path: path, Named: true}
		if _, err := f.Read(); (err == nil) != ok {
			t.Errorf("mode %04o: got %v, want it accepted: %v", mode, err, ok)
		}
		if got, want := f.Exposed(), mode&0o004 != 0; got != want {
			t.Errorf("mode %04o: exposed: got %v, want %v", mode, got, want)
		}
	}
	// After root replaced the file, it still belongs to that user.
	must(t, os.Chmod(path, 0o400))
	f := &File{Path: path}
	must(t, f.write([]Key{NewKey(), key}))
	info, err := os.Stat(path)
	must(t, err)
	if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 65534 || owner.Gid != 65534 || info.Mode() != 0o400 {
		t.Errorf("got user %d, group %d, mode %v; want 65534, 65534, 0400", owner.Uid, owner.Gid, info.Mode())
	}
}

// RemoveTemp does not remove directories with files, because the directory of a
// configured key file belongs to the operator.
func TestRemoveTempKeepsDirectories(t *testing.T) {
	keys := t.TempDir()
	path := filepath.Join(keys, "key")
	left, folder := path+durable.TempSuffix+"123", path+durable.TempSuffix+"backup"
	must(t, errors.Join(os.WriteFile(left, nil, 0o600), os.MkdirAll(filepath.Join(folder, "below"), 0o700)))
	f, err := Locate(t.TempDir(), path)
	must(t, err)
	if err := f.RemoveTemp(); !errors.Is(err, ErrKey) {
		t.Errorf("got %v, want %v", err, ErrKey)
	}
	if _, err := os.Stat(filepath.Join(folder, "below")); err != nil {
		t.Errorf("directory: got %v, want it kept", err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("temporary file: got %v, want %v", err, fs.ErrNotExist)
	}
}

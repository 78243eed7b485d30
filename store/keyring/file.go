package keyring

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"service/internal/durable"
)

// FileName is the name of the key file in a data directory.
const FileName = "secret.key"

// ErrKey says that the key of the secrets, or its file, cannot be used. No
// error holds anything of the file's content.
var ErrKey = errors.New("the secret key")

// keyFault is an error about the key's file, for the operator.
type keyFault struct{ error }

func (keyFault) Is(target error) bool { return target == ErrKey }
func (e keyFault) Unwrap() error      { return e.error }

// Errorf returns an error for the operator that wraps [ErrKey].
func Errorf(format string, args ...any) error { return keyFault{fmt.Errorf(format, args...)} }

const (
	// MaxKeys bounds how many keys a file may hold: the new one, and those it
	// replaces.
	MaxKeys = 8
	// maxFile bounds the file, in bytes.
	maxFile = 4 << 10
)

// Key encrypts secrets.
type Key [32]byte

// NewKey returns a random key.
func NewKey() (k Key) {
	rand.Read(k[:])
	return k
}

// String keeps the key out of logs and errors.
func (Key) String() string { return "[redacted]" }

// File is a file of keys: a line of 64 hexadecimal digits each. The first
// encrypts. Others are there while a rotation is in progress, and decrypt what is
// not re-encrypted yet.
type File struct {
	Path  string
	Named bool // by the operator; otherwise it is the one in the data directory
}

// Locate returns the file named by the operator, or the one in the data
// directory when name is "". It refuses another file in the data directory, and
// changes nothing.
func Locate(dir, name string) (*File, error) {
	inside := filepath.Join(dir, FileName)
	f := &File{Path: inside}
	if name != "" {
		lies, err := liesIn(dir, name)
		if err != nil {
			return nil, Errorf("%s: %w", name, err)
		}
		switch lies {
		case FileName:
		case "":
			f.Path, f.Named = name, true
		default:
			return nil, Errorf("%s lies in the data directory %s: a copy of that would hold the secrets and their key; keep the key elsewhere, or name none, which means %s", name, dir, inside)
		}
	}
	return f, nil
}

// CheckFile says what is wrong with the key file that the operator has named for
// a data directory; "" names none. Used says that the directory has a database.
// It changes nothing, and does not know whether the key fits the database. The
// error wraps [ErrKey].
func CheckFile(dir, name string, used bool) error {
	if name == "" {
		return nil
	}
	f, err := Locate(dir, name)
	if err != nil || !f.Named {
		return err
	}
	if _, err = f.Read(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.Missing(used)
}

// RemoveTemp removes what a crash has left beside the file: a file that holds
// keys. The folder may be the operator's: a directory of such a name is refused,
// unless it is empty.
func (f *File) RemoveTemp() error {
	err := durable.RemoveTemp(filepath.Dir(f.Path), filepath.Base(f.Path)+durable.TempSuffix)
	if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		return Errorf("what a crash has left: %w", err)
	}
	return nil
}

// Missing returns an error that says that the file is missing, and what to do.
// Needed says that there are secrets that it has encrypted.
func (f *File) Missing(needed bool) error {
	if needed {
		return Errorf("%s is missing: it is the key of the secrets in this database; put it back", f.Path)
	}
	// Perhaps its disk is not mounted yet. A key that is made
	// instead would be gone with the next restart, and all secrets with it.
	return Errorf("%s is missing, and is not made: put 64 random hexadecimal digits into it, readable for this user alone: (umask 077; openssl rand -hex 32 > FILE)", f.Path)
}

// liesIn returns a file's path below a directory, "" when it lies elsewhere.
// Links count as what they lead to, as far as that is there.
func liesIn(dir, name string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if led, err := filepath.EvalSymlinks(dir); err == nil {
		dir = led
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	file, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if led, err := filepath.EvalSymlinks(file); err == nil {
		file = led
	} else if folder, err := filepath.EvalSymlinks(filepath.Dir(file)); err == nil {
		file = filepath.Join(folder, filepath.Base(file))
	}
	below, err := filepath.Rel(dir, file)
	if err != nil || !filepath.IsLocal(below) {
		return "", nil // not below it, or on another drive
	}
	return below, nil
}

// Read returns the keys, the first of which encrypts. The error wraps
// fs.ErrNotExist when the file is not there, and [ErrKey] in all cases.
func (f *File) Read() ([]Key, error) {
	info, err := os.Stat(f.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, Errorf("%s is missing: %w", f.Path, err)
	case err != nil:
		return nil, f.unreadable(err)
	case info.IsDir():
		return nil, Errorf("%s is a directory; it must be a file that holds the key", f.Path)
	case !info.Mode().IsRegular():
		return nil, Errorf("%s is not a regular file; the key is read again when it is replaced", f.Path)
	case info.Size() == 0:
		return nil, Errorf("%s is empty; %s", f.Path, keyForm)
	case info.Size() > maxFile:
		return nil, Errorf("%s is no key file, it has %d bytes; %s", f.Path, info.Size(), keyForm)
	}
	if err := f.checkMode(info); err != nil {
		return nil, err
	}
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, f.unreadable(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return nil, f.unreadable(err)
	}
	keys, ok := Parse(text)
	if !ok {
		return nil, Errorf("%s does not hold a key; %s", f.Path, keyForm)
	}
	return keys, nil
}

const keyForm = "it must hold 64 hexadecimal digits, the key, and below it, while one is being replaced, the older ones, a line each, 8 in all at the most"

func (f *File) unreadable(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return Errorf("%s may not be read by the user that the service runs as (%d): %w", f.Path, os.Geteuid(), err)
	}
	return Errorf("%s cannot be read: %w", f.Path, err)
}

// checkMode refuses a key that other users could read or change, when it is
// this user's to protect. Another user's file may well be meant for a group,
// and shows it: so systemd and Kubernetes hand over secrets.
func (f *File) checkMode(info fs.FileInfo) error {
	mode := info.Mode().Perm()
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case mode&0o022 != 0:
		return Errorf("%s can be changed by other users than its owner (mode %04o): chmod 600 %[1]s", f.Path, mode)
	case mode&0o077 != 0 && known && int(owner.Uid) == os.Geteuid():
		return Errorf("%s can be read by other users (mode %04o): chmod 600 %[1]s (for a secret that Kubernetes mounts: defaultMode: 0400)", f.Path, mode)
	}
	return nil
}

// Exposed says whether every user of the machine can read the file.
func (f *File) Exposed() bool {
	info, err := os.Stat(f.Path)
	return err == nil && info.Mode().Perm()&0o004 != 0
}

// write replaces the keys. When it fails the file is as it was, or the new one
// is whole in its place.
func (f *File) write(keys []Key) error {
	return durable.ReplaceFile(f.Path, Format(keys))
}

// Format returns the content of a file of keys.
func Format(keys []Key) []byte {
	var b bytes.Buffer
	for _, k := range keys {
		b.WriteString(hex.EncodeToString(k[:]))
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Parse reads the content of a file of keys. It returns false when it is none.
func Parse(text []byte) ([]Key, bool) {
	var keys []Key
	for line := range bytes.Lines(bytes.TrimSpace(text)) {
		var k Key
		line = bytes.TrimSpace(line)
		if hex.DecodedLen(len(line)) != len(k) {
			return nil, false
		}
		if _, err := hex.Decode(k[:], line); err != nil {
			return nil, false
		}
		keys = append(keys, k)
	}
	return keys, 0 < len(keys) && len(keys) <= MaxKeys
}

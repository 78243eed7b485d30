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

// ErrKey means that the key or its file cannot be used. Errors never contain any of
// the file's content.
var ErrKey = errors.New("the secret key")

// keyError is an error about the key file, for the operator.
type keyError struct{ error }

func (keyError) Is(target error) bool { return target == ErrKey }
func (e keyError) Unwrap() error      { return e.error }

// Errorf returns an error for the operator that wraps [ErrKey].
func Errorf(format string, args ...any) error { return keyError{fmt.Errorf(format, args...)} }

const (
	// MaxKeys is the maximum number of keys in a file: the new one and those that it
	// replaces.
	MaxKeys = 8
	// maxFile is the maximum size of the file in bytes.
	maxFile = 4 << 10
)

// Key encrypts secrets.
type Key [32]byte

// NewKey returns a random key.
func NewKey() (k Key) {
	rand.Read(k[:])
	return k
}

// String returns a constant, to keep the key out of logs and errors.
func (Key) String() string { return "[redacted]" }

// File is a key file. It contains one key per line, as 64 hexadecimal digits. The first key
// encrypts. During a rotation, further keys decrypt the secrets that are not re-encrypted
// yet.
type File struct {
	Path  string
	Named bool // the operator configured the path; otherwise it is in the data directory
}

// Locate returns the key file that the operator configured, or the one in the data
// directory if name is "". It rejects any other path in the data directory. It does
// not create the file.
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
			return nil, Errorf("%s is in the data directory %s, so a copy of it would contain the secrets and their key: "+
				"keep the key elsewhere, or use the default, which is %s", name, dir, inside)
		}
	}
	return f, nil
}

// CheckFile checks the key file that the operator configured for a data directory, or
// nothing if name is "". used says that the directory contains a database. CheckFile does
// not check whether the key belongs to that database. The error wraps [ErrKey].
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

// RemoveTemp removes the temporary files that a crash has left next to the key file, since
// they contain keys. The directory may belong to the operator, so a subdirectory with such a
// name is an error unless it is empty.
func (f *File) RemoveTemp() error {
	err := durable.RemoveTemp(filepath.Dir(f.Path), filepath.Base(f.Path)+durable.TempSuffix)
	if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		return Errorf("remove temporary key files: %w", err)
	}
	return nil
}

// Missing returns an error that says that the file is missing and what to do. needed
// says that secrets are encrypted with it.
func (f *File) Missing(needed bool) error {
	if needed {
		return Errorf("%s is missing: it is the key of the secrets in this database; put it back", f.Path)
	}
	// The file is not created, because its disk may not be mounted yet: a new key
	// would disappear with the next mount, and all secrets with it.
	return Errorf("%s is missing and is not created automatically: put 64 random hexadecimal digits into it, readable only for this user: "+
		"(umask 077; openssl rand -hex 32 > FILE)", f.Path)
}

// liesIn returns the path of a file relative to dir, or "" if the file is not in dir.
// It resolves symbolic links as far as their targets exist.
func liesIn(dir, name string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		dir = target
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	file, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target
	} else if parent, err := filepath.EvalSymlinks(filepath.Dir(file)); err == nil {
		file = filepath.Join(parent, filepath.Base(file))
	}
	relative, err := filepath.Rel(dir, file)
	if err != nil || !filepath.IsLocal(relative) {
		return "", nil // elsewhere, or on another drive
	}
	return relative, nil
}

// Read returns the keys. The first one encrypts. The error wraps [ErrKey], and
// fs.ErrNotExist if the file does not exist.
func (f *File) Read() ([]Key, error) {
	info, err := os.Stat(f.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, Errorf("%s is missing: %w", f.Path, err)
	case err != nil:
		return nil, f.unreadable(err)
	case info.IsDir():
		return nil, Errorf("%s is a directory; it must be a file that contains the key", f.Path)
	case !info.Mode().IsRegular():
		return nil, Errorf("%s is not a regular file; it must be one, since a rotation reads it again", f.Path)
	case info.Size() == 0:
		return nil, Errorf("%s is empty; %s", f.Path, keyForm)
	case info.Size() > maxFile:
		return nil, Errorf("%s is not a key file: it has %d bytes; %s", f.Path, info.Size(), keyForm)
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
		return nil, Errorf("%s does not contain a key; %s", f.Path, keyForm)
	}
	return keys, nil
}

const keyForm = "it must contain the key as 64 hexadecimal digits and, during a rotation, the old keys on the lines below (at most 8 keys)"

func (f *File) unreadable(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return Errorf("%s is not readable for the user that the service runs as (uid %d): %w", f.Path, os.Geteuid(), err)
	}
	return Errorf("%s cannot be read: %w", f.Path, err)
}

// checkMode rejects a key that other users can change, and a key of this user that
// others can read. A file of another user may be readable for a group or for all,
// because systemd and Kubernetes mount secrets in this way.
func (f *File) checkMode(info fs.FileInfo) error {
	mode := info.Mode().Perm()
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case mode&0o022 != 0:
		return Errorf("%s can be changed by users other than its owner (mode %04o): chmod 600 %[1]s", f.Path, mode)
	case mode&0o077 != 0 && known && int(owner.Uid) == os.Geteuid():
		return Errorf("%s can be read by other users (mode %04o): chmod 600 %[1]s (for a secret that Kubernetes mounts: defaultMode: 0400)",
			f.Path, mode)
	}
	return nil
}

// Exposed reports whether every user of the machine can read the file.
func (f *File) Exposed() bool {
	info, err := os.Stat(f.Path)
	return err == nil && info.Mode().Perm()&0o004 != 0
}

// write atomically replaces the keys in the file.
func (f *File) write(keys []Key) error {
	return durable.ReplaceFile(f.Path, Format(keys))
}

// Format returns the content of a key file.
func Format(keys []Key) []byte {
	var b bytes.Buffer
	for _, k := range keys {
		b.WriteString(hex.EncodeToString(k[:]))
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Parse parses the content of a key file. It returns false if the content is invalid.
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

// OfContent returns the keyring of a key file's content. It has no file, so its keys cannot be
// rotated.
func OfContent(content []byte) (*Keyring, error) {
	keys, ok := Parse(content)
	if !ok {
		return nil, errors.New("the content of its key file is not a key")
	}
	return New(nil, keys)
}

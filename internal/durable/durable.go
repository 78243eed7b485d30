// Package durable writes and renames files so that they survive a power cut.
//
// A file that it has written is whole or not there, and a file that it has
// replaced holds the old content or the new, whenever the power goes.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// TempSuffix ends the name of a file or directory that is not complete yet,
// before some random digits. A crash can leave one: see [RemoveTemp] and
// [RemoveTempAll].
const TempSuffix = ".unfinished-"

// CreateTemp creates a temporary file of mode 0600 beside path, with
// [TempSuffix] in its name.
func CreateTemp(path string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(path), filepath.Base(path)+TempSuffix+"*")
}

// RemoveTemp removes the temporary files in dir whose names begin with prefix. It
// treats a temporary directory as [os.Remove] does: one that is not empty stays,
// and is an error. If dir cannot be read, RemoveTemp does nothing.
func RemoveTemp(dir, prefix string) error { return removeTemp(dir, prefix, os.Remove) }

// RemoveTempAll is [RemoveTemp] that removes directories with all that they
// contain.
func RemoveTempAll(dir, prefix string) error { return removeTemp(dir, prefix, os.RemoveAll) }

func removeTemp(dir, prefix string, remove func(path string) error) error {
	entries, _ := os.ReadDir(dir)
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && strings.Contains(e.Name(), TempSuffix) {
			errs = append(errs, remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// WriteFile writes a file with the given mode, whatever the umask, and replaces
// what was at path. No moment shows it with a wider mode.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, func(f *os.File) error { return f.Chmod(mode) })
}

// ReplaceFile replaces the content of a file that exists. The new file has the
// mode and the owner of the old one; a symbolic link keeps leading to it. The
// caller needs permission to write to the directory, not to the file.
func ReplaceFile(path string, data []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	old, err := os.Stat(path)
	if err != nil {
		return err
	}
	return write(path, data, func(f *os.File) error {
		// A command that root runs must leave a file that its owner can read.
		owner, ok := old.Sys().(*syscall.Stat_t)
		if ok && (int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid()) {
			if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
				return err
			}
		}
		return f.Chmod(old.Mode().Perm())
	})
}

// write writes a temporary file, which permit gives its mode and owner while it
// is empty, and renames it to path.
func write(path string, data []byte, permit func(*os.File) error) error {
	f, err := CreateTemp(path)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // no longer there after the rename
	if err = permit(f); err == nil {
		_, err = f.Write(data)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return Rename(f.Name(), path)
}

// Rename renames a file or directory and syncs the directory of its new name.
// When both names are not in one directory the caller syncs the other.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncFile syncs the content of a file and returns its size in bytes.
func SyncFile(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// SyncDir syncs the names in a directory.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

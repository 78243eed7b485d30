// Package durable writes and renames files atomically, and fsyncs them so that they
// survive a power cut.
//
// After a crash at any moment, a new file is complete or does not exist, and a replaced file
// contains either its old content or its new content.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// TempSuffix, followed by random digits, ends the name of a file or directory that is
// incomplete. A crash can leave such files, see [RemoveTemp] and [RemoveTempAll].
const TempSuffix = ".unfinished-"

// CreateTemp creates a temporary file in the directory of path, with [TempSuffix] in
// its name and mode 0600.
func CreateTemp(path string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(path), filepath.Base(path)+TempSuffix+"*")
}

// RemoveTemp removes the temporary files in dir with the given prefix of their names.
// Like [os.Remove], it returns an error for a directory that is not empty. If dir
// cannot be read, RemoveTemp does nothing.
func RemoveTemp(dir, prefix string) error { return removeTemp(dir, prefix, os.Remove) }

// RemoveTempAll is like [RemoveTemp], but removes directories with their content.
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

// WriteFile writes a file with exactly the given mode, regardless of the umask, and
// replaces the file at path. The content is never readable with a wider mode.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, func(f *os.File) error { return f.Chmod(mode) })
}

// ReplaceFile replaces the content of an existing file and keeps its mode and owner.
// If path is a symbolic link, the link stays and its target is replaced. The caller
// needs permission to write to the directory, not to the file.
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
		// If root runs the command, the file must stay readable for its owner.
		owner, ok := old.Sys().(*syscall.Stat_t)
		if ok && (int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid()) {
			if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
				return err
			}
		}
		return f.Chmod(old.Mode().Perm())
	})
}

// write writes a temporary file and renames it to path. permit sets the mode and
// owner while the file is still empty.
func write(path string, data []byte, permit func(*os.File) error) error {
	f, err := CreateTemp(path)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // does nothing after the rename
	if err = permit(f); err == nil {
		_, err = f.Write(data)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return Rename(f.Name(), path)
}

// Rename renames a file or directory and fsyncs the directory of the new name. If
// the old name is in another directory, the caller must fsync that one.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncFile fsyncs a file and returns its size in bytes.
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

// SyncDir fsyncs a directory, so that creations, renames and removals of its files
// are durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrLocked means that another process has locked the data directory.
var ErrLocked = errors.New("the data directory is in use")

// LockFile is the name of the lock file in a data directory. It names the process that
// last locked the directory with LockDir; LockDirReadOnly does not write to it.
const LockFile = "lock"

// DirLock is an exclusive lock of a data directory. The kernel releases it when the
// process ends, however it ends.
//
// It locks both the directory and [LockFile]. The lock file alone is not enough: it
// can be deleted while it is locked, and the next process would then lock a new one.
// A directory with a database in it cannot be deleted.
type DirLock struct{ dir, file *os.File }

// LockDir locks a data directory and writes the ID of this process to [LockFile].
// The error wraps [ErrLocked] if another process holds the lock.
func LockDir(dir string) (*DirLock, error) {
	l, err := lockDir(dir, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("process %d since %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	err = l.file.Truncate(0)
	if err == nil {
		_, err = l.file.WriteAt([]byte(note), 0)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// LockDirReadOnly is like [LockDir] but does not change the directory: it neither
// creates [LockFile] nor writes to it.
func LockDirReadOnly(dir string) (*DirLock, error) { return lockDir(dir, os.O_RDONLY) }

func lockDir(dir string, flags int) (_ *DirLock, err error) {
	l := new(DirLock)
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.dir, err = os.Open(dir); err != nil {
		return nil, err
	}
	if err := tryFlock(l.dir); err != nil && !flockUnsupported(err) {
		return nil, lockError(dir, l.dir, err)
	}
	name := filepath.Join(dir, LockFile)
	l.file, err = os.OpenFile(name, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		l.file = nil
		return l, nil
	} else if err != nil {
		return nil, err
	}
	if err := tryFlock(l.file); err != nil {
		return nil, lockError(dir, l.file, err)
	}
	return l, nil
}

// Close releases the lock.
func (l *DirLock) Close() error {
	var errs []error
	for _, f := range []*os.File{l.file, l.dir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

func tryFlock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// flockUnsupported reports whether err means that the file system cannot lock
// directories. [LockFile] is the only lock there.
func flockUnsupported(err error) bool {
	for _, code := range []syscall.Errno{syscall.EBADF, syscall.EINVAL, syscall.ENOLCK, syscall.ENOSYS, syscall.ENOTSUP, syscall.EOPNOTSUPP} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// lockError explains why f, which is the directory or its lock file, cannot be locked.
func lockError(dir string, f *os.File, err error) error {
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	note, _ := os.ReadFile(filepath.Join(dir, LockFile))
	holder := strings.TrimSpace(string(note))
	if holder == "" { // the lock file was deleted
		holder = flockHolder(f)
	}
	return fmt.Errorf("%w: %s is held by %s", ErrLocked, dir, holder)
}

// flockHolder names the process that holds the lock of f, if the system reveals it.
func flockHolder(f *os.File) string {
	const unknown = "another process"
	info, err := f.Stat()
	if err != nil {
		return unknown
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unknown
	}
	// The kernel lists the locks page by page. While others are released, one read can
	// miss a lock at the border of two pages.
	for range 5 {
		locks, _ := os.ReadFile("/proc/locks") // Linux only
		for line := range strings.Lines(string(locks)) {
			// 12: FLOCK  ADVISORY  WRITE 4711 fd:01:1835010 0 EOF
			field := strings.Fields(line)
			if len(field) > 5 && field[1] == "FLOCK" && field[4] != "0" && strings.HasSuffix(field[5], fmt.Sprintf(":%d", stat.Ino)) {
				return "process " + field[4]
			}
		}
	}
	return unknown
}

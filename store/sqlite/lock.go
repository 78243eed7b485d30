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

// ErrLocked says that another process has the data directory open.
var ErrLocked = errors.New("the data directory is in use")

// LockFile is the file of the data directory that its process holds locked. It
// names that process.
const LockFile = "lock"

// DirLock is a data directory that belongs to this process until Close. The
// kernel drops the lock when the process ends, however it ends.
//
// It is a lock of the directory itself, and one of [LockFile]. The file can be
// removed while it is locked, and the next process would lock a new one; the
// directory cannot, while there is a database in it.
type DirLock struct{ dir, file *os.File }

// LockDir takes a data directory for this process. The error wraps [ErrLocked]
// when another process has it.
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

// LockDirUnchanged is [LockDir] for a process that changes nothing in the
// directory: it neither creates [LockFile] nor writes to it.
func LockDirUnchanged(dir string) (*DirLock, error) { return lockDir(dir, os.O_RDONLY) }

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

// Close gives the directory up.
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

// flockUnsupported reports whether err says that a file system has no locks for
// directories: the lock of the file must do there.
func flockUnsupported(err error) bool {
	for _, code := range []syscall.Errno{syscall.EBADF, syscall.EINVAL, syscall.ENOLCK, syscall.ENOSYS, syscall.ENOTSUP, syscall.EOPNOTSUPP} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// lockError explains why f, the directory or its lock file, cannot be locked.
func lockError(dir string, f *os.File, err error) error {
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	note, _ := os.ReadFile(filepath.Join(dir, LockFile))
	holder := strings.TrimSpace(string(note))
	if holder == "" { // the file was removed
		holder = flockHolder(f)
	}
	return fmt.Errorf("%w: %s is held by %s", ErrLocked, dir, holder)
}

// flockHolder names the process that holds the lock of f, as far as the system
// says which it is.
func flockHolder(f *os.File) string {
	const unknown = "another process"
	info, err := f.Stat()
	if err != nil {
		return unknown
	}
	of, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unknown
	}
	locks, _ := os.ReadFile("/proc/locks") // Linux alone has it
	for line := range strings.Lines(string(locks)) {
		// 12: FLOCK  ADVISORY  WRITE 4711 fd:01:1835010 0 EOF
		w := strings.Fields(line)
		if len(w) > 5 && w[1] == "FLOCK" && w[4] != "0" && strings.HasSuffix(w[5], fmt.Sprintf(":%d", of.Ino)) {
			return "process " + w[4]
		}
	}
	return unknown
}

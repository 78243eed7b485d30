package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrLocked says that another process has the data directory open.
var ErrLocked = errors.New("the data directory is in use")

// LockFile is the file of the data directory that its process holds locked.
const LockFile = "lock"

// LockDir takes a data directory for this process until the file it returns is
// closed. The kernel drops the lock when the process ends, however it ends. The
// error wraps [ErrLocked] when another process has the directory.
func LockDir(dir string) (*os.File, error) {
	name := filepath.Join(dir, LockFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		holder, _ := os.ReadFile(name)
		return nil, fmt.Errorf("%w: %s is held by %s", ErrLocked, dir, strings.TrimSpace(string(holder)))
	}
	note := fmt.Sprintf("process %d since %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.WriteAt([]byte(note), 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

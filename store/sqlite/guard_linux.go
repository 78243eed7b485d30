package sqlite

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// fOFDSetLk is F_OFD_SETLK of fcntl. It sets a lock that belongs to the open file
// description, whereas a POSIX lock belongs to the process.
const fOFDSetLk = 37

// sharedRange is the byte range of SQLite's SHARED lock ("SHARED_FIRST" in its
// sources). Every connection that has the database open locks it for reading.
var sharedRange = syscall.Flock_t{Start: 0x40000002, Len: 510}

// guard is a second SHARED lock on the database, which other processes see even if
// SQLite's own lock is lost: with a driver that uses POSIX locks, any close of the
// file in this process drops that lock. Another process that then opened and closed
// the database would believe that it was the last one, and delete the WAL that this
// process still writes.
type guard struct{ file *os.File }

// newGuard takes the lock. The database must already be open in WAL mode, which
// SQLite turns on under an exclusive lock.
func newGuard(path string) (*guard, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	g := &guard{f}
	if err := g.set(syscall.F_RDLCK); err != nil {
		return nil, errors.Join(fmt.Errorf("guard %s: %w", path, err), f.Close())
	}
	return g, nil
}

func (g *guard) set(kind int16) error {
	lock := sharedRange
	lock.Type = kind
	return syscall.FcntlFlock(g.file.Fd(), fOFDSetLk, &lock)
}

// release releases the lock and keeps the file open. SQLite can then checkpoint and
// delete the WAL when its last connection closes.
func (g *guard) release() error { return g.set(syscall.F_UNLCK) }

// close closes the file. All connections must be closed before, because this drops
// their POSIX locks too.
func (g *guard) close() error { return g.file.Close() }

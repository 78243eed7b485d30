package sqlite

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// fOFDSetLk is fcntl's F_OFD_SETLK: a lock that belongs to the open file, and
// not, as POSIX locks do, to the process.
const fOFDSetLk = 37

// sharedRange is where SQLite locks a database that is open, "shared" for all
// who have it so: see "SHARED_FIRST" in its sources.
var sharedRange = syscall.Flock_t{Start: 0x40000002, Len: 510}

// guard tells other processes that the database is open, for as long as it is
// held, whatever becomes of SQLite's own lock: any close of the file in this
// process drops that one, if the driver uses POSIX locks. A process that then
// opened the database and closed it again would take itself for the last one
// and remove the write-ahead log, which this process is still writing.
type guard struct{ file *os.File }

// newGuard takes the lock. The database must be open already, and must be for
// as long as the guard's file is: to close it is such a close.
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

// release gives the lock up and leaves the file open, so that SQLite, when its
// last connection is closed, can move the log into the database.
func (g *guard) release() error { return g.set(syscall.F_UNLCK) }

// close closes the file, once no connection is open.
func (g *guard) close() error { return g.file.Close() }

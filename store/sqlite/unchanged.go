package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Unchanged is a database that is read without a change to its directory: SQLite
// would create its -shm, and may create its -wal, even for a connection that
// only reads.
type Unchanged struct {
	*sql.DB
	scratch string // a directory of this process alone, "" for none
}

// OpenUnchanged opens the database at path, which no process may have open, for
// reading. Commits that are in the write-ahead log alone are read too: then the
// database gets a second name, or where that is impossible is copied, in a new
// directory beside its own or in the one for temporary files. The caller must
// call Close.
func OpenUnchanged(path string) (_ *Unchanged, err error) {
	u := new(Unchanged)
	defer func() {
		if err != nil {
			u.Close()
		}
	}()
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	mode := modeImmutable
	if log, err := os.Stat(path + "-wal"); err == nil && log.Size() > 0 {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		// Not in the directory of the database itself: that stays as it is.
		u.scratch, err = newScratch(absolute, info.Size()+log.Size(), filepath.Dir(filepath.Dir(absolute)), os.TempDir())
		if err != nil {
			return nil, err
		}
		name := filepath.Join(u.scratch, filepath.Base(path))
		if err := copyFile(path+"-wal", name+"-wal"); err != nil {
			return nil, err
		}
		path, mode = name, modeReadOnly
	}
	u.DB, err = openPool(path, mode, readerPragmas)
	return u, err
}

// Close closes the database and removes what was made to read it.
func (u *Unchanged) Close() error {
	var errs []error
	if u.DB != nil {
		errs = append(errs, u.DB.Close())
	}
	if u.scratch != "" {
		errs = append(errs, os.RemoveAll(u.scratch))
	}
	return errors.Join(errs...)
}

// newScratch returns a new directory, in one of the places, that has the database
// file at path under its own name. Size is what a copy takes, with its log.
func newScratch(path string, size int64, places ...string) (scratch string, err error) {
	for _, place := range places {
		if scratch, err = os.MkdirTemp(place, "salvage-"); err != nil {
			continue
		}
		if os.Link(path, filepath.Join(scratch, filepath.Base(path))) == nil {
			return scratch, nil
		}
		os.Remove(scratch)
	}
	for _, place := range places {
		if room, err := free(place); err != nil || room < size+size/10 {
			continue
		}
		if scratch, err = os.MkdirTemp(place, "salvage-"); err != nil {
			continue
		}
		if err := copyFile(path, filepath.Join(scratch, filepath.Base(path))); err != nil {
			return "", errors.Join(err, os.RemoveAll(scratch))
		}
		return scratch, nil
	}
	return "", fmt.Errorf("%s can be read only with a copy of it, and there is no room for its %d MiB in %s: set TMPDIR to a folder that has", path, size>>20+1, strings.Join(places, " or "))
}

func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// free returns how many bytes this process can write to the disk of a folder.
func free(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"service/internal/durable"
)

// Offline is a database that no process has open, and that is read without changing its
// directory. An ordinary read-only connection would create the -shm file, and may create
// the -wal file.
type Offline struct {
	*sql.DB
	scratch string // temporary directory, "" for none
}

// OpenOffline opens the database at path for reading.
//
// If the database has a WAL, it is read through a hard link in a temporary directory,
// together with a copy of the WAL; where a hard link is impossible, the database is
// copied too. The temporary directory is next to the database's directory or in
// os.TempDir. The caller must call Close.
func OpenOffline(path string) (_ *Offline, err error) {
	o := new(Offline)
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	mode := modeImmutable
	if wal, err := os.Stat(path + "-wal"); err == nil && wal.Size() > 0 {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		o.scratch, err = newScratch(absolute, info.Size()+wal.Size(), filepath.Dir(filepath.Dir(absolute)), os.TempDir())
		if err != nil {
			return nil, err
		}
		name := filepath.Join(o.scratch, filepath.Base(path))
		if err := copyFile(path+"-wal", name+"-wal"); err != nil {
			return nil, err
		}
		path, mode = name, modeReadOnly
	}
	o.DB, err = openPool(path, mode, readerPragmas, nil)
	return o, err
}

// Close closes the database and removes the temporary directory.
func (o *Offline) Close() error {
	var errs []error
	if o.DB != nil {
		errs = append(errs, o.DB.Close())
	}
	if o.scratch != "" {
		errs = append(errs, os.RemoveAll(o.scratch))
	}
	return errors.Join(errs...)
}

// newScratch creates a temporary directory in the first possible of the parents, and
// links or copies the database file at path into it. size is the size in bytes of the
// database and its WAL: a copy needs that much free space, and a tenth more.
func newScratch(path string, size int64, parents ...string) (scratch string, err error) {
	for _, parent := range parents {
		if scratch, err = os.MkdirTemp(parent, "salvage-"); err != nil {
			continue
		}
		if os.Link(path, filepath.Join(scratch, filepath.Base(path))) == nil {
			return scratch, nil
		}
		os.Remove(scratch)
	}
	for _, parent := range parents {
		if available, _, err := durable.FreeSpace(parent); err != nil || available < size+size/10 {
			continue
		}
		if scratch, err = os.MkdirTemp(parent, "salvage-"); err != nil {
			continue
		}
		if err := copyFile(path, filepath.Join(scratch, filepath.Base(path))); err != nil {
			return "", errors.Join(err, os.RemoveAll(scratch))
		}
		return scratch, nil
	}
	return "", fmt.Errorf("reading %s needs a copy of it, and neither hard links nor %d MiB of free space are available in %s: "+
		"set TMPDIR to a directory with enough space", path, (size+size/10)>>20+1, strings.Join(parents, " or "))
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

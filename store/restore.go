package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"service/internal/durable"
	"service/store/keyring"
	"service/store/sqlite"
)

// A restoration fills a folder in the data directory and then exchanges what is
// in it for what is there, so that a crash at any moment leaves either all of
// the old or, when the next process has finished the exchange, all of the new.
const (
	restoring = "restore" // and [durable.TempSuffix]: it is being filled
	movingOut = "restore.moving-out"
	movingIn  = "restore.moving-in"
	// In each of them:
	newFiles = "new"
	oldFiles = "old"
	// replaced is what the names of folders begin with that hold what was
	// exchanged; the time follows.
	replaced = "replaced-"
)

// databaseFiles are all that belongs to a database, the count of its commits and
// Litestream's notes about its write-ahead log among them.
var databaseFiles = [...]string{databaseFile, databaseFile + "-wal", databaseFile + "-shm", databaseFile + "-journal", commitsFile, "." + databaseFile + "-litestream"}

// ErrNotEmpty says that a data directory holds data.
var ErrNotEmpty = errors.New("the data directory is not empty")

// Restoration is a data directory that is being filled by one process, which
// holds its lock. Until Commit nothing of it has changed.
type Restoration struct {
	dir    string
	made   bool // the data directory was not there
	lock   *sqlite.DirLock
	folder string
}

// Restore takes a data directory to be filled, and makes it when it is not
// there. The error wraps [ErrLocked] when a process has it, and [ErrNotEmpty]
// when it holds data and force is not set. The caller must call Close.
func Restore(dir string, force bool) (_ *Restoration, err error) {
	r := &Restoration{dir: dir}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		r.made = true
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if r.lock, err = sqlite.LockDir(dir); err != nil {
		return nil, err
	}
	if err := tidy(dir); err != nil {
		return nil, err
	}
	if err := finishRestore(dir, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	for _, name := range []string{databaseFile, keyring.FileName} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil && !force {
			return nil, fmt.Errorf("%w: there is %s in %s", ErrNotEmpty, name, dir)
		}
	}
	if r.folder, err = os.MkdirTemp(dir, restoring+durable.TempSuffix+"*"); err != nil {
		return nil, err
	}
	for _, name := range []string{newFiles, oldFiles} {
		if err := os.Mkdir(filepath.Join(r.folder, name), 0o700); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Dir is the folder to put the files into, with the names that they are to have
// in the data directory: the database, service.db, and whatever else is to be
// replaced. What there is of others stays as it is.
func (r *Restoration) Dir() string { return filepath.Join(r.folder, newFiles) }

// Commit makes what is in Dir the content of the data directory. It returns the
// folder that what was there has been moved to, "" when there was nothing. When
// it fails, or the process ends within it, the next process that opens the data
// directory finishes it, or nothing has changed.
func (r *Restoration) Commit() (aside string, err error) {
	err = filepath.WalkDir(r.folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return durable.SyncDir(path)
		}
		_, err = durable.SyncFile(path)
		return err
	})
	if err != nil {
		return "", err
	}
	if err := os.Rename(r.folder, filepath.Join(r.dir, movingOut)); err != nil {
		return "", err
	}
	r.folder = ""
	if err := durable.SyncDir(r.dir); err != nil {
		return "", err
	}
	return exchange(r.dir)
}

// Close gives the data directory up, and removes what was not committed.
func (r *Restoration) Close() error {
	var errs []error
	if r.folder != "" {
		errs = append(errs, os.RemoveAll(r.folder))
	}
	if r.lock != nil {
		if r.made && r.folder != "" {
			os.Remove(filepath.Join(r.dir, sqlite.LockFile))
			os.Remove(r.dir) // if nothing else is in it
		}
		errs = append(errs, r.lock.Close())
	}
	return errors.Join(errs...)
}

// FinishRestore finishes a restoration that the end of a process has cut off,
// if there is one. [Open] does so too: this is for whoever reads files of the
// data directory before.
func FinishRestore(dir string, logger *slog.Logger) error {
	if !isRestoring(dir) {
		return nil
	}
	lock, err := sqlite.LockDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(finishRestore(dir, logger), lock.Close())
}

func isRestoring(dir string) bool {
	for _, name := range []string{movingOut, movingIn} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// finishRestore is the same for whoever holds the lock.
func finishRestore(dir string, logger *slog.Logger) error {
	if !isRestoring(dir) {
		return nil
	}
	aside, err := exchange(dir)
	if err != nil {
		return fmt.Errorf("finish a restoration: %w", err)
	}
	logger.Warn("a restoration that was cut off is finished", "data", dir, "replaced", aside)
	return nil
}

// exchange moves the old files out and the new ones in. Each step can be done
// again: the name of the folder says how far it has come. It returns the folder
// that the old files were moved to, "" when there were none.
func exchange(dir string) (aside string, err error) {
	out, in := filepath.Join(dir, movingOut), filepath.Join(dir, movingIn)
	if _, err := os.Stat(out); err == nil {
		if err := moveOut(dir, out); err != nil {
			return "", err
		}
		if err := durable.Rename(out, in); err != nil {
			return "", err
		}
	}
	if err := moveIn(dir, in); err != nil {
		return "", err
	}
	if aside, err = setAside(dir, in); err != nil {
		return "", err
	}
	return aside, errors.Join(os.RemoveAll(in), durable.SyncDir(dir))
}

// moveOut moves the files of a database, and those that are replaced besides, out
// of the data directory.
func moveOut(dir, out string) error {
	names := databaseFiles[:]
	fresh, err := os.ReadDir(filepath.Join(out, newFiles))
	if err != nil {
		return err
	}
	for _, f := range fresh {
		names = append(names, f.Name())
	}
	for _, name := range names {
		err := os.Rename(filepath.Join(dir, name), filepath.Join(out, oldFiles, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(durable.SyncDir(filepath.Join(out, oldFiles)), durable.SyncDir(dir))
}

// moveIn moves the new files into the data directory. Their folder may be gone:
// it is removed when all is done.
func moveIn(dir, in string) error {
	fresh, err := os.ReadDir(filepath.Join(in, newFiles))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range fresh {
		if err := os.Rename(filepath.Join(in, newFiles, f.Name()), filepath.Join(dir, f.Name())); err != nil {
			return err
		}
	}
	return durable.SyncDir(dir)
}

// setAside gives the folder of the old files the name under which it stays.
func setAside(dir, in string) (aside string, err error) {
	old := filepath.Join(in, oldFiles)
	moved, err := os.ReadDir(old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if len(moved) == 0 {
		return "", nil
	}
	aside = filepath.Join(dir, replaced+time.Now().UTC().Format("20060102T150405.000Z"))
	return aside, os.Rename(old, aside)
}

// tidy removes what processes that were killed have left unfinished. The caller
// holds the lock.
func tidy(dir string) error {
	return errors.Join(durable.RemoveTempAll(dir, databaseFile), durable.RemoveTempAll(dir, restoring))
}

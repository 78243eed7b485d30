package datadir

import (
	"context"
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

// A restore fills a directory inside the data directory and then swaps its files with the
// existing ones. After a crash the data directory contains either all the old files or, once
// the next process has finished the swap, all the new ones.
const (
	restoring = "restore" // with [durable.TempSuffix]: being filled
	movingOut = "restore.moving-out"
	movingIn  = "restore.moving-in"
	// Subdirectories of each:
	newFiles = "new"
	oldFiles = "old"
	// replaced is the prefix of the directory that keeps the old files; a time follows.
	replaced = "replaced-"
)

// databaseFiles are all files of a database, including its commit count and Litestream's
// metadata.
var databaseFiles = [...]string{Database, Database + "-wal", Database + "-shm", Database + "-journal", Commits,
	"." + Database + "-litestream"}

// ErrNotEmpty reports that the data directory contains data.
var ErrNotEmpty = errors.New("the data directory is not empty")

// Restoration fills a data directory while it holds its lock. Nothing changes until Commit.
type Restoration struct {
	// SendAtOnce makes the restored service deliver without a release, even if the restored data
	// was paused. Set it before FromReplica or MarkBackup.
	SendAtOnce bool

	dir    string
	made   bool // Restore created the data directory
	lock   *sqlite.DirLock
	folder string
}

// Restore locks a data directory to restore it, and creates it if necessary. The error wraps
// [sqlite.ErrLocked] if a process has it open, and [ErrNotEmpty] if it contains data and force is
// false. The caller must call Close.
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
	if err := Tidy(dir); err != nil {
		return nil, err
	}
	if err := FinishLocked(dir, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	for _, name := range []string{Database, keyring.FileName} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil && !force {
			return nil, fmt.Errorf("%w: %s exists in %s", ErrNotEmpty, name, dir)
		}
	}
	return r, r.begin()
}

// begin creates the directory to fill.
func (r *Restoration) begin() (err error) {
	if r.folder, err = os.MkdirTemp(r.dir, restoring+durable.TempSuffix+"*"); err != nil {
		return err
	}
	for _, name := range []string{newFiles, oldFiles} {
		if err := os.Mkdir(filepath.Join(r.folder, name), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// Dir returns the directory for the new files: the database, service.db, and other files to
// replace, under their names in the data directory. Other files there stay.
func (r *Restoration) Dir() string { return filepath.Join(r.folder, newFiles) }

// Commit replaces the files of the data directory with those in Dir. It returns the directory
// with the old files, "" if there were none. If it fails or the process ends, either nothing
// has changed, or the next process that opens the data directory finishes the exchange.
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

// Close releases the data directory, and removes uncommitted files. Further calls do
// nothing.
func (r *Restoration) Close() error {
	var errs []error
	if r.folder != "" {
		errs = append(errs, os.RemoveAll(r.folder))
	}
	if r.lock != nil {
		if r.made && r.folder != "" {
			os.Remove(filepath.Join(r.dir, sqlite.LockFile))
			os.Remove(r.dir) // if it is empty
		}
		errs = append(errs, r.lock.Close())
	}
	r.folder, r.lock = "", nil
	return errors.Join(errs...)
}

// FinishRestore finishes an interrupted restore, if there is one. store.Open calls it as well;
// this is for code that reads files of the data directory earlier.
func FinishRestore(dir string, logger *slog.Logger) error {
	if !isRestoring(dir) {
		return nil
	}
	lock, err := sqlite.LockDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(FinishLocked(dir, logger), lock.Close())
}

// isRestoring reports whether a restore was interrupted while it exchanged files.
func isRestoring(dir string) bool {
	for _, name := range []string{movingOut, movingIn} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// FinishLocked is [FinishRestore] for a caller that holds the lock.
func FinishLocked(dir string, logger *slog.Logger) error {
	if !isRestoring(dir) {
		return nil
	}
	aside, err := exchange(dir)
	if err != nil {
		return fmt.Errorf("finish an interrupted restore: %w", err)
	}
	logger.Warn("finished an interrupted restore", "data", dir, "replaced", aside)
	return nil
}

// exchange moves the old files out and the new ones in, and returns the directory with the old
// files, "" if there were none. It can be repeated: the name of the directory shows its
// progress.
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

// moveOut moves the database files, and all files with replacements, out of the data directory.
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

// moveIn moves the new files into the data directory. Their directory may already be gone,
// since it is removed at the end.
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

// setAside renames the directory of the old files to its final name.
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

// Tidy removes unfinished files of killed processes. The caller holds the lock.
func Tidy(dir string) error {
	return errors.Join(durable.RemoveTempAll(dir, Database), durable.RemoveTempAll(dir, restoring))
}

// MarkBackup marks the database of a restored backup like [Restoration.FromReplica]: deliveries are
// paused until they are released, and the next store.Open records that the audit log continues from
// its last entry, see [webhook.AuditGap]. from describes the backup, and state is its time. No
// process may have the database open.
func (r *Restoration) MarkBackup(ctx context.Context, from string, state time.Time) error {
	db, err := sqlite.OpenWritable(filepath.Join(r.Dir(), Database))
	if err != nil {
		return err
	}
	return errors.Join(setMarks(ctx, newMark(from, state), true, r.pause(), db.ExecContext), db.Close())
}

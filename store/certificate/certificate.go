// Package certificate stores the certificates of the service, their keys and the ACME accounts, for
// certmagic. Contents are encrypted.
package certificate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"service/store/keyring"
	"service/store/sqlite"
	"service/webhook"
)

const (
	// maxFile is the maximum size of a file in bytes. A certificate chain takes a few thousand.
	maxFile = 1 << 20
	// lockLease is how long a lock lasts beyond the lease that its holder requested. It matters
	// only when the holder cannot release the lock, for example because the disk is full.
	lockLease = 10 * time.Minute
)

// Storage is a small file tree in the database for certmagic: certificates, their keys and
// metadata. Contents are encrypted, paths are not. The parts of a path are separated by /. A
// folder exists while a path begins with its name and a /.
//
// Its methods may be called from any goroutine. After [Storage.Close] they fail, so the
// store can be closed while certmagic still has goroutines.
type Storage struct {
	db      *sqlite.DB
	writer  *sqlite.Writer
	keys    *keyring.Keyring
	now     func() time.Time
	process string // a random ID of this process, the owner of its locks

	using  sync.RWMutex // read-locked by every method while it runs
	closed bool         // guarded by using

	mu       sync.Mutex
	unlocked chan struct{} // closed and replaced by every Unlock
}

// File describes a file or folder.
type File struct {
	Path    string
	Folder  bool
	Size    int64     // bytes; 0 for a folder
	Changed time.Time // of a folder, the latest of its files
}

// New returns the storage in a database. Create one per process, since two would not share their
// locks.
func New(db *sqlite.DB, keys *keyring.Keyring, now func() time.Time) *Storage {
	return &Storage{db: db, writer: db.Writer(), keys: keys, now: now, process: webhook.NewID(), unlocked: make(chan struct{})}
}

// errClosed is returned by every method after Close.
var errClosed = fmt.Errorf("%w: certificate storage is closed", sqlite.ErrUnavailable)

// use begins a method; if it returns nil, the method must call done at its end.
func (c *Storage) use(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.using.RLock()
	if c.closed {
		c.using.RUnlock()
		return errClosed
	}
	return nil
}

// done ends a method that began with use.
func (c *Storage) done() { c.using.RUnlock() }

// Close waits for running methods and makes all later calls fail.
func (c *Storage) Close() {
	c.using.Lock()
	defer c.using.Unlock()
	c.closed = true
}

// certificatePlace returns the associated data of a file's encrypted content, so that it cannot
// be moved to another path.
func certificatePlace(path string) string { return "certificate file " + path }

// Store creates or replaces a file.
func (c *Storage) Store(ctx context.Context, path string, value []byte) error {
	if err := c.use(ctx); err != nil {
		return err
	}
	defer c.done()
	if len(value) > maxFile {
		return fmt.Errorf("store: certificate file %q has %d bytes, the limit is %d", path, len(value), maxFile)
	}
	return c.writer.Do(func(t *sqlite.Tx) error {
		return t.Exec("INSERT INTO certificate_files (path, value, size, changed_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE "+
			"SET value = ?2, size = ?3, changed_at = ?4",
			path, c.keys.Encrypt(value, certificatePlace(path)), len(value), c.now().UnixMilli())
	})
}

// Load reads a file. The error wraps [fs.ErrNotExist] if there is none.
func (c *Storage) Load(ctx context.Context, path string) ([]byte, error) {
	if err := c.use(ctx); err != nil {
		return nil, err
	}
	defer c.done()
	return Load(path, c.keys, func(into ...any) error {
		return c.db.Scan(ctx, Select, []any{path}, into...)
	})
}

// Select reads the content of the file at a path, for Load.
const Select = "SELECT value FROM certificate_files WHERE path = ?"

// Load returns the content of a file, whose row scan reads.
func Load(path string, keys *keyring.Keyring, scan func(...any) error) ([]byte, error) {
	var encrypted []byte
	switch err := scan(&encrypted); {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("store: certificate file %q: %w", path, fs.ErrNotExist)
	case err != nil:
		return nil, err
	}
	return keys.Decrypt(encrypted, certificatePlace(path))
}

// below returns exclusive bounds of the paths in a folder, "" for the root.
func below(path string) (after, before string) {
	if path == "" {
		return "", "\U0010ffff"
	}
	return path + "/", path + "0" // the character that follows /
}

// Delete removes a file, or a folder with everything in it. It is not an error if path does not
// exist.
func (c *Storage) Delete(ctx context.Context, path string) error {
	if err := c.use(ctx); err != nil {
		return err
	}
	defer c.done()
	after, before := below(path)
	return c.writer.Do(func(t *sqlite.Tx) error {
		return t.Exec("DELETE FROM certificate_files WHERE path = ? OR path > ? AND path < ?", path, after, before)
	})
}

const selectFiles = "SELECT path, size, changed_at FROM certificate_files WHERE path = ? " +
	"UNION ALL SELECT path, size, changed_at FROM certificate_files WHERE path > ? AND path < ? ORDER BY path"

// files returns the file at path and all files below it.
func (c *Storage) files(ctx context.Context, path string) (found []File, err error) {
	after, before := below(path)
	err = c.db.Each(ctx, selectFiles, []any{path, after, before}, func(scan func(...any) error) error {
		var f File
		var changed int64
		err := scan(&f.Path, &f.Size, &changed)
		f.Changed = time.UnixMilli(changed).UTC()
		found = append(found, f)
		return err
	})
	return found, err
}

// Exists reports whether there is a file or folder. It returns false if the store cannot be
// read.
func (c *Storage) Exists(ctx context.Context, path string) bool {
	_, err := c.Stat(ctx, path)
	return err == nil
}

// List returns the sorted paths of the files and folders in a folder, with recursive
// including everything below them. The error wraps [fs.ErrNotExist] if there is no such
// folder.
func (c *Storage) List(ctx context.Context, folder string, recursive bool) ([]string, error) {
	if err := c.use(ctx); err != nil {
		return nil, err
	}
	defer c.done()
	found, err := c.files(ctx, folder)
	if err != nil {
		return nil, err
	}
	var all []string
	prefix, _ := below(folder)
	for _, f := range found {
		rest, ok := strings.CutPrefix(f.Path, prefix)
		if !ok {
			continue // a file of that name
		}
		path := prefix
		for part := range strings.SplitAfterSeq(rest, "/") {
			path += part
			all = append(all, strings.TrimSuffix(path, "/"))
			if !recursive {
				break
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("store: certificate folder %q: %w", folder, fs.ErrNotExist)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Stat describes a file or folder. The error wraps [fs.ErrNotExist] if there is none.
func (c *Storage) Stat(ctx context.Context, path string) (File, error) {
	if err := c.use(ctx); err != nil {
		return File{}, err
	}
	defer c.done()
	found, err := c.files(ctx, path)
	if err != nil {
		return File{}, err
	}
	if len(found) == 0 {
		return File{}, fmt.Errorf("store: certificate file %q: %w", path, fs.ErrNotExist)
	}
	if found[0].Path == path {
		return found[0], nil
	}
	folder := File{Path: path, Folder: true}
	for _, f := range found {
		if f.Changed.After(folder.Changed) {
			folder.Changed = f.Changed
		}
	}
	return folder, nil
}

// Lock takes the lock of a name, and waits while another holder has it. The lock lasts until
// Unlock, at most lockLease unless renewed.
func (c *Storage) Lock(ctx context.Context, name string) error {
	for {
		c.mu.Lock()
		unlocked := c.unlocked
		c.mu.Unlock()
		until, err := c.take(ctx, name)
		if err != nil || until.IsZero() {
			return err
		}
		expired := time.NewTimer(until.Sub(c.now()) + time.Millisecond)
		select {
		case <-ctx.Done():
			expired.Stop()
			return ctx.Err()
		case <-unlocked:
			expired.Stop()
		case <-expired.C:
		}
	}
}

// TryLock takes the lock of a name if it is free, and reports whether it did.
func (c *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	until, err := c.take(ctx, name)
	return err == nil && until.IsZero(), err
}

// take takes a lock and returns the zero time; if another holder has the lock, it returns
// when that lock expires.
func (c *Storage) take(ctx context.Context, name string) (until time.Time, err error) {
	if err := c.use(ctx); err != nil {
		return time.Time{}, err
	}
	defer c.done()
	err = c.writer.Do(func(t *sqlite.Tx) error {
		now := c.now()
		var expires int64
		err := t.Scan("SELECT expires_at FROM certificate_locks WHERE name = ? AND process = ?", []any{name, c.process}, &expires)
		switch {
		case err == nil && expires > now.UnixMilli():
			until = time.UnixMilli(expires)
			return nil
		case err != nil && !errors.Is(err, sql.ErrNoRows):
			return err
		}
		return t.Exec("INSERT INTO certificate_locks (name, process, expires_at) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE "+
			"SET process = ?2, expires_at = ?3",
			name, c.process, now.Add(lockLease).UnixMilli())
	})
	return until, err
}

// RenewLockLease extends a lock to lease plus lockLease from now.
func (c *Storage) RenewLockLease(ctx context.Context, name string, lease time.Duration) error {
	if err := c.use(ctx); err != nil {
		return err
	}
	defer c.done()
	return c.writer.Do(func(t *sqlite.Tx) error {
		return t.Exec("UPDATE certificate_locks SET expires_at = ? WHERE name = ? AND process = ?",
			c.now().Add(lease+lockLease).UnixMilli(), name, c.process)
	})
}

// Unlock releases a lock that this process took.
func (c *Storage) Unlock(ctx context.Context, name string) error {
	if err := c.use(ctx); err != nil {
		return err
	}
	defer c.done()
	err := c.writer.Do(func(t *sqlite.Tx) error {
		return t.Exec("DELETE FROM certificate_locks WHERE name = ? AND process = ?", name, c.process)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.unlocked)
	c.unlocked = make(chan struct{})
	return err
}

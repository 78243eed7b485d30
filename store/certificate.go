package store

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
	"service/webhook"
)

const (
	// maxCertificateFile is the maximum size of a file in bytes. A certificate chain has a few
	// thousand.
	maxCertificateFile = 1 << 20
	// lockLease is how long a lock lasts beyond what its holder asked for. It matters only when
	// the holder cannot release the lock, for example because the disk is full.
	lockLease = 10 * time.Minute
)

// Certificates is a small file tree in the database for certmagic: certificates, their keys and
// metadata. Contents are encrypted, paths are not. The parts of a path are separated by /. A
// folder exists while a path begins with its name and a /.
//
// Its methods may be called from any goroutine. After [Certificates.Close] they fail, so the
// store can be closed while certmagic still has goroutines.
type Certificates struct {
	s       *core
	process string // a random id of this process, the owner of its locks

	using  sync.RWMutex // read-locked by every method while it runs
	closed bool         // guarded by using

	mu       sync.Mutex
	unlocked chan struct{} // closed and replaced by every Unlock
}

// CertificateFile describes a file or folder.
type CertificateFile struct {
	Path    string
	Folder  bool
	Size    int64     // bytes; 0 for a folder
	Changed time.Time // of a folder, the latest of its files
}

// Certificates returns the certificate storage. Create one per process: two would not share
// their locks.
func (s *Store) Certificates() *Certificates {
	return &Certificates{s: s.core, process: webhook.NewID(), unlocked: make(chan struct{})}
}

// errCertificatesClosed is returned by every method after Close.
var errCertificatesClosed = fmt.Errorf("%w: certificate storage is closed", ErrUnavailable)

// use begins a method; if it returns nil, the method must call done at its end.
func (c *Certificates) use(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.using.RLock()
	if c.closed {
		c.using.RUnlock()
		return errCertificatesClosed
	}
	return nil
}

// done ends a method that began with use.
func (c *Certificates) done() { c.using.RUnlock() }

// Close waits for running methods and makes all later calls fail.
func (c *Certificates) Close() {
	c.using.Lock()
	defer c.using.Unlock()
	c.closed = true
}

// certificatePlace returns the associated data of a file's encrypted content, so that it cannot
// be moved to another path.
func certificatePlace(path string) string { return "certificate file " + path }

// Store creates or replaces a file.
func (c *Certificates) Store(ctx context.Context, path string, value []byte) error {
	if err := c.use(ctx); err != nil {
		return err
	}
	defer c.done()
	if len(value) > maxCertificateFile {
		return fmt.Errorf("store: certificate file %q has %d bytes, the limit is %d", path, len(value), maxCertificateFile)
	}
	return c.s.writer.do(func(t *tx) error {
		return t.Exec("INSERT INTO certificate_files (path, value, size, changed_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE "+
			"SET value = ?2, size = ?3, changed_at = ?4",
			path, c.s.keys.Encrypt(value, certificatePlace(path)), len(value), c.s.clock.now().UnixMilli())
	})
}

// Load reads a file. The error wraps [fs.ErrNotExist] if there is none.
func (c *Certificates) Load(ctx context.Context, path string) ([]byte, error) {
	if err := c.use(ctx); err != nil {
		return nil, err
	}
	defer c.done()
	return loadCertificateFile(path, c.s.keys, func(into ...any) error {
		return c.s.db.Scan(ctx, selectCertificateFile, []any{path}, into...)
	})
}

const selectCertificateFile = "SELECT value FROM certificate_files WHERE path = ?"

// loadCertificateFile returns the content of a file, whose row scan reads.
func loadCertificateFile(path string, keys *keyring.Keyring, scan func(...any) error) ([]byte, error) {
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
func (c *Certificates) Delete(ctx context.Context, path string) error {
	if err := c.use(ctx); err != nil {
		return err
	}
	defer c.done()
	after, before := below(path)
	return c.s.writer.do(func(t *tx) error {
		return t.Exec("DELETE FROM certificate_files WHERE path = ? OR path > ? AND path < ?", path, after, before)
	})
}

const selectCertificateFiles = "SELECT path, size, changed_at FROM certificate_files WHERE path = ? " +
	"UNION ALL SELECT path, size, changed_at FROM certificate_files WHERE path > ? AND path < ? ORDER BY path"

// files returns the file at path and all files below it.
func (c *Certificates) files(ctx context.Context, path string) (found []CertificateFile, err error) {
	after, before := below(path)
	err = c.s.db.Each(ctx, selectCertificateFiles, []any{path, after, before}, func(scan func(...any) error) error {
		var f CertificateFile
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
func (c *Certificates) Exists(ctx context.Context, path string) bool {
	_, err := c.Stat(ctx, path)
	return err == nil
}

// List returns the sorted paths of the files and folders in a folder, with recursive also of
// everything below them. The error wraps [fs.ErrNotExist] if there is no such folder.
func (c *Certificates) List(ctx context.Context, folder string, recursive bool) ([]string, error) {
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
func (c *Certificates) Stat(ctx context.Context, path string) (CertificateFile, error) {
	if err := c.use(ctx); err != nil {
		return CertificateFile{}, err
	}
	defer c.done()
	found, err := c.files(ctx, path)
	if err != nil {
		return CertificateFile{}, err
	}
	if len(found) == 0 {
		return CertificateFile{}, fmt.Errorf("store: certificate file %q: %w", path, fs.ErrNotExist)
	}
	if found[0].Path == path {
		return found[0], nil
	}
	folder := CertificateFile{Path: path, Folder: true}
	for _, f := range found {
		if f.Changed.After(folder.Changed) {
			folder.Changed = f.Changed
		}
	}
	return folder, nil
}

// Lock takes the lock of a name, and waits while another has it. It lasts until Unlock, at most
// lockLease unless renewed.
func (c *Certificates) Lock(ctx context.Context, name string) error {
	for {
		c.mu.Lock()
		unlocked := c.unlocked
		c.mu.Unlock()
		until, err := c.take(ctx, name)
		if err != nil || until.IsZero() {
			return err
		}
		expired := time.NewTimer(until.Sub(c.s.clock.now()) + time.Millisecond)
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
func (c *Certificates) TryLock(ctx context.Context, name string) (bool, error) {
	until, err := c.take(ctx, name)
	return err == nil && until.IsZero(), err
}

// take takes a lock and returns the zero time; if another has the lock, it returns when that
// one expires.
func (c *Certificates) take(ctx context.Context, name string) (until time.Time, err error) {
	if err := c.use(ctx); err != nil {
		return time.Time{}, err
	}
	defer c.done()
	err = c.s.writer.do(func(t *tx) error {
		now := c.s.clock.now()
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
func (c *Certificates) RenewLockLease(ctx context.Context, name string, lease time.Duration) error {
	if err := c.use(ctx); err != nil {
		return err
	}
	defer c.done()
	return c.s.writer.do(func(t *tx) error {
		return t.Exec("UPDATE certificate_locks SET expires_at = ? WHERE name = ? AND process = ?",
			c.s.clock.now().Add(lease+lockLease).UnixMilli(), name, c.process)
	})
}

// Unlock releases a lock that this process took.
func (c *Certificates) Unlock(ctx context.Context, name string) error {
	if err := c.use(ctx); err != nil {
		return err
	}
	defer c.done()
	err := c.s.writer.do(func(t *tx) error {
		return t.Exec("DELETE FROM certificate_locks WHERE name = ? AND process = ?", name, c.process)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.unlocked)
	c.unlocked = make(chan struct{})
	return err
}

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

	"service/webhook"
)

const (
	// maxCertificateFile bounds one of these files, in bytes. A chain of
	// certificates has some thousands.
	maxCertificateFile = 1 << 20
	// lockLease is how long a lock holds beyond what its holder asked for. It
	// matters when the disk cannot take the lock's end alone.
	lockLease = 10 * time.Minute
)

// Certificates is a small tree of files inside of the database: certificates
// with their keys, and what their management remembers. Contents are encrypted;
// paths are not. A path has parts with / between them; what lies below a path is
// what begins with it and a /.
//
// Its methods may be called from any goroutine. After [Certificates.Close] they
// fail, so that the store can be closed under work that does not end by itself.
type Certificates struct {
	s       *core
	process string // names this process among those that the database has had

	using  sync.RWMutex // held for reading by every method that is under way
	closed bool         // guarded by using

	mu       sync.Mutex
	unlocked chan struct{} // closed, and replaced, with every Unlock
}

// CertificateFile is what is known of a file, or of a folder of them.
type CertificateFile struct {
	Path    string
	Folder  bool
	Size    int64     // bytes; 0 of a folder
	Changed time.Time // of a folder, when the newest file in it was
}

// Certificates returns the files of certificates. There should be one at a
// time, since Close gives up the locks of its own alone.
func (s *Store) Certificates() *Certificates {
	return &Certificates{s: s.core, process: webhook.NewID(), unlocked: make(chan struct{})}
}

// errCertificatesClosed is what every method returns after Close.
var errCertificatesClosed = fmt.Errorf("%w: the files of certificates are closed", ErrUnavailable)

// use is called first by every method; when it returns nil, done must be called
// at its end.
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

func (c *Certificates) done() { c.using.RUnlock() }

// Close waits for methods under way and refuses all that come later.
func (c *Certificates) Close() {
	c.using.Lock()
	defer c.using.Unlock()
	c.closed = true
}

func certificatePlace(path string) string { return "certificate file " + path }

// Store writes a file, or replaces it.
func (c *Certificates) Store(ctx context.Context, path string, value []byte) error {
	if err := c.use(ctx); err != nil {
		return err
	}
	defer c.done()
	if len(value) > maxCertificateFile {
		return fmt.Errorf("store: certificate file %q has %d bytes, more than %d", path, len(value), maxCertificateFile)
	}
	return c.s.writer.do(func(t *tx) error {
		return t.Exec("INSERT INTO certificate_files (path, value, size, changed_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET value = ?2, size = ?3, changed_at = ?4",
			path, c.s.keys.Encrypt(value, certificatePlace(path)), len(value), c.s.clock.now().UnixMilli())
	})
}

// Load reads a file. The error wraps [fs.ErrNotExist] when there is none.
func (c *Certificates) Load(ctx context.Context, path string) ([]byte, error) {
	if err := c.use(ctx); err != nil {
		return nil, err
	}
	defer c.done()
	var encrypted []byte
	err := c.s.db.Scan(ctx, "SELECT value FROM certificate_files WHERE path = ?", []any{path}, &encrypted)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("store: certificate file %q: %w", path, fs.ErrNotExist)
	case err != nil:
		return nil, err
	}
	return c.s.keys.Decrypt(encrypted, certificatePlace(path))
}

// below are the bounds of the paths that lie below a path: after the first, and
// before the second. All lie below "".
func below(path string) (after, before string) {
	if path == "" {
		return "", "\U0010ffff"
	}
	return path + "/", path + "0" // the character that follows /
}

// Delete removes a file, or a folder with all that is in it. It is no error if
// there is nothing.
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

const selectCertificateFiles = "SELECT path, size, changed_at FROM certificate_files WHERE path = ? UNION ALL SELECT path, size, changed_at FROM certificate_files WHERE path > ? AND path < ? ORDER BY path"

// files returns a file and all that lies below it.
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

// Exists says whether there is a file or a folder. It says no when the store
// cannot be read.
func (c *Certificates) Exists(ctx context.Context, path string) bool {
	_, err := c.Stat(ctx, path)
	return err == nil
}

// List returns the paths of what is in a folder, in their order: files and
// folders, and with recursive all files and folders below those too. The error
// wraps [fs.ErrNotExist] when there is no such folder.
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

// Stat tells of a file, or of a folder. The error wraps [fs.ErrNotExist] when
// there is neither.
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

// Lock waits until nobody holds the lock of a name, and takes it. It is held
// until Unlock, or for lockLease.
func (c *Certificates) Lock(ctx context.Context, name string) error {
	for {
		c.mu.Lock()
		unlocked := c.unlocked
		c.mu.Unlock()
		until, err := c.take(ctx, name)
		if err != nil || until.IsZero() {
			return err
		}
		lapsed := time.NewTimer(until.Sub(c.s.clock.now()) + time.Millisecond)
		select {
		case <-ctx.Done():
			lapsed.Stop()
			return ctx.Err()
		case <-unlocked:
			lapsed.Stop()
		case <-lapsed.C:
		}
	}
}

// TryLock takes the lock of a name and returns true, or false when it is held.
func (c *Certificates) TryLock(ctx context.Context, name string) (bool, error) {
	until, err := c.take(ctx, name)
	return err == nil && until.IsZero(), err
}

// take takes a lock and returns zero, or until when another one holds it.
func (c *Certificates) take(ctx context.Context, name string) (until time.Time, err error) {
	if err := c.use(ctx); err != nil {
		return time.Time{}, err
	}
	defer c.done()
	err = c.s.writer.do(func(t *tx) error {
		now := c.s.clock.now()
		var held int64
		err := t.Scan("SELECT expires_at FROM certificate_locks WHERE name = ? AND process = ?", []any{name, c.process}, &held)
		switch {
		case err == nil && held > now.UnixMilli():
			until = time.UnixMilli(held)
			return nil
		case err != nil && !errors.Is(err, sql.ErrNoRows):
			return err
		}
		return t.Exec("INSERT INTO certificate_locks (name, process, expires_at) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET process = ?2, expires_at = ?3",
			name, c.process, now.Add(lockLease).UnixMilli())
	})
	return until, err
}

// RenewLockLease has a lock that is held go on for a time from now, and
// lockLease.
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

// Unlock gives up a lock that was taken.
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

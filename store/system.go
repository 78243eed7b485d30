package store

import (
	"context"
	"os"
	"path/filepath"
)

// System is the state of the store itself, for admins.
type System struct {
	SQLite string // version of the library
	Schema int    // version of the database's schema
	Path   string // of the database

	Database int64 // bytes
	WAL      int64 // bytes of the write-ahead log
	Free     int64 // bytes of the database that hold nothing, and are used next

	Commits  uint64  // since Open
	Writes   float64 // in a commit, on average
	Seconds  float64 // of a commit, on average
	Failures float64 // commits that the disk could not take

	Swept Swept // since Open
}

// System returns the state of the store. Its cost does not depend on how much
// is stored.
func (s *Store) System(ctx context.Context) (y System, err error) {
	y.Path = filepath.Join(s.dir, databaseFile)
	y.Swept = s.Swept()
	for file, size := range map[string]*int64{y.Path: &y.Database, y.Path + "-wal": &y.WAL} {
		// To look at a file's size does not open it: SQLite's locks are safe.
		if info, err := os.Stat(file); err == nil {
			*size = info.Size()
		}
	}
	var pages, size int64
	err = s.view(ctx, func(v *view) error {
		if err := v.Scan("SELECT sqlite_version(), (SELECT user_version FROM pragma_user_version), (SELECT freelist_count FROM pragma_freelist_count), (SELECT page_size FROM pragma_page_size)",
			nil, &y.SQLite, &y.Schema, &pages, &size); err != nil {
			return err
		}
		y.Free = pages * size
		return nil
	})
	if err != nil {
		return y, err
	}
	return y, s.metrics.summarize(&y)
}

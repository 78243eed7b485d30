package datadir

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"service/store/schema"
	"service/store/sqlite"
)

// KnownLease is store.Replica.Generation for a data directory that no process has open, and changes
// nothing in it. For a directory without a database it returns [NewestData], since the replica will
// fill it. The error wraps [sqlite.ErrLocked] if a process has the directory open.
func KnownLease(ctx context.Context, dir string) (generation int64, err error) {
	path := filepath.Join(dir, Database)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return NewestData, nil
	}
	lock, err := sqlite.LockDirReadOnly(dir)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	return knownLease(ctx, path)
}

// knownLease is KnownLease for the database at path in a locked directory.
func knownLease(ctx context.Context, path string) (generation int64, err error) {
	db, err := sqlite.OpenReadOnly(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var restored bool
	var text sql.NullString
	err = db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM settings WHERE name = '`+schema.RestoredNewest+`'),
		(SELECT CAST(value AS TEXT) FROM settings WHERE name = '`+schema.Lease+`')`).Scan(&restored, &text)
	switch {
	case err != nil:
		return 0, err
	case restored:
		return NewestData, nil
	case !text.Valid:
		return 0, nil
	}
	return strconv.ParseInt(text.String, 10, 64)
}

// NewestData is the generation of data that is known to be the newest, such as data that was
// just restored.
const NewestData = math.MaxInt64

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"
)

// checkTime is the time limit of quickCheck. It bounds how long a large database delays
// the start.
const checkTime = time.Second

// check runs quickCheck on the database, and then extra, if not nil, which is
// Config.Check. It uses a read-only connection, because closing the last writable
// connection would checkpoint the WAL.
func check(ctx context.Context, path string, extra func(context.Context, *sql.DB) error) (err error) {
	if _, err := os.Stat(path + "-journal"); err == nil {
		// A journal exists only until the database is in WAL mode: the process died while
		// it created the database, which is still empty.
		return nil
	}
	db, err := OpenReadOnly(path)
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := quickCheck(ctx, path, db); err != nil || extra == nil {
		return err
	}
	return extra(ctx, db)
}

// quickCheck is QuickCheck for at most checkTime. A check that takes longer counts as passed.
func quickCheck(ctx context.Context, path string, db *sql.DB) error {
	bounded, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	if err := QuickCheck(bounded, path, db); bounded.Err() == nil {
		return err
	}
	return nil
}

// QuickCheck reads all pages of the database at path. The error wraps [ErrDamaged] if SQLite finds
// damage.
func QuickCheck(ctx context.Context, path string, db *sql.DB) error {
	var found string
	err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found)
	switch {
	case err != nil && !IsCorrupt(err):
		return fmt.Errorf("check %s: %w", path, err)
	case err != nil:
		return damagedError(path, err.Error())
	case found != "ok":
		return damagedError(path, found)
	}
	return nil
}

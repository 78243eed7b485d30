package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"
)

// checkTime is the time limit of the check in Open. It bounds how long a large database
// delays the start.
const checkTime = time.Second

// check returns an error if the database is damaged, and then calls the owner's own
// check, if any. It uses a read-only connection, because closing the last writable
// connection would checkpoint the WAL. It passes if it finds nothing in checkTime.
func check(ctx context.Context, path string, own func(context.Context, *sql.DB) error) (err error) {
	if _, err := os.Stat(path + "-journal"); err == nil {
		return nil // the process died while it created the database, which is still empty
	}
	db, err := OpenReadOnly(path)
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := quickCheck(ctx, path, db); err != nil || own == nil {
		return err
	}
	return own(ctx, db)
}

func quickCheck(ctx context.Context, path string, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var found string
	err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil && !IsCorrupt(err):
		return fmt.Errorf("check %s: %w", path, err)
	case err != nil:
		return damaged(path, err.Error())
	case found != "ok":
		return damaged(path, found)
	}
	return nil
}

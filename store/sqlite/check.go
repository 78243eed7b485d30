package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"
)

// checkTime bounds the check of a large database at start, which is to take less
// than two seconds in all.
const checkTime = time.Second

// check refuses a damaged database, untouched: its connection is one that reads
// alone, since the last of those that write moves the log into the database
// when it is closed. A database that cannot be read through in checkTime passes
// unless something was found until then. The owner's own check, if any, follows.
func check(ctx context.Context, path string, own func(context.Context, *sql.DB) error) (err error) {
	if _, err := os.Stat(path + "-journal"); err == nil {
		return nil // it was being made when the process ended: there is nothing in it yet
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

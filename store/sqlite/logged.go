package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"service/internal/durable"
)

// WriteLogged runs write in one transaction on a database that no process has
// open, and which may have been written by another program than SQLite. It closes
// the database without moving the write-ahead log into it: what was written, and
// the first page, are in the log alone, where the system has locks for that (see
// newGuard). The log is on disk (fsynced) then.
func WriteLogged(ctx context.Context, path string, write func(*sql.Conn) error) (err error) {
	db, err := openPool(path, modeCreate, keepingPragmas)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	var g *guard
	defer func() {
		err = errors.Join(err, db.Close())
		if g != nil {
			err = errors.Join(err, g.close())
		}
		if err == nil {
			if err = os.Remove(path + "-shm"); errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
	}()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if g, err = newGuard(path); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err = touchFirstPage(ctx, conn)
	if err == nil {
		err = write(conn)
	}
	if err != nil {
		_, undone := conn.ExecContext(ctx, "ROLLBACK")
		return errors.Join(err, undone)
	}
	if _, err = conn.ExecContext(ctx, "COMMIT"); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path)) // as in Open
}

// touchFirstPage writes the first page as it is.
func touchFirstPage(ctx context.Context, conn *sql.Conn) error {
	var version int64
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	_, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version))
	return err
}

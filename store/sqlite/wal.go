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

// WriteToWAL runs write in one transaction on a database that no process has open.
// The database file may come from a program other than SQLite, such as a restore.
//
// It closes the database without a checkpoint: the changes are in the WAL only, and the
// WAL is fsynced. The first page is written again, so that replication, which reads only
// the WAL, sees a change that a restore made to it in the file. The guard's lock prevents
// the checkpoint, for which SQLite needs an exclusive lock; where the guard has none
// (guard_other.go), SQLite checkpoints.
func WriteToWAL(ctx context.Context, path string, write func(*sql.Conn) error) (err error) {
	db, err := openPool(path, modeCreate, noCheckpointPragmas, nil)
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
		_, rollback := conn.ExecContext(ctx, "ROLLBACK")
		return errors.Join(err, rollback)
	}
	if _, err = conn.ExecContext(ctx, "COMMIT"); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path)) // for the reason given in Open
}

// touchFirstPage writes the first page without changing it, so that it is in the WAL.
func touchFirstPage(ctx context.Context, conn *sql.Conn) error {
	var version int64
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	_, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version))
	return err
}

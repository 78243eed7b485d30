package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"time"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrate brings the schema up to the newest this binary knows, one
// transaction a step, after a copy of what was there. A newer schema is
// refused: an older binary would not know what it must keep.
func (s *Store) migrate(ctx context.Context, path string) error {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	conn := s.writer.conn
	var have int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	switch {
	case have > len(files):
		return fmt.Errorf("%s has schema %d, and this binary knows schemas up to %d: use a newer binary", path, have, len(files))
	case have == len(files):
		return nil
	case have > 0:
		snapshot := fmt.Sprintf("%s.schema-%d.%s", path, have, time.Now().UTC().Format("20060102T150405Z"))
		if _, err := conn.ExecContext(ctx, "VACUUM INTO ?", snapshot); err != nil {
			return fmt.Errorf("snapshot before the migration: %w", err)
		}
		if err := os.Chmod(snapshot, 0o600); err != nil {
			return err
		}
	}
	// A table that others refer to cannot be replaced while references are
	// enforced. They are checked before each step is committed instead.
	if _, err := conn.ExecContext(ctx, "PRAGMA foreign_keys = OFF"); err != nil {
		return err
	}
	for i, name := range files[have:] {
		script, err := migrations.ReadFile(name)
		if err != nil {
			return err
		}
		if err := migrateStep(ctx, conn, string(script), have+i+1); err != nil {
			_, _ = conn.ExecContext(ctx, "ROLLBACK")
			return fmt.Errorf("migration %s: %w", name, err)
		}
	}
	_, err = conn.ExecContext(ctx, "PRAGMA foreign_keys = ON")
	return err
}

func migrateStep(ctx context.Context, conn *sql.Conn, script string, version int) error {
	// user_version takes no parameter; it is part of the transaction.
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("BEGIN IMMEDIATE;\n%s\nPRAGMA user_version = %d;", script, version)); err != nil {
		return err
	}
	rows, err := conn.QueryContext(ctx, "PRAGMA foreign_key_check")
	if err != nil {
		return err
	}
	err = drain(rows, func(scan func(...any) error) error {
		var table, parent string
		var row sql.NullInt64
		var key int
		if err := scan(&table, &row, &parent, &key); err != nil {
			return err
		}
		return fmt.Errorf("row %d of %s refers to a row of %s that is not there", row.Int64, table, parent)
	})
	if err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return err
}

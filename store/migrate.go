package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/internal/durable"
)

//go:embed migrations/*.sql
var migrations embed.FS

const migrationFiles = "migrations/*.sql"

// keptSnapshots is how many of the copies that migrations make are kept.
const keptSnapshots = 2

// migrate brings the schema up to the newest this binary knows, one
// transaction a step, after a copy of what was there. A newer schema is
// refused: an older binary would not know what it must keep.
func (s *Store) migrate(ctx context.Context, path string) error {
	files, err := fs.Glob(migrations, migrationFiles)
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
		snapshot, err := s.snapshotBefore(ctx, path, have)
		if err != nil {
			return fmt.Errorf("snapshot before the migration from schema %d to %d: %w", have, len(files), err)
		}
		s.logger.Info("the schema is brought up to date; the database as it was is kept", "from", have, "to", len(files), "snapshot", snapshot)
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
	if _, err = conn.ExecContext(ctx, "PRAGMA foreign_keys = ON"); err != nil {
		return err
	}
	return s.forgetSnapshots(path)
}

// schemaMark stands between a database's name and the schema of a copy of it,
// which its time follows.
const schemaMark = ".schema-"

// snapshotBefore copies the database beside itself, on disk (fsynced), and
// returns where. What a crash leaves of it does not have its name.
func (s *Store) snapshotBefore(ctx context.Context, path string, schema int) (string, error) {
	f, err := durable.CreateTemp(path + schemaMark + strconv.Itoa(schema))
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	if err := f.Close(); err != nil {
		return "", err
	}
	if _, err := s.writer.conn.ExecContext(ctx, "VACUUM INTO ?", f.Name()); err != nil {
		return "", err
	}
	if _, err := durable.SyncFile(f.Name()); err != nil {
		return "", err
	}
	snapshot := fmt.Sprintf("%s%s%d.%s", path, schemaMark, schema, time.Now().UTC().Format("20060102T150405.000Z"))
	return snapshot, durable.Rename(f.Name(), snapshot)
}

// forgetSnapshots removes the copies that migrations have made but the newest.
func (s *Store) forgetSnapshots(path string) error {
	copies, err := filepath.Glob(escapeGlob(path) + schemaMark + "*.*Z")
	if err != nil {
		return err
	}
	at := func(path string) string { return path[strings.Index(path, schemaMark)+len(schemaMark):] }
	taken := func(path string) string { _, t, _ := strings.Cut(at(path), "."); return t }
	slices.SortFunc(copies, func(a, b string) int { return strings.Compare(taken(b), taken(a)) })
	for _, old := range copies[min(len(copies), keptSnapshots):] {
		if err := os.Remove(old); err != nil {
			s.logger.Warn("an old copy of the database cannot be removed", "snapshot", old, "error", err)
			continue
		}
		s.logger.Info("an old copy of the database is removed", "snapshot", old)
	}
	return nil
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

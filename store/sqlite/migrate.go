package sqlite

import (
	"context"
	"database/sql"
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

// keptCopies is how many of the copies that migrations make are kept.
const keptCopies = 2

// migrationFiles returns the names of migrations in their order.
func migrationFiles(migrations fs.FS) ([]string, error) {
	return fs.Glob(migrations, "migrations/*.sql")
}

// NewestSchema returns the version of the schema that the migrations lead to.
func NewestSchema(migrations fs.FS) (int, error) {
	files, err := migrationFiles(migrations)
	return len(files), err
}

// migrate brings the schema up to the newest version that this binary knows, one
// transaction a step, after a copy of what was there. A newer schema is refused:
// an older binary would not know what it must keep.
func (db *DB) migrate(ctx context.Context, migrations fs.FS) error {
	files, err := migrationFiles(migrations)
	if err != nil {
		return err
	}
	conn := db.writer.conn
	var have int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	switch {
	case have > len(files):
		return fmt.Errorf("%s has schema %d, and this binary knows schemas up to %d: use a newer binary", db.path, have, len(files))
	case have == len(files):
		return nil
	case have > 0:
		snapshot, err := db.copyBefore(ctx, have)
		if err != nil {
			return fmt.Errorf("snapshot before the migration from schema %d to %d: %w", have, len(files), err)
		}
		if snapshot == "" {
			db.logger.Warn("the schema is brought up to date; the database is too large to be copied before: a backup is the only way back", "from", have, "to", len(files))
		} else {
			db.logger.Info("the schema is brought up to date; the database as it was is kept", "from", have, "to", len(files), "snapshot", snapshot)
		}
	}
	// A table that others refer to cannot be replaced while references are
	// enforced. They are checked before each step is committed instead.
	if _, err := conn.ExecContext(ctx, "PRAGMA foreign_keys = OFF"); err != nil {
		return err
	}
	for i, name := range files[have:] {
		script, err := fs.ReadFile(migrations, name)
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
	return db.pruneCopies()
}

// copyMark stands between a database's name and the schema of a copy of it,
// which is followed by its time.
const copyMark = ".schema-"

// mostCopied is how large a database may be to be copied before a migration: nobody
// is to wait for long.
const mostCopied = 2 << 30

// copyBefore copies the database beside itself, on disk (fsynced), and returns
// where; "" when it is too large. What a crash leaves of it does not have its name.
func (db *DB) copyBefore(ctx context.Context, schema int) (string, error) {
	var size int64
	if err := db.writer.conn.QueryRowContext(ctx, "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size").Scan(&size); err != nil {
		return "", err
	}
	if size > mostCopied {
		return "", nil
	}
	f, err := durable.CreateTemp(db.path + copyMark + strconv.Itoa(schema))
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	if err := f.Close(); err != nil {
		return "", err
	}
	if _, err := db.writer.conn.ExecContext(ctx, "VACUUM INTO ?", f.Name()); err != nil {
		return "", err
	}
	if _, err := durable.SyncFile(f.Name()); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s%s%d.%s", db.path, copyMark, schema, time.Now().UTC().Format("20060102T150405.000Z"))
	return name, durable.Rename(f.Name(), name)
}

// pruneCopies removes the copies that migrations have made but the newest.
func (db *DB) pruneCopies() error {
	dir, prefix := filepath.Dir(db.path), filepath.Base(db.path)+copyMark
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	taken := func(name string) string { _, t, _ := strings.Cut(strings.TrimPrefix(name, prefix), "."); return t }
	var copies []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(taken(e.Name()), "Z") {
			copies = append(copies, e.Name())
		}
	}
	slices.SortFunc(copies, func(a, b string) int { return strings.Compare(taken(b), taken(a)) })
	for _, name := range copies[min(len(copies), keptCopies):] {
		old := filepath.Join(dir, name)
		if err := os.Remove(old); err != nil {
			db.logger.Warn("an old copy of the database cannot be removed", "snapshot", old, "error", err)
			continue
		}
		db.logger.Info("an old copy of the database is removed", "snapshot", old)
	}
	return nil
}

func migrateStep(ctx context.Context, conn *sql.Conn, script string, version int) error {
	// user_version takes no parameter; it is part of the transaction.
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("BEGIN IMMEDIATE;\n%s\nPRAGMA user_version = %d;", script, version)); err != nil {
		return err
	}
	if strings.Contains(script, "DROP TABLE") { // nothing else breaks a reference; it reads all rows that have one
		if err := checkReferences(ctx, conn); err != nil {
			return err
		}
	}
	_, err := conn.ExecContext(ctx, "COMMIT")
	return err
}

// checkReferences says whether a row refers to one that is not there.
func checkReferences(ctx context.Context, conn *sql.Conn) error {
	rows, err := conn.QueryContext(ctx, "PRAGMA foreign_key_check")
	if err != nil {
		return err
	}
	return Drain(rows, func(scan func(...any) error) error {
		var table, parent string
		var row sql.NullInt64
		var key int
		if err := scan(&table, &row, &parent, &key); err != nil {
			return err
		}
		return fmt.Errorf("row %d of %s refers to a row of %s that is not there", row.Int64, table, parent)
	})
}

package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/internal/durable"
)

// keptSnapshots is how many of the snapshots that migrations make are kept.
const keptSnapshots = 2

// migrationFiles returns the names of the migrations in lexical order.
func migrationFiles(migrations fs.FS) ([]string, error) {
	return fs.Glob(migrations, "migrations/*.sql")
}

// NewestSchema returns the schema version after all migrations.
func NewestSchema(migrations fs.FS) (int, error) {
	files, err := migrationFiles(migrations)
	return len(files), err
}

// migrate migrates the schema to the newest version that this binary supports. It first makes a snapshot of the database, unless the
// database is new or larger than maxSnapshotSize. It rejects a schema newer than the binary.
func (db *DB) migrate(ctx context.Context, migrations fs.FS, steps map[string]func(context.Context, *sql.Conn) error) error {
	files, err := migrationFiles(migrations)
	if err != nil {
		return err
	}
	conn := db.writer.conn
	var have int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return fmt.Errorf("read the schema version: %w", err)
	}
	switch {
	case have > len(files):
		return fmt.Errorf("%s has schema %d, but this binary supports schemas up to %d: use a newer binary", db.path, have, len(files))
	case have == len(files):
		return nil
	case have > 0:
		snapshot, err := db.snapshot(ctx, have)
		if err != nil {
			return fmt.Errorf("snapshot before the migration from schema %d to %d: %w", have, len(files), err)
		}
		if snapshot == "" {
			db.logger.Warn("migrating the schema without a snapshot, since the database is over 2 GiB; only a backup can undo this",
				"from", have, "to", len(files))
		} else {
			db.logger.Info("migrating the schema, with a snapshot of the old database", "from", have, "to", len(files), "snapshot", snapshot)
		}
	}
	// A table that others reference cannot be replaced while foreign keys are enforced.
	// commitMigration checks them instead.
	if _, err := conn.ExecContext(ctx, "PRAGMA foreign_keys = OFF"); err != nil {
		return err
	}
	if err := runMigrations(ctx, conn, migrations, steps, files, have); err != nil {
		_, _ = conn.ExecContext(ctx, "ROLLBACK")
		return err
	}
	if _, err = conn.ExecContext(ctx, "PRAGMA foreign_keys = ON"); err != nil {
		return err
	}
	return db.pruneSnapshots()
}

// snapshotMark separates a database's name from the schema version and the time in
// the name of a snapshot: service.db.schema-12.20260102T150405.000Z.
const snapshotMark = ".schema-"

// maxSnapshotSize is the maximum size in bytes of a database that is copied before a
// migration. It bounds how long a start after an upgrade takes.
const maxSnapshotSize = 2 << 30

// snapshot copies the database to a new file in the same directory, fsyncs it and
// returns its path, or "" if the database is too large. A crash during the copy leaves
// only a file with a temporary name.
func (db *DB) snapshot(ctx context.Context, schema int) (string, error) {
	const used = `SELECT (page_count - freelist_count) * page_size
		FROM pragma_page_count, pragma_freelist_count, pragma_page_size`
	var size int64
	if err := db.writer.conn.QueryRowContext(ctx, used).Scan(&size); err != nil {
		return "", err
	}
	if size > maxSnapshotSize {
		return "", nil
	}
	f, err := durable.CreateTemp(db.path + snapshotMark + strconv.Itoa(schema))
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
	name := fmt.Sprintf("%s%s%d.%s", db.path, snapshotMark, schema, time.Now().UTC().Format("20060102T150405.000Z"))
	return name, durable.Rename(f.Name(), name)
}

// pruneSnapshots deletes the snapshots of earlier migrations except the newest ones.
func (db *DB) pruneSnapshots() error {
	dir, prefix := filepath.Dir(db.path), filepath.Base(db.path)+snapshotMark
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	timeOf := func(name string) string { _, t, _ := strings.Cut(strings.TrimPrefix(name, prefix), "."); return t }
	var snapshots []string
	for _, e := range entries {
		// The name of an unfinished copy contains no time, see snapshot.
		if strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(timeOf(e.Name()), "Z") {
			snapshots = append(snapshots, e.Name())
		}
	}
	slices.SortFunc(snapshots, func(a, b string) int { return strings.Compare(timeOf(b), timeOf(a)) })
	for _, name := range snapshots[min(len(snapshots), keptSnapshots):] {
		old := filepath.Join(dir, name)
		if err := os.Remove(old); err != nil {
			db.logger.Warn("failed to delete an old snapshot of the database", "snapshot", old, "error", err)
			continue
		}
		db.logger.Info("deleted an old snapshot of the database", "snapshot", old)
	}
	return nil
}

// schemaFile is the schema that all migrations make together. With it, a new database is opened
// in half the time.
const schemaFile = "schema.sql"

// runMigrations runs the migrations that a database of version have lacks, one transaction for
// each. A new database gets them all in one transaction, or [schemaFile]: it has nothing that an
// error in the middle could leave behind, and one fsync is faster than one for each version.
// After an error the caller must roll back.
func runMigrations(ctx context.Context, conn *sql.Conn, migrations fs.FS, steps map[string]func(context.Context, *sql.Conn) error,
	files []string, have int) error {
	lacking, version := files[min(have, len(files)):], have
	if have == 0 {
		whole, err := fs.Glob(migrations, schemaFile)
		if err != nil {
			return err
		}
		if len(whole) > 0 {
			lacking, version = whole, len(files)-1
		}
	}
	var rebuilt bool
	for i, name := range lacking {
		script, err := fs.ReadFile(migrations, name)
		if err != nil {
			return err
		}
		begin := "BEGIN IMMEDIATE;"
		if have == 0 && i > 0 {
			begin = ""
		}
		// PRAGMA takes no parameters. user_version is part of the transaction.
		step := fmt.Sprintf("%s\n%s\nPRAGMA user_version = %d;", begin, script, version+i+1)
		if _, err := conn.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("migration %s: %w", name, err)
		}
		if do := steps[path.Base(name)]; do != nil {
			if err := do(ctx, conn); err != nil {
				return fmt.Errorf("migration %s: %w", name, err)
			}
		}
		rebuilt = rebuilt || strings.Contains(string(script), "DROP TABLE")
		if have == 0 && i < len(lacking)-1 {
			continue
		}
		if err := commitMigration(ctx, conn, rebuilt); err != nil {
			return fmt.Errorf("migration %s: %w", name, err)
		}
		rebuilt = false
	}
	return nil
}

// commitMigration commits. Only a migration that drops a table (rebuilt) can break references.
// Their check is slow: it reads every row that has one.
func commitMigration(ctx context.Context, conn *sql.Conn, rebuilt bool) error {
	if rebuilt {
		if err := checkReferences(ctx, conn); err != nil {
			return err
		}
	}
	_, err := conn.ExecContext(ctx, "COMMIT")
	return err
}

// checkReferences returns an error if a foreign key refers to a missing row.
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
		return fmt.Errorf("row %d of %s refers to a missing row of %s", row.Int64, table, parent)
	})
}

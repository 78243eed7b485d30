package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/internal/durable"
)

// keptSnapshots is how many of the snapshots that migrations make are kept.
const keptSnapshots = 2

// Schema is the schema of a database, with the migrations from older ones.
type Schema struct {
	Version int    // increases with each change; at least 1
	Script  string // creates the tables of a new database
	// Migrations are scripts that each migrate a database to the next version, the last one to
	// Version. Databases with a version before the first are rejected.
	Migrations []string
}

// oldest returns the oldest version that can be migrated.
func (s *Schema) oldest() int { return s.Version - len(s.Migrations) }

// Check returns an error unless a database with a schema version can be used, if necessary after
// a migration. The error begins with what, which names the database.
func (s *Schema) Check(what string, version int) error {
	switch {
	case version == 0:
		return fmt.Errorf("%s is not a database of this service", what)
	case version > s.Version:
		return fmt.Errorf("%s has schema %d, but this binary supports schemas up to %d: use a newer binary", what, version, s.Version)
	case version < s.oldest():
		return fmt.Errorf("%s has schema %d of an unreleased version, but this binary supports schemas from %d on: use the binary that "+
			"wrote it, or begin with an empty data directory", what, version, s.oldest())
	}
	return nil
}

// migrate migrates the schema to the newest version that this binary supports. It first makes a snapshot of the database, unless the
// database is new or larger than maxSnapshotSize. It rejects a schema that it cannot migrate.
func (db *DB) migrate(ctx context.Context, schema *Schema) error {
	conn := db.writer.conn
	var have int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return fmt.Errorf("read the schema version: %w", err)
	}
	if have == schema.Version {
		return nil
	}
	if have != 0 {
		if err := schema.Check(db.path, have); err != nil {
			return err
		}
		snapshot, err := db.snapshot(ctx, have)
		if err != nil {
			return fmt.Errorf("snapshot before the migration from schema %d to %d: %w", have, schema.Version, err)
		}
		if snapshot == "" {
			db.logger.Warn("migrating the schema without a snapshot, since the database is over 2 GiB; only a backup can undo this",
				"from", have, "to", schema.Version)
		} else {
			db.logger.Info("migrating the schema, with a snapshot of the old database", "from", have, "to", schema.Version, "snapshot", snapshot)
		}
	}
	// A table that others reference cannot be replaced while foreign keys are enforced.
	// runMigration checks them instead.
	if _, err := conn.ExecContext(ctx, "PRAGMA foreign_keys = OFF"); err != nil {
		return err
	}
	if err := schema.run(ctx, conn, have); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "PRAGMA foreign_keys = ON"); err != nil {
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

// run brings a database of version have, which Check accepts or which is new (0), to the newest
// version, with one transaction per version.
func (s *Schema) run(ctx context.Context, conn *sql.Conn, have int) error {
	if have == 0 {
		return runMigration(ctx, conn, s.Script, s.Version)
	}
	for version := have + 1; version <= s.Version; version++ {
		if err := runMigration(ctx, conn, s.Migrations[version-s.oldest()-1], version); err != nil {
			return err
		}
	}
	return nil
}

// runMigration runs a script that leads to a schema version, in a transaction.
func runMigration(ctx context.Context, conn *sql.Conn, script string, version int) (err error) {
	defer func() {
		if err != nil {
			_, _ = conn.ExecContext(ctx, "ROLLBACK")
			err = fmt.Errorf("migration to schema %d: %w", version, err)
		}
	}()
	// PRAGMA takes no parameters. user_version is part of the transaction.
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("BEGIN IMMEDIATE;\n%s\nPRAGMA user_version = %d;", script, version)); err != nil {
		return err
	}
	// Only dropping a table can break references. Their check is slow: it reads every row that has one.
	if strings.Contains(script, "DROP TABLE") {
		if err := checkReferences(ctx, conn); err != nil {
			return err
		}
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
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

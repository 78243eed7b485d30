package sqlite

import (
	"bytes"
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"service/internal/durable"
)

// after returns testSchema with a second step.
func after(step string) *Schema {
	return &Schema{Version: testSchema.Version + 1, Script: testSchema.Script + step, Migrations: []string{step}}
}

// openSchema opens a database with a schema and closes it. It returns what was logged.
func openSchema(t *testing.T, path string, schema *Schema) (log string, err error) {
	t.Helper()
	var text bytes.Buffer
	db, err := Open(t.Context(), Config{
		Path: path, Schema: schema, Readers: [...]int{1, 1, 1}, Logger: slog.New(slog.NewTextHandler(&text, nil)),
	})
	if err != nil {
		return text.String(), err
	}
	var enforced bool
	if err := db.Writer().Do(func(t *Tx) error { return t.Scan("PRAGMA foreign_keys", nil, &enforced) }); err != nil || !enforced {
		t.Errorf("foreign_keys: got %v, %v; want true", enforced, err)
	}
	return text.String(), db.Close(nil)
}

// schemaOf returns the schema version of a database, its statements, and its items.
func schemaOf(t *testing.T, path string) (version int, statements, items string) {
	t.Helper()
	db, err := OpenReadOnly(path)
	must(t, err)
	defer db.Close()
	var all, ids sql.NullString
	for query, dest := range map[string]any{
		"PRAGMA user_version":                               &version,
		"SELECT group_concat(sql, '; ') FROM sqlite_schema": &all,
		"SELECT group_concat(id ORDER BY id) FROM items":    &ids,
	} {
		if err := db.QueryRow(query).Scan(dest); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	return version, all.String, ids.String
}

// withItem creates a database of testSchema with an item that a ref references.
func withItem(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "test.db")
	db := openPath(t, path, Hooks{})
	err := db.Writer().Do(func(t *Tx) error {
		if err := insertItem("a")(t); err != nil {
			return err
		}
		return t.Exec("INSERT INTO refs (item) VALUES ('a')")
	})
	must(t, err)
	must(t, db.Close(nil))
	return path
}

// A database of the version before is migrated with all its records. Before that it is copied,
// the log says where, and the newest two copies are kept.
func TestMigration(t *testing.T) {
	path := withItem(t)
	older := []string{path + ".schema-1.20200101T000000Z", path + ".schema-2.20210101T000000Z", path + ".schema-9.20190101T000000Z"}
	for _, name := range append(older, path+".schema-1"+durable.TempSuffix+"123") {
		must(t, os.WriteFile(name, nil, 0o600))
	}
	log, err := openSchema(t, path, after("ALTER TABLE items ADD COLUMN size INTEGER;"))
	must(t, err)
	if version, statements, items := schemaOf(t, path); version != 8 || !strings.Contains(statements, "size INTEGER") || items != "a" {
		t.Errorf("got version %d, items %s of %s", version, items, statements)
	}
	copies, err := filepath.Glob(path + ".schema-*Z") // the other file is unfinished
	if err != nil || len(copies) != 2 || !slices.Contains(copies, older[1]) {
		t.Fatalf("kept are %v, %v, want the newest two", copies, err)
	}
	made := copies[slices.IndexFunc(copies, func(c string) bool { return c != older[1] })]
	if version, statements, items := schemaOf(t, made); version != 7 || strings.Contains(statements, "size INTEGER") || items != "a" {
		t.Errorf("%s: got version %d, items %s of %s; want the content from before", made, version, items, statements)
	}
	if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info, err)
	}
	for _, want := range []string{`msg="migrating the schema, with a snapshot of the old database" from=7 to=8`, "snapshot=" + made,
		"snapshot=" + older[0]} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	// The database is not migrated again, and a new database gets the same schema without a copy.
	if log, err := openSchema(t, path, after("ALTER TABLE items ADD COLUMN size INTEGER;")); err != nil || log != "" {
		t.Errorf("opened again: %v\n%s", err, log)
	}
	fresh := filepath.Join(t.TempDir(), "test.db")
	if log, err := openSchema(t, fresh, after("ALTER TABLE items ADD COLUMN size INTEGER;")); err != nil || log != "" {
		t.Errorf("a new database: %v\n%s", err, log)
	}
	if version, statements, _ := schemaOf(t, fresh); version != 8 || !strings.Contains(statements, "size INTEGER") {
		t.Errorf("a new database: got version %d of %s", version, statements)
	}
}

// A failed migration leaves the database as it was.
func TestFailedMigration(t *testing.T) {
	for name, step := range map[string]string{
		"an error":           "ALTER TABLE items ADD COLUMN size INTEGER; INSERT INTO nothing VALUES (1);",
		"a broken reference": "ALTER TABLE items RENAME TO old; CREATE TABLE items (id TEXT PRIMARY KEY, body BLOB) STRICT; DROP TABLE old;",
	} {
		t.Run(name, func(t *testing.T) {
			path := withItem(t)
			_, before, _ := schemaOf(t, path)
			if _, err := openSchema(t, path, after(step)); err == nil || !strings.Contains(err.Error(), "migration to schema 8") {
				t.Errorf("got %v", err)
			}
			if version, statements, items := schemaOf(t, path); version != 7 || statements != before || items != "a" {
				t.Errorf("got version %d, items %s of %s", version, items, statements)
			}
			if _, err := openSchema(t, path, testSchema); err != nil {
				t.Errorf("the old binary: %v", err)
			}
		})
	}
}

// Versions that cannot be migrated are rejected, and nothing is changed.
func TestUnsupportedSchema(t *testing.T) {
	for version, want := range map[int]string{
		1:  " has schema 1 of an unreleased version, but this binary supports schemas from 7 on: ",
		6:  " has schema 6 of an unreleased version, but this binary supports schemas from 7 on: ",
		9:  " has schema 9, but this binary supports schemas up to 8: use a newer binary",
		-1: " has schema -1 of an unreleased version, but this binary supports schemas from 7 on: ",
	} {
		path := filepath.Join(t.TempDir(), "test.db")
		_, err := openSchema(t, path, &Schema{Version: version, Script: testSchema.Script})
		must(t, err)
		step := after("DROP TABLE items;")
		_, err = openSchema(t, path, step)
		if err == nil || !strings.HasPrefix(err.Error(), path+want) {
			t.Errorf("%d: got %v", version, err)
		}
		if _, err := OpenPrivate(t.Context(), path, step); err == nil || !strings.HasPrefix(err.Error(), path+want) {
			t.Errorf("%d, as a copy: got %v", version, err)
		}
		if got, statements, _ := schemaOf(t, path); got != version || !strings.Contains(statements, "items") {
			t.Errorf("%d: got version %d of %s", version, got, statements)
		}
		if copies, err := filepath.Glob(path + ".schema-*"); err != nil || len(copies) > 0 {
			t.Errorf("%d: got copies %v, %v", version, copies, err)
		}
	}
	if err := testSchema.Check("it", 0); err == nil || err.Error() != "it is not a database of this service" {
		t.Errorf("0: got %v", err)
	}
}

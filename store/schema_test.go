package store

import (
	"crypto/sha256"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"service/store/datadir"
	"service/store/doctor"
	"service/store/replica"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

// TestTokensOfTheInstallation checks that the schema permits tokens without a program for two
// scopes only, each alone, and no platform token in a program.
func TestTokensOfTheInstallation(t *testing.T) {
	s := open(t)
	for _, tt := range []struct {
		program any
		scopes  string
		ok      bool
	}{
		{nil, "platform", true}, {nil, "metrics.read", true}, {nil, "events.read", false}, {nil, "metrics.read events.read", false},
		{nil, "platform metrics.read", false}, {nil, "", false}, {"acme", "metrics.read", true}, {"acme", "platform", false},
		{"acme", "events.read platform", false},
	} {
		err := s.Write(t.Context(), func(w Write) error {
			if err := w.t.ensureProgram("acme", w.t.s.clock.Now()); err != nil {
				return err
			}
			hash := sha256.Sum256([]byte(webhook.NewID()))
			return w.t.Exec(insertToken, webhook.NewID(), hash[:], "svc_", tt.program, "u", "", tt.scopes, 1, nil)
		})
		if (err == nil) != tt.ok {
			t.Errorf("%v with %q: got %v", tt.program, tt.scopes, err)
		}
	}
}

// setSchema sets the schema version of a database that is not open.
func setSchema(t *testing.T, path string, version int) {
	t.Helper()
	db, err := sqlite.OpenWritable(path)
	must(t, err)
	_, err = db.Exec("PRAGMA user_version = " + strconv.Itoa(version))
	must(t, errors.Join(err, db.Close()))
}

// Databases of versions that were never released, and of newer versions, are rejected wherever
// they are opened. Nothing is changed.
func TestUnsupportedSchema(t *testing.T) {
	for version, want := range map[int]string{
		1:  "has schema 1 of an unreleased version, but this binary supports schemas from " + strconv.Itoa(schema.Version) + " on: ",
		30: "has schema 30 of an unreleased version, but this binary supports schemas from " + strconv.Itoa(schema.Version) + " on: ",
		99: "has schema 99 of an unreleased version, but this binary supports schemas from " + strconv.Itoa(schema.Version) + " on: ",
		schema.Version + 1: "has schema " + strconv.Itoa(schema.Version+1) + ", but this binary supports schemas up to " +
			strconv.Itoa(schema.Version) + ": use a newer binary",
	} {
		t.Run(strconv.Itoa(version), func(t *testing.T) {
			dir, target := t.TempDir(), t.TempDir()
			s := openDir(t, dir)
			program(t, s, "p")
			export, err := s.Programs().Export(t.Context(), "p", 1)
			must(t, err)
			made, err := s.Snapshot(t.Context(), 1)
			must(t, err)
			must(t, s.Close())
			path := filepath.Join(dir, datadir.Database)
			for _, of := range []string{path, made.Path, export.Path} {
				setSchema(t, of, version)
			}

			reject := func(what string, err error) {
				t.Helper()
				if err == nil || strings.Count(err.Error(), want) != 1 {
					t.Errorf("%s: got %v", what, err)
				}
			}
			_, err = datadir.Inspect(t.Context(), made.Path, made.Keys)
			if reject("backup verify, and restore from a backup", err); !errors.Is(err, datadir.ErrUnusable) {
				t.Errorf("got %v, want %v", err, datadir.ErrUnusable)
			}
			here := openDir(t, t.TempDir())
			_, err = here.Programs().Import(t.Context(), &ProgramImport{Path: export.Path, Key: export.Key})
			reject("import", err)
			_, err = here.Programs().Receive(t.Context(), "m", &ProgramImport{Path: export.Path, Key: export.Key})
			reject("move", err)
			reject("restore from a replica", restoreSchema(t, target, version))
			_, err = Open(t.Context(), Config{Dir: dir})
			reject("serve", err)
			_, err = datadir.OpenOldData(t.Context(), dir)
			reject("salvage", err)
			must(t, os.Chmod(dir, 0o700))
			found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir}, 0)
			must(t, err)
			compare(t, found, map[string]doctor.Level{"schema": doctor.LevelFail, "database": doctor.LevelOK}, want)

			db, err := sqlite.OpenReadOnly(path)
			must(t, err)
			defer db.Close()
			var after, programs int
			must(t, db.QueryRow("SELECT user_version, (SELECT count(*) FROM programs) FROM pragma_user_version").Scan(&after, &programs))
			if after != version || programs != 1 {
				t.Errorf("got schema %d and %d programs", after, programs)
			}
		})
	}
}

// restoreSchema writes a database with a schema version to a replica, and restores it.
func restoreSchema(t *testing.T, target string, version int) error {
	t.Helper()
	dir := t.TempDir()
	cfg := fileReplica(t, dir, target)
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "p")
	execute(t, r.Store, "PRAGMA user_version = "+strconv.Itoa(version))
	must(t, r.close())
	to, err := datadir.Restore(t.TempDir(), false)
	must(t, err)
	defer to.Close()
	_, err = to.FromReplica(t.Context(), cfg, time.Time{})
	if err == nil {
		return nil
	}
	if _, there := os.Stat(filepath.Join(to.Dir(), datadir.Database)); there == nil {
		t.Error("a rejected database stays")
	}
	must(t, os.RemoveAll(dir))
	if _, again := Open(t.Context(), Config{Dir: dir, Replica: cfg}); again == nil || again.Error() != err.Error() &&
		!strings.Contains(again.Error(), err.Error()) {
		t.Errorf("serve without a database: got %v", again)
	}
	return err
}

// A new database has no rows, and its foreign keys refer to columns that exist.
func TestNewSchema(t *testing.T) {
	db, err := sqlite.OpenPrivate(t.Context(), filepath.Join(t.TempDir(), "new.db"), schema.Current)
	must(t, err)
	defer db.Close()
	rows, err := db.Query("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'")
	must(t, err)
	var tables []string
	must(t, sqlite.Drain(rows, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		tables = append(tables, name)
		return err
	}))
	for _, name := range tables {
		var n int
		must(t, db.QueryRow("SELECT count(*) FROM "+name).Scan(&n))
		if n > 0 {
			t.Errorf("%s has %d rows", name, n)
		}
	}
	var table string
	if err := db.QueryRow(`SELECT "table" FROM pragma_foreign_key_check`).Scan(&table); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("foreign keys: got %s, %v", table, err)
	}
}

// A replica that an unreleased version wrote, with files at its root and no term, is rejected: serve
// neither restores it nor starts without it, and doctor says why.
func TestUnreleasedReplica(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	cfg := fileReplica(t, dir, target)
	must(t, os.MkdirAll(filepath.Join(target, "ltx", "0"), 0o700))
	must(t, os.WriteFile(filepath.Join(target, "ltx", "0", "0000000000000001-0000000000000001.ltx"), []byte("x"), 0o600))
	if _, err := Open(t.Context(), Config{Dir: dir, Replica: cfg}); !errors.Is(err, replica.ErrUnreleased) {
		t.Errorf("serve: got %v", err)
	}
	to, err := datadir.Restore(t.TempDir(), false)
	must(t, err)
	defer to.Close()
	if _, err := to.FromReplica(t.Context(), cfg, time.Time{}); !errors.Is(err, replica.ErrUnreleased) {
		t.Errorf("restore: got %v", err)
	}
	found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir, Replica: cfg}, 0)
	must(t, err)
	compare(t, found, map[string]doctor.Level{"replica": doctor.LevelFail, "database": doctor.LevelWarn}, "files of an unreleased version")
}

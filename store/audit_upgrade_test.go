package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"service/store/sqlite"
	"service/webhook"
)

// schemaBefore is the migrations before one, without the schema of all.
type schemaBefore struct {
	fs.FS
	end string // number of the first one that is left out
}

func (o schemaBefore) Glob(pattern string) ([]string, error) {
	all, err := fs.Glob(o.FS, pattern)
	return slices.DeleteFunc(all, func(name string) bool { return filepath.Base(name) >= o.end }), err
}

// openOlder creates or migrates a database with the migrations before one.
func openOlder(t *testing.T, dir, end string, steps map[string]func(context.Context, *sql.Conn) error) error {
	t.Helper()
	older, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, databaseFile), Migrations: schemaBefore{migrations, end},
		Steps: steps, Readers: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return older.Close(nil)
}

// olderAudit creates a database with the migrations before one, and returns a function that
// changes it while it is closed.
func olderAudit(t *testing.T, dir, end string, steps map[string]func(context.Context, *sql.Conn) error) (exec func(string, ...any)) {
	t.Helper()
	must(t, openOlder(t, dir, end, steps))
	return func(query string, args ...any) {
		t.Helper()
		db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, databaseFile))
		must(t, err)
		defer db.Close()
		if _, err := db.Exec(query, args...); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
}

// TestAuditMigration checks that Open hashes the entries of an older version, all or none, and
// only once.
func TestAuditMigration(t *testing.T) {
	dir := t.TempDir()
	exec := olderAudit(t, dir, "0027", nil)
	const entries = 2*auditChunk + 5
	exec("INSERT INTO admins (id, email, password, created_at, role) VALUES ('a1', 'ana@example.com', 'x', 1, 'owner')")
	exec("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "+
		"INSERT INTO audit (num, id, at, admin, address, action, "+
		"program_id, subject_id, detail) SELECT i, 'id' || i, 1000000000000 + i, CASE i % 4 WHEN 0 THEN 'terminal' WHEN 1 THEN "+
		"'ana@example.com' WHEN 2 THEN 'token:t1' ELSE 'left@example.com' END, '192.0.2.1', 'key.rotate', '', 's', 'detail ' || i "+
		"FROM n", entries)
	// A crash before the commit leaves the older schema.
	crash := errors.New("crash")
	steps := auditSteps(slog.New(slog.DiscardHandler))
	chain := steps["0027_audit_chain.sql"]
	steps["0027_audit_chain.sql"] = func(ctx context.Context, conn *sql.Conn) error {
		must(t, chain(ctx, conn))
		return crash
	}
	if err := openOlder(t, dir, "0031", steps); !errors.Is(err, crash) {
		t.Fatalf("got %v, want the crash", err)
	}
	exec("INSERT INTO audit (num, id, at, admin, address, action, program_id, subject_id, detail) " +
		"SELECT num + 1, 'last', at, 'terminal', '', action, '', '', '' FROM audit ORDER BY num DESC LIMIT 1")

	s := openDir(t, dir)
	if got := verifyAudit(t, s); got.Entries != int64(entries+1) || got.Pruned != (webhook.AuditPrune{}) {
		t.Errorf("got %+v", got)
	}
	for actor, want := range map[string]int{"terminal": entries/4 + 1, "admin:a1": (entries + 3) / 4, "token:t1": (entries + 2) / 4,
		"admin:": (entries + 1) / 4} {
		if n := count(t, s, "SELECT count(*) FROM audit WHERE actor = ?", actor); n != int64(want) {
			t.Errorf("%s: got %d entries, want %d", actor, n, want)
		}
	}
	recordKey(t, s)
	verifyAudit(t, s)
}

// TestAuditForgedSchema checks that no schema version that someone sets makes Open hash entries
// again.
func TestAuditForgedSchema(t *testing.T) {
	before := func(end string) int {
		files, err := schemaBefore{migrations, end}.Glob("migrations/*.sql")
		must(t, err)
		return len(files)
	}
	for _, c := range []struct {
		name, change string
		opens        bool
	}{
		{"before the hashes", fmt.Sprintf("PRAGMA user_version = %d", before("0027")), false},
		{"before the hashes, without what later migrations added", fmt.Sprintf("DROP TABLE audit_anchor; DROP TABLE shares; "+
			"DROP INDEX audit_prunes; PRAGMA user_version = %d", before("0027")), false},
		{"before removals were recorded", fmt.Sprintf("PRAGMA user_version = %d", before("0030")), false},
		{"before removals were recorded, without the index", fmt.Sprintf("DROP INDEX audit_prunes; PRAGMA user_version = %d",
			before("0030")), true},
		{"the current one", "DELETE FROM audit_anchor", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			exec := olderAudit(t, dir, "9999", auditSteps(slog.New(slog.DiscardHandler)))
			s := openDir(t, dir)
			fillAudit(t, s)
			must(t, s.Close())
			exec("UPDATE audit SET detail = 'other', salt = x'', digest = x'', hash = x''; " + c.change)
			s, err := Open(t.Context(), Config{Dir: dir, Dictionary: dictionary()})
			if c.opens != (err == nil) {
				t.Fatalf("Open: got %v", err)
			}
			if err != nil {
				return
			}
			defer s.Close()
			var fault *webhook.AuditFault
			if _, err := s.verifyAudit(t.Context(), webhook.AuditHash{}); !errors.As(err, &fault) || fault.Num != 1 {
				t.Errorf("got %v, want a fault of entry 1", err)
			}
		})
	}
}

// TestAuditOldAnchor checks that the upgrade of a database from which an older version removed
// entries records that once, and that nothing vouches for a later anchor.
func TestAuditOldAnchor(t *testing.T) {
	dir := t.TempDir()
	steps := auditSteps(slog.New(slog.DiscardHandler))
	exec := olderAudit(t, dir, "0027", nil)
	exec("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) " +
		"INSERT INTO audit (num, id, at, admin, address, action, program_id, subject_id, detail) " +
		"SELECT i, 'id' || i, 1000000000000 + i, 'terminal', '', 'key.rotate', '', 's', '' FROM n")
	must(t, openOlder(t, dir, "0030", steps))
	exec("INSERT INTO audit_anchor SELECT 1, num, hash FROM audit WHERE num = 4; DELETE FROM audit WHERE num <= 4")

	s := openDir(t, dir)
	got := verifyAudit(t, s)
	want := webhook.AuditPrune{Num: 4, Hash: got.Anchor, Upgrade: true}
	if got.First != 5 || got.Last != 10 || got.Pruned != want || got.PrunedAt != got.LastAt {
		t.Errorf("got %+v", got)
	}
	must(t, s.Close())
	s = openDir(t, dir)
	if again := verifyAudit(t, s); again != got {
		t.Errorf("opened again: got %+v, want %+v", again, got)
	}
	must(t, s.Close())

	exec("UPDATE audit_anchor SET (num, hash) = (SELECT num, hash FROM audit WHERE num = 6); DELETE FROM audit WHERE num <= 6")
	s = openDir(t, dir)
	var fault *webhook.AuditFault
	if _, err := s.verifyAudit(t.Context(), got.Newest); !errors.As(err, &fault) || fault.Num != 7 {
		t.Errorf("a forged anchor: got %v, want a fault of entry 7", err)
	}
	must(t, s.Close())

	// The migration does not vouch for it either when it is made to run again.
	files, err := schemaBefore{migrations, "0030"}.Glob("migrations/*.sql")
	must(t, err)
	exec(fmt.Sprintf("DROP INDEX audit_prunes; PRAGMA user_version = %d", len(files)))
	s = openDir(t, dir)
	if _, err := s.verifyAudit(t.Context(), got.Newest); !errors.As(err, &fault) || fault.Num != 7 {
		t.Errorf("a forged schema: got %v, want a fault of entry 7", err)
	}
}

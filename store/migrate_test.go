package store

import (
	"compress/gzip"
	"database/sql"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// schema1 creates a data directory of the first schema with records of all kinds.
func schema1(t *testing.T, dir string) {
	t.Helper()
	stored, err := os.Open("testdata/schema-1/service.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Close()
	plain, err := gzip.NewReader(stored)
	if err != nil {
		t.Fatal(err)
	}
	database, err := io.ReadAll(plain)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile("testdata/schema-1/secret.key")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"service.db": database, "secret.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A data directory of the first schema is migrated with all its records, and a copy of the old
// database is kept.
func TestMigrationFromSchema1(t *testing.T) {
	dir := t.TempDir()
	schema1(t, dir)

	s := openDir(t, dir)
	if copies, err := filepath.Glob(filepath.Join(dir, "service.db.schema-1.*")); err != nil || len(copies) != 1 {
		t.Errorf("got copies %v, %v; want one", copies, err)
	}
	var enforced bool
	if err := s.writer.do(func(t *tx) error { return t.Scan("PRAGMA foreign_keys", nil, &enforced) }); err != nil || !enforced {
		t.Errorf("foreign_keys: got %v, %v; want true", enforced, err)
	}
	for query, want := range map[string]int{
		"SELECT count(*) FROM events":                                                              4,
		"SELECT count(*) FROM subscriptions WHERE deleted_at IS NULL":                              2,
		"SELECT count(*) FROM deliveries WHERE ping IS NULL AND status = 'success'":                1,
		"SELECT count(*) FROM deliveries WHERE ping IS NULL AND status = 'failed'":                 1,
		"SELECT count(*) FROM deliveries WHERE ping IS NULL AND status = 'retryable'":              1,
		"SELECT count(*) FROM deliveries WHERE ping IS NULL AND claimed_at IS NOT NULL":            1,
		"SELECT count(*) FROM attempts":                                                            3,
		"SELECT count(*) FROM delivery_events x JOIN deliveries d ON d.num = x.delivery":           5,
		"SELECT count(*) FROM replays WHERE status = 'running'":                                    1,
		"SELECT count(*) FROM pragma_index_list('deliveries')":                                     18,
		"SELECT count(*) FROM sqlite_schema WHERE instr(sql, 'new_') > 0":                          0,
		"SELECT count(*) FROM deliveries WHERE failure_reason = 'subscription_deleted'":            1,
		"SELECT count(*) FROM pragma_foreign_key_list('attempts')":                                 0,
		"SELECT count(*) FROM pragma_foreign_key_list('delivery_events')":                          0,
		"SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name = 'deliveries_by_error'": 1,
	} {
		var got int
		if err := s.db.Scan(t.Context(), query, nil, &got); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", query, got, err, want)
		}
	}

	// Secrets can be decrypted, and the delivery in flight is due again.
	if n, err := s.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy()); err != nil || n != 1 {
		t.Errorf("recovered %d, %v, want 1", n, err)
	}
	queues, err := s.Queues().All(t.Context())
	if err != nil || len(queues) != 2 {
		t.Fatalf("%d queues, %v, want 2", len(queues), err)
	}
	for _, l := range queues {
		if c, _, err := s.Queues().claimDue(t.Context(), due(l.SubscriptionID)); err != nil || c == nil && l.NextDue.Before(time.Now()) {
			t.Errorf("claim of a due delivery: %v, %v", c, err)
		}
	}
}

// A subscription that was failing before reasons existed is unreachable, and is probed
// immediately.
func TestMigrationOfAFailingSubscription(t *testing.T) {
	dir := t.TempDir()
	schema1(t, dir)
	old, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "service.db"))
	if err != nil {
		t.Fatal(err)
	}
	var id string
	for _, query := range []string{
		"UPDATE subscriptions SET status = 'failing' WHERE id = (SELECT min(id) FROM subscriptions WHERE deleted_at IS NULL) RETURNING id",
		"INSERT OR REPLACE INTO failures (subscription_id, count, first_at, failing_since) SELECT id, 12, 1000, 61000 FROM subscriptions " +
			"WHERE status = 'failing' RETURNING subscription_id",
	} {
		if err := old.QueryRow(query).Scan(&id); err != nil {
			t.Fatal(err)
		}
	}
	must(t, old.Close())
	s := openDir(t, dir)
	q := queue(t, s, id)
	if !q.Failing || q.Rejecting || q.Rejected || q.NextProbe.After(time.Now()) {
		t.Errorf("subscription: got %+v", q)
	}
	var f webhook.Failures
	var in incident
	must(t, s.writer.do(func(t *tx) (err error) { f, in, err = t.failures(id); return err }))
	if want := (webhook.Failures{Count: 12, First: f.First, Reason: webhook.FailingUnreachable, Since: f.Since,
		NextProbe: f.NextProbe}); f != want || f.Since.UnixMilli() != 61000 {
		t.Errorf("failures: got %+v", f)
	}
	open, err := s.Incidents().Open(t.Context(), "", 10, 100)
	must(t, err)
	if len(open) != 1 || in.num == 0 || open[0].SubscriptionID != id || open[0].OpenedAt.UnixMilli() != 61000 || len(open[0].ID) != 36 {
		t.Errorf("incident: got %+v", open)
	}
}

// The number of a migration is the schema version, so new ones come after all existing ones.
func TestMigrationsAreOnlyAdded(t *testing.T) {
	had := []string{
		"0001_initial.sql", "0002_retention_alerts.sql", "0003_attention.sql", "0004_admins.sql", "0005_all_deliveries.sql", "0006_tokens.sql",
		"0007_traces.sql", "0008_certificates.sql", "0009_attempts.sql", "0011_responses.sql", "0012_breaker.sql", "0013_delivered.sql",
		"0014_bytes.sql", "0015_incidents.sql", "0016_bulk_runs.sql", "0017_alert_channels.sql", "0018_bulk_subscriptions.sql",
		"0019_event_types.sql", "0020_roles.sql", "0021_platform.sql",
	}
	files, err := migrations.ReadDir("migrations")
	must(t, err)
	for i, name := range had {
		if i >= len(files) || files[i].Name() != name {
			t.Fatalf("migration %d (%s) was changed: databases with that schema could not be opened", i+1, name)
		}
	}
}

var update = flag.Bool("update", false, "write schema.sql instead of comparing it")

// TestSchema compares schema.sql, which new databases get, with what the migrations make.
func TestSchema(t *testing.T) {
	dir := t.TempDir()
	must(t, openOlder(t, dir, "9999", nil))
	migrated, files := schemaOf(t, dir)
	if *update {
		must(t, os.WriteFile("schema.sql", []byte("-- The schema of a new database. Generated from the migrations: go generate ./store\n\n"+
			strings.Join(migrated, "\n\n")+"\n"), 0o600))
		return
	}
	created := t.TempDir()
	private, err := sqlite.OpenPrivate(t.Context(), filepath.Join(created, databaseFile), migrations)
	must(t, err)
	must(t, private.Close())
	got, version := schemaOf(t, created)
	if !slices.Equal(got, migrated) || version != files {
		t.Errorf("schema.sql is stale: go generate ./store (a new database has %d objects and version %d, a migrated one %d and %d)",
			len(got), version, len(migrated), files)
	}
}

// schemaOf returns the statements that make the tables of a database without rows, each followed
// by its indexes and triggers in the order of their creation, on which plans may depend, and the
// version of the schema.
func schemaOf(t *testing.T, dir string) (statements []string, version int) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, databaseFile))
	must(t, err)
	defer db.Close()
	must(t, db.QueryRow("PRAGMA user_version").Scan(&version))
	rows, err := db.Query("SELECT type, name, sql FROM sqlite_schema x WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite~_%' ESCAPE '~' " +
		"ORDER BY (SELECT rowid FROM sqlite_schema y WHERE y.type = 'table' AND y.name = x.tbl_name), rowid")
	must(t, err)
	var tables []string
	must(t, sqlite.Drain(rows, func(scan func(...any) error) error {
		var kind, name, text string
		if err := scan(&kind, &name, &text); err != nil {
			return err
		}
		if kind == "table" {
			tables = append(tables, name)
		}
		statements = append(statements, text+";")
		return nil
	}))
	for _, name := range tables {
		var rows int
		must(t, db.QueryRow("SELECT count(*) FROM "+name).Scan(&rows))
		if rows > 0 {
			t.Errorf("a new database has %d rows in %s, which schema.sql does not make", rows, name)
		}
	}
	return statements, version
}

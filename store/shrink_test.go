package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"service/internal/durable"
	"service/store/datadir"
	"service/store/sqlite"
	"service/test/harness"
	"service/webhook"
)

// fill publishes n events of 2 KB each.
func fill(t testing.TB, s *Store, n int) {
	t.Helper()
	for range n / 100 {
		events := make([]webhook.Event, 100)
		for i := range events {
			events[i] = event("content_updated")
			events[i].JSON = append(events[i].JSON[:len(events[i].JSON)-1], fmt.Sprintf(`,"x":"%s"}`, strings.Repeat("x", 2000))...)
		}
		must(t, s.Write(context.Background(), func(w Write) error { _, err := w.Publish("p", events); return err }))
	}
}

func fileSize(t testing.TB, s *Store) int64 {
	t.Helper()
	p, err := sqlite.ScanPages(s.scanNow)
	must(t, err)
	return p.All * p.Size
}

// digest returns a hash of the integrity check and of all rows, except settings, epochs, which a
// restore begins, and statistics, which Close writes.
func digest(t testing.TB, db *sql.DB) string {
	t.Helper()
	h := sha256.New()
	var tables []string
	rows, err := db.Query("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\' " +
		"AND name NOT IN ('settings', 'stats', 'log_epochs') ORDER BY name")
	must(t, err)
	must(t, sqlite.Drain(rows, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		tables = append(tables, name)
		return err
	}))
	for _, query := range append([]string{"PRAGMA integrity_check"}, tables...) {
		if query != "PRAGMA integrity_check" {
			query = "SELECT * FROM " + query
		}
		if query == "SELECT * FROM audit" {
			query += " WHERE action <> 'audit.continue'" // which a restored database contains in addition
		}
		rows, err := db.Query(query)
		must(t, err)
		columns, err := rows.Columns()
		must(t, err)
		var lines []string
		must(t, sqlite.Drain(rows, func(scan func(...any) error) error {
			values, dest := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				dest[i] = &values[i]
			}
			err := scan(dest...)
			lines = append(lines, fmt.Sprintf("%q", values))
			return err
		}))
		slices.Sort(lines)
		fmt.Fprintln(h, query, lines)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// The file shrinks in steps when more than half of it is free, and keeps some free pages. The
// replica does the same.
func TestFileShrinks(t *testing.T) {
	harness.Long(t)
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, target)
	r := openReplicated(t, dir, cfg)
	s := r.Store
	program(t, s, "p")
	fill(t, s, 14_000)
	full := fileSize(t, s)
	r.await("up to date", upToDate)

	steps := 0
	s.afterStep = func() { steps++ }
	swept := sweepAt(t, s, time.Now().Add(-time.Hour))
	if swept.Shrunk != 0 {
		t.Errorf("nothing is free, but the file shrank by %d bytes", swept.Shrunk)
	}
	execute(t, s, "DELETE FROM events WHERE seq > 1000 AND seq < 6000")
	if swept := sweepAt(t, s, time.Now().Add(-time.Hour)); swept.Shrunk != 0 {
		t.Errorf("a third is free, but the file shrank by %d bytes", swept.Shrunk)
	}
	steps = 0
	swept = sweepAt(t, s, time.Now().Add(time.Hour))
	if now := fileSize(t, s); swept.Shrunk == 0 || now != full-swept.Shrunk || now > full/10 {
		t.Errorf("the file has %d of %d bytes, after shrinking by %d", now, full, swept.Shrunk)
	}
	if least := int(swept.Shrunk/4096) / sweepPace.most; steps < least {
		t.Errorf("got %d steps, want at least %d", steps, least)
	}
	fill(t, s, 500)
	sub := subscribe(t, s, "p", "content_updated")
	publish(t, s, "p", "content_updated")
	send(t, s, queue(t, s, sub.ID), 200)
	r.await("up to date", upToDate)
	want := digest(t, s.db.Readers())
	must(t, r.close())
	copied, _ := restored(t, cfg, dir, time.Time{})
	if got := digest(t, copied.db.Readers()); got != want {
		t.Error("the restored database differs")
	}
	wantNumber(t, "as auto_vacuum of the restored database",
		count(t, copied, "SELECT auto_vacuum FROM pragma_auto_vacuum"), sqlite.IncrementalVacuum)
}

func TestExcess(t *testing.T) {
	const mib = 256 // pages
	for _, c := range []struct {
		p    sqlite.Pages
		want int64
	}{
		{sqlite.Pages{All: 100 * mib, Free: 50 * mib, Size: 4096, Vacuum: 2}, 0},
		{sqlite.Pages{All: 100 * mib, Free: 51 * mib, Size: 4096, Vacuum: 0}, 0},
		{sqlite.Pages{All: 100 * mib, Free: 100*mib - 1, Size: 4096, Vacuum: 2}, 100*mib - 1},
		{sqlite.Pages{All: 20 * mib, Free: 12 * mib, Size: 4096, Vacuum: 2}, 0},
		{sqlite.Pages{All: 100 * mib, Free: 70 * mib, Size: 4096, Vacuum: 2}, 60 * mib}, // 10 of 40 stay free
	} {
		if got := excess(c.p); got != c.want {
			t.Errorf("%+v: got %d, want %d", c.p, got, c.want)
		}
	}
}

// oldDatabase creates a data directory with a database without incremental vacuum, and returns
// a digest of its content.
func oldDatabase(t *testing.T) (dir, content string) {
	t.Helper()
	dir = t.TempDir()
	s := opened(t, Config{Dir: dir})
	program(t, s, "p")
	fill(t, s, 2000)
	sub := subscribe(t, s, "p", "content_updated")
	publish(t, s, "p", "content_updated")
	send(t, s, queue(t, s, sub.ID), 200)
	must(t, s.Close())
	db, err := sqlite.OpenWritable(filepath.Join(dir, datadir.Database))
	must(t, err)
	conn, err := db.Conn(t.Context())
	must(t, err)
	for _, query := range []string{"PRAGMA auto_vacuum = NONE", "PRAGMA journal_mode = DELETE", "VACUUM", "PRAGMA journal_mode = WAL",
		"DELETE FROM events WHERE seq > 500 AND seq < 1900"} {
		_, err := conn.ExecContext(t.Context(), query)
		must(t, err)
	}
	must(t, conn.Close())
	must(t, db.Close())
	s = opened(t, Config{Dir: dir})
	content = digest(t, s.db.Readers())
	if n := count(t, s, "SELECT auto_vacuum FROM pragma_auto_vacuum"); n != 0 {
		t.Fatalf("old database: got auto_vacuum %d", n)
	}
	must(t, s.Close())
	return dir, content
}

// compacted runs a compaction.
func compacted(ctx context.Context, dir string) (before *datadir.Compaction, after int64, err error) {
	c, err := datadir.OpenCompaction(ctx, dir)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	after, err = c.Run(ctx, func(int64) {})
	return c, after, err
}

func TestCompact(t *testing.T) {
	dir, want := oldDatabase(t)
	path := filepath.Join(dir, datadir.Database)
	commits, err := os.ReadFile(path + "-commits")
	must(t, err)
	before, after, err := compacted(t.Context(), dir)
	must(t, err)
	if before.Incremental || before.Free < before.Bytes/2 || after > before.Needs || after < (before.Bytes-before.Free)*99/100 {
		t.Errorf("before: %+v, afterwards %d bytes", before, after)
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Size() != after || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has %d bytes, mode %v; want %d, mode 0600", info.Size(), info.Mode(), after)
	}
	if now, err := os.ReadFile(path + "-commits"); err != nil || string(now) != string(commits) {
		t.Errorf("commit count: got %q, want %q: %v", now, commits, err)
	}
	for _, name := range []string{"-wal", "-shm", "-journal"} {
		if _, err := os.Stat(path + name); !os.IsNotExist(err) {
			t.Errorf("%s%s exists", datadir.Database, name)
		}
	}
	s := opened(t, Config{Dir: dir})
	defer s.Close()
	if got := digest(t, s.db.Readers()); got != want {
		t.Error("the content differs")
	}
	wantNumber(t, "as auto_vacuum", count(t, s, "SELECT auto_vacuum FROM pragma_auto_vacuum"), sqlite.IncrementalVacuum)
	publish(t, s, "p", "content_updated")
	if _, _, err := compacted(t.Context(), dir); err == nil {
		t.Error("a data directory in use was compacted")
	}
}

// A compaction that cannot finish changes nothing: without free disk space, when interrupted,
// or after a killed process left a file.
func TestCompactRefused(t *testing.T) {
	dir, want := oldDatabase(t)
	names := func() (all []string) {
		must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if strings.HasPrefix(d.Name(), datadir.Database) {
				all = append(all, d.Name())
			}
			return err
		}))
		return all
	}
	before := names()
	c, err := datadir.OpenCompaction(t.Context(), dir)
	must(t, err)
	c.Room = c.Needs - 1
	if _, err := c.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("no room: got %v", err)
	}
	c.Room = c.Needs
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Run(ended, func(int64) {}); err == nil {
		t.Error("an interrupted compaction succeeded")
	}
	must(t, c.Close())
	if after := names(); !slices.Equal(before, after) {
		t.Errorf("got files %v, want %v", after, before)
	}
	must(t, os.WriteFile(filepath.Join(dir, datadir.Database+durable.TempSuffix+"1"), []byte("half"), 0o600))
	s := opened(t, Config{Dir: dir})
	defer s.Close()
	if got := digest(t, s.db.Readers()); got != want {
		t.Error("the content differs")
	}
}

// A compacted database is replicated completely again.
func TestCompactReplicated(t *testing.T) {
	dir, _ := oldDatabase(t)
	cfg := fileReplica(t, dir, t.TempDir())
	r := openReplicated(t, dir, cfg)
	publish(t, r.Store, "p", "content_updated")
	r.await("up to date", upToDate)
	must(t, r.close())
	_, _, err := compacted(t.Context(), dir)
	must(t, err)
	r = openReplicated(t, dir, cfg)
	publish(t, r.Store, "p", "content_updated")
	r.await("up to date", upToDate)
	want := digest(t, r.db.Readers())
	must(t, r.close())
	s, _ := restored(t, cfg, dir, time.Time{})
	if got := digest(t, s.db.Readers()); got != want {
		t.Error("the restored database differs")
	}
}

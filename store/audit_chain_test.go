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
	"sync"
	"testing"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// verifyAudit fails the test unless the audit log verifies.
func verifyAudit(t *testing.T, s *Store) webhook.AuditSummary {
	t.Helper()
	summary, err := s.verifyAudit(t.Context(), webhook.AuditHash{})
	if err != nil {
		t.Fatalf("the audit log does not verify: %v", err)
	}
	return summary
}

func (s *Store) verifyAudit(ctx context.Context, expect webhook.AuditHash) (webhook.AuditSummary, error) {
	v := webhook.AuditVerifier{Expect: expect}
	if err := s.Audit().Each(ctx, v.Add); err != nil {
		return webhook.AuditSummary{}, err
	}
	return v.End()
}

// fillAudit records entries of every kind of actor, and erases a program.
func fillAudit(t *testing.T, s *Store) {
	t.Helper()
	program(t, s, "p")
	program(t, s, "gone")
	createAdmin(t, s, "ana@example.com")
	for _, e := range []webhook.AuditEntry{
		{Admin: "ana@example.com", Address: "192.0.2.1", RequestID: "r1", Action: webhook.ActionSubscriptionPause, ProgramID: "p",
			SubjectID: "s1", Detail: "ä detail"},
		{Admin: "token:t1", Address: "2001:db8::1", RequestID: "r2", Action: webhook.ActionSubscriptionCreate, ProgramID: "gone", SubjectID: "s2",
			Detail: "content_created"},
		{Admin: webhook.Terminal, Action: webhook.ActionTokenCreate, ProgramID: "gone", SubjectID: "t2", Detail: "for user ula@example.com"},
		{Admin: "left@example.com", Address: "192.0.2.1", Action: webhook.ActionKeyRotate},
	} {
		mustWrite(t, s, func(w Write) error { return w.Audit(e) })
	}
	mustWrite(t, s, func(w Write) error {
		if _, _, err := w.EraseProgram("gone"); err != nil {
			return err
		}
		return w.Audit(webhook.AuditEntry{Admin: "ana@example.com", Address: "192.0.2.1", Action: webhook.ActionProgramDelete, ProgramID: "gone",
			SubjectID: "gone"})
	})
	must(t, s.Programs().Erase(t.Context()))
	mustWrite(t, s, func(w Write) error {
		return w.Audit(webhook.AuditEntry{Admin: "token:t1", Action: webhook.ActionDeliveryCancel, ProgramID: "p", SubjectID: "d1"})
	})
}

// changeAudit runs a statement that no code of the store runs.
func changeAudit(t *testing.T, s *Store, query string, args ...any) {
	t.Helper()
	must(t, s.writer.do(func(t *tx) error { return t.Exec(query, args...) }))
}

func TestAuditChain(t *testing.T) {
	s := open(t)
	if got := verifyAudit(t, s); got.Entries != 0 {
		t.Errorf("an empty log: got %+v", got)
	}
	fillAudit(t, s)
	got := verifyAudit(t, s)
	if got.Entries != 6 || got.First != 1 || got.Last != 6 || got.Erased != 2 || got.Anchor != (webhook.AuditHash{}) {
		t.Errorf("got %+v", got)
	}
	entries, _, err := s.Audit().Page(t.Context(), query(t, webhook.AuditList, "sort=at"))
	must(t, err)
	ana, err := admin(t, s, "ana@example.com")
	must(t, err)
	wantActors := []string{"admin:" + ana.ID, "token:t1", webhook.Terminal, "admin:", "admin:" + ana.ID, "token:t1"}
	previous := webhook.AuditHash{}
	for i, e := range entries {
		if e.Num != int64(i+1) || e.Actor != wantActors[i] || e.Previous != previous || e.Erased() != (e.ProgramID == "gone" && i < 4) {
			t.Errorf("entry %d: got %+v", i, e)
		}
		previous = e.Hash
		if _, err := s.verifyAudit(t.Context(), e.Hash); err != nil {
			t.Errorf("expecting entry %d: %v", i, err)
		}
	}
	if n, ok, err := s.Audit().Newest(t.Context()); err != nil || !ok || n.Hash != previous || n.Previous != entries[4].Hash {
		t.Errorf("newest: got %+v, %v, %v", n, ok, err)
	}
	if _, err := s.verifyAudit(t.Context(), webhook.AuditHash{1}); err == nil {
		t.Error("a hash that no entry has was found")
	}
	byToken, _, err := s.Audit().Page(t.Context(), query(t, webhook.AuditList, "filter[token_id]=t1"))
	if must(t, err); len(byToken) != 2 || byToken[0].Num != 6 || byToken[1].Num != 2 || byToken[1].TokenID() != "t1" {
		t.Errorf("of the token: got %+v", byToken)
	}

	// Entries removed from the end leave a log that verifies, so their hash must be known.
	changeAudit(t, s, "DELETE FROM audit WHERE num = 6")
	verifyAudit(t, s)
	if _, err := s.verifyAudit(t.Context(), previous); err == nil {
		t.Error("a removed entry was found")
	}
}

func admin(t *testing.T, s *Store, email string) (webhook.Admin, error) {
	a, _, err := s.Admins().ByEmail(t.Context(), email)
	return a, err
}

// auditTamper changes the audit log.
type auditTamper struct {
	t       *testing.T
	s       *Store
	changes int
}

// try makes a change and expects the entry to be named. The change is verified in its
// transaction, so that it need not be undone.
func (a *auditTamper) try(num int64, what, query string, args ...any) {
	a.t.Helper()
	a.changes++
	rollback := errors.New("roll back")
	err := a.s.writer.do(func(tx *tx) error {
		if err := tx.Exec(query, args...); err != nil {
			return err
		}
		var v webhook.AuditVerifier
		err := eachAuditOf(tx, v.Add)
		if err == nil {
			_, err = v.End()
		}
		var fault *webhook.AuditFault
		if !errors.As(err, &fault) || fault.Num != num {
			a.t.Errorf("%s: got %v, want a fault of entry %d", what, err, num)
		}
		return rollback
	})
	if !errors.Is(err, rollback) {
		a.t.Fatalf("%s: %v", what, err)
	}
}

// TestAuditTampering checks that a change of one byte in any column of any entry is found,
// also in columns that are added later.
func TestAuditTampering(t *testing.T) {
	s := open(t)
	fillAudit(t, s)
	var columns []string
	must(t, s.db.Each(t.Context(), "SELECT name FROM pragma_table_info('audit')", nil, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		columns = append(columns, name)
		return err
	}))
	tamper := auditTamper{t: t, s: s}
	try := tamper.try
	for num := int64(1); num <= 6; num++ {
		for _, column := range columns {
			var value any
			must(t, s.db.Scan(t.Context(), "SELECT "+column+" FROM audit WHERE num = ?", []any{num}, &value))
			change := func(what string, to any) {
				t.Helper()
				if column == "num" {
					return // below
				}
				try(num, fmt.Sprintf("%s of entry %d, %s", column, num, what), "UPDATE audit SET "+column+" = ? WHERE num = ?", to, num)
			}
			switch v := value.(type) {
			case int64:
				change("plus one", v+1)
				change("minus one", v-1)
			case string, []byte:
				text, blob := fmt.Sprintf("%s", v), false
				if slices.Contains([]string{"salt", "digest", "hash"}, column) {
					blob = true
				}
				typed := func(b []byte) any {
					if blob {
						return b
					}
					return string(b)
				}
				for i := range len(text) {
					b := []byte(text)
					b[i] ^= 1
					change(fmt.Sprintf("byte %d", i), typed(b))
				}
				if !blob || column == "salt" {
					change("one more byte", typed([]byte(text+"x")))
				}
				if text != "" && (!blob || column == "salt") {
					change("one byte less", typed([]byte(text[:len(text)-1])))
				}
			default:
				t.Fatalf("%s is a %T", column, value)
			}
		}
	}
	for num := int64(1); num < 6; num++ {
		try(num+1, "a removed entry", "DELETE FROM audit WHERE num = ?", num)
	}
	try(3, "a removed entry before others moved up", "UPDATE audit SET num = num + 10 WHERE num = 2")
	try(0, "another first number", "UPDATE audit SET num = 0 WHERE num = 1")
	try(1, "an anchor that was never", "INSERT INTO audit_anchor VALUES (1, 0, randomblob(32))")
	try(1, "an anchor after the first entry", "INSERT INTO audit_anchor VALUES (1, 3, randomblob(32))")
	try(4, "a copied entry",
		"UPDATE audit SET (actor, salt, digest, hash) = (SELECT actor, salt, digest, hash FROM audit WHERE num = 6) WHERE num = 4")
	try(7, "an added entry", "INSERT INTO audit SELECT 7, 'x', at, actor, admin, address, action, program_id, subject_id, detail, "+
		"request_id, salt, digest, hash FROM audit WHERE num = 6")
	try(1, "an entry without its salt", "UPDATE audit SET salt = x'' WHERE num = 1")
	try(1, "an erased entry of a program that exists", "UPDATE audit SET salt = x'', admin = '', address = '', detail = '' WHERE num = 1")
	try(4, "an erased entry of no program", "UPDATE audit SET salt = x'', admin = '', address = '', detail = '' WHERE num = 4")
	if tamper.changes < 1000 {
		t.Errorf("only %d changes were tried", tamper.changes)
	}
	verifyAudit(t, s)
	t.Logf("%d changes", tamper.changes)
}

// eachAuditOf is [Audit.Each] in a write.
func eachAuditOf(t *tx, fn func(*webhook.AuditEntry) error) error {
	var w auditWalk
	for {
		entries, err := w.read(t)
		if err != nil || len(entries) == 0 {
			return err
		}
		for i := range entries {
			if err := fn(&entries[i]); err != nil {
				return err
			}
		}
	}
}

// TestAuditOfConcurrentWrites checks that entries of one commit, also next to writes that fail,
// are hashed in their order.
func TestAuditOfConcurrentWrites(t *testing.T) {
	s := open(t)
	rollback := errors.New("roll back")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 50 {
				err := s.Write(t.Context(), func(w Write) error {
					for range 1 + n%2 {
						if err := w.Audit(webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionKeyRotate}); err != nil {
							return err
						}
					}
					if n%5 == i%5 {
						return rollback
					}
					return nil
				})
				if n%5 == i%5 != errors.Is(err, rollback) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := verifyAudit(t, s); got.Entries != 8*60 || got.Last != got.Entries {
		t.Errorf("got %+v", got)
	}
}

// TestAuditRetention checks that retention removes old entries and keeps the hash of the last
// one removed, and the newest entry.
func TestAuditRetention(t *testing.T) {
	s, now := openAt(t)
	const old, young = 700, 300
	for i := range old + young {
		if i == old {
			*now = now.Add(48 * time.Hour)
		}
		mustWrite(t, s, func(w Write) error {
			return w.Audit(webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionKeyRotate})
		})
	}
	before := verifyAudit(t, s)
	remove := func(edge time.Time, want int64) webhook.AuditSummary {
		t.Helper()
		w := &sweep{s: s.core, ctx: t.Context(), pause: -1, step: firstSweep}
		must(t, w.audit(edge))
		if w.swept.Audit != want {
			t.Errorf("removed %d entries, want %d", w.swept.Audit, want)
		}
		return verifyAudit(t, s)
	}
	var first webhook.AuditEntry
	entries, _, err := s.Audit().Page(t.Context(), query(t, webhook.AuditList, fmt.Sprintf("sort=at&filter[at.from]=%s&page[size]=1",
		webhook.FormatTime(now.Add(-time.Hour)))))
	must(t, err)
	first = entries[0]
	got := remove(now.Add(-24*time.Hour), old)
	if got.First != old+1 || got.Entries != young || got.Anchor != first.Previous || got.Newest != before.Newest {
		t.Errorf("got %+v", got)
	}
	if _, err := s.verifyAudit(t.Context(), got.Anchor); err != nil {
		t.Errorf("expecting the anchor: %v", err)
	}
	entries, _, err = s.Audit().Page(t.Context(), query(t, webhook.AuditList, "sort=at&page[size]=1"))
	if must(t, err); entries[0].Previous != got.Anchor {
		t.Errorf("the first entry follows %s, want %s", entries[0].Previous, got.Anchor)
	}
	if got = remove(now.Add(24*time.Hour), young-1); got.First != old+young || got.Entries != 1 {
		t.Errorf("got %+v", got)
	}
	mustWrite(t, s, func(w Write) error {
		return w.Audit(webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionKeyRotate})
	})
	verifyAudit(t, s)
	for _, change := range []string{"num = num - 1", "num = num + 2", "hash = randomblob(32)"} {
		changeAudit(t, s, "UPDATE audit_anchor SET "+change)
		var fault *webhook.AuditFault
		if _, err := s.verifyAudit(t.Context(), webhook.AuditHash{}); !errors.As(err, &fault) || fault.Num != old+young {
			t.Errorf("%s: got %v", change, err)
		}
	}
}

// unchainedSchema is the migrations before entries of the audit log were hashed.
type unchainedSchema struct{ fs.FS }

func (o unchainedSchema) Glob(pattern string) ([]string, error) {
	all, err := fs.Glob(o.FS, pattern)
	return slices.DeleteFunc(all, func(name string) bool { return filepath.Base(name) >= "0027" }), err
}

// TestAuditMigration checks that Open hashes the entries of an older version, and continues
// after a crash.
func TestAuditMigration(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, databaseFile)
	older, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Migrations: unchainedSchema{migrations}, Readers: 1,
		Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	must(t, older.Close(nil))
	exec := func(query string, args ...any) {
		t.Helper()
		db, err := sql.Open("sqlite3", "file:"+path)
		must(t, err)
		defer db.Close()
		if _, err := db.Exec(query, args...); err != nil {
			t.Fatal(err)
		}
	}
	const entries = 2*auditChunk + 5
	exec("INSERT INTO admins (id, email, password, created_at, role) VALUES ('a1', 'ana@example.com', 'x', 1, 'owner')")
	exec("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "+
		"INSERT INTO audit (num, id, at, admin, address, action, "+
		"program_id, subject_id, detail) SELECT i, 'id' || i, 1000000000000 + i, CASE i % 4 WHEN 0 THEN 'terminal' WHEN 1 THEN "+
		"'ana@example.com' WHEN 2 THEN 'token:t1' ELSE 'left@example.com' END, '192.0.2.1', 'key.rotate', '', 's', 'detail ' || i "+
		"FROM n", entries)
	s := openDir(t, dir)
	if got := verifyAudit(t, s); got.Entries != int64(entries) {
		t.Errorf("got %+v", got)
	}
	var hash []byte
	must(t, s.db.Scan(t.Context(), "SELECT hash FROM audit WHERE num = ?", []any{auditChunk}, &hash))
	for actor, want := range map[string]int{"terminal": entries / 4, "admin:a1": (entries + 3) / 4, "token:t1": (entries + 2) / 4,
		"admin:": (entries + 1) / 4} {
		if n := count(t, s, "SELECT count(*) FROM audit WHERE actor = ?", actor); n != int64(want) {
			t.Errorf("%s: got %d entries, want %d", actor, n, want)
		}
	}
	must(t, s.Close())

	// A crash after the first step.
	exec("UPDATE audit SET salt = x'', digest = x'', hash = x'' WHERE num > ?", auditChunk)
	s = openDir(t, dir)
	verifyAudit(t, s)
	if n := count(t, s, "SELECT count(*) FROM audit WHERE num = ? AND hash = ?", auditChunk, hash); n != 1 {
		t.Error("the first step was repeated")
	}
	mustWrite(t, s, func(w Write) error {
		return w.Audit(webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionKeyRotate})
	})
	verifyAudit(t, s)
}

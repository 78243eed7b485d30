package people_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"service/store"
	"service/store/people"
	"service/store/sqlite"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

// verifyAudit fails the test unless the audit log verifies.
func verifyAudit(t *testing.T, s *store.Store) webhook.AuditSummary {
	t.Helper()
	summary, err := findAudit(t, s, webhook.AuditHash{})
	if err != nil {
		t.Fatalf("the audit log does not verify: %v", err)
	}
	return summary
}

// findAudit verifies the audit log, which must contain a hash.
func findAudit(t *testing.T, s *store.Store, expect webhook.AuditHash) (webhook.AuditSummary, error) {
	v := webhook.AuditVerifier{Expect: expect}
	if err := s.Audit().Each(t.Context(), v.Add); err != nil {
		return webhook.AuditSummary{}, err
	}
	return v.End()
}

// fillAudit records entries of every kind of actor, and erases a program.
func fillAudit(t *testing.T, s *store.Store) {
	t.Helper()
	ensure(t, s, "p")
	ensure(t, s, "gone")
	createAdmin(t, s, "ana@example.com")
	for _, e := range []webhook.AuditEntry{
		{Admin: "ana@example.com", Address: "192.0.2.1", RequestID: "r1", Action: webhook.ActionSubscriptionPause, ProgramID: "p",
			SubjectID: "s1", Detail: "ä detail"},
		{Admin: "token:t1", Address: "2001:db8::1", RequestID: "r2", Action: webhook.ActionSubscriptionCreate, ProgramID: "gone", SubjectID: "s2",
			Detail: "content_created"},
		{Admin: webhook.Terminal, Action: webhook.ActionTokenCreate, ProgramID: "gone", SubjectID: "t2", Detail: "for user ula@example.com"},
		{Admin: "left@example.com", Address: "192.0.2.1", Action: webhook.ActionKeyRotate},
	} {
		mustWrite(t, s, func(w store.Write) error { return w.Audit(e) })
	}
	mustWrite(t, s, func(w store.Write) error {
		if _, err := w.Programs().Erase("gone", webhook.AuditEntry{}); err != nil {
			return err
		}
		return w.Audit(webhook.AuditEntry{Admin: "ana@example.com", Address: "192.0.2.1", Action: webhook.ActionProgramDelete, ProgramID: "gone",
			SubjectID: "gone"})
	})
	must(t, s.Programs().Erase(t.Context()))
	mustWrite(t, s, func(w store.Write) error {
		return w.Audit(webhook.AuditEntry{Admin: "token:t1", Action: webhook.ActionDeliveryCancel, ProgramID: "p", SubjectID: "d1"})
	})
}

// changeAudit runs a statement that the store itself never runs.
func changeAudit(t *testing.T, s *store.Store, query string, args ...any) {
	t.Helper()
	must(t, people.DB(s.Admins()).Writer().Do(unchecked(func(t *sqlite.Tx) error { return t.Exec(query, args...) })))
}

// unchecked returns a write without CHECK constraints, like a change from outside.
func unchecked(change func(*sqlite.Tx) error) func(*sqlite.Tx) error {
	return func(t *sqlite.Tx) error {
		return errors.Join(t.Exec("PRAGMA ignore_check_constraints = ON"), change(t), t.Exec("PRAGMA ignore_check_constraints = OFF"))
	}
}

func TestAuditChain(t *testing.T) {
	s := storetest.Open(t)
	if got := verifyAudit(t, s); got.Entries != 0 {
		t.Errorf("an empty log: got %+v", got)
	}
	fillAudit(t, s)
	got := verifyAudit(t, s)
	if got.Entries != 6 || got.First != 1 || got.Last != 6 || got.Erased != 2 || got.Anchor != (webhook.AuditHash{}) {
		t.Errorf("got %+v", got)
	}
	entries, _, err := s.Audit().Page(t.Context(), storetest.Query(t, webhook.AuditList, "sort=at"))
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
		if _, err := findAudit(t, s, e.Hash); err != nil {
			t.Errorf("expecting entry %d: %v", i, err)
		}
	}
	if n, ok, err := s.Audit().Newest(t.Context()); err != nil || !ok || n.Hash != previous || n.Previous != entries[4].Hash {
		t.Errorf("newest: got %+v, %v, %v", n, ok, err)
	}
	if _, err := findAudit(t, s, webhook.AuditHash{1}); err == nil {
		t.Error("a hash that no entry has was found")
	}
	byToken, _, err := s.Audit().Page(t.Context(), storetest.Query(t, webhook.AuditList, "filter[token_id]=t1"))
	if must(t, err); len(byToken) != 2 || byToken[0].Num != 6 || byToken[1].Num != 2 || byToken[1].TokenID() != "t1" {
		t.Errorf("of the token: got %+v", byToken)
	}

	// Entries removed from the end leave a log that verifies, so their hash must be known.
	changeAudit(t, s, "DELETE FROM audit WHERE num = 6")
	verifyAudit(t, s)
	if _, err := findAudit(t, s, previous); err == nil {
		t.Error("a removed entry was found")
	}
}

func admin(t *testing.T, s *store.Store, email string) (webhook.Admin, error) {
	a, _, err := s.Admins().ByEmail(t.Context(), email)
	return a, err
}

// auditTamper changes the audit log.
type auditTamper struct {
	t       *testing.T
	s       *store.Store
	changes int
}

// try makes a change and expects the entry to be named. The change is verified in its
// transaction, so that it need not be undone.
func (a *auditTamper) try(num int64, what, query string, args ...any) {
	a.t.Helper()
	a.tryFunc(num, what, func(tx *sqlite.Tx) error { return tx.Exec(query, args...) })
}

// tryAll is try with several statements.
func (a *auditTamper) tryAll(num int64, what string, queries ...string) {
	a.t.Helper()
	a.tryFunc(num, what, func(tx *sqlite.Tx) (err error) {
		for _, query := range queries {
			err = errors.Join(err, tx.Exec(query))
		}
		return err
	})
}

func (a *auditTamper) tryFunc(num int64, what string, change func(*sqlite.Tx) error) {
	a.t.Helper()
	a.changes++
	rollback := errors.New("roll back")
	err := people.DB(a.s.Admins()).Writer().Do(func(tx *sqlite.Tx) error {
		if err := unchecked(change)(tx); err != nil {
			return err
		}
		var v webhook.AuditVerifier
		err := people.EachAudit(tx, v.Add)
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

// everyColumn changes each byte of each column of an entry, including columns that are added
// later, and empties it.
func (a *auditTamper) everyColumn(num int64) {
	a.t.Helper()
	var columns []string
	must(a.t, people.DB(a.s.Admins()).Each(a.t.Context(), "SELECT name FROM pragma_table_info('audit') WHERE name <> 'num'", nil,
		func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			columns = append(columns, name)
			return err
		}))
	for _, column := range columns {
		var value any
		must(a.t, people.DB(a.s.Admins()).Scan(a.t.Context(), "SELECT "+column+" FROM audit WHERE num = ?", []any{num}, &value))
		change := func(what string, to any) {
			a.t.Helper()
			a.try(num, fmt.Sprintf("%s of entry %d, %s", column, num, what), "UPDATE audit SET "+column+" = ? WHERE num = ?", to, num)
		}
		switch v := value.(type) {
		case int64:
			change("plus one", v+1)
			change("minus one", v-1)
			change("zero", 0)
		case string:
			changeBytes(v, true, func(what string, b []byte) { change(what, string(b)) })
		case []byte:
			changeBytes(string(v), column == "salt", func(what string, b []byte) { change(what, b) })
		default:
			a.t.Fatalf("%s is a %T", column, value)
		}
	}
}

// changeBytes calls change with every variant of a value: one byte changed, one more, one less,
// and none. The schema checks the lengths of values that are not free.
func changeBytes(value string, free bool, change func(what string, b []byte)) {
	for i := range len(value) {
		b := []byte(value)
		b[i] ^= 1
		change(fmt.Sprintf("byte %d", i), b)
	}
	if free {
		change("one more byte", []byte(value+"x"))
	}
	if free && value != "" {
		change("one byte less", []byte(value[:len(value)-1]))
	}
	if value != "" {
		change("emptied", []byte{})
	}
}

// everyEntry removes and swaps entries of a log in which retention has removed those through
// pruned, and forges anchors.
func (a *auditTamper) everyEntry(pruned, last int64) {
	a.t.Helper()
	for num := pruned + 1; num < last; num++ {
		a.try(num+1, "a removed entry", "DELETE FROM audit WHERE num = ?", num)
		a.tryAll(num, fmt.Sprintf("entries %d and %d swapped", num, num+1), fmt.Sprintf("UPDATE audit SET num = -1 WHERE num = %d", num),
			fmt.Sprintf("UPDATE audit SET num = %d WHERE num = %d", num, num+1),
			fmt.Sprintf("UPDATE audit SET num = %d WHERE num = -1", num+1))
	}
	const forge = "INSERT OR REPLACE INTO audit_anchor SELECT 1, num, hash FROM audit WHERE num = %d"
	for num := pruned + 1; num <= last; num++ {
		a.tryAll(num+1, fmt.Sprintf("a forged anchor after entry %d", num), fmt.Sprintf(forge, num),
			fmt.Sprintf("DELETE FROM audit WHERE num <= %d", num))
		a.tryAll(pruned+1, fmt.Sprintf("an anchor at entry %d, which exists", num), fmt.Sprintf(forge, num))
	}
	a.try(pruned+1, "an anchor with another hash", "INSERT OR REPLACE INTO audit_anchor VALUES (1, ?, randomblob(32))", pruned)
	if pruned > 0 {
		a.try(pruned+1, "no anchor", "DELETE FROM audit_anchor")
		a.try(pruned+1, "an anchor before it", "UPDATE audit_anchor SET num = num - 1")
		a.tryAll(pruned+1, "no entries", "DELETE FROM audit")
	}
}

// TestAuditTampering checks that a change of one byte in any column of any entry is found, and
// that the first entry that does not match is named.
func TestAuditTampering(t *testing.T) {
	s := storetest.Open(t)
	fillAudit(t, s)
	tamper := auditTamper{t: t, s: s}
	try := tamper.try
	for num := int64(1); num <= 6; num++ {
		tamper.everyColumn(num)
	}
	tamper.everyEntry(0, 6)
	try(3, "a removed entry before others moved up", "UPDATE audit SET num = num + 10 WHERE num = 2")
	try(0, "another first number", "UPDATE audit SET num = 0 WHERE num = 1")
	try(4, "a copied entry",
		"UPDATE audit SET (actor, salt, digest, hash) = (SELECT actor, salt, digest, hash FROM audit WHERE num = 6) WHERE num = 4")
	try(7, "an added entry", "INSERT INTO audit SELECT 7, 'x', at, actor, admin, address, action, program_id, subject_id, detail, "+
		"request_id, salt, digest, hash FROM audit WHERE num = 6")
	try(1, "an erased entry of a program that exists", "UPDATE audit SET salt = x'', admin = '', address = '', detail = '' WHERE num = 1")
	try(4, "an erased entry of no program", "UPDATE audit SET salt = x'', admin = '', address = '', detail = '' WHERE num = 4")
	try(3, "changed entries without a hash", "UPDATE audit SET detail = 'other', hash = x'' WHERE num >= 3")
	if tamper.changes < 1000 {
		t.Errorf("only %d changes were tried", tamper.changes)
	}
	verifyAudit(t, s)
	t.Logf("%d changes", tamper.changes)
}

// TestPrunedAuditTampering is TestAuditTampering after retention has removed entries.
func TestPrunedAuditTampering(t *testing.T) {
	s, now := openAt(t)
	fillAudit(t, s)
	*now = now.Add(48 * time.Hour)
	recordKey(t, s)
	if removed := pruneAudit(t, s, now.Add(-24*time.Hour)); removed != 6 {
		t.Fatalf("removed %d entries, want 6", removed)
	}
	recordKey(t, s)
	tamper := auditTamper{t: t, s: s}
	for num := int64(7); num <= 9; num++ { // entry 8 is that of the removal
		tamper.everyColumn(num)
	}
	tamper.everyEntry(6, 9)
	verifyAudit(t, s)
}

// TestAuditWithoutNewestHash checks that a hash that is missing stays a fault, which neither a
// later entry nor [store.Open] repairs, and that changes are still recorded.
func TestAuditWithoutNewestHash(t *testing.T) {
	dir := harness.MemoryDir(t)
	s := storetest.OpenDir(t, dir)
	fillAudit(t, s)
	changeAudit(t, s, "UPDATE audit SET detail = 'other', hash = x'' WHERE num >= 3")
	want := func(when string) {
		t.Helper()
		var fault *webhook.AuditFault
		if _, err := findAudit(t, s, webhook.AuditHash{}); !errors.As(err, &fault) || fault.Num != 3 {
			t.Errorf("%s: got %v, want a fault of entry 3", when, err)
		}
		wantNumber(t, "entries without a hash "+when, count(t, s, "SELECT count(*) FROM audit WHERE hash = x''"), 4)
	}
	want("at once")
	must(t, s.Close())
	s = storetest.OpenDir(t, dir)
	want("after Open")
	recordKey(t, s)
	must(t, s.Close())
	s = storetest.OpenDir(t, dir)
	want("after another entry")
}

// recordKey adds an entry to the audit log.
func recordKey(t *testing.T, s *store.Store) {
	t.Helper()
	mustWrite(t, s, func(w store.Write) error {
		return w.Audit(webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionKeyRotate})
	})
}

// TestAuditOfConcurrentWrites checks that entries of one commit, even next to failed writes, are
// hashed in their order.
func TestAuditOfConcurrentWrites(t *testing.T) {
	s := storetest.Open(t)
	rollback := errors.New("roll back")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 50 {
				err := s.Write(t.Context(), func(w store.Write) error {
					if err := auditRotations(w, 1+n%2); err != nil {
						return err
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

// auditRotations adds n entries.
func auditRotations(w store.Write, n int) error {
	for range n {
		if err := w.Audit(webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionKeyRotate}); err != nil {
			return err
		}
	}
	return nil
}

// pruneAudit removes the entries of the audit log that were made before a time, and returns how many
// there were.
func pruneAudit(t *testing.T, s *store.Store, edge time.Time) (removed int64) {
	t.Helper()
	db := people.DB(s.Admins())
	var last int64
	must(t, db.Scan(t.Context(), "SELECT max(num) FROM audit WHERE at < ?", []any{edge.UnixMilli()}, &last))
	must(t, db.Writer().Do(func(tx *sqlite.Tx) error {
		w := people.NewWrites(tx, time.Now)
		through, err := w.RecordPrune(last)
		if err != nil {
			return err
		}
		removed, err = w.Prune(through, 100)
		return err
	}))
	return removed
}

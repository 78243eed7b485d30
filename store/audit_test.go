package store

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// changeAudit runs a statement that the store itself never runs.
func changeAudit(t *testing.T, s *Store, query string, args ...any) {
	t.Helper()
	must(t, s.writer.do(unchecked(func(t *tx) error { return t.Exec(query, args...) })))
}

// unchecked returns a write without CHECK constraints, like a change from outside.
func unchecked(change func(*tx) error) func(*tx) error {
	return func(t *tx) error {
		return errors.Join(t.Exec("PRAGMA ignore_check_constraints = ON"), change(t), t.Exec("PRAGMA ignore_check_constraints = OFF"))
	}
}

// recordKey adds an entry to the audit log.
func recordKey(t *testing.T, s *Store) {
	t.Helper()
	mustWrite(t, s, func(w Write) error {
		return w.Audit(webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionKeyRotate})
	})
}

// TestAuditIsLogged checks that the newest hash is logged at startup and every hour.
func TestAuditIsLogged(t *testing.T) {
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var lines []string // about the newest hash
		s, err := Open(t.Context(), Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(string(p), "newest hash of the audit log") {
				lines = append(lines, string(p))
			}
			return len(p), nil
		}), nil))})
		must(t, err)
		defer s.Close()
		recordKey(t, s)
		stop := background(t, s.Housekeep)
		want := func(when string, n int, hash webhook.AuditHash) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(lines) != n || !strings.Contains(lines[n-1], hash.String()) {
				t.Errorf("%s: got %q, want %d lines, the last with %s", when, lines, n, hash)
			}
		}
		first := verifyAudit(t, s).Newest
		want("at startup", 1, first)
		recordKey(t, s)
		second := verifyAudit(t, s).Newest
		time.Sleep(time.Hour - time.Second)
		want("before an hour", 1, first)
		time.Sleep(2 * time.Second)
		want("after an hour", 2, second)
		for range 22 {
			time.Sleep(time.Hour)
		}
		want("after a day", 24, second)
		stop()
	})
}

// A restore adds one entry, which names the entry that the log continues from. Later entries are
// gone, and the log verifies.
func TestAuditContinuesAfterRestore(t *testing.T) {
	dir := t.TempDir()
	cfg := fileReplica(t, dir, t.TempDir())
	r := openReplicated(t, dir, cfg)
	recordKey(t, r.Store)
	must(t, r.close())
	s := openDir(t, dir) // without the replica
	newest, _, err := s.Audit().Newest(t.Context())
	must(t, err)
	recordKey(t, s)
	late, _, err := s.Audit().Newest(t.Context())
	must(t, err)
	if len(verifyAudit(t, s).Gaps) != 0 {
		t.Error("without a restore there is a gap")
	}
	must(t, s.Close())

	s, y := restored(t, cfg, dir, time.Time{})
	again := s.Dir()
	for range 2 { // a restart adds nothing
		gaps := verifyAudit(t, s).Gaps
		if len(gaps) != 1 || gaps[0].Num != newest.Num || gaps[0].Hash != newest.Hash || gaps[0].From != y.From || gaps[0].At.IsZero() {
			t.Errorf("got %+v, want entry %d of %s", gaps, newest.Num, y.From)
		}
		if _, err := s.verifyAudit(t.Context(), newest.Hash); err != nil {
			t.Error(err)
		}
		if _, err := s.verifyAudit(t.Context(), late.Hash); err == nil {
			t.Error("an entry that was not restored is found")
		}
		must(t, s.Close())
		s = openDir(t, again)
	}
	// An entry that names another predecessor is a fault.
	changeAudit(t, s, "DELETE FROM audit WHERE num = (SELECT max(num) FROM audit)")
	mustWrite(t, s, func(w Write) error {
		gap := webhook.AuditGap{Num: late.Num, Hash: late.Hash, From: y.From}
		return w.Audit(webhook.AuditEntry{Admin: webhook.Service, Action: webhook.ActionAuditContinue, Detail: gap.String()})
	})
	var fault *webhook.AuditFault
	if _, err := s.verifyAudit(t.Context(), webhook.AuditHash{}); !errors.As(err, &fault) {
		t.Errorf("a forged gap: got %v", err)
	}
}

package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// TestAuditRetention checks that retention removes old entries and keeps the hash of the last
// one removed, and the newest entry.
func TestAuditRetention(t *testing.T) {
	s, now := openAt(t)
	const old, young = 700, 300
	for i := range old + young {
		if i == old {
			*now = now.Add(48 * time.Hour)
		}
		recordKey(t, s)
	}
	before := verifyAudit(t, s)
	remove := func(edge time.Time, want int64) webhook.AuditSummary {
		t.Helper()
		if got := pruneAudit(t, s, edge); got != want {
			t.Errorf("removed %d entries, want %d", got, want)
		}
		return verifyAudit(t, s)
	}
	entries, _, err := s.Audit().Page(t.Context(), query(t, webhook.AuditList, fmt.Sprintf("sort=at&filter[at.from]=%s&page[size]=1",
		webhook.FormatTime(now.Add(-time.Hour)))))
	must(t, err)
	first := entries[0]
	got := remove(now.Add(-24*time.Hour), old)
	if got.First != old+1 || got.Entries != young+1 || got.Anchor != first.Previous ||
		got.Pruned != (webhook.AuditPrune{Num: old, Hash: got.Anchor}) {
		t.Errorf("got %+v", got)
	}
	for _, hash := range []webhook.AuditHash{got.Anchor, before.Newest} {
		if _, err := s.verifyAudit(t.Context(), hash); err != nil {
			t.Errorf("expecting %s: %v", hash, err)
		}
	}
	entries, _, err = s.Audit().Page(t.Context(), query(t, webhook.AuditList, "sort=at&page[size]=1"))
	if must(t, err); entries[0].Previous != got.Anchor {
		t.Errorf("the first entry follows %s, want %s", entries[0].Previous, got.Anchor)
	}
	if again := remove(now.Add(-24*time.Hour), 0); !reflect.DeepEqual(again, got) {
		t.Errorf("a run that removes nothing: got %+v", again)
	}
	if got = remove(now.Add(24*time.Hour), young); got.First != old+young+1 || got.Entries != 2 {
		t.Errorf("got %+v", got)
	}
	// The remaining entries are about removals, and removing them adds none.
	if again := remove(now.Add(48*time.Hour), 0); !reflect.DeepEqual(again, got) {
		t.Errorf("an idle log: got %+v", again)
	}
	recordKey(t, s)
	recordKey(t, s)
	if got = remove(now.Add(48*time.Hour), 3); got.First != old+young+4 || got.Entries != 2 {
		t.Errorf("got %+v", got)
	}
}

// pruneAudit runs retention of the audit log, and returns how many entries it removed.
func pruneAudit(t *testing.T, s *Store, edge time.Time) int64 {
	t.Helper()
	w := newSweep(t.Context(), s)
	must(t, w.audit(auditBefore(t, s, edge)))
	return w.swept.Audit
}

// auditBefore returns the num of the last entry that was made before a time.
func auditBefore(t *testing.T, s *Store, at time.Time) int64 {
	t.Helper()
	return count(t, s, "SELECT coalesce(max(num), 0) FROM audit WHERE at < ?", at.UnixMilli())
}

// TestAuditRetentionStops checks that the log verifies after each step of a removal, and that
// the next run completes an interrupted one.
func TestAuditRetentionStops(t *testing.T) {
	s, now := openAt(t)
	const old = 5 * firstStep
	for range old {
		recordKey(t, s)
	}
	*now = now.Add(48 * time.Hour)
	recordKey(t, s)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	steps := 0
	s.afterStep = func() {
		if got := verifyAudit(t, s); got.Pruned.Num != old || got.First == 1 {
			t.Errorf("step %d: got %+v", steps, got)
		}
		if steps++; steps == 2 {
			stop()
		}
	}
	w := newSweep(ctx, s)
	if err := w.audit(auditBefore(t, s, now.Add(-24*time.Hour))); !errors.Is(err, context.Canceled) || steps != 2 {
		t.Fatalf("got %v after %d steps", err, steps)
	}
	s.afterStep = nil
	pruneAudit(t, s, now.Add(-24*time.Hour))
	if got := verifyAudit(t, s); got.First != old+1 || got.Entries != 3 {
		t.Errorf("got %+v", got)
	}
}

// TestAuditRetentionIsRare checks that retention adds an entry at most once per
// [pruneInterval], however often it runs.
func TestAuditRetentionIsRare(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Retain(ctx, webhook.Retention{All: 48 * time.Hour, Audit: 96 * 24 * time.Hour}) }()
		for range 120 * 4 {
			recordKey(t, s)
			time.Sleep(6 * time.Hour)
		}
		synctest.Wait()
		if n := count(t, s, "SELECT count(*) FROM audit WHERE action = 'audit.prune'"); n < 14 || n > 25 {
			t.Errorf("%d entries about removals in 24 days, want at most one a day", n)
		}
		if n := s.Figures().Swept().Audit; n < 80 || n > 98 {
			t.Errorf("removed %d entries, want those of 24 days", n)
		}
		verifyAudit(t, s)
		stop()
		must(t, <-done)
	})
}

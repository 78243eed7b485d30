package people

import (
	"fmt"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

const (
	// Entries about removals do not cause another such entry, which would be removed in turn: an
	// idle log would never be at rest. The newest entry stays, so that its num is not reused.
	selectPruned = "SELECT num, hash FROM audit WHERE num = (SELECT max(num) FROM audit WHERE num <= ?1 " +
		"AND num < (SELECT max(num) FROM audit)) AND (SELECT 1 FROM audit WHERE num <= ?1 AND action <> 'audit.prune' LIMIT 1) = 1"
	selectPrunedStep = "SELECT num, hash FROM (SELECT num, hash FROM audit WHERE num <= ?1 ORDER BY num LIMIT ?2) " +
		"ORDER BY num DESC LIMIT 1"
	anchorAudit = "INSERT INTO audit_anchor (one, num, hash) VALUES (1, ?1, ?2) ON CONFLICT DO UPDATE SET num = ?1, hash = ?2"
	removeAudit = "DELETE FROM audit WHERE num <= ?"

	// For a quick check of the beginning of the log: the first entry, and the newest entry about a
	// removal.
	selectAuditBounds = "SELECT " + auditColumns + ", " + previousAudit + " FROM audit a WHERE a.num IN ((SELECT min(num) FROM audit), " +
		"(SELECT max(num) FROM audit INDEXED BY audit_prunes WHERE action = 'audit.prune')) ORDER BY a.num"
)

// PruneInterval returns the time between two runs that remove entries of the audit log. Each
// adds an entry, so they are rare compared with the retention.
func PruneInterval(keep time.Duration) time.Duration { return min(keep/48, 24*time.Hour) }

// RecordPrune adds the entry about a removal of the entries through last, and returns the num of
// the last one to remove, 0 if there is none.
func (w Writes) RecordPrune(last int64) (through int64, err error) {
	var hash []byte
	if err := w.t.Scan(selectPruned, []any{last}, &through, &hash); err != nil {
		return 0, sqlite.NoRows(err, nil)
	}
	p := webhook.AuditPrune{Num: through}
	if copy(p.Hash[:], hash) != len(p.Hash) {
		return 0, fmt.Errorf("entry %d of the audit log has no hash", through)
	}
	return through, w.Audit(webhook.AuditEntry{Admin: webhook.Service, Action: webhook.ActionAuditPrune, Detail: p.String()})
}

// Prune removes at most size of the entries through a num that [Writes.RecordPrune] returned,
// oldest first, and keeps the hash of the last, from which the chain continues.
func (w Writes) Prune(through int64, size int) (removed int64, err error) {
	var num int64
	var hash []byte
	if err := w.t.Scan(selectPrunedStep, []any{through, size}, &num, &hash); err != nil {
		return 0, sqlite.NoRows(err, nil)
	}
	if err := w.t.Exec(anchorAudit, num, hash); err != nil {
		return 0, err
	}
	return w.t.Affected(removeAudit, num)
}

package webhook

import "fmt"

// AuditPrune names the last entry that was removed from the beginning of the audit log. It is
// the detail of an entry with [ActionAuditPrune], so the chain proves it.
type AuditPrune struct {
	Num  int64
	Hash AuditHash
}

const auditPruneFormat = "through entry %d, hash %s"

// String returns the detail of the entry.
func (p AuditPrune) String() string { return fmt.Sprintf(auditPruneFormat, p.Num, p.Hash) }

// Pruned returns the range that an entry with [ActionAuditPrune] records, and false if it cannot be
// parsed.
func (e *AuditEntry) Pruned() (p AuditPrune, ok bool) {
	var hash string
	if _, err := fmt.Sscanf(e.Detail, auditPruneFormat, &p.Num, &hash); err != nil {
		return p, false
	}
	var err error
	p.Hash, err = ParseAuditHash(hash)
	return p, err == nil && p.String() == e.Detail
}

// PruneFault returns an error if entries before first, the first of the log, are missing
// although retention did not remove them. newest is the newest entry with [ActionAuditPrune],
// nil for none.
//
// Entries that newest names may still exist: retention records what it is about to remove.
func PruneFault(first, newest *AuditEntry) *AuditFault {
	removed := first.Num - 1
	if removed == 0 {
		return nil
	}
	if newest == nil {
		return first.Fault("entries before it are missing, and no entry says that retention removed them")
	}
	switch p, ok := newest.Pruned(); {
	case !ok:
		return newest.Fault("it does not name the last entry that retention removed")
	case removed > p.Num:
		return first.Fault(fmt.Sprintf("entries before it are missing, and retention removed only those through entry %d", p.Num))
	case removed == p.Num && first.Previous != p.Hash:
		return first.Fault("it was hashed over another entry than the last one that retention removed")
	}
	return nil
}

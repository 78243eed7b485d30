package webhook

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// AuditGap is where the audit log continues after a restore or a takeover. The restored data
// lacks the entries that once followed Num. The gap is the detail of an entry with
// [ActionAuditContinue], so the chain proves it.
type AuditGap struct {
	Num  int64     // of the newest entry of the restored data; 0 if its log was empty
	Hash AuditHash // of that entry
	From string    // what was restored
	At   time.Time // of the entry about it
}

var auditGapForm = regexp.MustCompile(`^after entry (\d+), hash ([0-9a-f]{64}), restored from (.*)$`)

// String returns the detail of the entry.
func (g AuditGap) String() string {
	return fmt.Sprintf("after entry %d, hash %s, restored from %s", g.Num, g.Hash, g.From)
}

// Gap returns the gap that an entry with [ActionAuditContinue] records, and false if it does not name
// the entry that it follows.
func (e *AuditEntry) Gap() (g AuditGap, ok bool) {
	part := auditGapForm.FindStringSubmatch(e.Detail)
	if part == nil {
		return g, false
	}
	g.From, g.At = part[3], e.At
	var numErr, hashErr error
	g.Num, numErr = strconv.ParseInt(part[1], 10, 64)
	g.Hash, hashErr = ParseAuditHash(part[2])
	return g, numErr == nil && hashErr == nil && g.String() == e.Detail && g.Num == e.Num-1 && g.Hash == e.Previous
}

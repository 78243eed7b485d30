package webhook

import (
	"strings"
	"testing"
	"time"
)

// TestPruneFault checks which entries may be missing before the first one of an audit log.
func TestPruneFault(t *testing.T) {
	hash, other := AuditHash{1}, AuditHash{2}
	says := func(detail string) *AuditEntry {
		return &AuditEntry{Num: 20, ID: "newest", At: time.Unix(0, 0), Action: ActionAuditPrune, Detail: detail}
	}
	for _, c := range []struct {
		name   string
		first  int64
		newest *AuditEntry
		fault  int64 // 0 for none
	}{
		{"nothing removed", 1, nil, 0},
		{"nothing removed yet", 1, says(AuditPrune{Num: 4, Hash: hash}.String()), 0},
		{"some removed", 3, says(AuditPrune{Num: 4, Hash: other}.String()), 0},
		{"all removed", 5, says(AuditPrune{Num: 4, Hash: hash}.String()), 0},
		{"another last one", 5, says(AuditPrune{Num: 4, Hash: other}.String()), 5},
		{"one too many", 6, says(AuditPrune{Num: 4, Hash: hash}.String()), 6},
		{"no entry", 5, nil, 5},
		{"no number", 5, says(strings.Replace(AuditPrune{Num: 4, Hash: hash}.String(), "4", "x", 1)), 20},
		{"another spelling", 5, says(strings.Replace(AuditPrune{Num: 4, Hash: hash}.String(), "4", "04", 1)), 20},
		{"more text", 5, says(AuditPrune{Num: 4, Hash: hash}.String() + "."), 20},
		{"half a hash", 5, says(AuditPrune{Num: 4, Hash: hash}.String()[:60]), 20},
		{"erased", 5, says(""), 20},
	} {
		got := PruneFault(&AuditEntry{Num: c.first, ID: "first", At: time.Unix(0, 0), Previous: hash}, c.newest)
		if (got == nil) != (c.fault == 0) || got != nil && got.Num != c.fault {
			t.Errorf("%s: got %v, want a fault of entry %d", c.name, got, c.fault)
		}
	}
}

package webhook

import (
	"errors"
	"strings"
	"testing"
)

// TestAuditGap checks that an entry about a restore must name the entry before it.
func TestAuditGap(t *testing.T) {
	chain := func(detail func(AuditGap) string) []AuditEntry {
		all := make([]AuditEntry, 3)
		for i := range all {
			e := &all[i]
			e.Num, e.ID, e.Action, e.Salt = int64(i+1), NewID(), ActionKeyRotate, make([]byte, AuditSaltSize)
			if i > 0 {
				e.Previous = all[i-1].Hash
			}
			if i == 2 {
				e.Action, e.Detail = ActionAuditContinue, detail(AuditGap{Num: 2, Hash: e.Previous, From: "the backup of yesterday"})
			}
			e.Digest = e.PersonalDigest()
			e.Hash = e.ChainHash()
		}
		return all
	}
	verify := func(all []AuditEntry) (AuditSummary, error) {
		var v AuditVerifier
		for i := range all {
			if err := v.Add(&all[i]); err != nil {
				return AuditSummary{}, err
			}
		}
		return v.End()
	}
	all := chain(AuditGap.String)
	s, err := verify(all)
	if err != nil || len(s.Gaps) != 1 || s.Gaps[0] != (AuditGap{Num: 2, Hash: all[1].Hash, From: "the backup of yesterday", At: all[2].At}) {
		t.Errorf("got %+v, %v", s.Gaps, err)
	}
	for name, detail := range map[string]func(AuditGap) string{
		"another number":  func(g AuditGap) string { g.Num++; return g.String() },
		"another hash":    func(g AuditGap) string { g.Hash[0]++; return g.String() },
		"another form":    func(g AuditGap) string { return strings.Replace(g.String(), "2", "02", 1) },
		"more before":     func(g AuditGap) string { return " " + g.String() },
		"nothing":         func(AuditGap) string { return "" },
		"without a place": func(g AuditGap) string { return strings.TrimSuffix(g.String(), ", restored from "+g.From) },
	} {
		var fault *AuditFault
		if _, err := verify(chain(detail)); !errors.As(err, &fault) || fault.Num != 3 {
			t.Errorf("%s: got %v, want a fault of entry 3", name, err)
		}
	}
}

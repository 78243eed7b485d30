package server

import (
	"strings"
	"testing"
	"time"

	"service/store"
	"service/store/replica"
)

// The primary reports the standbys of the last days, whatever they wrote.
func TestStandbyFindings(t *testing.T) {
	now := time.Date(2026, 3, 14, 8, 0, 0, 0, time.UTC)
	lag := 0.5
	long := strings.Repeat("x", 10_000)
	got := standbyFindings([]replica.NodeState{
		{Host: "a", SeenAt: now.Add(-time.Minute), CanTakeOver: true, LagSeconds: &lag},
		{Host: "b", SeenAt: now.Add(-3 * time.Hour), CanTakeOver: true},
		{Host: "c", SeenAt: now.Add(time.Hour), Reason: "no key", OldData: []string{"old", long, "old", "old", "old"}},
		{Host: "d", SeenAt: now.AddDate(0, 0, -8)},
		{Host: long, SeenAt: now, Reason: long},
	}, now)
	var text []string
	for _, f := range got {
		text = append(text, string(f.Level)+" "+f.Check+": "+f.Detail)
		if len(f.Check)+len(f.Detail) > 600 {
			t.Errorf("a finding has %d bytes", len(f.Check)+len(f.Detail))
		}
	}
	want := []string{
		"OK standby a: can take over; its copy was complete 0.5 s before its last sign of life",
		"WARN standby b: was last seen 3h0m0s ago", "WARN standby c: no key",
	}
	for i, w := range want {
		if i >= len(text) || text[i] != w {
			t.Fatalf("got %q, want first %q", text, want)
		}
	}
	if len(got) != 7 || got[0].Level != store.LevelOK {
		t.Errorf("got %d findings, want 7: %q", len(got), text)
	}
}

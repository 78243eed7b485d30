package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"service/store/doctor"
	"service/store/replica"
)

// The primary reports the standbys of the last days, whatever the content of their signs of life.
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
	if len(got) != 7 || got[0].Level != doctor.LevelOK {
		t.Errorf("got %d findings, want 7: %q", len(got), text)
	}
}

// The primary counts its standbys by state, keeps what it knew when the bucket fails, and logs when
// no standby is left that could take over.
func TestStandbyWatch(t *testing.T) {
	now := time.Date(2026, 3, 14, 8, 0, 0, 0, time.UTC)
	var nodes []replica.NodeState
	var failure error
	var log strings.Builder
	w := &standbyWatch{
		read:   func(context.Context) ([]replica.NodeState, error) { return nodes, failure },
		logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	look := func(want standbyCounts, logged string) {
		t.Helper()
		log.Reset()
		w.look(t.Context(), now)
		if got := w.counts(now); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got := log.String(); !strings.Contains(got, logged) || logged == "" && got != "" {
			t.Errorf("got log %q, want %q", got, logged)
		}
	}
	look(standbyCounts{}, "") // a single machine
	nodes = []replica.NodeState{
		{Host: "a", SeenAt: now, CanTakeOver: true}, {Host: "b", SeenAt: now, Reason: "no key"}, {Host: "old", SeenAt: now.AddDate(0, 0, -8)},
	}
	look(standbyCounts{ready: 1, unable: 1}, "")
	failure = errors.New("the bucket refuses")
	look(standbyCounts{ready: 1, unable: 1}, "")
	if f := w.findings(now); len(f) != 3 || f[0].Detail != "the bucket refuses" {
		t.Errorf("got %+v, want the failure and two standbys", f)
	}
	failure, now = nil, now.Add(3*time.Hour)
	look(standbyCounts{silent: 2}, "no standby can take over")
	look(standbyCounts{silent: 2}, "")
	nodes = []replica.NodeState{{Host: "a", SeenAt: now, CanTakeOver: true}}
	look(standbyCounts{ready: 1}, "a standby can take over again")
}

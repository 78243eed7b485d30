package store

import (
	"testing"
	"time"

	"service/store/doctor"
	"service/store/replica"
	"service/test/harness"
)

// TestVerifiedReplica compares a replica with the database, and reads the result after a
// restart. The result does not apply to another replica.
func TestVerifiedReplica(t *testing.T) {
	dir := t.TempDir()
	target := "file://" + t.TempDir()
	parse := func(target string) *replica.Config {
		t.Helper()
		cfg, err := replica.ParseURL(target)
		must(t, err)
		return cfg
	}
	open := func(target string, every time.Duration) (_ *Store, end func()) {
		t.Helper()
		s := opened(t, Config{Dir: dir, Replica: parse(target), VerifyReplica: every})
		stop := background(t, s.Replica().Run)
		return s, func() {
			t.Helper()
			stop()
			must(t, s.Close())
		}
	}
	s, end := open(target, 10*time.Millisecond)
	harness.WaitFor(t, "a comparison of the replica", func() bool { return !s.Replica().Status().Verified.Time.IsZero() })
	if got := contentLevel(s.Examine(t.Context(), 0)); got != doctor.LevelOK {
		t.Errorf("Examine: got level %q, want %q", got, doctor.LevelOK)
	}
	end()
	before := s.Replica().Status().Verified
	findings, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir, Replica: parse(target), VerifyReplica: time.Hour}, 0)
	must(t, err)
	if got := contentLevel(findings); got != doctor.LevelOK {
		t.Errorf("Examine without a server: got %v", findings)
	}

	s, end = open(target, time.Hour)
	y := s.Replica().Status()
	if y.Verified.TXID == "" || y.Verified.Time.Before(before.Time.Add(-time.Second)) || y.VerifyInterval != time.Hour {
		t.Errorf("after a restart: got %+v, want %+v", y.Verified, before)
	}
	end()
	s, end = open("file://"+t.TempDir(), 0)
	if y := s.Replica().Status().Verified; y != (ReplicaVerification{}) {
		t.Errorf("another replica: got %+v", y)
	}
	if got := contentLevel(s.Examine(t.Context(), 0)); got != doctor.LevelWarn {
		t.Errorf("without comparison: Examine: got level %q, want %q", got, doctor.LevelWarn)
	}
	end()
}

// contentLevel returns the level of the finding about the replica's content, "" if there is
// none.
func contentLevel(findings []doctor.Finding) (level doctor.Level) {
	for _, f := range findings {
		if f.Check == "replica content" {
			level = f.Level
		}
	}
	return level
}

package replica

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"service/test/harness"
)

// TestReplicaUnreachable starts the service while its replica is unreachable, and lets
// another process open and close the database: no event may be lost. Once the replica
// is reachable, it must become complete.
func TestReplicaUnreachable(t *testing.T) {
	harness.Long(t)
	gateway := harness.NewGateway(t)
	gateway.Kill()
	sqlite := harness.Tool(t, "sqlite3", "sqlite3")
	data := t.TempDir()
	in := harness.NewInstance(t, harness.Build(t), data, "--litestream", writeReplica(t, data, "100ms", gateway.Replica(gateway.Address,
		"service")...), "--log-level", "warn")
	token := in.Token("acme")
	run := in.MustStart()
	l := &ledger{sent: make(map[string]bool), acks: make(map[string]time.Time)}
	ctx, cancel := context.WithCancel(t.Context())
	wait := l.load(ctx, in, token, 2)
	for range 4 {
		before := len(l.acknowledged())
		harness.WaitFor(t, "more acknowledged events", func() bool { return len(l.acknowledged()) > before+20 })
		if out, err := exec.Command(sqlite, filepath.Join(data, "service.db"), "SELECT count(*) FROM events").CombinedOutput(); err != nil {
			t.Fatalf("sqlite3: %v\n%s", err, out)
		}
	}
	in.Kill(run)
	cancel()
	wait()
	if _, lost, kept := l.compare(t, copyDatabase(t, data), time.Now()); lost > 0 || kept == 0 {
		t.Errorf("got %d acknowledged events lost and %d kept, want none lost", lost, kept)
	}
	info, err := os.Stat(filepath.Join(data, "service.db-wal"))
	if err != nil || info.Size() > 100<<20 {
		t.Errorf("write-ahead log: got %d bytes (%v)", info.Size(), err)
	}

	run = in.MustStart()
	gateway.Start()
	awaitReplica(in, "running")
	in.MustStop(run)
	to := filepath.Join(t.TempDir(), "restored")
	t.Setenv("AWS_ACCESS_KEY_ID", harness.GatewayKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", harness.GatewaySecret)
	if out, err := in.Command("restore", "--data", to, "--from", gateway.URL("service")); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	if _, lost, _ := l.compare(t, to, time.Now()); lost > 0 {
		t.Errorf("the replica lacks %d events", lost)
	}
}

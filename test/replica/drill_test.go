package replica

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"service/test/harness"
)

var replicaDrills = flag.Int("replica.drills", 2, "how often TestRestoreDrill loses the data directory and has it restored from S3")

// mostBehind returns how far a restored copy may be behind what was acknowledged
// when everything was killed.
func mostBehind() time.Duration { return harness.Scale(2 * time.Second) }

// TestRestoreDrill publishes to a service that is replicated to an S3 server,
// kills both, deletes the data directory, and starts again: all but the last
// seconds is there. A service that ends in order has lost nothing.
func TestRestoreDrill(t *testing.T) {
	harness.Long(t)
	d := newDrill(t)
	var behind time.Duration
	for n := range *replicaDrills {
		behind = max(behind, d.cycle(n, false))
	}
	d.cycle(*replicaDrills, true)
	t.Logf("at most %s behind in %d cycles", behind.Round(time.Millisecond), *replicaDrills)
	d.restoreEarlier()
	d.restoreByLitestream()
	d.restoreByService()
}

// drill is a service whose data directory is lost again and again.
type drill struct {
	t       *testing.T
	gateway *harness.Gateway
	data    string
	config  string // Litestream's
	in      *harness.Instance
	token   string

	ledger *ledger         // of the last cycle: what an earlier one has lost stays lost
	middle time.Time       // a moment of the last cycle
	known  map[string]bool // what was acknowledged up to it
}

func newDrill(t *testing.T) *drill {
	d := &drill{t: t, gateway: harness.NewGateway(t), data: t.TempDir(), ledger: &ledger{sent: make(map[string]bool)}}
	t.Setenv("AWS_CA_BUNDLE", filepath.Join(t.TempDir(), "missing.pem")) // the client fails with it, and must not see it
	key := filepath.Join(t.TempDir(), "secret.key")
	if err := os.WriteFile(key, []byte(strings.Repeat("0f", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.config = writeReplica(t, d.data, "500ms", d.gateway.Replica(d.gateway.Address, "service")...)
	d.in = harness.NewInstance(t, harness.Build(t), d.data, "--litestream", d.config, "--secret-key-file", key, "--log-level", "warn", "--restore-hold", "1h")
	d.token = d.in.Token("acme", "--secret-key-file", key)
	return d
}

// restore restores the replica into a new directory, whose path it returns.
func (d *drill) restore(args ...string) string {
	d.t.Helper()
	to := filepath.Join(d.t.TempDir(), "restored")
	out, err := d.in.Command(append([]string{"restore", "--data", to, "--litestream", d.config}, args...)...)
	if err != nil {
		d.t.Fatalf("restore %s: %v\n%s", args, err, out)
	}
	return to
}

// cycle starts the service, ends it under load, by SIGKILL or in order, deletes
// its data, and returns how far a restored copy is behind.
func (d *drill) cycle(n int, orderly bool) time.Duration {
	t := d.t
	t.Helper()
	d.ledger.mu.Lock()
	d.ledger.acks = make(map[string]time.Time)
	d.ledger.mu.Unlock()
	run := d.in.MustStart()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rest := d.ledger.load(ctx, d.in, d.token, 4)
	<-time.After(mostBehind() + 500*time.Millisecond)
	d.middle = time.Now()
	d.known = d.ledger.acknowledged()
	<-time.After(mostBehind())
	ended := time.Now()
	if orderly {
		if status := d.in.Stop(run); status != harness.ExitOK {
			t.Errorf("exit status %d after SIGTERM under load, want %d", status, harness.ExitOK)
		}
		if took := time.Since(ended); took > harness.Scale(10*time.Second) {
			t.Errorf("the shutdown took %s", took)
		}
	} else {
		d.in.Kill(run)
		d.gateway.Kill()
	}
	cancel()
	rest()
	if err := os.RemoveAll(d.data); err != nil {
		t.Fatal(err)
	}
	if !orderly {
		d.gateway.Start()
	}
	to := d.restore()
	behind, lost, kept := d.ledger.compare(t, to, ended)
	t.Logf("cycle %d, in order %v: %d acknowledged events of it are there, %d are lost, the oldest of them %s before the end", n, orderly, kept, lost, behind.Round(time.Millisecond))
	switch {
	case orderly && lost > 0:
		t.Errorf("%d acknowledged events were lost by an orderly shutdown", lost)
	case behind > mostBehind():
		t.Errorf("the copy is %s behind, want at most %s", behind, mostBehind())
	case kept == 0:
		t.Error("nothing was kept")
	}
	for _, fault := range harness.DatabaseFaults(t, to) {
		t.Errorf("the restored copy: %s", fault)
	}
	return behind
}

// restoreEarlier restores a point in time: what had been acknowledged up to the
// second before is there, and nothing that was published after.
func (d *drill) restoreEarlier() {
	t := d.t
	t.Helper()
	at := d.middle.Truncate(time.Second)
	there := make(map[string]bool)
	for row := range harness.Rows(t, d.restore("--at", at.UTC().Format(time.RFC3339))) {
		if f := strings.Fields(row); f[0] == "event" {
			there[f[3]] = true
			if acked := d.ledger.acks[f[3]]; !acked.IsZero() && !d.known[f[3]] {
				t.Fatalf("the state of %s has an event that was acknowledged at %s", at, acked)
			}
		}
	}
	missing := 0
	for id, acked := range d.ledger.acks {
		if at.Sub(acked) > harness.Scale(time.Second) && !there[id] {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("the state of %s lacks %d events that were acknowledged more than %s before", at, missing, harness.Scale(time.Second))
	}
}

// restoreByLitestream restores the same by Litestream's own command, from the path
// of the current term.
func (d *drill) restoreByLitestream() {
	d.t.Helper()
	database := filepath.Join(d.t.TempDir(), "service.db")
	terms, err := os.ReadDir(filepath.Join(d.gateway.Dir, "bucket", "service", "terms"))
	if err != nil {
		d.t.Fatal(err)
	}
	config, err := os.ReadFile(d.config)
	if err != nil {
		d.t.Fatal(err)
	}
	term := "path: service/terms/" + terms[len(terms)-1].Name()
	config = bytes.Replace(config, []byte("path: service\n"), []byte(term+"\n"), 1)
	name := filepath.Join(d.t.TempDir(), "term.yml")
	if err := os.WriteFile(name, config, 0o600); err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command(harness.Litestream(d.t), "restore", "-config", name, "-o", database, filepath.Join(d.data, "service.db"))
	cmd.Env = append(harness.Environment(), "AWS_CA_BUNDLE=")
	if out, err := cmd.CombinedOutput(); err != nil {
		d.t.Fatalf("litestream restore: %v\n%s", err, out)
	}
	if behind, lost, _ := d.ledger.compare(d.t, filepath.Dir(database), time.Now()); lost > 0 {
		d.t.Errorf("what Litestream's command restored lacks %d events (%s)", lost, behind)
	}
}

// restoreByService starts the service on the empty directory, which restores
// itself and holds deliveries.
func (d *drill) restoreByService() {
	d.t.Helper()
	run := d.in.MustStart()
	out, err := d.in.Command("release", "--data", d.data)
	if err != nil || !strings.Contains(out, "are sent") {
		d.t.Errorf("release: %v, %s", err, out)
	}
	d.in.MustStop(run)
	if _, lost, _ := d.ledger.compare(d.t, d.data, time.Now()); lost > 0 {
		d.t.Errorf("the service that restored itself lacks %d events", lost)
	}
}

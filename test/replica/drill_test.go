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

// mostBehind returns how far a restored copy may be behind after a kill.
func mostBehind() time.Duration { return harness.Scale(2 * time.Second) }

// TestRestoreDrill publishes to a service with a replica on an S3 server, kills both,
// deletes the data directory and restores it: only events of the last seconds may be
// missing. After an orderly shutdown no event may be missing.
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

// drill is a service whose data directory is deleted again and again.
type drill struct {
	t       *testing.T
	gateway *harness.Gateway
	data    string
	config  string // path of the Litestream configuration
	in      *harness.Instance
	token   string

	ledger *ledger         // only the last cycle: events lost in earlier ones stay lost
	middle time.Time       // a moment of the last cycle
	known  map[string]bool // events acknowledged up to middle
}

func newDrill(t *testing.T) *drill {
	d := &drill{t: t, gateway: harness.NewGateway(t), data: t.TempDir(), ledger: &ledger{sent: make(map[string]bool)}}
	t.Setenv("AWS_CA_BUNDLE", filepath.Join(t.TempDir(), "missing.pem")) // would break the S3 client: the service must not pass it on
	key := filepath.Join(t.TempDir(), "secret.key")
	if err := os.WriteFile(key, []byte(strings.Repeat("0f", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.config = writeReplica(t, d.data, "500ms", d.gateway.Replica(d.gateway.Address, "service")...)
	d.in = harness.NewInstance(t, harness.Build(t), d.data, "--litestream", d.config, "--secret-key-file", key, "--log-level", "warn",
		"--restore-hold", "1h")
	d.token = d.in.Token("acme", "--secret-key-file", key)
	return d
}

// restore restores the replica into a new directory and returns its path.
func (d *drill) restore(args ...string) string {
	d.t.Helper()
	to := filepath.Join(d.t.TempDir(), "restored")
	out, err := d.in.Command(append([]string{"restore", "--data", to, "--litestream", d.config}, args...)...)
	if err != nil {
		d.t.Fatalf("restore %s: %v\n%s", args, err, out)
	}
	return to
}

// cycle starts the service, kills it or shuts it down under load, deletes its data, and
// returns how far a restored copy is behind.
func (d *drill) cycle(n int, orderly bool) time.Duration {
	t := d.t
	t.Helper()
	d.ledger.mu.Lock()
	d.ledger.acks = make(map[string]time.Time)
	d.ledger.mu.Unlock()
	run := d.in.MustStart()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := d.ledger.load(ctx, d.in, d.token, 4)
	<-time.After(2 * mostBehind())
	d.middle = time.Now()
	d.known = d.ledger.acknowledged()
	<-time.After(mostBehind())
	ended := time.Now()
	if orderly {
		if status := d.in.Stop(run); status != harness.ExitOK {
			t.Errorf("SIGTERM under load: got exit status %d, want %d", status, harness.ExitOK)
		}
		if took := time.Since(ended); took > harness.Scale(10*time.Second) {
			t.Errorf("SIGTERM under load: the shutdown took %s", took)
		}
	} else {
		d.in.Kill(run)
		d.gateway.Kill()
	}
	cancel()
	wait()
	if err := os.RemoveAll(d.data); err != nil {
		t.Fatal(err)
	}
	if !orderly {
		d.gateway.Start()
	}
	to := d.restore()
	behind, lost, kept := d.ledger.compare(t, to, ended)
	t.Logf("cycle %d, orderly %v: %d acknowledged events kept, %d lost, the oldest of them acknowledged %s before the end",
		n, orderly, kept, lost, behind.Round(time.Millisecond))
	switch {
	case orderly && lost > 0:
		t.Errorf("an orderly shutdown lost %d acknowledged events", lost)
	case behind > mostBehind():
		t.Errorf("restored copy: got %s behind, want at most %s", behind, mostBehind())
	case kept == 0:
		t.Error("restored copy: got no events")
	}
	for _, fault := range harness.DatabaseFaults(t, to) {
		t.Errorf("the restored copy: %s", fault)
	}
	return behind
}

// restoreEarlier restores a point in time: events acknowledged well before must be there, and
// no event that was published after. A state has the time of its copy, which on a busy machine
// is well after its newest commit.
func (d *drill) restoreEarlier() {
	t := d.t
	t.Helper()
	at := d.middle.Truncate(time.Second)
	there := make(map[string]bool)
	for row := range harness.Rows(t, d.restore("--at", at.UTC().Format(time.RFC3339))) {
		if f := strings.Fields(row); f[0] == "event" {
			there[f[3]] = true
			if acked := d.ledger.acks[f[3]]; !acked.IsZero() && !d.known[f[3]] {
				t.Fatalf("the restored state of %s has an event acknowledged at %s", at, acked)
			}
		}
	}
	early, missing := 0, 0
	for id, acked := range d.ledger.acks {
		if at.Sub(acked) > mostBehind() {
			early++
			if !there[id] {
				missing++
			}
		}
	}
	if missing > 0 || early == 0 {
		t.Errorf("the restored state of %s lacks %d of %d events acknowledged more than %s before", at, missing, early, mostBehind())
	}
}

// restoreByLitestream restores with the litestream command, from the path of the
// current term.
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
		d.t.Errorf("restored by litestream: %d events are missing (%s)", lost, behind)
	}
}

// restoreByService starts the service on the empty directory: it restores the database
// and holds deliveries.
func (d *drill) restoreByService() {
	d.t.Helper()
	run := d.in.MustStart()
	out, err := d.in.Command("release", "--data", d.data)
	if err != nil || !strings.Contains(out, "Started the paused deliveries") {
		d.t.Errorf("release: %v, %s", err, out)
	}
	d.in.MustStop(run)
	if _, lost, _ := d.ledger.compare(d.t, d.data, time.Now()); lost > 0 {
		d.t.Errorf("restored by service serve: %d events are missing", lost)
	}
}

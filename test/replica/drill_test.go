package replica

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"service/test/harness"
)

var replicaDrills = flag.Int("replica.drills", 2, "how often TestRestoreDrill loses the data directory and has it restored from S3")

// mostBehind returns the maximum lag of a restored copy after a kill.
func mostBehind() time.Duration { return harness.Scale(2 * time.Second) }

// TestRestoreDrill publishes to a service with a replica on an S3 server, kills both, deletes the
// data directory and restores it: only the last events may be missing, and no event that the
// replica contained. After an orderly shutdown no event may be missing.
//
// With -short the S3 server runs in memory, because the real one needs a build.
func TestRestoreDrill(t *testing.T) {
	cycles := harness.Drill(t, 1, *replicaDrills)
	d := newDrill(t)
	for n := range cycles {
		d.cycle(n, false)
	}
	d.cycle(cycles, true)
	t.Run("in time", d.checkTimes)
	d.restoreEarlier()
	t.Run("by litestream", d.restoreByLitestream)
	d.restoreByService()
}

// drill is a service whose data directory the test deletes repeatedly.
type drill struct {
	t       *testing.T
	gateway *harness.Gateway // nil with -short
	reach   func(bool)       // starts or kills the S3 server
	data    string
	config  string // path of the Litestream configuration
	in      *harness.Instance
	token   string

	ledger *ledger         // only the last cycle: events lost in earlier ones stay lost
	middle time.Time       // a moment of the last cycle
	known  map[string]bool // events acknowledged up to middle

	behind   []time.Duration // lag of the restored copies after a kill
	shutdown time.Duration   // how long the orderly shutdown took
}

func newDrill(t *testing.T) *drill {
	d := &drill{t: t, data: t.TempDir(), ledger: &ledger{sent: make(map[string]bool)}}
	t.Setenv("AWS_CA_BUNDLE", filepath.Join(t.TempDir(), "missing.pem")) // would break the S3 client: the service must not pass it on
	key := filepath.Join(t.TempDir(), "secret.key")
	if err := os.WriteFile(key, []byte(strings.Repeat("0f", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.config = writeReplica(t, d.data, "500ms", d.bucket()...)
	d.in = harness.NewInstance(t, harness.Build(t), d.data, "--litestream", d.config, "--secret-key-file", key, "--log-level", "warn")
	d.token = d.in.Token("acme", "--secret-key-file", key)
	return d
}

// bucket starts the S3 server and returns configuration lines for a replica in it.
func (d *drill) bucket() []string {
	d.t.Helper()
	if !testing.Short() {
		d.gateway = harness.NewGateway(d.t)
		d.reach = func(up bool) {
			if up {
				d.gateway.Start()
			} else {
				d.gateway.Kill()
			}
		}
		return d.gateway.Replica(d.gateway.Address, "service")
	}
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		d.t.Fatal(err)
	}
	proxy := harness.NewProxy(d.t, strings.TrimPrefix(harness.Listen(d.t, gofakes3.New(backend).Server()), "http://"))
	d.reach = func(up bool) {
		proxy.SetMode(map[bool]harness.ProxyMode{true: harness.ProxyForward, false: harness.ProxyCut}[up])
	}
	return d.gateway.Replica(proxy.Address, "service")
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

// load publishes until n more events are acknowledged, calls end while it publishes, and stops.
func (d *drill) load(n int, end func()) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	defer cancel()
	before := len(d.ledger.acknowledged())
	wait := d.ledger.load(ctx, d.in, d.token, 4)
	harness.WaitFor(d.t, "acknowledged events", func() bool { return len(d.ledger.acknowledged()) >= before+n })
	end()
	cancel()
	wait()
}

// cycle starts the service, kills it or shuts it down under load, deletes its data, and
// compares a restored copy.
func (d *drill) cycle(n int, orderly bool) {
	t := d.t
	t.Helper()
	d.ledger.mu.Lock()
	d.ledger.acks = make(map[string]time.Time)
	d.ledger.mu.Unlock()
	run := d.in.MustStart()
	events := 100
	if !testing.Short() {
		events = 2000
	}
	d.load(events, func() {})
	d.known = d.ledger.acknowledged()
	harness.WaitFor(t, "all events to be in the replica", func() bool { return !d.lacks(d.restore()) })
	synced := time.Now()
	harness.WaitFor(t, "the next second of the clock", func() bool { // restore --at takes whole seconds
		d.middle = time.Now().Truncate(time.Second)
		return d.middle.After(synced)
	})
	var ended time.Time
	d.load(events, func() {
		ended = time.Now()
		if !orderly {
			d.in.Kill(run)
			d.reach(false)
		} else if status := d.in.Stop(run); status != harness.ExitOK {
			t.Errorf("SIGTERM under load: got exit status %d, want %d", status, harness.ExitOK)
		}
	})
	if err := os.RemoveAll(d.data); err != nil {
		t.Fatal(err)
	}
	if !orderly {
		d.reach(true)
	}
	to := d.restore()
	behind, lost, kept := d.ledger.compare(t, to, ended)
	t.Logf("cycle %d, orderly %v: %d acknowledged events kept, %d lost, the oldest of them acknowledged %s before the end",
		n, orderly, kept, lost, behind.Round(time.Millisecond))
	if orderly {
		d.shutdown = run.Ended.Sub(ended)
		if lost > 0 {
			t.Errorf("an orderly shutdown lost %d acknowledged events", lost)
		}
	} else {
		d.behind = append(d.behind, behind)
	}
	if d.lacks(to) {
		t.Error("the restored copy lacks an event that the replica had")
	}
	for _, fault := range harness.DatabaseFaults(t, to) {
		t.Errorf("the restored copy: %s", fault)
	}
}

// lacks reports whether a restored copy lacks an event of known.
func (d *drill) lacks(copied string) bool {
	d.t.Helper()
	there := storedEvents(d.t, copied)
	for id := range d.known {
		if !there[id] {
			return true
		}
	}
	return false
}

// checkTimes checks the lag of the restored copies, and how long the shutdown took.
func (d *drill) checkTimes(t *testing.T) {
	harness.Long(t)
	if behind := slices.Max(d.behind); behind > mostBehind() {
		t.Errorf("restored copy: got %s behind, want at most %s", behind, mostBehind())
	}
	if d.shutdown > harness.Scale(10*time.Second) {
		t.Errorf("SIGTERM under load: the shutdown took %s", d.shutdown)
	}
}

// restoreEarlier restores a point in time: the copy must contain all events that the replica
// contained by then, and no later event.
func (d *drill) restoreEarlier() {
	t := d.t
	t.Helper()
	at := d.middle.UTC().Format(time.RFC3339)
	there := storedEvents(t, d.restore("--at", at))
	for id, acked := range d.ledger.acks {
		if there[id] != d.known[id] {
			t.Fatalf("the restored state of %s: got an event acknowledged at %s: %v, want %v", at, acked, there[id], d.known[id])
		}
	}
}

// restoreByLitestream restores with the litestream command, from the path of the
// current term.
func (d *drill) restoreByLitestream(t *testing.T) {
	harness.Long(t)
	database := filepath.Join(t.TempDir(), "service.db")
	terms, err := os.ReadDir(filepath.Join(d.gateway.Dir, "bucket", "service", "terms"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	term := "path: service/terms/" + terms[len(terms)-1].Name()
	config = bytes.Replace(config, []byte("path: service\n"), []byte(term+"\n"), 1)
	name := filepath.Join(t.TempDir(), "term.yml")
	if err := os.WriteFile(name, config, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(harness.Litestream(t), "restore", "-config", name, "-o", database, filepath.Join(d.data, "service.db"))
	cmd.Env = append(harness.Environment(), "AWS_CA_BUNDLE=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("litestream restore: %v\n%s", err, out)
	}
	if behind, lost, _ := d.ledger.compare(t, filepath.Dir(database), time.Now()); lost > 0 {
		t.Errorf("restored by litestream: %d events are missing (%s)", lost, behind)
	}
}

// restoreByService starts the service on the empty directory: the service restores the database,
// and sends.
func (d *drill) restoreByService() {
	d.t.Helper()
	run := d.in.MustStart()
	// Only service restore pauses deliveries.
	if out, err := d.in.Command("release", "--data", d.data); err == nil || !strings.Contains(out, "Deliveries are not paused.") {
		d.t.Errorf("release: %v, %s", err, out)
	}
	d.in.MustStop(run)
	if _, lost, _ := d.ledger.compare(d.t, d.data, time.Now()); lost > 0 {
		d.t.Errorf("restored by service serve: %d events are missing", lost)
	}
}

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

var (
	replicaKills  = flag.Int("replica.kills", 5, "how often TestEndToEnd kills the service while it is replicated")
	replicaDrills = flag.Int("replica.drills", 2, "how often TestEndToEnd loses the data directory and has it restored from S3")
	replicaFlat   = flag.Duration("replica.flat", 4*time.Second, "for how long TestEndToEnd publishes flat out while the service is replicated")
)

// mostBehind is how far a restored copy may be behind what was acknowledged when
// everything was killed.
const mostBehind = 2 * time.Second

// writeReplica writes a configuration in Litestream's format, and returns its
// path. The lines are those of the replica.
func writeReplica(tb testing.TB, data, interval string, lines ...string) string {
	tb.Helper()
	text := "dbs:\n  - path: " + data + "/service.db\n    monitor-interval: " + interval + "\n    replica:\n      sync-interval: " + interval + "\n"
	for _, l := range lines {
		text += "      " + l + "\n"
	}
	name := filepath.Join(tb.TempDir(), "litestream.yml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return name
}

// copyDatabase copies the database of a data directory that no process has open,
// with its log, so that looking at it changes nothing.
func copyDatabase(tb testing.TB, data string) string {
	tb.Helper()
	to := tb.TempDir()
	for _, name := range []string{"service.db", "service.db-wal"} {
		b, err := os.ReadFile(filepath.Join(data, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), b, 0o600)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return to
}

// rowsOf reads what must not be invented: events with their places in the log,
// deliveries with what they hold, attempts, subscriptions and tokens.
func rowsOf(tb testing.TB, data string) map[string]bool {
	tb.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(data, "service.db"))
	if err != nil {
		tb.Fatal(err)
	}
	defer db.Close()
	all := make(map[string]bool)
	rows, err := db.Query(`SELECT 'event ' || program_id || ' ' || seq || ' ' || id FROM events
		UNION ALL SELECT 'delivery ' || num || ' ' || id || ' ' || coalesce(seqs, '') FROM deliveries
		UNION ALL SELECT 'subscription ' || id FROM subscriptions UNION ALL SELECT 'token ' || id FROM tokens`)
	if err != nil {
		tb.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var row string
		if err := rows.Scan(&row); err != nil {
			tb.Fatal(err)
		}
		all[row] = true
	}
	if err := rows.Err(); err != nil {
		tb.Fatal(err)
	}
	return all
}

// command runs the binary once and returns what it said.
func (in *instance) command(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, in.binary, args...)
	cmd.Env = cleanEnvironment()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// testReplicaKilled kills the service at random moments while it is replicated.
// What was acknowledged is in the live file each time, and a copy that is
// restored holds no row that the live file does not.
func testReplicaKilled(t *testing.T, binary string) {
	data, replica := t.TempDir(), t.TempDir()
	c := newChaos(t, binary, data, "--litestream", writeReplica(t, data, "20ms", "path: "+replica))
	copies, rows := 0, 0
	c.run(*replicaKills, func(r *serviceRun) {
		c.in.kill(r)
		to := filepath.Join(t.TempDir(), "restored")
		out, err := c.in.command("restore", "--data", to, "--from", "file://"+replica)
		if err != nil {
			if strings.Contains(out, "the replica is empty") {
				return // it was killed before
			}
			t.Fatalf("restore: %v\n%s", err, out)
		}
		live := rowsOf(t, copyDatabase(t, data))
		for row := range rowsOf(t, to) {
			rows++
			if !live[row] {
				t.Errorf("the restored copy has a row that the live file does not: %s", row)
			}
		}
		faults, err := databaseFaults(to)
		if err != nil {
			t.Error(err)
		}
		for _, fault := range faults {
			t.Errorf("the restored copy: %s", fault)
		}
		copies++
	})
	for _, fault := range c.faults() {
		t.Error(fault)
	}
	c.finish()
	t.Logf("%d copies with %d rows in all were restored after %d kills", copies, rows, *replicaKills)
	if copies == 0 {
		t.Error("there was never anything to restore")
	}
}

// ledger is what publishers were told.
type ledger struct {
	mu   sync.Mutex
	acks map[string]time.Time // by event id, when its acknowledgement had been read
	sent map[string]bool
}

// load publishes single events, by so many publishers, until ctx ends.
func (l *ledger) load(ctx context.Context, in *instance, token string, publishers int) (rest func()) {
	var working sync.WaitGroup
	for range publishers {
		working.Go(func() {
			for ctx.Err() == nil {
				base, ok := in.await(ctx)
				if !ok {
					return
				}
				id := uuid.NewString()
				l.mu.Lock()
				l.sent[id] = true
				l.mu.Unlock()
				event := map[string]any{"id": id, "name": "content_updated", "version": "1", "content_id": 7}
				status, err := in.call(ctx, token, "POST", base+"/v2/events", event, nil)
				if err == nil && status == http.StatusCreated {
					l.mu.Lock()
					l.acks[id] = time.Now()
					l.mu.Unlock()
				}
			}
		})
	}
	return working.Wait
}

// compare says how far a database is behind the acknowledgements up to a
// moment, and reports events that were never published.
func (l *ledger) compare(tb testing.TB, data string, killed time.Time) (behind time.Duration, lost, kept int) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	there := make(map[string]bool)
	for row := range rowsOf(tb, data) {
		if f := strings.Fields(row); f[0] == "event" {
			there[f[3]] = true
			if !l.sent[f[3]] {
				tb.Errorf("event %s was never published", f[3])
			}
		}
	}
	for id, at := range l.acks {
		if there[id] {
			kept++
			continue
		}
		lost++
		behind = max(behind, killed.Sub(at))
	}
	return behind, lost, kept
}

// testRestoreDrill publishes to a service that is replicated to an S3 server,
// kills both, deletes the data directory, and starts again: all but the last
// seconds is there. A service that ends in order has lost nothing.
func testRestoreDrill(t *testing.T, binary string, tools func() (string, error)) {
	gateway := newGateway(t, tools)
	t.Setenv("AWS_CA_BUNDLE", filepath.Join(t.TempDir(), "missing.pem")) // the client fails with it, and must not see it
	data := t.TempDir()
	key := filepath.Join(t.TempDir(), "secret.key")
	if err := os.WriteFile(key, []byte(strings.Repeat("0f", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := writeReplica(t, data, "500ms", gateway.replica()...)
	in := newInstance(t, binary, data, "--litestream", config, "--secret-key-file", key, "--log-level", "warn", "--restore-hold", "1h")
	out, err := in.command("token", "create", "--data", data, "--secret-key-file", key, "--program", "acme", "--user", "u", "--scope", "events.read,events.write")
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, out)
	}
	token := strings.TrimSpace(out)
	var behindMost time.Duration
	var middle time.Time // of the last cycle
	var known map[string]bool
	// The ledger begins anew with each cycle, since what one has lost is lost.
	l := &ledger{sent: make(map[string]bool)}
	for n := range *replicaDrills + 1 {
		orderly := n == *replicaDrills
		l.acks = make(map[string]time.Time)
		run := in.mustStart()
		ctx, cancel := context.WithCancel(t.Context())
		rest := l.load(ctx, in, token, 4)
		<-time.After(mostBehind + 500*time.Millisecond)
		middle = time.Now()
		known = make(map[string]bool)
		l.mu.Lock()
		for id := range l.acks {
			known[id] = true
		}
		l.mu.Unlock()
		<-time.After(mostBehind)
		began := time.Now()
		if orderly {
			if status := in.stop(run); status != exitDone {
				t.Errorf("exit status %d after SIGTERM under load, want %d", status, exitDone)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the end in order took %s", took)
			}
		} else {
			in.kill(run)
			gateway.kill()
		}
		cancel()
		rest()
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		if !orderly {
			gateway.start()
		}
		to := filepath.Join(t.TempDir(), "restored")
		restored, err := in.command("restore", "--data", to, "--litestream", config)
		if err != nil {
			t.Fatalf("restore: %v\n%s", err, restored)
		}
		behind, lost, kept := l.compare(t, to, began)
		behindMost = max(behindMost, behind)
		t.Logf("cycle %d, in order %v: %d acknowledged events of it are there, %d are lost, the oldest of them %s before the end", n, orderly, kept, lost, behind.Round(time.Millisecond))
		switch {
		case orderly && lost > 0:
			t.Errorf("%d acknowledged events were lost by an end in order", lost)
		case behind > mostBehind:
			t.Errorf("the copy is %s behind, and may be %s", behind, mostBehind)
		case kept == 0:
			t.Error("nothing was kept")
		}
		faults, err := databaseFaults(to)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range faults {
			t.Errorf("the restored copy: %s", fault)
		}
	}
	t.Logf("at most %s behind in %d cycles", behindMost.Round(time.Millisecond), *replicaDrills)

	// A point in time: what had been acknowledged up to the second before is
	// there, and nothing that was published after.
	at := middle.Truncate(time.Second)
	to := filepath.Join(t.TempDir(), "earlier")
	if out, err := in.command("restore", "--data", to, "--litestream", config, "--at", at.UTC().Format(time.RFC3339)); err != nil {
		t.Fatalf("restore --at: %v\n%s", err, out)
	}
	earlier := rowsOf(t, to)
	for row := range earlier {
		if f := strings.Fields(row); f[0] == "event" && !l.acks[f[3]].IsZero() && !known[f[3]] {
			t.Errorf("the state of %s has an event that was acknowledged at %s", at, l.acks[f[3]])
			break
		}
	}
	missing := 0
	for id, acked := range l.acks {
		if at.Sub(acked) > time.Second && !rowsHave(earlier, id) {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("the state of %s lacks %d events that were acknowledged more than a second before", at, missing)
	}

	// Litestream's own command restores the same.
	own := filepath.Join(t.TempDir(), "service.db")
	cmd := exec.Command(gateway.litestream, "restore", "-config", config, "-o", own, filepath.Join(data, "service.db"))
	cmd.Env = append(cleanEnvironment(), "AWS_CA_BUNDLE=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("litestream restore: %v\n%s", err, out)
	}
	if behind, lost, _ := l.compare(t, filepath.Dir(own), time.Now()); lost > 0 {
		t.Errorf("what Litestream's command restored lacks %d events (%s)", lost, behind)
	}

	// And the service itself, on the empty directory, with deliveries held.
	run := in.mustStart()
	out, err = in.command("release", "--data", data)
	if err != nil || !strings.Contains(out, "are sent") {
		t.Errorf("release: %v, %s", err, out)
	}
	if status := in.stop(run); status != exitDone {
		t.Errorf("exit status %d after SIGTERM, want %d", status, exitDone)
	}
	if _, lost, _ := l.compare(t, data, time.Now()); lost > 0 {
		t.Errorf("the service that restored itself lacks %d events", lost)
	}
}

func rowsHave(rows map[string]bool, eventID string) bool {
	for row := range rows {
		if strings.HasSuffix(row, eventID) {
			return true
		}
	}
	return false
}

// testReplicaUnreachable starts the service with a replica that is not there,
// and has somebody else open its database and close it: nothing is lost. When the
// replica comes, it holds everything.
func testReplicaUnreachable(t *testing.T, binary string, tools func() (string, error)) {
	gateway := newGateway(t, tools)
	gateway.kill()
	sqlite, err := exec.LookPath("sqlite3")
	if err != nil {
		if required("sqlite3") {
			t.Fatal(err)
		}
		t.Skip("NOT TESTED: a database that somebody else opens, which needs sqlite3")
	}
	data := t.TempDir()
	in := newInstance(t, binary, data, "--litestream", writeReplica(t, data, "100ms", gateway.replica()...), "--log-level", "warn")
	token := in.token("acme")
	run := in.mustStart()
	l := &ledger{sent: make(map[string]bool), acks: make(map[string]time.Time)}
	ctx, cancel := context.WithCancel(t.Context())
	rest := l.load(ctx, in, token, 2)
	for range 4 {
		<-time.After(250 * time.Millisecond)
		if out, err := exec.Command(sqlite, filepath.Join(data, "service.db"), "SELECT count(*) FROM events").CombinedOutput(); err != nil {
			t.Fatalf("sqlite3: %v\n%s", err, out)
		}
	}
	in.kill(run)
	cancel()
	rest()
	if _, lost, kept := l.compare(t, copyDatabase(t, data), time.Now()); lost > 0 || kept == 0 {
		t.Errorf("%d acknowledged events are lost, %d are there", lost, kept)
	}
	info, err := os.Stat(filepath.Join(data, "service.db-wal"))
	if err != nil || info.Size() > 100<<20 {
		t.Errorf("the log has %d bytes (%v)", info.Size(), err)
	}

	run = in.mustStart()
	gateway.start()
	in.awaitReplica("running")
	if status := in.stop(run); status != exitDone {
		t.Errorf("exit status %d after SIGTERM, want %d", status, exitDone)
	}
	to := filepath.Join(t.TempDir(), "restored")
	t.Setenv("AWS_ACCESS_KEY_ID", gatewayKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", gatewaySecret)
	if out, err := in.command("restore", "--data", to, "--from", gateway.url()); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	if _, lost, _ := l.compare(t, to, time.Now()); lost > 0 {
		t.Errorf("the replica lacks %d events", lost)
	}
}

// awaitReplica waits until /readyz shows the replica in a state, all in it.
func (in *instance) awaitReplica(state string) {
	in.tb.Helper()
	base, _ := in.await(context.Background())
	deadline := time.After(60 * time.Second)
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		var answer struct {
			Data struct {
				Replica struct {
					State string
					Lag   float64 `json:"lag_seconds"`
				}
			}
		}
		resp, err := in.client.Get(base + "/readyz")
		if err == nil {
			err = json.NewDecoder(resp.Body).Decode(&answer)
			resp.Body.Close()
		}
		if r := answer.Data.Replica; err == nil && r.State == state && r.Lag == 0 {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			in.tb.Fatalf("the replica is not %s: %+v, %v", state, answer, err)
		}
	}
}

// testReplicaHeld restores a service with a delivery that has not ended: nothing
// but pings is sent until it is released.
func testReplicaHeld(t *testing.T, binary string) {
	arrivals := make(chan string, 100) // the names of what arrives
	receiver := listenLoopback(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		name := "event"
		if strings.Contains(string(body), `"name":"ping"`) {
			name = "ping"
		}
		arrivals <- name
		if name == "event" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	arrival := func(want string) {
		t.Helper()
		select {
		case got := <-arrivals:
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no %s has arrived", want)
		}
	}
	data, replica := t.TempDir(), t.TempDir()
	in := newInstance(t, binary, data, "--litestream", writeReplica(t, data, "50ms", "path: "+replica), "--restore-hold", "1h", "--retry-schedule", "300ms,1h,1h,1h", "--retry-jitter", "0")
	token := in.token("acme")
	run := in.mustStart()
	subscription := in.subscribe(token, newSubscription{URL: receiver, Events: eventList("content_updated")})
	arrival("ping")
	base, _ := in.await(t.Context())
	event := map[string]any{"name": "content_updated", "version": "1", "content_id": 7}
	if status, err := in.call(t.Context(), token, "POST", base+"/v2/events", event, nil); err != nil || status != http.StatusCreated {
		t.Fatalf("publish: status %d, %v", status, err)
	}
	arrival("event")
	if status := in.stop(run); status != exitDone {
		t.Fatalf("exit status %d after SIGTERM, want %d", status, exitDone)
	}
	if err := os.Remove(filepath.Join(data, "service.db")); err != nil {
		t.Fatal(err)
	}
	run = in.mustStart()
	base, _ = in.await(t.Context())
	if status, err := in.call(t.Context(), token, "POST", base+"/v2/webhooks/subscriptions/"+subscription+"/ping", nil, nil); err != nil || status != http.StatusOK {
		t.Errorf("ping: status %d, %v", status, err)
	}
	arrival("ping")
	select {
	case got := <-arrivals:
		t.Errorf("a delivery that is held has arrived: %s", got)
	case <-time.After(time.Second): // its retry was due long before
	}
	if out, err := in.command("release", "--data", data); err != nil {
		t.Fatalf("release: %v\n%s", err, out)
	}
	arrival("event")
	if status := in.stop(run); status != exitDone {
		t.Errorf("exit status %d after SIGTERM, want %d", status, exitDone)
	}
	if !strings.Contains(run.log.String(), "1 delivery") && !strings.Contains(run.log.String(), "deliveries=1") {
		t.Errorf("the log does not say how many deliveries may be sent again:\n%s", &run.log)
	}
}

// testReplicaFlatOut publishes without rest: the log stays short.
func testReplicaFlatOut(t *testing.T, binary string) {
	data, replica := t.TempDir(), t.TempDir()
	in := newInstance(t, binary, data, "--litestream", writeReplica(t, data, "500ms", "path: "+replica), "--log-level", "warn")
	token := in.token("acme")
	run := in.mustStart()
	in.awaitReplica("running")
	most := watchSize(t, filepath.Join(data, "service.db-wal"))
	n := in.publishFor(t.Context(), token, *replicaFlat)
	t.Logf("%d events in %s; the log had at most %.1f MB", n, *replicaFlat, float64(most())/1e6)
	if most() > 100e6 {
		t.Errorf("the log had %d bytes", most())
	}
	if status := in.stop(run); status != exitDone {
		t.Errorf("exit status %d after SIGTERM, want %d", status, exitDone)
	}
}

// publishFor publishes batches by eight publishers for some time, and returns how
// many events were acknowledged.
func (in *instance) publishFor(ctx context.Context, token string, d time.Duration) (events int64) {
	in.tb.Helper()
	base, _ := in.await(ctx)
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	var working sync.WaitGroup
	for range 8 {
		working.Go(func() {
			for ctx.Err() == nil {
				var all []json.RawMessage
				for range 200 {
					all = append(all, json.RawMessage(`{"name":"content_updated","version":"1","content_id":7}`))
				}
				status, err := in.call(context.WithoutCancel(ctx), token, "POST", base+"/v2/events", map[string]any{"events": all}, nil)
				if err != nil || status != http.StatusCreated {
					in.tb.Errorf("publish: status %d, %v", status, err)
					return
				}
				mu.Lock()
				events += int64(len(all))
				mu.Unlock()
			}
		})
	}
	working.Wait()
	return events
}

// BenchmarkReplica publishes flat out without a replica and with one, in turn,
// and reports the ratio of the medians of both.
func BenchmarkReplica(b *testing.B) {
	binary := buildBinary(b)
	data, replica := b.TempDir(), b.TempDir()
	config := writeReplica(b, data, "500ms", "path: "+replica)
	newInstance(b, binary, data).token("acme")
	var rates [2][]float64
	for range max(3, b.N) {
		for i, name := range []string{"off", config} {
			in := newInstance(b, binary, data, "--litestream", name, "--log-level", "warn")
			token := in.token("acme")
			run := in.mustStart()
			if i == 1 {
				in.awaitReplica("running")
			}
			n := in.publishFor(b.Context(), token, 5*time.Second)
			rates[i] = append(rates[i], float64(n)/5)
			in.kill(run)
		}
	}
	b.ReportMetric(median(rates[0]), "events/s-without")
	b.ReportMetric(median(rates[1]), "events/s-with")
	b.ReportMetric(median(rates[1])/median(rates[0]), "ratio")
}

// gateway is a real S3 server on a folder, a process of its own.
type gateway struct {
	tb         testing.TB
	binary     string
	litestream string // Litestream's own command
	dir        string
	address    string
	cmd        *exec.Cmd
}

// newGateway starts an S3 server with an empty bucket.
func newGateway(tb testing.TB, tools func() (string, error)) *gateway {
	tb.Helper()
	dir, err := tools()
	if err != nil {
		if required("s3") {
			tb.Fatal(err)
		}
		tb.Skip(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		tb.Fatal(err)
	}
	l.Close()
	g := &gateway{tb: tb, binary: filepath.Join(dir, "versitygw"), litestream: filepath.Join(dir, "litestream"), dir: tb.TempDir(), address: l.Addr().String()}
	if err := os.Mkdir(filepath.Join(g.dir, "bucket"), 0o700); err != nil {
		tb.Fatal(err)
	}
	g.start()
	tb.Cleanup(g.kill)
	return g
}

// replicaTools builds the S3 server and Litestream's command in a folder of the
// test, once. They have a module of their own, testdata/replica: what they need
// is not the service's to carry.
func replicaTools(tb testing.TB) func() (string, error) {
	dir := tb.TempDir()
	return sync.OnceValues(func() (string, error) { return dir, buildReplicaTools(dir) })
}

func buildReplicaTools(dir string) error {
	cmd := exec.Command("go", "build", "-o", dir+"/", "github.com/benbjohnson/litestream/cmd/litestream", "github.com/versity/versitygw/cmd/versitygw")
	cmd.Dir = filepath.Join("testdata", "replica")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // with either driver the same, so that it is in the cache
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the S3 server cannot be built: %w\n%s", err, out)
	}
	return nil
}

const gatewayKey, gatewaySecret = "replica-access", "replica-secret"

// start starts the server on its folder and waits until it answers.
func (g *gateway) start() {
	g.tb.Helper()
	g.cmd = exec.Command(g.binary, "--port", g.address, "--access", gatewayKey, "--secret", gatewaySecret, "posix", g.dir)
	g.cmd.Stdout, g.cmd.Stderr = io.Discard, io.Discard
	if err := g.cmd.Start(); err != nil {
		g.tb.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		conn, err := net.Dial("tcp", g.address)
		if err == nil {
			conn.Close()
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			g.tb.Fatalf("the S3 server does not answer: %v", err)
		}
	}
}

// kill ends the server with SIGKILL.
func (g *gateway) kill() {
	if g.cmd != nil {
		g.cmd.Process.Kill()
		g.cmd.Wait()
		g.cmd = nil
	}
}

// replica are the lines of the configuration of a replica on the server.
func (g *gateway) replica() []string {
	return []string{"type: s3", "bucket: bucket", "path: service", "endpoint: http://" + g.address, "region: us-east-1", "access-key-id: " + gatewayKey, "secret-access-key: " + gatewaySecret}
}

// url is the same replica as a URL, credentials aside.
func (g *gateway) url() string {
	return fmt.Sprintf("s3://bucket/service?endpoint=http://%s&region=us-east-1&forcePathStyle=true", g.address)
}

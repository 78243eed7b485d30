//go:build linux

package matrix

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
)

// machine is a data directory with a proxy to the bucket and its own clocks.
type machine struct {
	name    string
	dir     string // the working directory of its processes
	in      *harness.Instance
	proxy   *harness.Proxy
	clock   *harness.Clock
	config  string // path of the Litestream configuration
	process *harness.Process
	shift   time.Duration // how far its wall clock is off
}

// setClock sets the wall clock of a machine.
func (m *machine) setClock(shift time.Duration) {
	m.shift = shift
	m.clock.Set(shift, 0)
}

// checkClock checks that the process uses the time that the test set.
func (c *cell) checkClock(m *machine) {
	c.t.Helper()
	resp, err := m.in.Client.Get(m.in.URL() + "/healthz")
	if err != nil {
		c.t.Fatal(err)
	}
	resp.Body.Close()
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if wrong := date.Sub(time.Now().Add(m.shift)).Abs(); err != nil || wrong > harness.Scale(10*time.Second) {
		c.t.Errorf("clock of the %s: got %s off what the test set, %v", m.name, wrong, err)
	}
}

// cell is a primary, its standby and a subscriber, to which one fault happens.
type cell struct {
	t       *testing.T
	fault   *fault
	ack     string // value of --acknowledge; "" for a binary without the flag
	binary  string
	gateway *harness.Gateway
	path    string // of the replica in the bucket

	one, two *machine
	receiver *receiver
	leases   *leaseLog
	token    string
	load     load
	working  sync.WaitGroup
	ctx      context.Context // ends with the load
	cancel   context.CancelFunc

	struck    time.Time // when the fault started
	killed    time.Time // when the test killed the primary that survived the fault, or zero
	recovered time.Time // when the fault ended, or zero
	result    *result
}

// newCell starts the machines and the load.
func newCell(t *testing.T, g *harness.Gateway, f *fault, ack, name string) *cell {
	c := &cell{t: t, fault: f, ack: ack, gateway: g, binary: harness.Build(t), load: load{sent: make(map[string]bool),
		refused: make(map[string]int)}}
	if f.clocks {
		c.binary = harness.BuildFaulty(t)
	}
	usual := c.binary
	if f.binary != "" {
		c.binary = f.binary
	}
	c.path = strings.NewReplacer(" ", "-", "+", "ahead-", "/", "-", ",", "").Replace(name)
	c.receiver = newReceiver(t)
	c.leases = newLeaseLog(t, filepath.Join(g.Dir, "bucket", c.path, "lock.json"))
	c.ctx, c.cancel = context.WithCancel(context.Background())
	t.Cleanup(c.stopLoad)
	c.one, c.two = c.machine("primary"), c.machine("standby")
	c.token = c.one.in.Token("p")
	c.start(c.one, "serve", c.leaseFlags()...)
	if !c.one.in.AwaitReady(c.one.process) {
		t.Fatalf("the primary exited:\n%s", &c.one.process.Log)
	}
	c.one.in.Subscribe(c.token, harness.Subscription{URL: c.receiver.url, Events: harness.Events("content_updated")})
	c.copyKey(c.one, c.two)
	c.binary, c.two.in.Binary = usual, usual
	c.start(c.two, "serve", c.leaseFlags()...)
	c.announce(c.two)
	for _, m := range []*machine{c.one, c.two} {
		for range publishers {
			c.working.Go(func() { c.load.publish(c.ctx, m, c.token) })
		}
	}
	return c
}

func (c *cell) stopLoad() {
	c.cancel()
	c.working.Wait()
}

// machine returns a machine on which no process runs yet.
func (c *cell) machine(name string) *machine {
	m := &machine{name: name, dir: c.t.TempDir(), proxy: harness.NewProxy(c.t, c.gateway.Address)}
	data := filepath.Join(m.dir, "data")
	if c.fault.clocks {
		m.clock = harness.NewClock(c.t, m.dir)
	}
	m.config = c.litestream(m.dir, data, m.proxy.Address)
	m.in = harness.NewInstance(c.t, c.binary, data, "--litestream", m.config, "--batch-size", "5", "--grace", "2s",
		"--retry-schedule", "100ms,200ms,400ms,800ms", "--log-level", "warn")
	// Without a timeout, so that even a late acknowledgement counts.
	m.in.Client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	return m
}

// litestream writes a configuration for a data directory. The upload interval is the
// default. Compactions, snapshots and deletions happen often enough that a short test
// sees each, unless the database is large.
func (c *cell) litestream(dir, data, address string) (name string) {
	c.t.Helper()
	text := "dbs:\n  - path: " + data + "/service.db\n    replica:\n"
	if !c.fault.large {
		text = "levels:\n  - interval: 1s\n  - interval: 3s\nsnapshot:\n  interval: 6s\n  retention: 60s\nl0-retention: " +
			"60s\nl0-retention-check-interval: 1s\n" + text
	}
	for _, line := range c.gateway.Replica(address, c.path) {
		text += "      " + line + "\n"
	}
	name = filepath.Join(dir, "litestream.yml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return name
}

func (c *cell) leaseFlags() []string {
	flags := []string{"--lease", lease().String()}
	if c.ack != "" {
		flags = append(flags, "--acknowledge", c.ack)
	}
	return flags
}

// start starts a command of the service on a machine. Publishers use it as soon as it
// serves.
func (c *cell) start(m *machine, command string, flags ...string) {
	c.t.Helper()
	cmd := exec.Command(c.binary, append(m.in.Args(command), flags...)...)
	cmd.Dir, cmd.Env = m.dir, harness.Environment()
	m.process = m.in.Launch(cmd)
	c.receiver.know(m.process.PID(), m.name)
}

// announce gives publishers the URL of a machine once it serves.
func (c *cell) announce(m *machine) {
	p := m.process
	c.working.Go(func() {
		select {
		case base := <-p.URL:
			m.in.SetURL(base)
		case <-p.Exited:
		case <-c.ctx.Done():
		}
	})
}

// copyKey copies the secret key of one machine to another.
func (c *cell) copyKey(from, to *machine) {
	c.t.Helper()
	key := harness.Read(c.t, filepath.Join(from.in.Data, "secret.key"))
	err := os.MkdirAll(to.in.Data, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(to.in.Data, "secret.key"), key, 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// warmUp waits until the standby follows and the replica has files of every
// compaction level.
func (c *cell) warmUp() {
	c.t.Helper()
	c.await("the standby to follow", func() bool { return c.position() != "" })
	began := time.Now()
	c.await("acknowledgements after three seconds of load", func() bool {
		_, ok := c.load.after(c.one.name, began.Add(3*time.Second))
		return ok
	})
}

// run causes the fault and checks the result.
func (c *cell) run() {
	c.warmUp()
	c.struck = time.Now()
	c.fault.strike(c)
	if c.t.Failed() {
		return
	}
	if !c.fault.deposes {
		c.survive()
	}
	c.settle()
}

// survive checks that the primary still serves and the standby does not, and then kills
// the primary.
func (c *cell) survive() {
	c.t.Helper()
	now := time.Now()
	c.await("the primary to accept events", func() bool {
		c.checkNoTakeover()
		_, ok := c.load.after(c.one.name, now)
		return ok
	})
	c.killed = time.Now()
	c.one.in.Kill(c.one.process)
	c.awaitTakeover(c.killed)
}

// checkNoTakeover fails the test if the standby serves or a process has exited.
func (c *cell) checkNoTakeover() {
	c.t.Helper()
	writes := c.leases.all()
	if len(writes) > 0 && writes[len(writes)-1].Owner != writes[0].Owner {
		after := writes[len(writes)-1].at.Sub(c.struck).Round(time.Millisecond)
		c.t.Fatalf("another service took the lease %s after the fault while the primary was running", after)
	}
	for _, m := range []*machine{c.one, c.two} {
		select {
		case <-m.process.Exited:
			c.t.Fatalf("the %s exited with status %d:\n%s", m.name, m.process.Status, &m.process.Log)
		default:
		}
	}
}

// hold waits and checks that nothing happens.
func (c *cell) hold(d time.Duration) {
	c.t.Helper()
	began := time.Now()
	c.await("the time in which the standby must not take over", func() bool {
		c.checkNoTakeover()
		return time.Since(began) > d
	})
}

// awaitTakeover waits until the standby has accepted an event, and checks how long
// after the fault that was.
func (c *cell) awaitTakeover(gone time.Time) {
	c.t.Helper()
	most := lease() + harness.Scale(4*time.Second) + c.fault.longer
	var first ack
	defer func() {
		if c.t.Failed() {
			c.logReplica()
		}
	}()
	c.await("the standby to accept an event", func() bool {
		select {
		case <-c.two.process.Exited:
			c.t.Fatalf("the standby exited with status %d:\n%s", c.two.process.Status, &c.two.process.Log)
		default:
		}
		var ok bool
		first, ok = c.load.after(c.two.name, gone)
		return ok
	})
	c.result.takeover = first.at.Sub(gone)
	c.checkClock(c.two)
	if c.result.takeover > most {
		c.t.Errorf("first event accepted by the standby: got %s after the fault, want at most %s", c.result.takeover.Round(time.Millisecond),
			most)
	}
}

// logReplica logs the objects of the replica and the position of the standby's
// copy.
func (c *cell) logReplica() {
	c.t.Helper()
	out, err := exec.Command("find", filepath.Join(c.gateway.Dir, "bucket", c.path), "-type", "f", "-printf", "%T+ %P\n").Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	lines = lines[max(0, len(lines)-40):]
	c.t.Logf("position of the standby's copy: %q; objects of the replica (%v):\n%s", c.position(), err, strings.Join(lines, "\n"))
}

// awaitDeposed waits until the old primary, which is running again, has noticed that it lost its
// lease, and follows. Then it stops the old primary, so that only the new primary remains.
func (c *cell) awaitDeposed() {
	c.t.Helper()
	c.recovered = time.Now()
	c.one.in.AwaitStandby(c.one.process)
	c.one.in.MustStop(c.one.process)
}

// signal sends a signal to the primary.
func (c *cell) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.one.process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// clone returns a machine with a copy of the running primary's data, as after cloning a
// virtual machine.
func (c *cell) clone(name string) *machine {
	c.t.Helper()
	m := c.machine(name)
	c.signal(syscall.SIGSTOP)
	defer c.signal(syscall.SIGCONT)
	harness.Copy(c.t, c.one.in.Data, m.in.Data)
	return m
}

// mustRefuse starts a service while the primary runs. It must exit and report that
// another service holds the lease.
func (c *cell) mustRefuse(m *machine, flags ...string) {
	c.t.Helper()
	c.start(m, "serve", flags...)
	select {
	case <-m.process.Exited:
	case base := <-m.process.URL:
		c.t.Fatalf("the %s serves at %s", m.name, base)
	case <-time.After(harness.Timeout()):
		c.t.Fatalf("the %s neither serves nor exits", m.name)
	}
	if log := m.process.Log.String(); m.process.Status != harness.ExitFailed || !strings.Contains(log, "another service holds the lease") {
		c.t.Errorf("%s: got exit status %d, want an error about the lease:\n%s", m.name, m.process.Status, log)
	}
}

// mustFollow starts a node while the primary runs. It must follow.
func (c *cell) mustFollow(m *machine, flags ...string) {
	c.t.Helper()
	c.start(m, "serve", flags...)
	m.in.AwaitStandby(m.process)
	m.in.MustStop(m.process)
}

// result is a row of the table.
type result struct {
	name, ack   string
	failed      bool
	takeover    time.Duration // from the fault to the first event accepted by the standby
	acked, lost int
	oldest      time.Duration // how long before the fault the first lost event was acknowledged
	repeated    int           // events that both machines sent
	late        int           // deliveries that arrived within the tolerance after a lease expired
	lateAcks    int           // acknowledgements after a lease expired, of events sent before
	unknown     int           // deliveries from an unknown sender
}

const tableHead = "| fault | acknowledge | result | takeover | acknowledged | lost | first lost before the end | sent by both | late " +
	"requests | late acknowledgements | requests of unknown senders |\n|---|---|---|---|---|---|---|---|---|---|---|"

func (r *result) String() string {
	state := "ok"
	if r.failed {
		state = "**failed**"
	}
	return fmt.Sprintf("| %s | %s | %s | %.1f s | %d | %d | %.1f s | %d | %d | %d | %d |", r.name, r.ack, state, r.takeover.Seconds(), r.acked,
		r.lost, r.oldest.Seconds(), r.repeated, r.late, r.lateAcks, r.unknown)
}
